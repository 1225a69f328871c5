/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_disk.c - one path of the NVMe tier: opened, judged by how its I/O ends, probed when it is in
 * trouble; and its transfers. States and invariants: nvme_disk.h. Core thread only.
 *
 * A transfer:
 *	free ──start──> lent ──────────────────────────── done ──> free, the xfer ends
 *	                  └── given up: the xfer ends, kept ──done──> free, release(home)
 *
 * A write that is to be coded is lent, too, while its record is made, and is appended then. If the
 * log has no room at that moment, it waits for the next poll, while the disk takes writes; it does
 * not wait for the write budget, which may take hours, and was asked before. A
 * coded record that was read is undone before its xfer ends; nobody waits for it once it was given
 * up, but its buffer is not free before.
 */
#include "nvme_disk.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/list.h"
#include "base/loop.h"
#include "nvme_file.h"

/* --- transfers --- */

static int transfers_open(struct nvme_disk *d, uint32_t n)
{
	d->transfers = calloc(n, sizeof(*d->transfers));
	if (!d->transfers)
		return -ENOMEM;
	d->n_transfers = n;
	for (uint32_t i = n; i-- > 0;) {
		d->transfers[i].disk = d;
		d->transfers[i].next_free = d->free;
		d->free = &d->transfers[i];
	}
	return 0;
}

static void transfers_close(struct nvme_disk *d)
{
	for (uint32_t i = 0; i < d->n_transfers; i++)
		assert(!d->transfers[i].lent);
	free(d->transfers);
	d->transfers = d->free = NULL;
	d->n_transfers = 0;
}

/* Frees the transfer. Returns its xfer; NULL: the xfer was given up. */
static struct xfer *retire(struct nvme_transfer *t)
{
	struct xfer *x = t->x;

	assert(t->lent);
	t->disk->cancels -= t->cancelled;
	t->x = NULL;
	t->lent = t->cancelled = false;
	t->next_free = t->disk->free;
	t->disk->free = t;
	return x;
}

static void end_read(struct nvme_transfer *t, int status)
{
	const struct nvme_events *events = &t->disk->conf->events;
	const struct nvme_read *read = &t->io.read;
	const struct extent home = t->home;
	struct xfer *x = retire(t);

	if (!x) {
		if (events->release)
			events->release(events->arg, &home);
		return;
	}
	if (!status)
		memcpy(x->record.parent, read->parent, sizeof(x->record.parent));
	tier_complete(x, status);
}

static void undone(struct nvme_coder *coder)
{
	struct nvme_transfer *t = container_of(coder, struct nvme_transfer, coder);

	t->disk->coding--;
	end_read(t, coder->status);
}

static void read_done(struct nvme_read *read)
{
	struct nvme_transfer *t = (struct nvme_transfer *)(void *)read;
	int r = read->status;

	if (!r && read->coded_bytes && t->x) {
		r = nvme_coder_unpack(t->disk->coders, &t->coder, read->buffer, read->bytes,
				      read->coded_bytes, undone);
		if (r == 0) {
			t->disk->coding++;
			return;
		}
	}
	end_read(t, r);
}

static void append_done(struct nvme_append *append)
{
	struct nvme_transfer *t = (struct nvme_transfer *)(void *)append;
	struct xfer *x;

	nvme_coder_free(&t->coder);
	x = retire(t);
	if (!append->status)
		x->where = nvme_location_extent(append->location);
	tier_complete(x, append->status);
}

static int start_read(struct nvme_transfer *t, struct xfer *x)
{
	struct nvme_read *read = &t->io.read;

	memset(read, 0, sizeof(*read));
	read->location = nvme_extent_location(&x->where);
	read->buffer = x->buffer;
	read->bytes = x->bytes;
	read->done = read_done;
	return nvme_log_read(t->disk->log, read);
}

static int start_append(struct nvme_transfer *t, struct xfer *x)
{
	struct nvme_disk *d = t->disk;
	struct nvme_append *append = &t->io.append;
	const struct nvme_counters *counters = &nvme_log_facts(d->log)->counters;
	const uint64_t before = counters->refused_budget;
	int r;

	memset(append, 0, sizeof(*append));
	append->image = t->coder.record ? t->coder.record : x->buffer;
	append->bytes = x->bytes;
	append->coded_bytes = t->coder.record ? t->coder.coded_bytes : 0;
	append->tick = x->record.tick;
	append->done = append_done;
	memcpy(append->owner, x->record.owner, sizeof(append->owner));
	memcpy(append->parent, x->record.parent, sizeof(append->parent));
	r = nvme_log_append(d->log, append);
	if (r == -EAGAIN) {
		d->refused_budget = counters->refused_budget != before;
		d->refused = !d->refused_budget;
	}
	return r;
}

/* The append of a write that is lent already. */
static void append_late(struct nvme_transfer *t)
{
	struct nvme_disk *d = t->disk;
	int r = nvme_disk_writable(d) ? start_append(t, t->x) : -EROFS;

	if (r == -EAGAIN && d->refused_budget) /* headers and footers were faster */
		r = -EDQUOT;
	if (r == -EAGAIN) {
		d->waiting += !t->waits;
		t->waits = true;
		return;
	}
	d->waiting -= t->waits;
	d->coding_bytes -= t->coder.bytes;
	t->waits = false;
	if (r) {
		nvme_coder_free(&t->coder);
		tier_complete(retire(t), r);
	}
}

static void made(struct nvme_coder *coder)
{
	struct nvme_transfer *t = container_of(coder, struct nvme_transfer, coder);

	t->disk->coding--;
	t->x->codec = coder->codec;
	append_late(t);
}

/* In the order in which they were submitted as far as that is known: by their places. */
static void append_waiting(struct nvme_disk *d)
{
	for (uint32_t i = 0; i < d->n_transfers && d->waiting; i++)
		if (d->transfers[i].waits)
			append_late(&d->transfers[i]);
}

static int start_write(struct nvme_transfer *t, struct xfer *x)
{
	struct nvme_disk *d = t->disk;

	t->coder = (struct nvme_coder){ 0 };
	if ((!d->coders->compress && !x->codec) ||
	    !nvme_log_affords(d->log, x->bytes + d->coding_bytes) ||
	    !nvme_coder_pack(d->coders, &t->coder, x->buffer, x->bytes, x->codec, made)) {
		x->codec = 0;
		return start_append(t, x);
	}
	d->coding++;
	d->coding_bytes += x->bytes;
	return 0;
}

int nvme_transfer_start(struct nvme_disk *d, struct xfer *x)
{
	struct nvme_transfer *t = d->free;
	int r;

	if (!t) {
		d->refused = d->refused || x->op == XFER_WRITE;
		return -EAGAIN;
	}
	r = x->op == XFER_READ ? start_read(t, x) : start_write(t, x);
	if (r)
		return r;
	d->free = t->next_free;
	t->x = x;
	t->home = x->home;
	t->lent = true;
	t->cancelled = false;
	t->is_read = x->op == XFER_READ;
	return 0;
}

bool nvme_transfer_cancel(struct nvme_disk *d, struct xfer *x)
{
	for (uint32_t i = 0; i < d->n_transfers; i++) {
		struct nvme_transfer *t = &d->transfers[i];

		if (!t->lent || t->x != x)
			continue;
		if (!t->is_read)
			return false;
		d->cancels += !t->cancelled;
		t->cancelled = true;
		return true;
	}
	return false;
}

/* The owner of an xfer that ends here may start and cancel other xfers: each transfer is looked at
 * afresh. */
static void nvme_transfers_give_up(struct nvme_disk *d, bool all, int status)
{
	for (uint32_t i = 0; i < d->n_transfers; i++) {
		struct nvme_transfer *t = &d->transfers[i];
		struct xfer *x = t->x;

		if (!t->lent || !x || !t->is_read || !(all || t->cancelled))
			continue;
		d->cancels -= t->cancelled;
		t->cancelled = false;
		t->x = NULL;
		x->kept = true;
		tier_complete(x, status);
	}
}

enum { FAILURES = 3 }; /* in a row: one error may be one bad sector */

#define SECOND_NS      1000000000ull
#define FIRST_PROBE_NS SECOND_NS        /* after the trouble began */
#define LAST_PROBE_NS  (30 * SECOND_NS) /* the longest wait between two probes */
#define CALM_NS        (60 * SECOND_NS) /* up for so long: probing starts at its first pace again */

static struct nvme_disk *disk_of(struct nvme_medium *medium)
{
	return (struct nvme_disk *)(void *)medium; /* its first member */
}

/* --- states --- */

static void set_state(struct nvme_disk *d, enum tier_state state)
{
	d->state = state;
	d->reads_failed = d->writes_failed = 0;
	d->changed = true;
	if (d->log)
		nvme_log_pause(d->log, state != TIER_UP && state != TIER_STARTING);
}

static void up(struct nvme_disk *d)
{
	d->text[0] = '\0';
	d->up_ns = loop_now(d->loop);
	d->probes_failed = 0;
	set_state(d, nvme_log_facts(d->log)->state == NVME_STARTING ? TIER_STARTING : TIER_UP);
}

/* Each wait is twice the last one, and up to a quarter longer or shorter by chance: many daemons
 * may probe the same storage. */
static void plan_probe(struct nvme_disk *d)
{
	const uint64_t now = loop_now(d->loop);

	if (!d->probe_wait_ns || (d->up_ns && now - d->up_ns > CALM_NS))
		d->probe_wait_ns = FIRST_PROBE_NS;
	d->probe_due_ns = now + d->probe_wait_ns - d->probe_wait_ns / 4 +
			  (now / 1000 + d->number) * 0x9e3779b97f4a7c15u % (d->probe_wait_ns / 2);
	d->probe_wait_ns =
		d->probe_wait_ns < LAST_PROBE_NS / 2 ? 2 * d->probe_wait_ns : LAST_PROBE_NS;
	d->up_ns = 0;
}

__attribute__((format(printf, 3, 4))) static void down(struct nvme_disk *d, enum tier_state state,
						       const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)vsnprintf(d->text, sizeof(d->text), format, args);
	va_end(args);
	plan_probe(d);
	set_state(d, state);
}

static void refuse(struct nvme_disk *d, const char *text)
{
	(void)snprintf(d->text, sizeof(d->text), "%s", text);
	d->for_good = true;
	set_state(d, TIER_OFFLINE);
}

bool nvme_disk_readable(const struct nvme_disk *d)
{
	return d->log && d->state != TIER_OFFLINE && nvme_log_facts(d->log)->state != NVME_FAILED;
}

bool nvme_disk_writable(const struct nvme_disk *d)
{
	return d->log && nvme_log_facts(d->log)->state == NVME_UP && d->state == TIER_UP;
}

/* --- how I/O ends --- */

/* A block device that was pulled has 0 bytes: reads meet its end, and writes find no space. A thin
 * device that is full refuses a write likewise, but still has its size. */
static bool is_gone(const struct nvme_disk *d, const struct io_op *op)
{
	if (op->status == -ENODEV || op->status == -ENXIO)
		return true;
	return op->status == (op->kind == IO_READ ? -ENODATA : -ENOSPC) &&
	       nvme_file_is_shell(&d->file);
}

static void gone(struct nvme_disk *d)
{
	down(d, TIER_OFFLINE,
	     "the disk is gone: its blocks are misses until it is at this path again");
}

static bool is_refusal(int status)
{
	return status == -ENOSPC || status == -EROFS || status == -EDQUOT || status == -EFBIG ||
	       status == -EPERM;
}

static void readonly(struct nvme_disk *d, int status)
{
	down(d, TIER_READONLY, "writes fail (%s): nothing new is kept here until one succeeds; %s",
	     strerror(-status),
	     status == -ENOSPC || status == -EDQUOT ? "make room on the file system" :
						      "look at the disk");
}

static void read_ended(struct nvme_disk *d, int status)
{
	if (!status)
		d->reads_failed = 0;
	else if (++d->reads_failed >= FAILURES)
		down(d, TIER_OFFLINE,
		     "reads fail (%s): its blocks are misses until a probe succeeds; look at the "
		     "disk",
		     strerror(-status));
}

static void write_ended(struct nvme_disk *d, int status, bool data)
{
	if (!status)
		d->writes_failed = data ? 0 : d->writes_failed;
	else if (d->state == TIER_UP && (is_refusal(status) || ++d->writes_failed >= FAILURES))
		readonly(d, status);
}

/* A log that starts judges its own I/O. */
static void medium_ended(struct nvme_medium *medium, const struct io_op *op)
{
	struct nvme_disk *d = disk_of(medium);

	if (nvme_log_facts(d->log)->state == NVME_STARTING ||
	    (op->status && d->state == TIER_OFFLINE))
		return;
	if (is_gone(d, op))
		gone(d);
	else if (op->kind == IO_READ)
		read_ended(d, op->status);
	else
		write_ended(d, op->status, op->kind == IO_WRITE && op->offset >= NVME_DATA_OFFSET);
}

static int medium_submit(struct nvme_medium *medium, struct io_op *op)
{
	struct nvme_disk *d = disk_of(medium);
	const bool starting = nvme_log_facts(d->log)->state == NVME_STARTING;

	if (!starting && d->state == TIER_OFFLINE)
		return -ENODEV;
	if (!starting && d->state == TIER_READONLY && op->kind == IO_WRITE &&
	    op->offset >= NVME_DATA_OFFSET)
		return -EROFS;
	return io_submit(d->io, op);
}

static uint64_t medium_now(struct nvme_medium *medium)
{
	return loop_now(disk_of(medium)->loop);
}

static uint64_t medium_wall(struct nvme_medium *medium)
{
	struct timespec now = { 0 };

	(void)medium;
	(void)clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec;
}

static bool medium_tired(struct nvme_medium *medium)
{
	return loop_tired(disk_of(medium)->loop);
}

/* --- start --- */

/* Only format or the operator can mend this. Any other error may pass. */
static bool needs_operator(int status)
{
	return status == -ENODATA || status == -EMEDIUMTYPE || status == -EPROTONOSUPPORT ||
	       status == -EBADMSG || status == -EUCLEAN || status == -ENOSPC || status == -EINVAL;
}

static void medium_ready(struct nvme_medium *medium, int status)
{
	struct nvme_disk *d = disk_of(medium);
	const char *text = nvme_log_facts(d->log)->text;

	if (!status) {
		d->recovery_ns = loop_now(d->loop) - d->opened_ns;
		d->file.made = d->file.blank = false;
		up(d);
		return;
	}
	if (!needs_operator(status)) {
		down(d, TIER_OFFLINE, "%.180s; tried again until it succeeds", text);
		return;
	}
	d->quarantined = status != -EINVAL;
	if (status == -ENODATA && !d->file.block_device)
		text = "this is no kvtier store, but not empty either, and is left alone: format "
		       "it if nothing on it matters, or correct the path";
	if (d->file.made) /* a store that could not be made is removed */
		(void)unlink(d->path);
	d->file.made = false;
	refuse(d, text);
}

static void start_log(struct nvme_disk *d)
{
	struct nvme_conf conf = {
		.disk_bytes = d->file.bytes,
		.bytes = d->conf->bytes,
		.write_budget_bytes_per_day = d->budget_bytes_per_day,
		.segment_bytes = d->conf->segment_bytes,
		.disk = d->number,
	};

	if (d->file.blank && getrandom(conf.uuid, sizeof(conf.uuid), 0) != sizeof(conf.uuid)) {
		refuse(d, "the system has no random numbers");
		return;
	}
	if (nvme_log_new(&conf, &d->medium, &d->conf->events, &d->log)) {
		refuse(d, "not enough memory");
		return;
	}
	set_state(d, TIER_STARTING);
	if (d->file.blank)
		nvme_log_format(d->log);
	else
		nvme_log_recover(d->log);
}

static int open_io(struct nvme_disk *d)
{
	const struct io_conf conf = {
		.engine = d->conf->engine,
		.read_depth = d->conf->read_depth,
		.write_depth = d->conf->write_depth,
	};
	char text[IO_TEXT_BYTES];
	uint64_t bytes;
	uint8_t *memory = tier_memory(d->conf->host, &bytes);
	int r = io_open(&conf, d->loop, &d->io, text, sizeof(text));

	if (r) {
		refuse(d, text);
		return r;
	}
	r = io_file_set(d->io, d->file.fd);
	if (r)
		refuse(d, "the I/O engine does not take the file");
	else if (memory)
		/* a refusal costs speed alone, and io_note() tells of it */
		(void)io_buffers_add(d->io, memory, bytes);
	return r;
}

void nvme_disk_open(struct nvme_disk *d)
{
	/* To make a large file takes a while. A disk that stalls keeps the daemon waiting for no
	 * longer than this. */
	const uint64_t patience_ns = 20 * SECOND_NS;

	d->medium = (struct nvme_medium){ .submit = medium_submit,
					  .now_ns = medium_now,
					  .wall_s = medium_wall,
					  .tired = medium_tired,
					  .ended = medium_ended,
					  .ready = medium_ready };
	d->opened_ns = loop_now(d->loop);
	d->file.fd = -1;
	d->probe_page = aligned_alloc(NVME_PAGE, NVME_SUPER_COPIES * NVME_PAGE);
	if (!d->probe_page ||
	    transfers_open(d, IO_QUEUES * (d->conf->read_depth + d->conf->write_depth))) {
		refuse(d, "not enough memory");
		return;
	}
	if (nvme_opening_wait(d->path, d->conf->bytes, patience_ns, &d->file, d->text,
			      sizeof(d->text))) {
		d->file.fd = -1;
		d->for_good = true;
		set_state(d, TIER_OFFLINE);
		return;
	}
	if (open_io(d))
		return;
	if (d->file.made)
		/* without it a power cut may lose the file */
		(void)nvme_file_settle(d->path);
	start_log(d);
}

void nvme_disk_close(struct nvme_disk *d)
{
	if (!d->loop)
		return;
	assert(nvme_disk_idle(d));
	nvme_opening_leave(d->opening);
	transfers_close(d);
	nvme_log_free(d->log);
	if (d->io) {
		const int r = io_close(d->io);

		assert(!r);
		(void)r;
	}
	nvme_file_close(&d->file);
	free(d->probe_page);
}

bool nvme_disk_idle(const struct nvme_disk *d)
{
	struct io_load load = { 0 };

	if (d->io)
		io_load(d->io, &load);
	return load.lent == 0 && d->coding == 0 && d->waiting == 0;
}

uint64_t nvme_disk_probe_in(const struct nvme_disk *d)
{
	const uint64_t now = loop_now(d->loop);

	if (!d->log || d->for_good || (d->state != TIER_OFFLINE && d->state != TIER_READONLY))
		return UINT64_MAX;
	return d->probe_due_ns > now ? d->probe_due_ns - now : 0;
}

bool nvme_disk_waits(const struct nvme_disk *d)
{
	return d->changed || d->refused || d->cancels || d->waiting ||
	       (d->log && nvme_log_waits(d->log) && d->state != TIER_OFFLINE);
}

/* --- poll: stalls, probes --- */

/* Whether an I/O has been in the disk for too long. */
static bool stalls(struct nvme_disk *d)
{
	struct io_load load;

	io_load(d->io, &load);
	d->stall_polls = load.oldest_ns > d->conf->stall_ns ? d->stall_polls + 1 : 0;
	return d->stall_polls >= 2;
}

static void stalled(struct nvme_disk *d)
{
	if (d->state != TIER_OFFLINE || d->stall_polls == 2) {
		d->stalls_total++;
		down(d, TIER_OFFLINE,
		     "an I/O takes longer than %" PRIu64
		     " s: its blocks are misses until the disk answers; look at it",
		     (uint64_t)(d->conf->stall_ns / SECOND_NS));
	}
	d->probe_due_ns = 0; /* it is probed as soon as it answers */
	nvme_transfers_give_up(d, true, -ETIMEDOUT);
}

/* The log goes on where it was. A log that FAILED at its start starts again. */
static void answers(struct nvme_disk *d)
{
	if (nvme_log_facts(d->log)->state != NVME_FAILED) {
		up(d);
		return;
	}
	nvme_log_free(d->log);
	d->log = NULL;
	start_log(d);
}

/* False while a start goes on, where a store was still to be made, and after the last flush. */
static bool may_come_back(const struct nvme_disk *d)
{
	const enum nvme_log_state state = nvme_log_facts(d->log)->state;

	return state == NVME_UP || (state == NVME_FAILED && !d->file.blank);
}

/* The disk may have gone OFFLINE meanwhile: a page that was written does not bring it back. */
static void write_probe_ended(struct nvme_disk *d, const struct io_op *op)
{
	if (d->state != TIER_READONLY)
		return;
	if (!op->status)
		up(d);
	else if (is_gone(d, op))
		gone(d);
	else
		readonly(d, op->status);
}

static void probe_ended(struct io_op *op)
{
	struct nvme_disk *d = container_of(op, struct nvme_disk, probe_op);

	if (op->kind == IO_WRITE) {
		write_probe_ended(d, op);
		return;
	}
	if (d->state != TIER_OFFLINE)
		return;
	if (!op->status) {
		answers(d);
		return;
	}
	d->lost = may_come_back(d) && (is_gone(d, op) || ++d->probes_failed >= FAILURES);
	if (!d->lost)
		plan_probe(d);
	else
		d->probe_due_ns = 0; /* by the next poll */
}

/* --- opened again --- */

/* The old descriptor is closed first: its lock, and O_EXCL of a block device, would keep us out. */
static void open_again(struct nvme_disk *d)
{
	/* an I/O is still in the disk */
	if (d->file.fd >= 0 && io_file_set(d->io, -1))
		return;
	nvme_file_close(&d->file);
	if (nvme_opening_begin(d->path, &d->opening))
		plan_probe(d);
}

static void look_whether_opened(struct nvme_disk *d)
{
	char text[NVME_TEXT_BYTES] = "";
	struct nvme_file file = { .fd = -1 };
	int r = nvme_opening_ended(d->opening, &file, d->probe_page, text, sizeof(text));

	if (r == -EINPROGRESS)
		return;
	d->opening = NULL;
	/* in another state the log knows no store to compare with */
	if (!r && nvme_log_facts(d->log)->state == NVME_UP)
		r = nvme_log_recognise(d->log, d->probe_page, file.bytes, text, sizeof(text));
	if (!r && (r = io_file_set(d->io, file.fd)) != 0)
		(void)snprintf(text, sizeof(text), "the I/O engine does not take it: %s",
			       strerror(-r));
	if (r) {
		if (file.fd >= 0)
			nvme_file_close(&file);
		(void)snprintf(d->text, sizeof(d->text),
			       "the disk is gone, its blocks are misses: %.190s", text);
		plan_probe(d);
		return;
	}
	d->file = file;
	d->lost = false;
	answers(d);
}

static void probe(struct nvme_disk *d)
{
	if (d->opening) {
		look_whether_opened(d);
		return;
	}
	if (d->for_good || loop_now(d->loop) < d->probe_due_ns)
		return;
	if (d->probe_op.state != IO_IDLE) /* the last probe has not ended yet */
		return;
	if (d->lost) {
		open_again(d);
		return;
	}
	d->probe_op = (struct io_op){ .kind = IO_READ,
				      .buffer = d->probe_page,
				      .bytes = NVME_PAGE,
				      .offset = nvme_super_offset(0),
				      .done = probe_ended };
	if (d->state == TIER_READONLY) {
		if (nvme_log_facts(d->log)->state != NVME_UP) /* after the last flush */
			return;
		d->probe_op.kind = IO_WRITE;
		d->probe_op.offset = nvme_log_spare(d->log);
		/* zeros may need no room in a file system */
		memset(d->probe_page, 0xff, NVME_PAGE);
	}
	(void)io_submit(d->io, &d->probe_op); /* no room: at the next poll */
}

void nvme_disk_poll(struct nvme_disk *d)
{
	if (!d->log)
		return;
	if (d->cancels)
		nvme_transfers_give_up(d, false, -ECANCELED);
	if (stalls(d))
		stalled(d);
	else if (d->state == TIER_OFFLINE || d->state == TIER_READONLY)
		probe(d);
	nvme_log_poll(d->log);
	append_waiting(d);
}
