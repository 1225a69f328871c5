/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_segment.c - segments: where their records lie, what lives in them, how much may be written,
 * the life of a segment, and the log's own I/O. States and invariants: nvme_log_inner.h. Core
 * thread only.
 */
#include "nvme_log_inner.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/vault.h"

/* --- locations --- */

enum {
	GENERATION_BITS = 19,
	PAGE_SHIFT = GENERATION_BITS,
	SEGMENT_SHIFT = PAGE_SHIFT + 16,
	TAG_SHIFT = SEGMENT_SHIFT + 16,
	DISK_SHIFT = TAG_SHIFT + 1,
};
static_assert(NVME_GENERATIONS == 1 << GENERATION_BITS, "generation");
static_assert(NVME_MAX_DISKS == 1 << (56 - DISK_SHIFT), "a location has 56 bits");

static uint8_t nvme_location_disk(uint64_t location)
{
	return (uint8_t)(location >> DISK_SHIFT);
}

bool nvme_location_tag_page(uint64_t location)
{
	return location >> TAG_SHIFT & 1;
}

uint32_t nvme_location_segment(uint64_t location)
{
	return location >> SEGMENT_SHIFT & 0xffff;
}

uint32_t nvme_location_page(uint64_t location)
{
	return location >> PAGE_SHIFT & 0xffff;
}

static uint32_t nvme_location_generation(uint64_t location)
{
	return location & (NVME_GENERATIONS - 1);
}

struct extent nvme_location_extent(uint64_t location)
{
	return (struct extent){
		.tier = TIER_NVME,
		.unit = nvme_location_disk(location),
		.slot = nvme_location_segment(location) << 16 | nvme_location_page(location),
		.generation = (uint32_t)nvme_location_tag_page(location) << GENERATION_BITS |
			      nvme_location_generation(location),
	};
}

uint64_t nvme_extent_location(const struct extent *where)
{
	return (uint64_t)where->unit << DISK_SHIFT |
	       (uint64_t)(where->generation >> GENERATION_BITS & 1) << TAG_SHIFT |
	       (uint64_t)where->slot << PAGE_SHIFT | (where->generation & (NVME_GENERATIONS - 1));
}

/* --- memory --- */

void *nvme_reserve_unset(uint64_t bytes)
{
	void *ret = aligned_alloc(NVME_PAGE, nvme_round_page(bytes));

	if (ret)
		vault_hide(ret, nvme_round_page(bytes)); /* images go through some of it */
	return ret;
}

void *nvme_reserve(uint64_t bytes)
{
	void *ret = nvme_reserve_unset(bytes);

	return ret ? memset(ret, 0, nvme_round_page(bytes)) : NULL;
}

uint64_t nvme_location_make(const struct nvme_log *log, uint32_t segment,
			    const struct nvme_entry *entry)
{
	return (uint64_t)log->conf.disk << DISK_SHIFT |
	       (uint64_t)(entry->tag_page != 0) << TAG_SHIFT | (uint64_t)segment << SEGMENT_SHIFT |
	       (uint64_t)entry->page << PAGE_SHIFT | log->segments[segment].generation;
}

/* Under the segment's generation of now. */
static bool is_now(const struct nvme_log *log, uint64_t location)
{
	return log->segments[nvme_location_segment(location)].generation ==
	       nvme_location_generation(location);
}

bool nvme_log_stale(const struct nvme_log *log, uint64_t location)
{
	const uint32_t segment = nvme_location_segment(location);

	if (nvme_location_disk(location) != log->conf.disk || segment >= log->n_segments)
		return true;
	return !is_now(log, location) &&
	       (log->segments[segment].state != SEGMENT_DRAINING ||
		log->drain.generation != nvme_location_generation(location));
}

/* --- where live records are --- */

void nvme_account(struct nvme_log *log, uint32_t segment, const struct nvme_entry *entry,
		  uint64_t tick)
{
	const uint32_t bytes = (uint32_t)nvme_record_bytes(entry);

	nvme_ages_put(&log->ages, segment, tick, bytes);
	log->facts.live_bytes += bytes;
	log->facts.live_records++;
}

void nvme_unaccount(struct nvme_log *log, uint32_t segment, uint64_t tick, uint32_t bytes)
{
	assert(log->heat[segment].blocks > 0);
	nvme_ages_take(&log->ages, segment, tick, bytes);
	log->facts.live_bytes -= bytes;
	log->facts.live_records--;
}

/* All locations there are stale from now on, and no record of it lives. */
static void next_generation(struct nvme_log *log, uint32_t segment)
{
	struct nvme_segment *s = &log->segments[segment];

	/* odd and even ones in turn: readers[] */
	s->generation = (s->generation + 1) % NVME_GENERATIONS;
	log->facts.live_bytes -= log->heat[segment].bytes;
	log->facts.live_records -= log->heat[segment].blocks;
	nvme_ages_clear(&log->ages, segment);
}

void nvme_segment_release(struct nvme_log *log, uint32_t segment)
{
	struct nvme_segment *s = &log->segments[segment];

	assert(s->state == SEGMENT_SEALED || s->state == SEGMENT_DRAINING);
	s->state = SEGMENT_FREE;
	next_generation(log, segment);
	log->n_free++;
}

void nvme_segment_drain(struct nvme_log *log, uint32_t segment)
{
	assert(log->segments[segment].state == SEGMENT_SEALED);
	log->segments[segment].state = SEGMENT_DRAINING;
	log->drain.segment = segment;
	log->drain.generation = log->segments[segment].generation;
}

void nvme_segment_move(struct nvme_log *log)
{
	next_generation(log, log->drain.segment);
}

void nvme_log_forget(struct nvme_log *log, uint64_t location, uint64_t tick)
{
	const uint32_t segment = nvme_location_segment(location);
	const struct nvme_heat *heat;

	if (nvme_log_stale(log, location) || !is_now(log, location))
		return;
	heat = &log->heat[segment];
	assert(heat->blocks > 0);
	nvme_unaccount(log, segment, tick, (uint32_t)(heat->bytes / heat->blocks));
	if (log->segments[segment].state == SEGMENT_SEALED && !heat->blocks &&
	    log->facts.state == NVME_UP)
		nvme_segment_release(log, segment);
}

void nvme_log_touch(struct nvme_log *log, uint64_t location, uint64_t tick, uint64_t now_tick)
{
	if (!nvme_log_stale(log, location) && is_now(log, location))
		nvme_ages_touch(&log->ages, nvme_location_segment(location), tick, now_tick);
}

/* --- write budget: a bucket of bytes that fills with time --- */

/* The bucket holds the budget of an hour, and at least so many segments. */
enum { BUCKET_SEGMENTS = 2 };

#define DAY_NS 86400e9

static double bucket_bytes(const struct nvme_log *log)
{
	const double hour = (double)log->conf.write_budget_bytes_per_day / 24;
	const double least = (double)BUCKET_SEGMENTS * log->facts.segment_bytes;

	return hour > least ? hour : least;
}

/* The bucket's bytes at `now`. It starts full, unless a header tells (nvme_budget_recall()). */
static double bucket_level(const struct nvme_log *log, uint64_t now)
{
	const double per_day = (double)log->conf.write_budget_bytes_per_day,
		     full = bucket_bytes(log);
	const double level = log->tokens + (double)(now - log->tokens_ns) * per_day / DAY_NS;

	return !log->tokens_ns || level > full ? full : level;
}

bool nvme_budget_allows(struct nvme_log *log, uint64_t bytes)
{
	const uint64_t now = log->medium->now_ns(log->medium);

	if (!log->conf.write_budget_bytes_per_day)
		return true;
	log->tokens = bucket_level(log, now);
	log->tokens_ns = now ? now : 1;
	return log->tokens >= (double)bytes;
}

static void nvme_budget_tell(const struct nvme_log *log, struct nvme_budget *ret)
{
	*ret = (struct nvme_budget){ 0 };
	if (!log->conf.write_budget_bytes_per_day)
		return;
	ret->level_bytes = (int64_t)bucket_level(log, log->medium->now_ns(log->medium));
	ret->at_s = log->medium->wall_s(log->medium);
}

void nvme_budget_recall(struct nvme_log *log, const struct nvme_budget *budget)
{
	const double per_day = (double)log->conf.write_budget_bytes_per_day,
		     full = bucket_bytes(log);
	const uint64_t wall = log->medium->wall_s(log->medium),
		       now = log->medium->now_ns(log->medium);
	double level = (double)budget->level_bytes;

	if (!log->conf.write_budget_bytes_per_day || !budget->at_s)
		return;
	if (wall > budget->at_s)
		level += (double)(wall - budget->at_s) * 1e9 / DAY_NS * per_day;
	/* a disk's word: no debt lasts longer than a day */
	log->tokens = level > full ? full : level < -per_day ? -per_day : level;
	log->tokens_ns = now ? now : 1;
}

void nvme_budget_pay(struct nvme_log *log, uint64_t bytes)
{
	log->tokens -= (double)bytes;
}

/* The level may go below zero: later appends pay for headers and footers. */
static void nvme_charge(struct nvme_log *log, uint64_t bytes)
{
	log->facts.counters.written_bytes += bytes;
	nvme_budget_pay(log, bytes);
}

bool nvme_log_affords(struct nvme_log *log, uint64_t bytes)
{
	return nvme_budget_allows(log, bytes);
}

void nvme_log_set_budget(struct nvme_log *log, uint64_t bytes_per_day)
{
	if (!log->conf.write_budget_bytes_per_day)
		log->tokens_ns = 0;
	else
		(void)nvme_budget_allows(log, 0); /* the level as of now */
	log->conf.write_budget_bytes_per_day = bytes_per_day;
}

uint32_t nvme_log_budget_percent(const struct nvme_log *log)
{
	double level;

	if (!log->conf.write_budget_bytes_per_day || !log->facts.segment_bytes)
		return 100;
	level = bucket_level(log, log->medium->now_ns(log->medium)) / bucket_bytes(log) * 100;
	return level > 0 ? (uint32_t)level : 0;
}

/* --- I/O of the log's own, and the life of a segment --- */

enum { RETRY_NS = 100000000 }; /* after a header could not be written */

static void io_ended(struct io_op *op)
{
	struct nvme_io *io = (struct nvme_io *)(void *)op; /* op is its first member */
	struct nvme_log *log = io->log;

	assert(log->lent > 0);
	log->lent--;
	if (log->medium->ended)
		log->medium->ended(log->medium, op);
	if (op->kind == IO_READ && !op->status)
		log->facts.counters.read_bytes += op->bytes;
	if (op->status) {
		log->facts.counters.read_errors += op->kind == IO_READ;
		log->facts.counters.write_errors += op->kind != IO_READ;
	}
	io->done(io);
	log->step(log);
}

void nvme_io_set(struct nvme_io *io, struct nvme_log *log, enum io_kind kind, uint64_t offset,
		 uint8_t *buffer, uint32_t bytes)
{
	memset(&io->op, 0, sizeof(io->op));
	io->op.kind = kind;
	io->op.offset = offset;
	io->op.buffer = buffer;
	io->op.bytes = bytes;
	io->op.done = io_ended;
	io->log = log;
	io->next = NULL;
}

int nvme_io_try(struct nvme_io *io)
{
	struct nvme_log *log = io->log;
	const int r = log->medium->submit(log->medium, &io->op);

	if (r)
		return r;
	log->lent++;
	if (io->op.kind == IO_WRITE)
		nvme_charge(log, io->op.bytes);
	return 0;
}

void nvme_io_start(struct nvme_io *io)
{
	struct nvme_log *log = io->log;

	if (!log->waiting && !nvme_io_try(io))
		return;
	io->next = NULL;
	*log->waiting_end = io;
	log->waiting_end = &io->next;
}

void nvme_io_retry(struct nvme_log *log)
{
	while (log->waiting) {
		struct nvme_io *io = log->waiting;
		const int r = nvme_io_try(io);

		if (r == -EAGAIN)
			return;
		log->waiting = io->next;
		if (!log->waiting)
			log->waiting_end = &log->waiting;
		if (r) { /* refused for good: the file is out of the engine */
			io->op.status = r;
			io->done(io);
		}
	}
}

void nvme_identify(const struct nvme_log *log, uint32_t segment, struct nvme_identity *ret)
{
	memcpy(ret->uuid, log->super.uuid, sizeof(ret->uuid));
	ret->sequence = log->segments[segment].sequence;
	ret->segment = segment;
	ret->segment_bytes = log->facts.segment_bytes;
}

void nvme_segment_sealed(struct nvme_log *log, uint32_t segment, uint32_t entries,
			 uint32_t free_bytes)
{
	log->segments[segment].full_ns = log->medium->now_ns(log->medium);
	log->segments[segment].state = SEGMENT_SEALED;
	log->segments[segment].entries = (uint16_t)entries;
	nvme_ages_seal(&log->ages, segment, free_bytes);
	if (!log->heat[segment].blocks)
		nvme_segment_release(log, segment);
}

static uint64_t footer_offset(const struct nvme_log *log, uint32_t segment, uint32_t bytes)
{
	return nvme_segment_offset(segment + 1, log->facts.segment_bytes) - bytes;
}

/* --- the next segment --- */

/* Records are kept in this segment, and nothing is written there yet. */
static bool keeps(const struct nvme_log *log, uint32_t segment)
{
	return log->drain.state == DRAIN_KEPT && log->drain.segment == segment;
}

static void prepared(struct nvme_log *log, int status)
{
	const uint32_t segment = log->preparing;

	log->preparing = NVME_NONE;
	if (!status) {
		log->segments[segment].state = SEGMENT_READY;
		log->ready = segment;
		return;
	}
	log->prepare_after_ns = log->medium->now_ns(log->medium) + RETRY_NS;
	if (keeps(log, segment))
		return;
	log->segments[segment].state = SEGMENT_FREE;
	log->n_free++;
}

static void header_done(struct nvme_io *io)
{
	prepared(io->log, io->op.status);
}

static void write_header(struct nvme_log *log)
{
	struct nvme_identity who;
	struct nvme_budget budget;

	nvme_identify(log, log->preparing, &who);
	nvme_budget_tell(log, &budget);
	nvme_header_encode(&who, &budget, log->prepare_page);
	nvme_io_set(&log->prepare_io, log, IO_WRITE,
		    nvme_segment_offset(who.segment, log->facts.segment_bytes), log->prepare_page,
		    NVME_PAGE);
	log->prepare_io.done = header_done;
	nvme_io_start(&log->prepare_io);
}

static void kept_done(struct nvme_io *io)
{
	if (io->op.status)
		prepared(io->log, io->op.status);
	else
		write_header(io->log);
}

/* A footer of the records that are kept, before the header makes the footer that lists all records
 * invalid. */
static void write_kept(struct nvme_log *log)
{
	struct nvme_drain *drain = &log->drain;
	const uint32_t bytes = nvme_footer_bytes(drain->kept);
	struct nvme_identity who;

	nvme_identify(log, drain->segment, &who);
	nvme_footer_encode(&who, drain->kept, true, drain->footer);
	nvme_io_set(&log->prepare_io, log, IO_WRITE, footer_offset(log, drain->segment, bytes),
		    drain->footer, bytes);
	log->prepare_io.done = kept_done;
	nvme_io_start(&log->prepare_io);
}

/* A segment that may be overwritten: the one with room among its records, or a FREE one. */
static uint32_t next_segment(struct nvme_log *log)
{
	const struct nvme_drain *drain = &log->drain;

	if (drain->state == DRAIN_KEPT && !log->paused &&
	    !log->segments[drain->segment].readers[drain->generation & 1])
		return drain->segment;
	for (uint32_t i = 0; log->n_free > 0 && i < log->n_segments; i++) {
		const uint32_t segment = (log->cursor + i) % log->n_segments;
		const struct nvme_segment *s = &log->segments[segment];

		if (s->state != SEGMENT_FREE || s->readers[0] || s->readers[1])
			continue;
		log->cursor = segment + 1;
		log->n_free--;
		return segment;
	}
	return NVME_NONE;
}

/* One segment is kept READY, so that an append need not wait for a header. */
static void prepare(struct nvme_log *log)
{
	if (log->ready != NVME_NONE || log->preparing != NVME_NONE)
		return;
	if (log->prepare_after_ns && log->medium->now_ns(log->medium) < log->prepare_after_ns)
		return;
	log->prepare_after_ns = 0;
	log->preparing = next_segment(log);
	if (log->preparing == NVME_NONE)
		return;
	log->segments[log->preparing].state = SEGMENT_PREPARING;
	log->segments[log->preparing].sequence = log->next_sequence++;
	if (keeps(log, log->preparing))
		write_kept(log);
	else
		write_header(log);
}

/* --- the open segment --- */

void nvme_holes_open(const struct nvme_log *log, struct nvme_holes *holes,
		     const struct nvme_entry *entries, uint32_t kept)
{
	memmove(nvme_entries(holes->footer) + log->entries_max - kept, entries,
		kept * sizeof(*entries));
	holes->used = NVME_PAGE;
	holes->count = 0;
	holes->ahead = kept;
}

uint32_t nvme_hole_end(const struct nvme_log *log, const struct nvme_holes *holes)
{
	const struct nvme_entry *end = nvme_entries(holes->footer) + log->entries_max;
	const uint32_t footer =
		log->facts.segment_bytes - nvme_footer_bytes(holes->count + holes->ahead + 1);

	if (!holes->ahead)
		return footer;
	return nvme_end_byte(&end[-1]) > footer ? 0 : nvme_first_byte(&end[-(int32_t)holes->ahead]);
}

bool nvme_hole_next(const struct nvme_log *log, struct nvme_holes *holes)
{
	struct nvme_entry *entries = nvme_entries(holes->footer);
	const struct nvme_entry *kept = &entries[log->entries_max - holes->ahead];

	if (!holes->ahead)
		return false;
	holes->used = nvme_end_byte(kept);
	entries[holes->count++] = *kept;
	holes->ahead--;
	return true;
}

bool nvme_fill_open(struct nvme_log *log)
{
	struct nvme_drain *drain = &log->drain;

	assert(!log->open);
	if (log->ready == NVME_NONE)
		return false;
	for (uint32_t i = 0; i < NVME_FILLS; i++) {
		struct nvme_fill *fill = &log->fill[i];
		uint8_t *footer = fill->holes.footer;
		uint32_t kept = 0;

		if (fill->state != FILL_NONE)
			continue;
		if (keeps(log, log->ready)) {
			fill->holes.footer = drain->footer;
			drain->footer = footer;
			kept = drain->kept;
			drain->state = DRAIN_IDLE;
		}
		nvme_holes_open(log, &fill->holes, nvme_entries(fill->holes.footer), kept);
		fill->state = FILL_OPEN;
		fill->segment = log->ready;
		assert(fill->writes == 0);
		log->segments[log->ready].state = SEGMENT_FILLING;
		log->ready = NVME_NONE;
		log->open = fill;
		return true;
	}
	return false;
}

void nvme_fill_close(struct nvme_log *log)
{
	if (!log->open)
		return;
	log->open->state = FILL_CLOSED;
	log->open = NULL;
}

/* A page that may be overwritten: in the hole at hand of the open segment; in a READY segment where
 * nothing is kept, where its records will begin; or the header of a FREE segment, whose records are
 * all forgotten. Bytes that are no record end no walk, and a segment without a header has no
 * records. */
uint64_t nvme_log_spare(const struct nvme_log *log)
{
	const struct nvme_fill *fill = log->open;

	if (fill && fill->holes.used + NVME_PAGE <= nvme_hole_end(log, &fill->holes))
		return nvme_segment_offset(fill->segment, log->facts.segment_bytes) +
		       fill->holes.used;
	if (log->ready != NVME_NONE && !keeps(log, log->ready))
		return nvme_segment_offset(log->ready, log->facts.segment_bytes) + NVME_PAGE;
	for (uint32_t i = 0; i < log->n_segments && log->n_free > 0; i++)
		if (log->segments[i].state == SEGMENT_FREE && !log->segments[i].readers[0] &&
		    !log->segments[i].readers[1])
			return nvme_segment_offset(i, log->facts.segment_bytes);
	return NVME_SPARE_OFFSET;
}

static void footer_done(struct nvme_io *io)
{
	struct nvme_fill *fill = io->owner;

	/* A segment without a footer serves its records all the same, and is walked at the next
	 * start. */
	fill->state = FILL_NONE;
	nvme_segment_sealed(io->log, fill->segment, fill->holes.count,
			    (uint32_t)(fill->bytes - io->log->heat[fill->segment].bytes));
}

/* Records whose write failed are not in the footer. Returns the bytes of the others. */
static uint32_t drop_failed(struct nvme_holes *holes)
{
	struct nvme_entry *entries = nvme_entries(holes->footer);
	uint32_t good = 0, ret = 0;

	for (uint32_t i = 0; i < holes->count; i++) {
		if (!entries[i].image_bytes)
			continue;
		ret += (uint32_t)nvme_record_bytes(&entries[i]);
		entries[good++] = entries[i];
	}
	holes->count = good;
	return ret;
}

static void write_footer(struct nvme_log *log, struct nvme_fill *fill)
{
	struct nvme_holes *holes = &fill->holes;
	struct nvme_identity who;
	uint32_t bytes;

	while (nvme_hole_next(log, holes))
		;
	fill->bytes = drop_failed(holes);
	bytes = nvme_footer_bytes(holes->count);
	nvme_identify(log, fill->segment, &who);
	nvme_footer_encode(&who, holes->count, false, holes->footer);
	fill->state = FILL_FOOTER;
	nvme_io_set(&fill->io, log, IO_WRITE, footer_offset(log, fill->segment, bytes),
		    holes->footer, bytes);
	fill->io.done = footer_done;
	fill->io.owner = fill;
	nvme_io_start(&fill->io);
}

static void flush_end(struct nvme_log *log, int status)
{
	log->flush.stage = FLUSH_IDLE;
	if (log->flush.last)
		log->facts.state = NVME_STOPPED;
	log->flush.done(log->flush.arg, status);
}

static void flush_done(struct nvme_io *io)
{
	flush_end(io->log, io->op.status);
}

/* Goes on until no segment is open or being sealed. At the last flush a READY segment gets an empty
 * footer: without it the next start would look through it for records. */
static void flush_step(struct nvme_log *log)
{
	struct nvme_flush *flush = &log->flush;

	if (flush->stage != FLUSH_SEAL)
		return;
	if (flush->last) {
		if (log->preparing != NVME_NONE || log->drain.state == DRAIN_FOOTER ||
		    log->drain.state == DRAIN_ASK || log->drain.state == DRAIN_MOVE)
			return;
		if (!log->open && log->ready != NVME_NONE && nvme_fill_open(log)) {
			nvme_fill_close(log);
			return flush_step(log);
		}
		if (log->ready != NVME_NONE)
			return;
	}
	for (uint32_t i = 0; i < NVME_FILLS; i++)
		if (log->fill[i].state == FILL_CLOSED || log->fill[i].state == FILL_FOOTER)
			return;
	flush->stage = FLUSH_SYNC;
	nvme_io_set(&flush->io, log, IO_FDATASYNC, 0, NULL, 0);
	flush->io.done = flush_done;
	nvme_io_start(&flush->io);
}

void nvme_segment_step(struct nvme_log *log)
{
	flush_step(log);
	for (uint32_t i = 0; i < NVME_FILLS; i++)
		if (log->fill[i].state == FILL_CLOSED && !log->fill[i].writes)
			write_footer(log, &log->fill[i]);
	if (!(log->flush.stage != FLUSH_IDLE && log->flush.last))
		prepare(log);
}

int nvme_log_flush(struct nvme_log *log, bool last, void (*done)(void *arg, int status), void *arg)
{
	if (log->facts.state != NVME_UP)
		return -ESHUTDOWN;
	if (log->flush.stage != FLUSH_IDLE)
		return -EBUSY;
	log->flush.last = last;
	log->flush.done = done;
	log->flush.arg = arg;
	log->flush.stage = FLUSH_SEAL;
	if (log->open && last)
		/* another flush leaves it open: the rest of it would be wasted */
		nvme_fill_close(log);
	return 0; /* done never runs inside this call: a completion or poll goes on */
}
