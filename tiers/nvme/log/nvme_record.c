/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_record.c - records: how they are appended to the open segment, read from any segment, and
 * carried over from a segment that is to be used again. Contract: nvme_log.h; states and
 * invariants: nvme_log_inner.h. Core thread only.
 *
 * Carry-over makes a used segment free. It picks the victim, reads the victim's footer back, asks
 * the table which records still matter, and appends the best of these again, one record at a time:
 * carry-over is a few percent of all writes, and should not take the queue from loads. A failure
 * costs the record, never the reclaim: this is a cache, and it must not fill up for good.
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

static bool fits(const struct nvme_log *log, const struct nvme_fill *fill, uint64_t bytes)
{
	return fill->used + bytes + nvme_footer_bytes(fill->count + 1) <= log->facts.segment_bytes;
}

/* The open segment takes a record of this size. -EAGAIN: no segment does now; -ENOSPC (carry): none
 * does until a segment is free. */
static int find_room(struct nvme_log *log, uint64_t bytes, bool carry)
{
	if (!carry && !log->clean)
		/* the last clean segment is for the carry-over, which will free another */
		return -EAGAIN;
	if (log->open && fits(log, log->open, bytes))
		return 0;
	if (carry && !log->clean)
		return -ENOSPC;
	if (!carry && log->clean < 2)
		return -EAGAIN;
	if (log->ready == NVME_NONE)
		return -EAGAIN;
	for (uint32_t i = 0; i < NVME_FILLS; i++) {
		if (log->fill[i].state != FILL_NONE)
			continue;
		nvme_fill_close(log);
		return nvme_fill_open(log) ? 0 : -EAGAIN;
	}
	return -EAGAIN;
}

static void count_appended(struct nvme_log *log, const struct nvme_entry *entry)
{
	struct nvme_counters *counters = &log->facts.counters;

	counters->appended_bytes += nvme_record_bytes(entry);
	nvme_credit_earn(&log->credit, nvme_record_bytes(entry));
	if (!entry->coded_bytes)
		return;
	counters->coded_records++;
	counters->saved_bytes += nvme_round_page(entry->image_bytes) - nvme_record_bytes(entry);
}

static void count_carried(struct nvme_log *log, const struct nvme_entry *entry)
{
	log->facts.counters.carried_bytes += nvme_record_bytes(entry);
	log->credit.bytes -= (double)nvme_record_bytes(entry);
}

static void append_done(struct nvme_io *io)
{
	struct nvme_append *a = io->owner;
	struct nvme_log *log = io->log;
	struct nvme_entry *entry = &((struct nvme_entry *)(void *)a->fill->footer)[a->entry];

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
		if (a == &log->carry.append)
			count_carried(log, entry);
		else
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

/* nvme_log_append() for a record whose entry is complete but for its place. carry: for the log
 * itself; -ENOSPC: no clean segment at all. */
static int nvme_append_start(struct nvme_log *log, struct nvme_append *a, struct nvme_entry *entry,
			     bool carry)
{
	const uint64_t bytes = nvme_record_bytes(entry);
	int r = find_room(log, bytes, carry);

	if (r)
		return r;
	a->tag_page = NVME_NONE;
	if (entry->tag_page) {
		a->tag_page = take_tag_page(log);
		if (a->tag_page == NVME_NONE)
			return -EAGAIN;
	}
	a->fill = log->open;
	entry->page = (uint16_t)(a->fill->used / NVME_PAGE + entry->tag_page);
	set_writes(log, a, entry);
	r = nvme_io_try(&a->io[0]);
	if (r) {
		if (entry->tag_page)
			log->tag_pages_used &= ~(1ull << a->tag_page);
		return r;
	}
	a->status = 0;
	a->location = NVME_NOWHERE;
	a->entry = a->fill->count;
	((struct nvme_entry *)(void *)a->fill->footer)[a->fill->count++] = *entry;
	a->fill->used += (uint32_t)bytes;
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
	return nvme_append_start(log, a, &entry, false);
}

/* --- read --- */

/* The tag lies in the image's padding, unless the padding is too short. The segment still has the
 * sequence that it had when the read began: a segment with readers is not used again. */
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

static void read_done(struct nvme_io *io)
{
	struct nvme_read *read = io->owner;

	read->status = io->op.status;
	if (!read->status)
		find_parent(io->log, read);
	io->log->segments[nvme_location_segment(read->location)].readers--;
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
	log->segments[segment].readers++;
	return 0;
}

/* --- carry-over --- */

static const struct nvme_entry *entry_of(const struct nvme_carry *carry, uint32_t candidate)
{
	return &carry->entries[carry->candidates[candidate].entry];
}

/* The record that is carried over now. */
static const struct nvme_entry *current(const struct nvme_carry *carry)
{
	return entry_of(carry, carry->next - 1);
}

static struct extent place_of(struct nvme_log *log, const struct nvme_entry *entry)
{
	return nvme_location_extent(nvme_location_make(log, log->carry.segment, entry));
}

static void drop(struct nvme_log *log, const struct nvme_entry *entry)
{
	const struct extent where = place_of(log, entry);

	nvme_count_dropped(log, log->carry.segment);
	log->events.dropped(log->events.arg, entry, &where);
}

static void drop_current(struct nvme_log *log)
{
	drop(log, current(&log->carry));
	log->carry.next--;
	log->carry.state = CARRY_NEXT;
}

static void carry_end(struct nvme_log *log)
{
	log->carry.state = CARRY_IDLE;
	log->facts.counters.segments_reclaimed++;
	nvme_segment_release(log, log->carry.segment);
}

enum { CARRY_RECORDS = 4 }; /* between two looks at the clock */

static bool carry_tired(struct nvme_log *log)
{
	return log->carry.next % CARRY_RECORDS == 0 && log->medium->tired(log->medium);
}

static void ask(struct nvme_log *log, const struct nvme_entry *entry, struct nvme_candidate *ret)
{
	const struct extent where = place_of(log, entry);
	const enum nvme_answer answer = log->events.ask(log->events.arg, entry, &where, &ret->tick);

	ret->live = answer != NVME_GONE;
	ret->wanted = answer == NVME_WANTED;
}

/* Asks the table about the victim's records. */
static void carry_ask(struct nvme_log *log)
{
	struct nvme_carry *carry = &log->carry;

	while (carry->next < carry->records) {
		const struct nvme_entry *entry = &carry->entries[carry->next];
		struct nvme_candidate c = { .entry = carry->next,
					    .bytes = (uint32_t)nvme_record_bytes(entry) };

		ask(log, entry, &c);
		nvme_victim_add(carry->candidates, carry->next++, &c);
		carry->lain += c.bytes;
		if (carry_tired(log))
			return;
	}
	carry->state = CARRY_PICK;
}

/* The candidates to carry go to the end. */
static void carry_pick(struct nvme_log *log)
{
	struct nvme_carry *carry = &log->carry;
	/* A fraction of the bytes that lie there, not of a segment's size: a badly filled segment
	 * must be a gain, too. */
	const uint64_t room = carry->lain * NVME_CARRY_PERCENT / 100;

	while (carry->next > 0 && nvme_victim_take(carry->candidates, carry->next, carry->tick,
						   room, log->credit.bytes, &carry->taken)) {
		carry->next--;
		if (carry_tired(log))
			return;
	}
	carry->count = carry->next;
	carry->state = CARRY_DROP;
}

/* All other live records. */
static void carry_drop(struct nvme_log *log)
{
	struct nvme_carry *carry = &log->carry;

	while (carry->next > 0) {
		const uint32_t i = --carry->next;

		if (carry->candidates[i].live)
			drop(log, entry_of(carry, i));
		if (carry_tired(log))
			return;
	}
	carry->next = carry->records;
	carry->state = CARRY_NEXT;
}

bool nvme_carry_works(const struct nvme_log *log)
{
	return !log->paused && log->carry.state >= CARRY_ASK && log->carry.state <= CARRY_DROP;
}

static void footer_read(struct nvme_io *io)
{
	struct nvme_log *log = io->log;
	struct nvme_carry *carry = &log->carry;
	struct nvme_identity who;

	nvme_identify(log, carry->segment, &who);
	if (io->op.status || nvme_footer_check(carry->footer, io->op.bytes, &who, &carry->records,
					       &carry->entries)) {
		log->facts.counters.segments_lost++;
		carry_end(log);
		return;
	}
	carry->next = 0;
	carry->lain = carry->taken = 0;
	carry->state = CARRY_ASK;
}

static void carry_begin(struct nvme_log *log)
{
	struct nvme_carry *carry = &log->carry;
	const uint64_t tick = nvme_credit_tick(&log->credit, &log->ages);
	const uint32_t victim =
		nvme_victim_pick(&log->ages, log->heat, log->n_segments, tick, &log->seed);
	uint32_t bytes;

	if (victim == NVME_NO_VICTIM)
		return;
	carry->segment = victim;
	carry->tick = tick;
	carry->state = CARRY_FOOTER;
	log->heat[victim].eligible = false;
	log->segments[victim].state = SEGMENT_DRAINING;
	bytes = nvme_footer_bytes(log->segments[victim].entries);
	nvme_io_set(&carry->io, log, IO_READ,
		    nvme_segment_offset(victim, log->facts.segment_bytes) +
			    log->facts.segment_bytes - bytes,
		    carry->footer, bytes);
	carry->io.done = footer_read;
	nvme_io_start(&carry->io);
}

static void carried(struct nvme_append *a)
{
	struct nvme_log *log = a->io[0].log;
	struct nvme_carry *carry = &log->carry;
	const struct extent from = place_of(log, current(carry));
	const struct extent to = nvme_location_extent(a->location);
	uint64_t tick;

	if (a->status) {
		drop_current(log);
		return;
	}
	if (log->events.moved(log->events.arg, &carry->entry, &from, &to, &tick))
		nvme_log_touch(log, a->location, a->tick, tick);
	else
		nvme_log_forget(log, a->location, a->tick);
	carry->next--;
	carry->state = CARRY_NEXT;
}

/* Whether the bytes read are the record that the footer names. Its payload is not checked: its
 * checksum moves with it, and is compared when the block is loaded. */
static bool record_good(struct nvme_log *log, const struct nvme_entry *want)
{
	const uint8_t *bytes = log->carry.buffer;
	const uint8_t *image = bytes + (want->tag_page ? NVME_PAGE : 0);
	const struct image_header *header = (const void *)image;
	struct nvme_identity who;
	struct nvme_entry is;
	uint32_t payload, end_of_tag;

	nvme_identify(log, log->carry.segment, &who);
	if (nvme_image_within(header, want->image_bytes, &payload))
		return false;
	end_of_tag = want->tag_page || want->coded_bytes ? NVME_PAGE : payload;
	return !nvme_tag_check(bytes + end_of_tag - sizeof(struct nvme_tag), &who, header,
			       want->page, &is) &&
	       is.image_bytes == want->image_bytes && is.coded_bytes == want->coded_bytes &&
	       !memcmp(is.key, want->key, sizeof(is.key)) &&
	       !memcmp(is.owner, want->owner, sizeof(is.owner));
}

static void record_read(struct nvme_io *io)
{
	struct nvme_log *log = io->log;

	if (io->op.status || !record_good(log, current(&log->carry)))
		drop_current(log);
	else
		log->carry.state = CARRY_APPEND;
}

static void read_record(struct nvme_log *log)
{
	struct nvme_carry *carry = &log->carry;
	const struct nvme_entry *entry = current(carry);

	carry->state = CARRY_READ;
	nvme_io_set(&carry->io, log, IO_READ,
		    nvme_segment_offset(carry->segment, log->facts.segment_bytes) +
			    (uint64_t)nvme_record_first_page(entry) * NVME_PAGE,
		    carry->buffer, (uint32_t)nvme_record_bytes(entry));
	carry->io.done = record_read;
	nvme_io_start(&carry->io);
}

static void append_record(struct nvme_log *log)
{
	struct nvme_carry *carry = &log->carry;
	const struct nvme_entry *entry = current(carry);
	int r;

	carry->entry = *entry;
	/* The copy gets the present epoch: the record is alive now, and a later purge must hit the
	 * copy, too. */
	if (nvme_super_dead(&log->super, entry->owner, entry->epoch)) {
		drop_current(log);
		return;
	}
	carry->entry.epoch = log->epoch;
	carry->entry.tick = carry->candidates[carry->next - 1].tick;
	carry->append.image = carry->buffer + (entry->tag_page ? NVME_PAGE : 0);
	carry->append.bytes = entry->image_bytes;
	carry->append.tick = carry->entry.tick;
	carry->append.done = carried;
	r = nvme_append_start(log, &carry->append, &carry->entry, true);
	if (!r)
		carry->state = CARRY_WRITE;
	else if (r != -EAGAIN) /* -ENOSPC: no room for any more */
		drop_current(log);
}

void nvme_carry_step(struct nvme_log *log)
{
	struct nvme_carry *carry = &log->carry;
	const bool stopping = log->flush.stage != FLUSH_IDLE && log->flush.last;

	if (log->paused && !stopping)
		return;
	if (carry->state == CARRY_IDLE && log->clean < log->low && !stopping)
		carry_begin(log);
	while ((carry->state >= CARRY_ASK && carry->state <= CARRY_NEXT) ||
	       carry->state == CARRY_APPEND) {
		if (stopping) { /* records not moved yet stay where they are */
			carry->state = CARRY_IDLE;
			nvme_segment_sealed(log, carry->segment,
					    log->segments[carry->segment].entries);
			return;
		}
		if (carry->state == CARRY_ASK)
			carry_ask(log);
		if (carry->state == CARRY_PICK)
			carry_pick(log);
		if (carry->state == CARRY_DROP)
			carry_drop(log);
		if (nvme_carry_works(log))
			return;
		if (carry->state == CARRY_NEXT && carry->next == carry->count) {
			carry_end(log);
			return;
		}
		if (carry->state == CARRY_NEXT) {
			read_record(log);
			return;
		}
		append_record(log);
		if (carry->state == CARRY_APPEND)
			return; /* no room at this moment: tried again in the next step */
	}
}
