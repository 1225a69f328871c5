/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_record.c - a record goes into the open segment, and comes out of any. Contract: nvme_log.h;
 * invariants: nvme_log_inner.h. Core thread only.
 */
#include "nvme_record.h"

#include <errno.h>
#include <string.h>

#include "nvme_account.h"
#include "nvme_segment.h"

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
	return fill->count < log->entries_max &&
	       fill->used + bytes + nvme_footer_bytes(fill->count + 1) <= log->segment_bytes;
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

static void count_record(struct nvme_log *log, const struct nvme_append *a, uint64_t bytes)
{
	if (a == &log->carry.append) {
		log->counters.carried_records++;
		log->counters.carried_bytes += bytes;
	} else {
		log->counters.appended_records++;
		log->counters.appended_bytes += bytes;
	}
}

static void append_done(struct nvme_io *io)
{
	struct nvme_append *a = io->owner;
	struct nvme_log *log = io->log;
	struct nvme_entry *entry = &((struct nvme_entry *)(void *)a->fill->footer)[a->entry];

	a->status = io->op.status;
	if (!a->status && entry->tag_page && io == &a->io[0]) {
		/* The tag page goes out only now: so a tag that the walk finds belongs to an image
		 * that is there. */
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
		count_record(log, a, nvme_record_bytes(entry));
	}
	a->done(a);
}

static void set_writes(struct nvme_log *log, struct nvme_append *a, const struct nvme_entry *entry)
{
	const uint64_t base = nvme_segment_offset(a->fill->segment, log->segment_bytes);
	const struct image_header *header = (const void *)a->image;
	uint8_t *page = log->tag_pages + (size_t)a->tag_page * NVME_PAGE;
	struct nvme_identity who;
	uint32_t image_bytes, payload;

	nvme_identify(log, a->fill->segment, &who);
	/* cannot fail: it was checked when the entry was made */
	(void)nvme_image_check(header, &image_bytes, &payload);
	nvme_io_set(&a->io[0], log, IO_WRITE, base + (uint64_t)entry->page * NVME_PAGE, a->image,
		    (uint32_t)nvme_round_page(a->bytes));
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

int nvme_append_start(struct nvme_log *log, struct nvme_append *a, struct nvme_entry *entry,
		      bool carry)
{
	const uint64_t bytes = nvme_record_bytes(entry);
	int r = find_room(log, bytes, carry);

	if (r) {
		log->counters.refused_space += !carry;
		return r;
	}
	a->tag_page = NVME_NONE;
	if (entry->tag_page) {
		a->tag_page = take_tag_page(log);
		if (a->tag_page == NVME_NONE) {
			log->counters.refused_queue++;
			return -EAGAIN;
		}
	}
	a->fill = log->open;
	entry->page = (uint16_t)(a->fill->used / NVME_PAGE + entry->tag_page);
	set_writes(log, a, entry);
	r = nvme_io_try(&a->io[0]);
	if (r) {
		if (entry->tag_page)
			log->tag_pages_used &= ~(1ull << a->tag_page);
		log->counters.refused_queue += !carry;
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
	uint32_t image_bytes, payload;

	if (log->state != NVME_UP || (log->flush.stage != FLUSH_IDLE && log->flush.last))
		return -ESHUTDOWN;
	if (a->bytes > log->image_max)
		return -E2BIG;
	if ((uintptr_t)a->image % NVME_PAGE || nvme_image_check(header, &image_bytes, &payload) ||
	    image_bytes != a->bytes)
		return -EINVAL;
	memcpy(entry.key, header->key, sizeof(entry.key));
	memcpy(entry.parent, a->parent, sizeof(entry.parent));
	memcpy(entry.owner, a->owner, sizeof(entry.owner));
	entry.tick = a->tick;
	entry.epoch = log->epoch;
	entry.image_bytes = image_bytes;
	entry.header_crc = header->header_crc;
	entry.tag_page = !nvme_tag_fits(header);
	if (!nvme_budget_allows(log, nvme_record_bytes(&entry))) {
		log->counters.refused_budget++;
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
	uint32_t image_bytes, payload;
	struct nvme_identity who;
	struct nvme_entry entry;

	memset(read->parent, 0, sizeof(read->parent));
	if (nvme_location_tag_page(read->location) ||
	    nvme_image_check(header, &image_bytes, &payload) || image_bytes != read->bytes ||
	    !nvme_tag_fits(header))
		return;
	nvme_identify(log, nvme_location_segment(read->location), &who);
	if (!nvme_tag_check(read->buffer + payload - sizeof(struct nvme_tag), &who, header,
			    nvme_location_page(read->location), &entry))
		memcpy(read->parent, entry.parent, sizeof(read->parent));
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
	const uint64_t bytes = nvme_round_page(read->bytes);
	const uint32_t segment = nvme_location_segment(read->location);
	const uint64_t offset = (uint64_t)nvme_location_page(read->location) * NVME_PAGE;
	int r;

	if (nvme_log_stale(log, read->location)) {
		log->counters.stale_reads++;
		return -ESTALE;
	}
	if (!read->bytes || offset + bytes > log->segment_bytes)
		return -EINVAL;
	nvme_io_set(&read->io, log, IO_READ,
		    nvme_segment_offset(segment, log->segment_bytes) + offset, read->buffer,
		    (uint32_t)bytes);
	read->io.done = read_done;
	read->io.owner = read;
	r = nvme_io_try(&read->io);
	if (r)
		return r;
	log->segments[segment].readers++;
	return 0;
}
