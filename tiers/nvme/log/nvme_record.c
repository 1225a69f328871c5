/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_record.c - records: how they are appended to the open segment, read from any segment, and
 * dropped from a segment that is to take others. Contract: nvme_log.h; states and invariants:
 * nvme_log_inner.h. Core thread only.
 *
 * Drain makes room in a used segment. It picks the victim, reads the victim's footer back, and asks
 * the table about each record: one that was used lately is kept where it lies, others are dropped,
 * and their places are holes that appends fill. A failure costs records, never the room: this is a
 * cache, and it must not fill up for good.
 */
#include "nvme_log_inner.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- append --- */

static uint32_t take_tag_page(struct nvme_log *log)
{
	for (uint32_t i = 0; i < NVME_TAG_PAGES; i++) {
		if (log->tag_pages_used >> i & 1)
			continue;
		log->tag_pages_used |= 1ull << i;
		return i;
	}
	return NVME_NONE;
}

/* The open segment has a hole for a record of so many bytes, which is at hand then. */
static bool find_hole(struct nvme_log *log, uint32_t bytes)
{
	struct nvme_holes *holes = &log->open->holes;

	while (holes->used + bytes > nvme_hole_end(log, holes))
		if (!nvme_hole_next(log, holes))
			return false;
	return true;
}

/* A hole for a record of this size. -EAGAIN: no segment has one now. */
static int find_room(struct nvme_log *log, uint32_t bytes)
{
	if (bytes > log->need)
		log->need = bytes; /* the next victim gets a hole for it */
	if (log->open && find_hole(log, bytes))
		return 0;
	if (log->ready == NVME_NONE)
		return -EAGAIN;
	for (uint32_t i = 0; i < NVME_FILLS; i++) {
		if (log->fill[i].state != FILL_NONE)
			continue;
		nvme_fill_close(log);
		return nvme_fill_open(log) && find_hole(log, bytes) ? 0 : -EAGAIN;
	}
	return -EAGAIN;
}

static void count_appended(struct nvme_log *log, const struct nvme_entry *entry)
{
	struct nvme_counters *counters = &log->facts.counters;

	counters->appended_bytes += nvme_record_bytes(entry);
	if (!entry->coded_bytes)
		return;
	counters->coded_records++;
	counters->saved_bytes += nvme_round_page(entry->image_bytes) - nvme_record_bytes(entry);
}

static void append_done(struct nvme_io *io)
{
	struct nvme_append *a = io->owner;
	struct nvme_log *log = io->log;
	struct nvme_entry *entry = &nvme_entries(a->fill->holes.footer)[a->entry];

	a->status = io->op.status;
	if (!a->status && entry->tag_page && io == &a->io[0]) {
		/* The tag page is written only now: so a tag that the walk finds belongs to an
		 * image that is there. */
		nvme_io_start(&a->io[1]);
		return;
	}
	a->fill->writes--;
	if (a->tag_page != NVME_NONE)
		log->tag_pages_used &= ~(1ull << a->tag_page);
	if (a->status) {
		entry->image_bytes = 0;
	} else {
		a->location = nvme_location_make(log, a->fill->segment, entry);
		nvme_account(log, a->fill->segment, entry, a->tick);
		count_appended(log, entry);
	}
	a->done(a);
}

static void set_writes(struct nvme_log *log, struct nvme_append *a, const struct nvme_entry *entry)
{
	const uint64_t base = nvme_segment_offset(a->fill->segment, log->facts.segment_bytes);
	const struct image_header *header = (const void *)a->image;
	uint8_t *page = log->tag_pages + (size_t)a->tag_page * NVME_PAGE;
	struct nvme_identity who;
	uint32_t image_bytes, payload;

	nvme_identify(log, a->fill->segment, &who);
	/* cannot fail: it was checked when the entry was made */
	(void)nvme_image_check(header, &image_bytes, &payload);
	if (entry->coded_bytes)
		payload = NVME_PAGE;
	nvme_io_set(&a->io[0], log, IO_WRITE, base + (uint64_t)entry->page * NVME_PAGE, a->image,
		    (uint32_t)nvme_round_page(entry->coded_bytes ? entry->coded_bytes : a->bytes));
	if (entry->tag_page) {
		memcpy(page, header, sizeof(*header));
		nvme_tag_encode(&who, entry, page + NVME_PAGE - sizeof(struct nvme_tag));
		nvme_io_set(&a->io[1], log, IO_WRITE, a->io[0].op.offset - NVME_PAGE, page,
			    NVME_PAGE);
	} else {
		nvme_tag_encode(&who, entry, a->image + payload - sizeof(struct nvme_tag));
	}
	for (int i = 0; i < 2; i++) {
		a->io[i].done = append_done;
		a->io[i].owner = a;
	}
}

/* nvme_log_append() for a record whose entry is complete but for its place. */
static int append_start(struct nvme_log *log, struct nvme_append *a, struct nvme_entry *entry)
{
	const uint32_t bytes = (uint32_t)nvme_record_bytes(entry);
	struct nvme_holes *holes;
	int r = find_room(log, bytes);

	if (r)
		return r;
	a->tag_page = NVME_NONE;
	if (entry->tag_page) {
		a->tag_page = take_tag_page(log);
		if (a->tag_page == NVME_NONE)
			return -EAGAIN;
	}
	a->fill = log->open;
	holes = &a->fill->holes;
	entry->page = (uint16_t)(holes->used / NVME_PAGE + entry->tag_page);
	set_writes(log, a, entry);
	r = nvme_io_try(&a->io[0]);
	if (r) {
		if (entry->tag_page)
			log->tag_pages_used &= ~(1ull << a->tag_page);
		return r;
	}
	a->status = 0;
	a->location = NVME_NOWHERE;
	a->entry = holes->count;
	nvme_entries(holes->footer)[holes->count++] = *entry;
	holes->used += bytes;
	a->fill->writes++;
	return 0;
}

int nvme_log_append(struct nvme_log *log, struct nvme_append *a)
{
	const struct image_header *header = (const void *)a->image;
	struct nvme_entry entry = { 0 };
	uint32_t payload;

	if (log->facts.state != NVME_UP || (log->flush.stage != FLUSH_IDLE && log->flush.last))
		return -ESHUTDOWN;
	if (a->bytes > log->image_max)
		return -E2BIG;
	if ((uintptr_t)a->image % NVME_PAGE || nvme_image_within(header, a->bytes, &payload))
		return -EINVAL;
	memcpy(entry.key, header->key, sizeof(entry.key));
	memcpy(entry.parent, a->parent, sizeof(entry.parent));
	memcpy(entry.owner, a->owner, sizeof(entry.owner));
	entry.tick = a->tick;
	entry.epoch = log->epoch;
	entry.image_bytes = a->bytes;
	entry.coded_bytes = a->coded_bytes;
	entry.header_crc = header->header_crc;
	entry.tag_page = !a->coded_bytes && !nvme_tag_fits(header);
	if (!nvme_budget_allows(log, nvme_record_bytes(&entry))) {
		log->facts.counters.refused_budget++;
		return -EAGAIN;
	}
	return append_start(log, a, &entry);
}

/* --- read --- */

/* The tag lies in the image's padding, unless the padding is too short. */
static void find_parent(struct nvme_log *log, struct nvme_read *read)
{
	const struct image_header *header = (const void *)read->buffer;
	const uint32_t page = nvme_location_page(read->location);
	const uint8_t *end;
	struct nvme_identity who;
	struct nvme_entry entry;
	uint32_t payload;

	memset(read->parent, 0, sizeof(read->parent));
	read->coded_bytes = 0;
	if (nvme_location_tag_page(read->location) ||
	    nvme_image_within(header, read->bytes, &payload))
		return;
	nvme_identify(log, nvme_location_segment(read->location), &who);
	who.sequence = 0; /* the record may have been kept */
	end = read->buffer + NVME_PAGE;
	if (nvme_tag_check(end - sizeof(struct nvme_tag), &who, header, page, &entry) ||
	    !entry.coded_bytes) {
		end = read->buffer + payload;
		if (!nvme_tag_fits(header) ||
		    nvme_tag_check(end - sizeof(struct nvme_tag), &who, header, page, &entry) ||
		    entry.coded_bytes)
			return;
	}
	if (entry.image_bytes != read->bytes)
		return;
	memcpy(read->parent, entry.parent, sizeof(read->parent));
	read->coded_bytes = entry.coded_bytes;
}

static uint32_t *readers_of(struct nvme_log *log, uint64_t location)
{
	/* a location's lowest bit is its generation's */
	return &log->segments[nvme_location_segment(location)].readers[location & 1];
}

static void read_done(struct nvme_io *io)
{
	struct nvme_read *read = io->owner;

	read->status = io->op.status;
	if (!read->status)
		find_parent(io->log, read);
	(*readers_of(io->log, read->location))--;
	read->done(read);
}

int nvme_log_read(struct nvme_log *log, struct nvme_read *read)
{
	const uint32_t segment = nvme_location_segment(read->location);
	const uint64_t offset = (uint64_t)nvme_location_page(read->location) * NVME_PAGE;
	uint64_t bytes = nvme_round_page(read->bytes);
	int r;

	if (nvme_log_stale(log, read->location))
		return -ESTALE;
	if (!read->bytes || bytes > log->facts.segment_bytes || offset >= log->facts.segment_bytes)
		return -EINVAL;
	if (bytes > log->facts.segment_bytes - offset)
		bytes = log->facts.segment_bytes - offset;
	nvme_io_set(&read->io, log, IO_READ,
		    nvme_segment_offset(segment, log->facts.segment_bytes) + offset, read->buffer,
		    (uint32_t)bytes);
	read->io.done = read_done;
	read->io.owner = read;
	r = nvme_io_try(&read->io);
	if (r)
		return r;
	(*readers_of(log, read->location))++;
	return 0;
}

/* --- drain --- */

/* Under the generation before the victim was drained, and of now. */
static struct extent place_before(const struct nvme_log *log, const struct nvme_entry *entry)
{
	const struct nvme_drain *drain = &log->drain;

	/* a location's lowest bits are its generation */
	return nvme_location_extent(nvme_location_make(log, drain->segment, entry) -
				    log->segments[drain->segment].generation + drain->generation);
}

static struct extent place_now(const struct nvme_log *log, const struct nvme_entry *entry)
{
	return nvme_location_extent(nvme_location_make(log, log->drain.segment, entry));
}

static void drop(struct nvme_log *log, const struct nvme_entry *entry, const struct extent *where)
{
	log->facts.counters.dropped_records++;
	log->events.dropped(log->events.arg, entry, where);
}

/* How long the record has been in a segment that was full. The records that are dropped, among all
 * whose time is counted here, tell how long a record stays. */
static void count_age(struct nvme_log *log)
{
	const uint64_t full_ns = log->segments[log->drain.segment].full_ns;

	log->facts.counters.lived_s += (log->medium->now_ns(log->medium) - full_ns) / 1000000000u;
}

/* Whether the record is kept, as far as its age says. */
static bool ask(struct nvme_log *log, struct nvme_entry *entry)
{
	const struct extent from = place_before(log, entry);

	if (!log->events.ask(log->events.arg, entry, &from, &entry->tick))
		return false;
	count_age(log);
	if (entry->tick >= log->drain.tick)
		return true;
	drop(log, entry, &from);
	return false;
}

/* Whether the record is still there. Then it has its tick, and the present epoch: it is alive now,
 * and a later purge must hit it, too. */
static bool move(struct nvme_log *log, struct nvme_entry *entry)
{
	const struct extent from = place_before(log, entry), to = place_now(log, entry);

	if (nvme_super_dead(&log->super, entry->owner, entry->epoch)) {
		drop(log, entry, &from);
		return false;
	}
	entry->epoch = log->epoch;
	if (!log->events.moved(log->events.arg, entry, &from, &to, &entry->tick))
		return false;
	nvme_account(log, log->drain.segment, entry, entry->tick);
	return true;
}

static void drop_kept(struct nvme_log *log, const struct nvme_entry *entry)
{
	const struct extent where = place_before(log, entry);

	drop(log, entry, &where);
}

/* How much later than the tick of the drain the record was used: the loss if it is dropped. */
static int64_t worth(const struct nvme_log *log, const struct nvme_entry *entry)
{
	return (int64_t)(entry->tick - log->drain.tick) + 1;
}

/* Takes kept records in a row out, so that the largest record that wanted room has a hole, and its
 * entry room: the row with which the least is lost. */
static void make_room(struct nvme_log *log)
{
	struct nvme_drain *drain = &log->drain;
	struct nvme_entry *kept = nvme_entries(drain->footer);
	uint32_t rest, from = 0, n = UINT32_MAX;
	int64_t sum = 0, least = 0;

	while (drain->kept > 0 &&
	       nvme_end_byte(&kept[drain->kept - 1]) + nvme_footer_bytes(drain->kept + 1) >
		       log->facts.segment_bytes)
		drop_kept(log, &kept[--drain->kept]);
	rest = log->facts.segment_bytes - nvme_footer_bytes(drain->kept + 1);
	for (uint32_t i = 0, j = 0; i <= drain->kept; i++) {
		const uint32_t begin = i ? nvme_end_byte(&kept[i - 1]) : NVME_PAGE;

		for (; j < drain->kept && nvme_first_byte(&kept[j]) < begin + log->need; j++)
			sum += worth(log, &kept[j]);
		if (j == drain->kept && rest < begin + log->need)
			break;
		if (n == UINT32_MAX || sum < least) {
			from = i;
			n = j - i;
			least = sum;
		}
		if (i < j)
			sum -= worth(log, &kept[i]);
	}
	if (n == UINT32_MAX)
		n = drain->kept; /* a record that leaves no room for so many entries */
	for (uint32_t i = from; i < from + n; i++)
		drop_kept(log, &kept[i]);
	drain->kept -= n;
	memmove(&kept[from], &kept[from + n], (drain->kept - from) * sizeof(*kept));
	log->need = 0;
}

static void drain_end(struct nvme_log *log)
{
	struct nvme_drain *drain = &log->drain;

	log->facts.counters.segments_reclaimed++;
	if (drain->kept) {
		log->facts.counters.segments_refilled++;
		log->segments[drain->segment].state = SEGMENT_PREPARING;
		drain->state = DRAIN_KEPT;
	} else {
		nvme_segment_release(log, drain->segment);
		drain->state = DRAIN_IDLE;
	}
}

enum { DRAIN_RECORDS = 4 }; /* between two looks at the clock */

/* Leaves the records for which keeps() is true. False: the iteration ended before the last record
 * was looked at. */
static bool drain_each(struct nvme_log *log,
		       bool (*keeps)(struct nvme_log *log, struct nvme_entry *entry))
{
	struct nvme_drain *drain = &log->drain;
	struct nvme_entry *entries = nvme_entries(drain->footer);

	while (drain->asked < drain->records) {
		struct nvme_entry entry = entries[drain->asked++];

		if (keeps(log, &entry))
			entries[drain->kept++] = entry;
		if (drain->asked % DRAIN_RECORDS == 0 && log->medium->tired(log->medium))
			return false;
	}
	return true;
}

/* Which records stay is known before one of them moves: a location of the new generation never
 * becomes a hole. */
static void drain_go_on(struct nvme_log *log)
{
	struct nvme_drain *drain = &log->drain;

	if (drain->state == DRAIN_ASK && drain_each(log, ask)) {
		make_room(log);
		nvme_segment_move(log);
		drain->state = DRAIN_MOVE;
		drain->records = drain->kept;
		drain->asked = drain->kept = 0;
	}
	if (drain->state == DRAIN_MOVE && drain_each(log, move))
		drain_end(log);
}

bool nvme_drain_works(const struct nvme_log *log)
{
	return !log->paused && (log->drain.state == DRAIN_ASK || log->drain.state == DRAIN_MOVE);
}

static void footer_read(struct nvme_io *io)
{
	struct nvme_log *log = io->log;
	struct nvme_drain *drain = &log->drain;
	struct nvme_footer footer;
	struct nvme_identity who;

	nvme_identify(log, drain->segment, &who);
	drain->records = drain->asked = drain->kept = 0;
	if (io->op.status || nvme_footer_check(drain->footer, io->op.bytes, &who, &footer) ||
	    footer.sequence != who.sequence)
		log->facts.counters.segments_lost++;
	else
		drain->records = footer.count;
	drain->state = DRAIN_ASK;
}

static void drain_begin(struct nvme_log *log)
{
	struct nvme_drain *drain = &log->drain;
	const uint32_t victim =
		nvme_victim_pick(&log->ages, log->facts.segment_bytes, &drain->tick);
	uint32_t bytes;

	if (victim == NVME_NO_VICTIM)
		return;
	nvme_segment_drain(log, victim);
	drain->state = DRAIN_FOOTER;
	bytes = nvme_footer_bytes(log->segments[victim].entries);
	nvme_io_set(&drain->io, log, IO_READ,
		    nvme_segment_offset(victim + 1, log->facts.segment_bytes) - bytes,
		    drain->footer, bytes);
	drain->io.done = footer_read;
	nvme_io_start(&drain->io);
}

void nvme_drain_step(struct nvme_log *log)
{
	struct nvme_drain *drain = &log->drain;

	if (log->flush.stage != FLUSH_IDLE && log->flush.last) {
		/* The disk has all records where they were, and reads find them. */
		if (drain->state == DRAIN_ASK || drain->state == DRAIN_MOVE)
			drain->state = DRAIN_IDLE;
		return;
	}
	if (log->paused)
		return;
	if (drain->state == DRAIN_IDLE && !log->n_free && log->ready == NVME_NONE &&
	    log->preparing == NVME_NONE)
		drain_begin(log);
	drain_go_on(log);
}
