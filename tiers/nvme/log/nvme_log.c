/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_log.c - the log as a whole: how it is made, opened, polled and freed, its superblocks and
 * purges. Contract: nvme_log.h; states and invariants: nvme_log_inner.h. Core thread only.
 *
 *  recover: read both ──> judge ──> life + 1, written and synced ──> segments (nvme_recover.c)
 *                           └─────> FAILED: not ours, damaged, too small. The disk is as it was
 *  format:  write both, synced ──> UP
 *
 * A change is written to one superblock, synced, and only then written to the other: at any moment
 * one of them is whole. done() runs when both copies are synced, so one copy may rot later.
 */
#include "nvme_log_inner.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "base/vault.h"

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

/* The largest image that an empty segment holds, tag page and footer included. */
static uint32_t image_limit(uint32_t segment_bytes)
{
	const uint32_t rest = segment_bytes - 2 * NVME_PAGE - nvme_footer_bytes(1);

	return rest < IMAGE_MAX_BYTES ? rest : IMAGE_MAX_BYTES;
}

/* Reserves the memory that depends on log->super. */
static int reserve(struct nvme_log *log)
{
	const uint32_t n = log->super.segments;
	bool good;

	log->n_segments = n;
	log->facts.segment_bytes = log->super.segment_bytes;
	log->facts.capacity_bytes = (uint64_t)n * log->facts.segment_bytes;
	log->entries_max = nvme_entries_max(log->facts.segment_bytes);
	log->footer_max = nvme_footer_bytes(log->entries_max);
	log->image_max = image_limit(log->facts.segment_bytes);
	/* not wiped here: this is one turn of the core thread, and n may be 65,535 */
	log->segments = calloc(n, sizeof(*log->segments));
	log->heat = calloc(n, sizeof(*log->heat));
	log->drain.footer = nvme_reserve_unset(log->footer_max);
	good = log->segments && log->heat && log->drain.footer;
	for (uint32_t i = 0; i < NVME_FILLS; i++) {
		log->fill[i].holes.footer = nvme_reserve_unset(log->footer_max);
		good = good && log->fill[i].holes.footer;
	}
	if (!good)
		return -ENOMEM;
	log->n_free = n;
	nvme_ages_open(&log->ages, log->heat, n);
	return 0;
}

/* --- the end of a start --- */

/* UP, or FAILED with a text (NULL: the text that is there). */
static void started(struct nvme_log *log, int status, const char *text)
{
	if (text)
		(void)snprintf(log->facts.text, sizeof(log->facts.text), "%s", text);
	nvme_recovery_free(log);
	log->facts.state = status ? NVME_FAILED : NVME_UP;
	log->medium->ready(log->medium, status);
}

static void failed_io(struct nvme_log *log, int status, const char *what)
{
	(void)snprintf(log->facts.text, sizeof(log->facts.text), "cannot %s the superblock: %s",
		       what, strerror(-status));
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
	if (status)
		failed_io(log, status, "write");
	else
		started(log, 0, "");
}

void nvme_log_format(struct nvme_log *log)
{
	const uint64_t bytes = log->conf.bytes ? log->conf.bytes : log->conf.disk_bytes;
	const uint32_t segment_bytes = log->conf.segment_bytes;
	int r = -EINVAL;

	assert(log->facts.state == NVME_NEW);
	log->facts.state = NVME_STARTING;
	if (segment_bytes && bytes <= log->conf.disk_bytes)
		r = nvme_shape_check(segment_bytes, segments_in(bytes, segment_bytes));
	if (r) {
		(void)snprintf(
			log->facts.text, sizeof(log->facts.text),
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
	r = reserve(log);
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

/* A good superblock may not fit the disk, or the configuration. */
static int agree(struct nvme_log *log)
{
	const struct nvme_super *s = &log->super;
	const uint64_t end = nvme_segment_offset(s->segments, s->segment_bytes);

	if (end > log->conf.disk_bytes)
		return text_fail(log->facts.text, sizeof(log->facts.text), -EUCLEAN,
				 "the store was made with %" PRIu64 " bytes, but %" PRIu64
				 " are there: it was truncated. Format it",
				 end, log->conf.disk_bytes);
	if (log->conf.bytes && segments_in(log->conf.bytes, s->segment_bytes) > s->segments)
		return text_fail(log->facts.text, sizeof(log->facts.text), -ENOSPC,
				 "the store has %" PRIu64 " bytes, the configuration says %" PRIu64
				 ": correct `bytes`, or format it",
				 end, log->conf.bytes);
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
	int r = nvme_super_newest(log->super_write.pages, &log->super, &newest);
	const char *why = r ? refusal(r) : NULL;

	if (!r)
		r = agree(log);
	if (!r && (r = reserve(log)) != 0)
		why = "not enough memory";
	if (r) {
		started(log, r, why);
		return;
	}
	log->super_write.first = 1 - newest;
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
	assert(log->facts.state == NVME_NEW);
	log->facts.state = NVME_STARTING;
	if (log->conf.disk_bytes < NVME_DATA_OFFSET) {
		started(log, -EUCLEAN, "too short for a store: format it, or correct the path");
		return;
	}
	/* Before the first write `first` counts the copies that were read, and `step` the copies
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

	if (nvme_super_newest(supers, &there, &newest) ||
	    memcmp(there.uuid, ours->uuid, sizeof(there.uuid)))
		return text_fail(
			text, n, -EMEDIUMTYPE,
			"what is there now is not its store: attach the disk that has it, or "
			"restart kvtierd to use what is there");
	if (there.life > ours->life || there.generation > ours->generation)
		return text_fail(
			text, n, -ESTALE,
			"another kvtierd has used its store meanwhile: restart kvtierd to use it "
			"again");
	if (there.life < ours->life || there.generation < log->super_saved)
		return text_fail(
			text, n, -ESTALE,
			"what is there now is an older copy of its store: attach the disk that was "
			"there, or format this one and restart kvtierd");
	if (nvme_segment_offset(ours->segments, ours->segment_bytes) > disk_bytes)
		return text_fail(text, n, -EUCLEAN,
				 "what is there now is shorter than its store: attach it in full");
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
	if (log->facts.state != NVME_UP)
		return -ESHUTDOWN;
	if (log->super_write.step)
		return -EBUSY;
	nvme_super_purge(&log->super, tenant, ++log->epoch);
	log->purge_done = done;
	log->purge_arg = arg;
	save(log, purged);
	return 0;
}

void nvme_log_poll(struct nvme_log *log)
{
	nvme_io_retry(log);
	if (nvme_recovery_works(log))
		nvme_recovery_step(log);
	if (log->facts.state != NVME_UP)
		return;
	nvme_drain_step(log);
	nvme_segment_step(log);
}

int nvme_log_new(const struct nvme_conf *conf, struct nvme_medium *medium,
		 const struct nvme_events *events, struct nvme_log **ret)
{
	struct nvme_log *log = calloc(1, sizeof(*log));

	assert(conf->disk < NVME_MAX_DISKS);
	if (!log)
		return -ENOMEM;
	log->conf = *conf;
	log->medium = medium;
	log->events = *events;
	log->step = nvme_log_poll;
	log->ready = log->preparing = NVME_NONE;
	log->waiting_end = &log->waiting;
	log->super_write.pages = nvme_reserve(NVME_SUPER_COPIES * NVME_PAGE);
	log->prepare_page = nvme_reserve(NVME_PAGE);
	log->tag_pages = nvme_reserve(NVME_TAG_PAGES * NVME_PAGE);
	if (!log->super_write.pages || !log->prepare_page || !log->tag_pages) {
		nvme_log_free(log);
		return -ENOMEM;
	}
	*ret = log;
	return 0;
}

void nvme_log_free(struct nvme_log *log)
{
	if (!log)
		return;
	assert(log->lent == 0);
	nvme_recovery_free(log);
	free(log->super_write.pages);
	free(log->prepare_page);
	free(log->tag_pages);
	free(log->segments);
	free(log->heat);
	free(log->drain.footer);
	for (uint32_t i = 0; i < NVME_FILLS; i++)
		free(log->fill[i].holes.footer);
	free(log);
}

bool nvme_log_works(const struct nvme_log *log)
{
	return nvme_recovery_works(log) || nvme_drain_works(log);
}

bool nvme_log_waits(const struct nvme_log *log)
{
	if (log->lent) /* each completion takes a step */
		return false;
	return log->waiting || log->flush.stage != FLUSH_IDLE ||
	       (log->facts.state == NVME_UP && log->ready == NVME_NONE) ||
	       log->facts.state == NVME_STARTING;
}

void nvme_log_pause(struct nvme_log *log, bool paused)
{
	log->paused = paused;
}

const struct nvme_facts *nvme_log_facts(const struct nvme_log *log)
{
	return &log->facts;
}
