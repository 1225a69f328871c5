/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme.c - the NVMe tier: its ops table, which disk a block goes to, and calls for all disks
 * together. One disk: nvme_disk.c. Contract and states: nvme.h. Core thread only.
 *
 * Completions of I/O carry most work on. One timer carries on the rest: retries, stalls, probes. It
 * is set as far ahead as the disks allow, since each wake-up costs as much as an I/O.
 * events.changed may start something, so this timer alone calls it.
 */
#include "nvme.h"
#include "base/list.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/loop.h"
#include "base/text.h"
#include "nvme_disk.h"

#define POLL_NS 5000000ull  /* something waits, and no completion will carry it on */
#define LENT_NS 50000000ull /* an I/O is in a disk: it may stall */
#define IDLE_NS 200000000ull

/* Work on several disks, whose end is told when the last disk has ended its part. */
struct together {
	uint32_t left; /* disks that have not ended, and 1 until the next tick */
	/* that 1 is still there: done never runs inside the caller's call */
	bool started;
	int status;                          /* the first that was not 0 */
	void (*done)(void *arg, int status); /* NULL: no flush is under way */
	void *arg;
};

struct nvme {
	struct tier base; /* first */
	struct loop *loop;
	struct nvme_tier_conf conf;
	struct loop_timer timer;
	struct loop_poller poller;
	struct nvme_coders coders;
	uint32_t n;
	struct nvme_disk disks[NVME_TIER_PATHS];
	struct together purge, flush;
};

/* Sees through wrappers. */
static struct nvme *nvme_of(const struct tier *t)
{
	while (t->inner)
		t = t->inner;
	assert(t->ops == &nvme_ops);
	return (struct nvme *)(void *)(uintptr_t)t; /* base is its first member */
}

/* --- the timer --- */

static void wake(struct nvme *t, uint64_t in_ns)
{
	const uint64_t due = loop_now(t->loop) + in_ns;

	if (t->timer.position && t->timer.due_ns <= due)
		return;
	loop_timer_set(t->loop, &t->timer, due);
}

/* The sums that the core reads off any tier. */
static void sum_up(struct nvme *t)
{
	t->base.capacity_bytes = t->base.used_bytes = t->base.extents = 0;
	for (uint32_t i = 0; i < t->n; i++) {
		const struct nvme_facts *log =
			t->disks[i].log ? nvme_log_facts(t->disks[i].log) : NULL;

		if (!log || t->disks[i].for_good)
			continue;
		t->base.capacity_bytes += log->capacity_bytes;
		t->base.used_bytes += log->live_bytes;
		t->base.extents += log->live_records;
	}
}

static void together_end(struct together *all, int status)
{
	void (*done)(void *arg, int status) = all->done;

	if (status && !all->status)
		all->status = status;
	if (--all->left)
		return;
	all->done = NULL;
	done(all->arg, all->status);
}

static void end_started(struct together *all)
{
	if (!all->started)
		return;
	all->started = false;
	together_end(all, 0);
}

/* When this disk wants to be polled again, in ns. A probe that is due is tried at each tick until
 * the disk takes it. */
static uint64_t until_poll(const struct nvme_disk *d)
{
	const uint64_t next = nvme_disk_idle(d) ? IDLE_NS : LENT_NS, probe = nvme_disk_probe_in(d);

	if (nvme_disk_waits(d))
		return POLL_NS;
	return probe > 0 && probe < next ? probe : next;
}

static void tick(struct loop_timer *timer)
{
	struct nvme *t = container_of(timer, struct nvme, timer);
	uint64_t next = IDLE_NS;
	bool changed = false;

	for (uint32_t i = 0; i < t->n; i++) {
		struct nvme_disk *d = &t->disks[i];

		nvme_disk_poll(d);
		changed = changed || d->changed || d->refused || d->refused_budget;
		d->changed = d->refused = d->refused_budget = false;
	}
	end_started(&t->purge);
	end_started(&t->flush);
	sum_up(t);
	if (changed && t->conf.events.changed)
		t->conf.events.changed(t->conf.events.arg);
	for (uint32_t i = 0; i < t->n; i++) {
		const uint64_t in = until_poll(&t->disks[i]);

		next = in < next ? in : next;
	}
	wake(t, next);
}

/* Long work of the logs goes on in each iteration. */
static bool work(struct loop_poller *poller)
{
	struct nvme *t = container_of(poller, struct nvme, poller);
	bool worked = false;

	for (uint32_t i = 0; i < t->n; i++) {
		struct nvme_log *log = t->disks[i].log;

		if (!log || !nvme_log_works(log))
			continue;
		nvme_log_poll(log);
		worked = true;
	}
	return worked;
}

/* --- ops --- */

static int check_conf(const struct nvme_tier_conf *c, char *text, size_t n)
{
	const char *what = NULL;

	if (!c->n_paths || c->n_paths > NVME_TIER_PATHS)
		what = "path must be given once to 16 times";
	else if (c->segment_bytes < NVME_MIN_SEGMENT_BYTES ||
		 c->segment_bytes > NVME_MAX_SEGMENT_BYTES || c->segment_bytes % NVME_PAGE)
		what = "segment_bytes must be 64 KiB to 256 MiB, a multiple of 4 KiB";
	else if (c->bytes && nvme_shape_check(c->segment_bytes,
					      (c->bytes - NVME_DATA_OFFSET) / c->segment_bytes))
		what = "bytes must be room for 4 to 65535 segments of segment_bytes, and 64 KiB";
	else if (!c->read_depth || c->read_depth > IO_MAX_DEPTH || !c->write_depth ||
		 c->write_depth > IO_MAX_DEPTH)
		what = "queue_depth must be 1 to 1024";
	else if (!c->stall_ns)
		what = "the time after which an I/O counts as stalled must not be 0";
	for (uint32_t i = 0; i < c->n_paths && !what; i++) {
		if (!c->paths[i][0] || strlen(c->paths[i]) >= NVME_TIER_PATH_BYTES)
			what = "path must be 1 to 255 bytes";
		for (uint32_t j = 0; j < i && !what; j++)
			if (!strcmp(c->paths[i], c->paths[j]))
				what = "path is given twice";
	}
	return what ? text_fail(text, n, -EINVAL, "[nvme] %s", what) : 0;
}

static void nvme_close(struct tier *base)
{
	struct nvme *t = (struct nvme *)(void *)base;

	if (!t)
		return;
	loop_timer_unset(t->loop, &t->timer);
	loop_poller_remove(t->loop, &t->poller);
	for (uint32_t i = 0; i < t->n; i++)
		nvme_disk_close(&t->disks[i]);
	nvme_coders_close(&t->coders);
	free(t);
}

static void open_disks(struct nvme *t)
{
	for (uint32_t i = 0; i < t->conf.n_paths; i++) {
		struct nvme_disk *d = &t->disks[i];

		(void)snprintf(d->path, sizeof(d->path), "%s", t->conf.paths[i]);
		t->conf.paths[i] = d->path;
		d->number = (uint8_t)i;
		d->conf = &t->conf;
		d->coders = &t->coders;
		d->loop = t->loop;
		d->budget_bytes_per_day = t->conf.write_budget_bytes_per_day / t->conf.n_paths;
		t->n++;
		nvme_disk_open(d);
	}
}

static int nvme_open(const struct tier_conf *conf, struct loop *loop, struct tier **ret, char *text,
		     size_t n)
{
	struct nvme *t;
	int r = check_conf(conf->nvme, text, n);

	if (r)
		return r;
	t = calloc(1, sizeof(*t));
	if (!t)
		return text_fail(text, n, -ENOMEM, "[nvme] not enough memory");
	t->base.ops = &nvme_ops;
	t->base.patience_ns = conf->nvme->stall_ns;
	t->loop = loop;
	t->conf = *conf->nvme;
	r = nvme_coders_open(&t->coders, loop, conf->nvme->compress);
	if (r) {
		free(t);
		return text_fail(text, n, r, "[nvme] cannot start: %s", strerror(-r));
	}
	t->timer.fire = tick;
	loop_timer_set(loop, &t->timer, loop_now(loop));
	t->poller.poll = work;
	loop_poller_add(loop, &t->poller);
	open_disks(t);
	*ret = &t->base;
	return 0;
}

/* Rendezvous hashing: each disk that takes writes draws a number for the key, and the largest wins.
 * When a disk is lost, only its own keys move. The key is a hash already. NULL: no disk takes
 * writes. */
static struct nvme_disk *disk_for(struct nvme *t, const uint8_t key[32])
{
	struct nvme_disk *best = NULL;
	uint64_t best_draw = 0, seed;

	if (t->n == 1) /* the key is not looked at: a worker wrote it, and no cache here has it */
		return nvme_disk_writable(&t->disks[0]) ? &t->disks[0] : NULL;
	memcpy(&seed, key, sizeof(seed));
	for (uint32_t i = 0; i < t->n; i++) {
		uint64_t draw = (seed + i + 1) * 0x9e3779b97f4a7c15u;

		draw = (draw ^ draw >> 31) * 0xbf58476d1ce4e5b9u;
		draw ^= draw >> 29;
		if (!nvme_disk_writable(&t->disks[i]) || (best && draw <= best_draw))
			continue;
		best = &t->disks[i];
		best_draw = draw;
	}
	return best;
}

static struct nvme_disk *disk_at(struct nvme *t, const struct extent *where)
{
	return where->tier == TIER_NVME && where->unit < t->n ? &t->disks[where->unit] : NULL;
}

static int nvme_submit(struct tier *base, struct xfer *x)
{
	struct nvme *t = nvme_of(base);
	struct nvme_disk *d;
	int r;

	if (x->op == XFER_READ) {
		d = disk_at(t, &x->where);
		if (!d)
			return -ESTALE;
		if (!nvme_disk_readable(d))
			return -ENODEV;
	} else {
		d = disk_for(t, ((const struct image_header *)(const void *)x->buffer)->key);
		if (!d)
			return -EROFS;
	}
	r = nvme_transfer_start(d, x);
	wake(t, r ? POLL_NS : LENT_NS);
	return r;
}

static void nvme_cancel(struct tier *base, struct xfer *x)
{
	struct nvme *t = nvme_of(base);

	for (uint32_t i = 0; i < t->n; i++)
		if (nvme_transfer_cancel(&t->disks[i], x))
			wake(t, 0);
}

static enum tier_state nvme_state(const struct tier *base)
{
	const struct nvme *t = nvme_of(base);
	uint32_t starting = 0, up = 0, offline = 0, writable = 0;

	for (uint32_t i = 0; i < t->n; i++) {
		const enum tier_state state = t->disks[i].state;

		starting += state == TIER_STARTING;
		up += state == TIER_UP;
		offline += state == TIER_OFFLINE;
		writable += state == TIER_UP;
	}
	if (starting)
		return TIER_STARTING;
	if (up == t->n)
		return TIER_UP;
	if (offline == t->n)
		return TIER_OFFLINE;
	return writable ? TIER_DEGRADED : TIER_READONLY;
}

/* A disk takes writes of this key now. */
static bool nvme_writable(const struct tier *t, const struct tier_name *name)
{
	return disk_for(nvme_of(t), name->key) != NULL;
}

/* The disk answers reads now. */
static bool nvme_readable(const struct tier *t, const struct tier_name *name)
{
	const struct nvme_disk *d = disk_at(nvme_of(t), name->where);

	return d && nvme_disk_readable(d);
}

static void nvme_forget(struct tier *t, const struct extent *where, uint64_t tick_then)
{
	struct nvme_disk *d = disk_at(nvme_of(t), where);

	if (d && d->log)
		nvme_log_forget(d->log, nvme_extent_location(where), tick_then);
}

static void nvme_touch(struct tier *t, const struct extent *where, uint64_t tick_then,
		       uint64_t now_tick)
{
	struct nvme_disk *d = disk_at(nvme_of(t), where);

	if (d && d->log)
		nvme_log_touch(d->log, nvme_extent_location(where), tick_then, now_tick);
}

/* No disk has an I/O of ours: tier_close() is possible. */
static bool nvme_idle(const struct tier *base)
{
	const struct nvme *t = nvme_of(base);

	for (uint32_t i = 0; i < t->n; i++)
		if (!nvme_disk_idle(&t->disks[i]))
			return false;
	return base->in_flight == 0 && t->base.in_flight == 0;
}

bool nvme_answers(const struct tier *base)
{
	const struct nvme *t = nvme_of(base);

	for (uint32_t i = 0; i < t->n; i++) {
		const struct nvme_disk *d = &t->disks[i];

		if (d->state != TIER_UP && !d->for_good && d->log &&
		    nvme_log_facts(d->log)->segment_bytes)
			return false;
	}
	return true;
}

uint32_t nvme_budget_percent(const struct tier *base)
{
	const struct nvme *t = nvme_of(base);
	uint32_t percent = 0, logs = 0;

	for (uint32_t i = 0; i < t->n; i++) {
		if (!t->disks[i].log)
			continue;
		percent += nvme_log_budget_percent(t->disks[i].log);
		logs++;
	}
	return logs ? percent / logs : 100;
}

void nvme_set_budget(struct tier *base, uint64_t bytes_per_day)
{
	struct nvme *t = nvme_of(base);

	t->conf.write_budget_bytes_per_day = bytes_per_day;
	for (uint32_t i = 0; i < t->n; i++) {
		t->disks[i].budget_bytes_per_day = bytes_per_day / t->n;
		if (t->disks[i].log)
			nvme_log_set_budget(t->disks[i].log, t->disks[i].budget_bytes_per_day);
	}
}

static void ended(void *arg, int status)
{
	together_end(arg, status);
}

static void begin(struct nvme *t, struct together *all, void (*done)(void *arg, int status),
		  void *arg)
{
	*all = (struct together){ .left = 1, .started = true, .done = done, .arg = arg };
	wake(t, 0);
}

/* A disk was asked to do its part; r: its answer. */
static void note(struct together *all, int r)
{
	if (!r)
		all->left++;
	else if (!all->status)
		all->status = r;
}

/* nvme_log_purge() on every disk that is up. done() gets the first error, or 0; -EIO where a disk
 * is not up, since its records could come back with it. Returns 0, or -EBUSY: a purge is under
 * way. */
static int nvme_purge(struct tier *base, const uint8_t tenant[NVME_TENANT_BYTES],
		      void (*done)(void *arg, int status), void *arg)
{
	struct nvme *t = nvme_of(base);

	if (t->purge.done)
		return -EBUSY;
	begin(t, &t->purge, done, arg);
	for (uint32_t i = 0; i < t->n; i++) {
		struct nvme_disk *d = &t->disks[i];
		const bool there =
			nvme_disk_readable(d) && nvme_log_facts(d->log)->state == NVME_UP;

		note(&t->purge, there ? nvme_log_purge(d->log, tenant, ended, &t->purge) : -EIO);
	}
	return 0;
}

/* nvme_log_flush() on every disk that takes writes. done() gets the first error, or 0; -EIO where a
 * disk is in trouble, since its earlier writes may not be synced. Returns 0, or -EBUSY: a flush is
 * under way. */
static int nvme_flush(struct tier *base, bool last, void (*done)(void *arg, int status), void *arg)
{
	struct nvme *t = nvme_of(base);

	if (t->flush.done)
		return -EBUSY;
	begin(t, &t->flush, done, arg);
	for (uint32_t i = 0; i < t->n; i++) {
		struct nvme_disk *d = &t->disks[i];

		if (nvme_disk_writable(d))
			note(&t->flush, nvme_log_flush(d->log, last, ended, &t->flush));
		else if (d->log && nvme_log_facts(d->log)->state == NVME_UP)
			note(&t->flush, -EIO); /* its earlier writes may not be synced */
	}
	return 0;
}

const struct tier_ops nvme_ops = {
	.id = TIER_NVME,
	.caps = TIER_CAP_DURABLE,
	.open = nvme_open,
	.close = nvme_close,
	.submit = nvme_submit,
	.cancel = nvme_cancel,
	.state = nvme_state,
	.readable = nvme_readable,
	.writable = nvme_writable,
	.forget = nvme_forget,
	.touch = nvme_touch,
	.flush = nvme_flush,
	.purge = nvme_purge,
	.idle = nvme_idle,
};

/* --- for operators: sums, a row a disk, troubles --- */

/* All members are uint64_t. */
static void add(struct nvme_counters *sum, const struct nvme_counters *counters)
{
	uint64_t *to = (uint64_t *)sum;
	const uint64_t *from = (const uint64_t *)counters;

	for (size_t i = 0; i < sizeof(*sum) / sizeof(*to); i++)
		to[i] += from[i];
}

static void fill_row(const struct nvme_disk *d, struct nvme_disk_row *ret)
{
	memset(ret, 0, sizeof(*ret));
	(void)snprintf(ret->path, sizeof(ret->path), "%s", d->path);
	(void)snprintf(ret->text, sizeof(ret->text), "%s", d->text);
	ret->own = d->file.own;
	ret->state = d->state;
	ret->for_good = d->for_good;
	if (d->log) {
		ret->capacity_bytes = nvme_log_facts(d->log)->capacity_bytes;
		ret->live_bytes = nvme_log_facts(d->log)->live_bytes;
		ret->segment_bytes = nvme_log_facts(d->log)->segment_bytes;
		ret->log = nvme_log_facts(d->log)->counters;
	}
	if (d->io)
		io_load(d->io, &ret->io);
}

bool nvme_row(const struct tier *base, uint32_t i, struct nvme_disk_row *ret)
{
	const struct nvme *t = nvme_of(base);

	if (i >= t->n)
		return false;
	fill_row(&t->disks[i], ret);
	return true;
}

/* io_uring may be refused for one disk and not for another: the memory that may be locked runs
 * out. */
static const char *engine_name(const struct nvme *t)
{
	const char *name = "none", *its;

	for (uint32_t i = 0; i < t->n; i++) {
		its = t->disks[i].io ? io_engine_name(t->disks[i].io) : name;
		if (strcmp(name, "none") && strcmp(its, name))
			return "io_uring+threads";
		name = its;
	}
	return name;
}

/* "PATH: why" of the first that is not up. */
static void status_text(const struct nvme *t, char *ret, size_t n)
{
	ret[0] = '\0';
	for (uint32_t i = 0; i < t->n && !ret[0]; i++)
		if (t->disks[i].text[0])
			(void)snprintf(ret, n, "%s: %s", t->disks[i].path, t->disks[i].text);
	for (uint32_t i = 0; i < t->n && !ret[0]; i++)
		if (t->disks[i].io)
			(void)snprintf(ret, n, "%s", io_note(t->disks[i].io));
}

void nvme_status(const struct tier *base, struct nvme_tier_status *ret)
{
	const struct nvme *t = nvme_of(base);

	memset(ret, 0, sizeof(*ret));
	ret->engine = engine_name(t);
	ret->disks = t->n;
	status_text(t, ret->text, sizeof(ret->text));
	for (uint32_t i = 0; i < t->n; i++) {
		const struct nvme_disk *d = &t->disks[i];
		struct nvme_disk_row row;

		fill_row(d, &row);
		add(&ret->log, &row.log);
		ret->capacity_bytes += row.capacity_bytes;
		ret->quarantined = ret->quarantined || d->quarantined;
		ret->larger =
			ret->larger || (t->conf.bytes && row.capacity_bytes &&
					row.capacity_bytes + NVME_DATA_OFFSET > t->conf.bytes);
		ret->usable += nvme_disk_readable(d);
		ret->stalls_total += d->stalls_total;
		ret->recovery_ns =
			d->recovery_ns > ret->recovery_ns ? d->recovery_ns : ret->recovery_ns;
	}
	ret->coding_full = t->coders.full;
	ret->budget_percent = nvme_budget_percent(base);
}
