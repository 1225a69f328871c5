/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_super.c - the superblock: read and judged at the start, written at each start, format and
 * purge. Core thread only.
 *
 *  recover: read both ──> judge ──> life + 1, written and synced ──> segments (nvme_recover.c)
 *                           └─────> FAILED: not ours, damaged, too small. Nothing was written
 *  format:  write both, synced ──> UP
 *
 * A change is written to one copy, synced, and only then written to the other: at any moment one of
 * them is whole. done() runs when both copies are synced, so one copy may rot later.
 */
#include "nvme_log_inner.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvme_recover.h"
#include "nvme_segment.h"

enum { STEP_FIRST = 1, STEP_FIRST_SYNC, STEP_SECOND, STEP_SECOND_SYNC };

/* How many segments a store of so many bytes has. */
static uint64_t segments_in(uint64_t bytes, uint32_t segment_bytes)
{
	const uint64_t n =
		bytes > NVME_DATA_OFFSET ? (bytes - NVME_DATA_OFFSET) / segment_bytes : 0;

	return n < NVME_MAX_SEGMENTS ? n : NVME_MAX_SEGMENTS;
}

/* --- writing --- */

static void save_next(struct nvme_log *log)
{
	struct nvme_super_write *w = &log->super_write;
	const uint32_t copy = w->step == STEP_FIRST ? w->first : 1 - w->first;

	if (w->step == STEP_FIRST || w->step == STEP_SECOND)
		nvme_io_set(&w->io, log, IO_WRITE, nvme_super_offset(copy), w->pages, NVME_PAGE);
	else
		nvme_io_set(&w->io, log, IO_FDATASYNC, 0, NULL, 0);
	nvme_io_start(&w->io);
}

static void save_done(struct nvme_io *io)
{
	struct nvme_log *log = io->log;
	struct nvme_super_write *w = &log->super_write;

	if (io->op.status || w->step == STEP_SECOND_SYNC) {
		if (!io->op.status)
			log->super_saved = log->super.generation;
		w->step = 0;
		w->done(log, io->op.status);
		return;
	}
	w->step++;
	save_next(log);
}

/* Both copies of log->super, each synced; then done() runs. One save at a time. */
static void save(struct nvme_log *log, void (*done)(struct nvme_log *log, int status))
{
	struct nvme_super_write *w = &log->super_write;

	assert(w->step == 0);
	log->super.generation++;
	nvme_super_seal(&log->super);
	memcpy(w->pages, &log->super, NVME_PAGE);
	w->done = done;
	w->step = STEP_FIRST;
	w->io.done = save_done;
	save_next(log);
}

/* --- the end of a start --- */

/* UP, or FAILED with a text (NULL: the text that is there). */
static void started(struct nvme_log *log, int status, const char *text)
{
	if (text)
		(void)snprintf(log->text, sizeof(log->text), "%s", text);
	nvme_recovery_free(log);
	log->state = status ? NVME_FAILED : NVME_UP;
	log->table.ready(log->table.arg, status);
}

static void failed_io(struct nvme_log *log, int status, const char *what)
{
	(void)snprintf(log->text, sizeof(log->text), "cannot %s the superblock: %s", what,
		       strerror(-status));
	started(log, status, NULL);
}

/* The upper half is the life, so no sequence and no epoch of an earlier life is used again. */
static void begin_life(struct nvme_log *log)
{
	log->next_sequence = log->super.life << 32 | 1;
	log->epoch = log->super.life << 32;
}

/* --- format --- */

static void formatted(struct nvme_log *log, int status)
{
	if (status) {
		failed_io(log, status, "write");
		return;
	}
	started(log, 0, "");
}

void nvme_log_format(struct nvme_log *log)
{
	const uint64_t bytes = log->conf.bytes ? log->conf.bytes : log->conf.disk_bytes;
	const uint32_t segment_bytes = log->conf.segment_bytes;
	int r = -EINVAL;

	assert(log->state == NVME_NEW);
	log->state = NVME_STARTING;
	if (segment_bytes && bytes <= log->conf.disk_bytes)
		r = nvme_shape_check(segment_bytes, segments_in(bytes, segment_bytes));
	if (r) {
		(void)snprintf(
			log->text, sizeof(log->text),
			"cannot make a store of %" PRIu64 " bytes in segments of %" PRIu32
			" on %" PRIu64
			": segments are 64 KiB to 256 MiB, a multiple of 4 KiB, at least %d of "
			"them",
			bytes, segment_bytes, log->conf.disk_bytes, NVME_MIN_SEGMENTS);
		started(log, r, NULL);
		return;
	}
	log->super.segment_bytes = segment_bytes;
	log->super.segments = (uint32_t)segments_in(bytes, segment_bytes);
	log->super.life = 1;
	memcpy(log->super.uuid, log->conf.uuid, sizeof(log->super.uuid));
	r = nvme_log_reserve(log);
	if (r) {
		started(log, r, "not enough memory");
		return;
	}
	begin_life(log);
	save(log, formatted);
}

/* --- recover --- */

static const char *refusal(int r)
{
	switch (r) {
	case -ENODATA:
		return "there is no store here, only zeros: format it, or correct the path";
	case -EMEDIUMTYPE:
		return "this is no kvtier store, and is left alone: format it if nothing on it "
		       "matters, or correct the path";
	case -EPROTONOSUPPORT:
		return "the store has a format that this version does not know: use the version "
		       "that made it, or format it";
	default:
		return "both superblocks are damaged: format the store";
	}
}

/* The newest good copy. A copy of a newer format decides alone: this version is too old for the
 * store. */
static int choose(const uint8_t *pages, struct nvme_super *ret, uint32_t *ret_copy)
{
	struct nvme_super copy[NVME_SUPER_COPIES];
	int r[NVME_SUPER_COPIES], best = -1;

	for (int i = 0; i < NVME_SUPER_COPIES; i++) {
		r[i] = nvme_super_check(pages + (size_t)i * NVME_PAGE, &copy[i]);
		if (r[i] == -EPROTONOSUPPORT)
			return r[i];
		if (!r[i] && (best < 0 || copy[i].generation > copy[best].generation))
			best = i;
	}
	if (best < 0)
		return r[0] == r[1]                         ? r[0] :
		       r[0] == -EBADMSG || r[1] == -EBADMSG ? -EBADMSG :
							      -EMEDIUMTYPE;
	*ret = copy[best];
	*ret_copy = (uint32_t)best;
	return 0;
}

/* A good superblock may still be that of another store. */
static int agree(struct nvme_log *log)
{
	static const uint8_t any[16];
	const struct nvme_super *s = &log->super;
	const uint64_t end = nvme_segment_offset(s->segments, s->segment_bytes);

	if (memcmp(log->conf.uuid, any, sizeof(any)) &&
	    memcmp(log->conf.uuid, s->uuid, sizeof(s->uuid))) {
		(void)snprintf(
			log->text, sizeof(log->text),
			"this is another store than the one that belongs here (uuid differs): were "
			"disks swapped?");
		return -EMEDIUMTYPE;
	}
	if (end > log->conf.disk_bytes) {
		(void)snprintf(log->text, sizeof(log->text),
			       "the store was made with %" PRIu64 " bytes, but %" PRIu64
			       " are there: it was truncated. Format it",
			       end, log->conf.disk_bytes);
		return -EUCLEAN;
	}
	if (log->conf.bytes && segments_in(log->conf.bytes, s->segment_bytes) > s->segments) {
		(void)snprintf(log->text, sizeof(log->text),
			       "the store has %" PRIu64 " bytes, the configuration says %" PRIu64
			       ": correct `bytes`, or format it",
			       end, log->conf.bytes);
		return -ENOSPC;
	}
	return 0;
}

static void life_saved(struct nvme_log *log, int status)
{
	if (status) {
		failed_io(log, status, "write");
		return;
	}
	begin_life(log);
	status = nvme_recover_segments(log, started);
	if (status)
		started(log, status, "not enough memory");
}

static void judge(struct nvme_log *log)
{
	uint32_t newest;
	int r = choose(log->super_write.pages, &log->super, &newest);

	if (r) {
		started(log, r, refusal(r));
		return;
	}
	log->super_write.first = 1 - newest;
	r = agree(log);
	if (r) {
		started(log, r, NULL);
		return;
	}
	r = nvme_log_reserve(log);
	if (r) {
		started(log, r, "not enough memory");
		return;
	}
	log->super.life++;
	save(log, life_saved);
}

static void read_next(struct nvme_log *log);

/* A copy that cannot be read counts as damaged. */
static void super_read(struct nvme_io *io)
{
	struct nvme_log *log = io->log;
	struct nvme_super_write *w = &log->super_write;

	if (io->op.status) {
		memset(w->pages + (size_t)w->first * NVME_PAGE, 0xff, NVME_PAGE);
		if (w->step++ == NVME_SUPER_COPIES - 1) {
			failed_io(log, io->op.status, "read");
			return;
		}
	}
	if (++w->first < NVME_SUPER_COPIES) {
		read_next(log);
		return;
	}
	w->step = w->first = 0;
	judge(log);
}

static void read_next(struct nvme_log *log)
{
	struct nvme_super_write *w = &log->super_write;

	nvme_io_set(&w->io, log, IO_READ, nvme_super_offset(w->first),
		    w->pages + (size_t)w->first * NVME_PAGE, NVME_PAGE);
	w->io.done = super_read;
	nvme_io_start(&w->io);
}

void nvme_log_recover(struct nvme_log *log)
{
	assert(log->state == NVME_NEW);
	log->state = NVME_STARTING;
	if (log->conf.disk_bytes < NVME_DATA_OFFSET) {
		started(log, -EUCLEAN, "too short for a store: format it, or correct the path");
		return;
	}
	/* While nothing is written, `first` counts the copies that were read, and `step` the copies
	 * that could not be read. */
	log->super_write.step = log->super_write.first = 0;
	read_next(log);
}

/* --- a disk that comes back --- */

int nvme_log_recognise(const struct nvme_log *log, const uint8_t *supers, uint64_t disk_bytes,
		       char *text, size_t n)
{
	const struct nvme_super *ours = &log->super;
	struct nvme_super there;
	uint32_t newest;

	if (choose(supers, &there, &newest) || memcmp(there.uuid, ours->uuid, sizeof(there.uuid))) {
		(void)snprintf(
			text, n,
			"what is there now is not its store: attach the disk that has it, or "
			"restart kvtierd to use what is there");
		return -EMEDIUMTYPE;
	}
	if (there.life > ours->life || there.generation > ours->generation) {
		(void)snprintf(
			text, n,
			"another kvtierd has used its store meanwhile: restart kvtierd to use it "
			"again");
		return -ESTALE;
	}
	if (there.life < ours->life || there.generation < log->super_saved) {
		(void)snprintf(
			text, n,
			"what is there now is an older copy of its store: attach the disk that was "
			"there, or format this one and restart kvtierd");
		return -ESTALE;
	}
	if (nvme_segment_offset(ours->segments, ours->segment_bytes) > disk_bytes) {
		(void)snprintf(text, n,
			       "what is there now is shorter than its store: attach it in full");
		return -EUCLEAN;
	}
	return 0;
}

/* --- purge --- */

static void purged(struct nvme_log *log, int status)
{
	log->purge_done(log->purge_arg, status);
}

int nvme_log_purge(struct nvme_log *log, const uint8_t tenant[NVME_TENANT_BYTES],
		   void (*done)(void *arg, int status), void *arg)
{
	if (log->state != NVME_UP)
		return -ESHUTDOWN;
	if (log->super_write.step)
		return -EBUSY;
	nvme_super_purge(&log->super, tenant, ++log->epoch);
	log->purge_done = done;
	log->purge_arg = arg;
	save(log, purged);
	return 0;
}
