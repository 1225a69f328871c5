/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_carry.c - makes a used segment free: picks the victim, reads its footer back, asks the table
 * which of its records still matter, and appends the best of these again. nvme_victim.c decides
 * which segment is picked and which records are kept. Core thread only. States: nvme_log_inner.h.
 *
 * One record at a time: carry-over is a few percent of all writes, and should not take the queue
 * from loads. A failure costs the record, never the reclaim: this is a cache, and it must not fill
 * up for good.
 */
#include "nvme_carry.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "nvme_account.h"
#include "nvme_record.h"
#include "nvme_segment.h"

static const struct nvme_entry *entry_of(const struct nvme_carry *carry, uint32_t candidate)
{
	return &carry->entries[carry->candidates[candidate].entry];
}

static uint64_t place_of(struct nvme_log *log, const struct nvme_entry *entry)
{
	return nvme_location_make(log, log->carry.segment, entry);
}

static void drop(struct nvme_log *log, const struct nvme_entry *entry)
{
	nvme_count_dropped(log, log->carry.segment);
	log->table.dropped(log->table.arg, entry, place_of(log, entry));
}

static void end(struct nvme_log *log)
{
	log->carry.state = CARRY_IDLE;
	log->counters.segments_reclaimed++;
	nvme_segment_release(log, log->carry.segment);
}

/* Asks the table about the victim's records. Candidates to carry come first; all other live records
 * are dropped now. */
static void plan(struct nvme_log *log, uint32_t count)
{
	struct nvme_carry *carry = &log->carry;
	uint64_t used = 0;

	for (uint32_t i = 0; i < count; i++) {
		const struct nvme_entry *entry = &carry->entries[i];
		struct nvme_candidate *c = &carry->candidates[i];
		enum nvme_answer answer;

		*c = (struct nvme_candidate){ .entry = i,
					      .bytes = (uint32_t)nvme_record_bytes(entry) };
		answer = log->table.ask(log->table.arg, entry, place_of(log, entry), &c->tick);
		c->live = answer != NVME_GONE;
		c->wanted = answer == NVME_WANTED;
		used += c->bytes;
	}
	/* A share of the bytes that lie there, not of a segment's size: a badly filled segment must
	 * be a gain, too. */
	carry->count = nvme_victim_carry(carry->candidates, count, carry->middle,
					 used * NVME_CARRY_PERCENT / 100);
	carry->next = 0;
	for (uint32_t i = carry->count; i < count; i++)
		if (carry->candidates[i].live)
			drop(log, entry_of(carry, i));
	carry->state = CARRY_NEXT;
}

static void footer_read(struct nvme_io *io)
{
	struct nvme_log *log = io->log;
	struct nvme_carry *carry = &log->carry;
	struct nvme_identity who;
	uint32_t count;

	nvme_identify(log, carry->segment, &who);
	if (io->op.status ||
	    nvme_footer_check(carry->footer, io->op.bytes, &who, &count, &carry->entries)) {
		log->counters.segments_lost++;
		end(log);
		return;
	}
	plan(log, count);
}

static void begin(struct nvme_log *log)
{
	struct nvme_carry *carry = &log->carry;
	const uint32_t victim = nvme_victim_pick(log->heat, log->n_segments);
	uint32_t bytes;

	if (victim == NVME_NO_VICTIM)
		return;
	carry->segment = victim;
	carry->middle = nvme_victim_middle(log->heat, log->n_segments, log->scratch);
	carry->state = CARRY_FOOTER;
	log->heat[victim].eligible = false;
	log->segments[victim].state = SEGMENT_DRAINING;
	bytes = nvme_footer_bytes(log->segments[victim].entries);
	nvme_io_set(&carry->io, log, IO_READ,
		    nvme_segment_offset(victim, log->segment_bytes) + log->segment_bytes - bytes,
		    carry->footer, bytes);
	carry->io.done = footer_read;
	nvme_io_start(&carry->io);
}

static void append_done(struct nvme_append *a)
{
	struct nvme_log *log = a->io[0].log;
	struct nvme_carry *carry = &log->carry;
	const uint64_t from = place_of(log, entry_of(carry, carry->next));
	uint64_t tick;

	carry->state = CARRY_NEXT;
	if (a->status)
		drop(log, entry_of(carry, carry->next));
	else if (log->table.moved(log->table.arg, &carry->entry, from, a->location, &tick))
		nvme_log_touch(log, a->location, a->tick, tick);
	else
		nvme_log_forget(log, a->location, a->tick);
	carry->next++;
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
	uint32_t image_bytes, payload, end_of_tag;

	nvme_identify(log, log->carry.segment, &who);
	if (nvme_image_check(header, &image_bytes, &payload) || image_bytes != want->image_bytes)
		return false;
	end_of_tag = want->tag_page ? NVME_PAGE : payload;
	return !nvme_tag_check(bytes + end_of_tag - sizeof(struct nvme_tag), &who, header,
			       want->page, &is) &&
	       !memcmp(is.key, want->key, sizeof(is.key)) &&
	       !memcmp(is.owner, want->owner, sizeof(is.owner));
}

static void record_read(struct nvme_io *io)
{
	struct nvme_log *log = io->log;
	struct nvme_carry *carry = &log->carry;

	if (io->op.status || !record_good(log, entry_of(carry, carry->next))) {
		drop(log, entry_of(carry, carry->next++));
		carry->state = CARRY_NEXT;
		return;
	}
	carry->state = CARRY_APPEND;
}

static void read_record(struct nvme_log *log)
{
	struct nvme_carry *carry = &log->carry;
	const struct nvme_entry *entry = entry_of(carry, carry->next);

	carry->state = CARRY_READ;
	nvme_io_set(&carry->io, log, IO_READ,
		    nvme_segment_offset(carry->segment, log->segment_bytes) +
			    (uint64_t)nvme_record_first_page(entry) * NVME_PAGE,
		    carry->buffer, (uint32_t)nvme_record_bytes(entry));
	carry->io.done = record_read;
	nvme_io_start(&carry->io);
}

static void append_record(struct nvme_log *log)
{
	struct nvme_carry *carry = &log->carry;
	const struct nvme_entry *entry = entry_of(carry, carry->next);
	int r;

	carry->entry = *entry;
	/* The copy gets the present epoch: the record is alive now, and a later purge must hit the
	 * copy, too. */
	if (nvme_super_dead(&log->super, entry->owner, entry->epoch)) {
		drop(log, entry_of(carry, carry->next++));
		carry->state = CARRY_NEXT;
		return;
	}
	carry->entry.epoch = log->epoch;
	carry->entry.tick = carry->candidates[carry->next].tick;
	carry->append.image = carry->buffer + (entry->tag_page ? NVME_PAGE : 0);
	carry->append.bytes = entry->image_bytes;
	carry->append.tick = carry->entry.tick;
	carry->append.done = append_done;
	r = nvme_append_start(log, &carry->append, &carry->entry, true);
	if (!r)
		carry->state = CARRY_WRITE;
	else if (r != -EAGAIN) { /* -ENOSPC: no room for any more */
		drop(log, entry_of(carry, carry->next++));
		carry->state = CARRY_NEXT;
	}
}

void nvme_carry_step(struct nvme_log *log)
{
	struct nvme_carry *carry = &log->carry;
	const bool stopping = log->flush.stage != FLUSH_IDLE && log->flush.last;

	if (log->paused && !stopping)
		return;
	if (carry->state == CARRY_IDLE && log->clean < log->low && !stopping)
		begin(log);
	while (carry->state == CARRY_NEXT || carry->state == CARRY_APPEND) {
		if (stopping) { /* records not moved yet stay where they are */
			carry->state = CARRY_IDLE;
			nvme_segment_sealed(log, carry->segment,
					    log->segments[carry->segment].entries);
			return;
		}
		if (carry->state == CARRY_NEXT && carry->next == carry->count) {
			end(log);
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
