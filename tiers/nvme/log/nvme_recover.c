/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_recover.c - finds the records on the disk when the log is opened. It has memory of its own,
 * which is freed at the end. Core thread only.
 *
 *  headers of all segments ─> by sequence, newest first ─> footer of each ─> records to the table
 *                                                             └─ none: walk ──> footer written ─┘
 *
 * A header (4 KiB) and a footer are read for each segment: 20 KiB where a segment of 64 MiB has
 * images of 1 MiB, which is 320 MiB for a TiB; about 220 MiB with segments of 256 MiB. A segment
 * without a footer was open when the daemon died. It is walked from record to record, 4 KiB each. A
 * record may be missing, because its write had not ended when later ones had. Then the walk looks
 * page by page for the next record, as far as writes in flight can reach. A record is known by its
 * tag, which names store, sequence and place.
 */
#include "nvme_log_inner.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	HEADERS = 16, /* read at once */
	FOOTERS = 4,
	AHEAD = 8,    /* records between soon() and found() */
	GUESSED = 64, /* of so many segments one is told before the number of records is guessed */
	TOLD = 4,     /* between two looks at the clock */
	FOOTER_GUESS = 16384, /* first read of a footer; then the size of the last one */
	CHUNK_PAGES = 64,     /* read at once when looking for a record */
	GAP_PAGES = (32 << 20) / NVME_PAGE, /* without a record: the walk ends */
};

struct header_read {
	struct nvme_io io;
	uint32_t segment;
	uint8_t *page;
};

enum footer_state { FOOTER_IDLE = 0, FOOTER_READING, FOOTER_READ };

struct footer_slot {
	struct nvme_io io;
	enum footer_state state;
	uint32_t segment;
	uint32_t bytes;  /* read */
	uint8_t *buffer; /* footer_max */
};

struct segment_walk {
	struct nvme_io io;
	struct footer_slot *slot; /* holes.footer is its buffer */
	struct nvme_identity who;
	struct nvme_holes holes;    /* a record may begin at holes.used */
	uint32_t gap;               /* pages since the last one */
	uint32_t tag_page;          /* where its tag would be; 0: in its first page */
	bool blind;                 /* a read failed: records may be there */
	struct image_header header; /* with tag_page */
	uint32_t first, pages;      /* in the buffer */
	uint8_t *buffer;
};

struct nvme_recovery {
	void (*done)(struct nvme_log *log, int status, const char *text);
	struct header_read header[HEADERS];
	uint32_t next_header, headers_left, headers_failed;
	int header_status;         /* of the last header read that failed */
	uint64_t newest;           /* sequence of a header */
	struct nvme_budget budget; /* in that header */
	uint32_t *heap;            /* segments with a header, whose footers were not read yet */
	uint32_t n_heap, n_order;  /* there; that had a header */
	struct footer_slot footer[FOOTERS];
	uint32_t next_read, next_told; /* ranks by sequence */
	/* of the segment next_told: to be told, the last one first; NULL: not looked at yet */
	const struct nvme_entry *entries;
	uint32_t count, left;
	uint32_t guess;
	struct segment_walk walk;
};

void nvme_recovery_free(struct nvme_log *log)
{
	struct nvme_recovery *r = log->recovery;

	if (!r)
		return;
	for (uint32_t i = 0; i < HEADERS; i++)
		free(r->header[i].page);
	for (uint32_t i = 0; i < FOOTERS; i++)
		free(r->footer[i].buffer);
	free(r->walk.buffer);
	free(r->heap);
	free(r);
	log->recovery = NULL;
}

static int reserve_recovery(struct nvme_log *log)
{
	struct nvme_recovery *r = calloc(1, sizeof(*r));
	bool good;

	log->recovery = r;
	if (!r)
		return -ENOMEM;
	r->walk.buffer = nvme_reserve(CHUNK_PAGES * NVME_PAGE);
	r->heap = nvme_reserve_unset(log->n_segments * sizeof(*r->heap));
	good = r->walk.buffer && r->heap;
	for (uint32_t i = 0; i < HEADERS; i++) {
		r->header[i].page = nvme_reserve(NVME_PAGE);
		good = good && r->header[i].page;
	}
	for (uint32_t i = 0; i < FOOTERS; i++) {
		r->footer[i].buffer = nvme_reserve_unset(log->footer_max);
		good = good && r->footer[i].buffer;
	}
	return good ? 0 : -ENOMEM;
}

static void finish(struct nvme_log *log)
{
	for (uint32_t i = 0; i < log->n_segments; i++)
		if (log->segments[i].state == SEGMENT_SEALED && !log->heat[i].blocks)
			nvme_segment_release(log, i);
	log->facts.counters.recovery_bytes = log->facts.counters.read_bytes;
	log->recovery->done(log, 0, "");
}

/* --- the records of a segment --- */

static void soon(struct nvme_log *log, uint32_t i)
{
	if (log->events.soon)
		log->events.soon(log->events.arg, &log->recovery->entries[i]);
}

static void tell(struct nvme_log *log, uint32_t segment, const struct nvme_entry *entry)
{
	const struct extent where = nvme_location_extent(nvme_location_make(log, segment, entry));

	/* A header is written when the segment before it is opened. */
	if (log->segments[segment].sequence + 1 >= log->recovery->newest)
		nvme_budget_pay(log, nvme_record_bytes(entry));
	if (nvme_super_dead(&log->super, entry->owner, entry->epoch) ||
	    !log->events.found(log->events.arg, entry, &where))
		return;
	nvme_account(log, segment, entry, entry->tick);
	log->facts.counters.recovered_records++;
}

static void told(struct nvme_log *log, uint32_t segment)
{
	struct nvme_recovery *r = log->recovery;

	r->footer[r->next_told++ % FOOTERS].state = FOOTER_IDLE;
	r->entries = NULL;
	log->facts.counters.recovered_segments++;
	if (r->next_told == r->n_order / GUESSED && log->events.expect)
		log->events.expect(log->events.arg,
				   log->facts.counters.recovered_records * (GUESSED - 1));
	if (!log->heat[segment].blocks)
		return;
	log->n_free--;
	nvme_segment_sealed(log, segment, r->count,
			    log->facts.segment_bytes - NVME_PAGE - nvme_footer_bytes(r->count) -
				    (uint32_t)log->heat[segment].bytes);
}

/* The slot of the segment at next_told has these. */
static void known(struct nvme_log *log, const struct nvme_entry *entries, uint32_t count)
{
	struct nvme_recovery *r = log->recovery;

	r->entries = entries;
	r->count = r->left = count;
	for (uint32_t i = count; i-- > 0 && i + AHEAD >= count;)
		soon(log, i);
}

/* False: not all of them could be told in this iteration. */
static bool tell_known(struct nvme_log *log)
{
	struct nvme_recovery *r = log->recovery;
	const uint32_t segment = r->footer[r->next_told % FOOTERS].segment;

	while (r->left > 0) {
		r->left--;
		if (r->left >= AHEAD)
			soon(log, r->left - AHEAD);
		tell(log, segment, &r->entries[r->left]);
		if (r->left % TOLD == 0 && log->medium->tired(log->medium))
			break;
	}
	if (r->left == 0)
		told(log, segment);
	return !r->entries;
}

static void pump(struct nvme_log *log);

/* --- a segment without a footer --- */

static void walk_sealed(struct nvme_io *io)
{
	struct nvme_log *log = io->log;
	struct segment_walk *walk = &log->recovery->walk;

	/* Whether or not the footer was written, its records are known now. */
	known(log, nvme_entries(walk->holes.footer), walk->holes.count);
	pump(log);
}

/* Seals the segment even when it is empty, or every start would look through it again. It is not
 * sealed where a read failed: the next start may find a record there. Returns whether the walk
 * continues in walk_sealed(). */
static bool walk_end(struct nvme_log *log, struct segment_walk *walk)
{
	const uint32_t bytes = nvme_footer_bytes(walk->holes.count);

	log->facts.counters.walked_segments++;
	if (walk->blind) {
		known(log, nvme_entries(walk->holes.footer), walk->holes.count);
		return false;
	}
	nvme_footer_encode(&walk->who, walk->holes.count, false, walk->holes.footer);
	nvme_io_set(&walk->io, log, IO_WRITE,
		    nvme_segment_offset(walk->who.segment, log->facts.segment_bytes) +
			    log->facts.segment_bytes - bytes,
		    walk->holes.footer, bytes);
	walk->io.done = walk_sealed;
	nvme_io_start(&walk->io);
	return true;
}

static bool walk_step(struct nvme_log *log);

static void walk_read(struct nvme_io *io)
{
	struct segment_walk *walk = &io->log->recovery->walk;

	if (io->op.status) {
		walk->blind = true;
		memset(walk->buffer, 0, (size_t)walk->pages * NVME_PAGE); /* no record */
	}
	if (!walk_step(io->log))
		pump(io->log);
}

static void walk_fetch(struct nvme_log *log, struct segment_walk *walk, uint32_t page)
{
	const uint32_t end = log->facts.segment_bytes / NVME_PAGE;

	walk->first = page;
	walk->pages = walk->gap && !walk->tag_page ? CHUNK_PAGES : 1;
	if (walk->pages > end - page)
		walk->pages = end - page;
	nvme_io_set(&walk->io, log, IO_READ,
		    nvme_segment_offset(walk->who.segment, log->facts.segment_bytes) +
			    (uint64_t)page * NVME_PAGE,
		    walk->buffer, walk->pages * NVME_PAGE);
	walk->io.done = walk_read;
	nvme_io_start(&walk->io);
}

/* 0: a record at holes.used; -EBADMSG: no record; -EAGAIN: walk->tag_page is to be looked at
 * first. */
static int walk_look(struct segment_walk *walk, const uint8_t *bytes, struct nvme_entry *ret)
{
	const uint32_t page = walk->holes.used / NVME_PAGE;
	int r;

	if (walk->tag_page) {
		walk->tag_page = 0;
		return nvme_tag_check(bytes + NVME_PAGE - sizeof(struct nvme_tag), &walk->who,
				      &walk->header, page, ret);
	}
	r = nvme_record_probe(bytes, &walk->who, page, ret, &walk->tag_page);
	if (r == -EAGAIN)
		memcpy(&walk->header, bytes, sizeof(walk->header));
	return r;
}

static bool walk_take(const struct nvme_log *log, struct segment_walk *walk,
		      const struct nvme_entry *entry)
{
	struct nvme_holes *holes = &walk->holes;
	const uint64_t end =
		(uint64_t)nvme_record_first_page(entry) * NVME_PAGE + nvme_record_bytes(entry);

	if (end > nvme_hole_end(log, holes))
		return false;
	nvme_entries(holes->footer)[holes->count++] = *entry;
	holes->used = (uint32_t)end;
	walk->gap = 0;
	return true;
}

/* False: the walk is over, and the segment's records are known. */
static bool walk_step(struct nvme_log *log)
{
	struct segment_walk *walk = &log->recovery->walk;
	struct nvme_holes *holes = &walk->holes;

	for (;;) {
		const uint32_t page = walk->tag_page ? walk->tag_page : holes->used / NVME_PAGE;
		struct nvme_entry entry;
		int r;

		if (holes->used >= nvme_hole_end(log, holes) || walk->gap > GAP_PAGES) {
			walk->gap = walk->tag_page = 0;
			if (!nvme_hole_next(log, holes))
				return walk_end(log, walk);
			continue;
		}
		if (page < walk->first || page >= walk->first + walk->pages) {
			walk_fetch(log, walk, page);
			return true;
		}
		r = walk_look(walk, walk->buffer + (size_t)(page - walk->first) * NVME_PAGE,
			      &entry);
		if (r == -EAGAIN || (!r && walk_take(log, walk, &entry)))
			continue;
		holes->used += NVME_PAGE;
		walk->gap++;
	}
}

/* Returns as walk_step(). */
static bool walk_begin(struct nvme_log *log, struct footer_slot *slot,
		       const struct nvme_footer *footer)
{
	struct segment_walk *walk = &log->recovery->walk;
	uint8_t *buffer = walk->buffer;

	memset(walk, 0, sizeof(*walk));
	walk->buffer = buffer;
	walk->slot = slot;
	walk->holes.footer = slot->buffer;
	nvme_holes_open(log, &walk->holes, footer->entries, footer->count);
	slot->state = FOOTER_READING;
	nvme_identify(log, slot->segment, &walk->who);
	return walk_step(log);
}

/* --- the order: a heap, the newest segment first. To sort all of them took 6 ms at once --- */

static bool newer(const struct nvme_log *log, uint32_t a, uint32_t b)
{
	return log->segments[a].sequence > log->segments[b].sequence;
}

static void heap_push(struct nvme_log *log, uint32_t segment)
{
	uint32_t *heap = log->recovery->heap, at = log->recovery->n_heap++;

	for (; at > 0 && newer(log, segment, heap[(at - 1) / 2]); at = (at - 1) / 2)
		heap[at] = heap[(at - 1) / 2];
	heap[at] = segment;
}

static uint32_t heap_pop(struct nvme_log *log)
{
	const uint32_t n = --log->recovery->n_heap;
	uint32_t *heap = log->recovery->heap, ret = heap[0], last = heap[n], at = 0;

	for (uint32_t child = 1; child < n; child = 2 * at + 1) {
		child += child + 1 < n && newer(log, heap[child + 1], heap[child]);
		if (!newer(log, heap[child], last))
			break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = last;
	return ret;
}

/* --- footers --- */

static void footer_read(struct nvme_io *io)
{
	struct footer_slot *slot = io->owner;

	slot->state = FOOTER_READ;
	if (io->op.status)
		memset(slot->buffer, 0, slot->bytes); /* no footer */
	pump(io->log);
}

static void read_footer(struct nvme_log *log, struct footer_slot *slot, uint32_t bytes)
{
	slot->state = FOOTER_READING;
	slot->bytes = bytes < log->footer_max ? bytes : log->footer_max;
	nvme_io_set(&slot->io, log, IO_READ,
		    nvme_segment_offset(slot->segment, log->facts.segment_bytes) +
			    log->facts.segment_bytes - slot->bytes,
		    slot->buffer, slot->bytes);
	slot->io.done = footer_read;
	slot->io.owner = slot;
	nvme_io_start(&slot->io);
}

/* True: its records are known. */
static bool look_at_footer(struct nvme_log *log, struct footer_slot *slot)
{
	struct nvme_identity who;
	struct nvme_footer footer;
	int r;

	nvme_identify(log, slot->segment, &who);
	r = nvme_footer_check(slot->buffer, slot->bytes, &who, &footer);
	if (r == -EAGAIN) {
		read_footer(log, slot, log->recovery->guess = nvme_footer_bytes(footer.count));
		return false;
	}
	if (r || footer.sequence >= log->next_sequence)
		footer =
			(struct nvme_footer){ .entries = nvme_entries(slot->buffer), .open = true };
	else /* later than the header's where the daemon died between these two writes */
		log->segments[slot->segment].sequence = footer.sequence;
	if (footer.open)
		return !walk_begin(log, slot, &footer);
	known(log, footer.entries, footer.count);
	return true;
}

/* Footers are read ahead, and looked at in their order. */
static void pump(struct nvme_log *log)
{
	struct nvme_recovery *r = log->recovery;

	for (;;) {
		struct footer_slot *slot;

		while (r->next_read < r->n_order && r->next_read < r->next_told + FOOTERS) {
			slot = &r->footer[r->next_read % FOOTERS];
			slot->segment = heap_pop(log);
			r->next_read++;
			read_footer(log, slot, r->guess);
		}
		if (r->next_told == r->n_order) {
			finish(log);
			return;
		}
		slot = &r->footer[r->next_told % FOOTERS];
		if (!r->entries && (slot->state != FOOTER_READ || !look_at_footer(log, slot)))
			return;
		if (!tell_known(log))
			return;
	}
}

bool nvme_recovery_works(const struct nvme_log *log)
{
	return log->recovery && log->recovery->entries;
}

void nvme_recovery_step(struct nvme_log *log)
{
	pump(log);
}

/* --- headers --- */

static void headers_done(struct nvme_log *log)
{
	struct nvme_recovery *r = log->recovery;

	if (r->headers_failed == log->n_segments) {
		r->done(log, r->header_status, "no segment can be read: is the disk there?");
		return;
	}
	r->n_order = r->n_heap;
	r->guess = FOOTER_GUESS;
	nvme_budget_recall(log, &r->budget);
	pump(log);
}

static void read_header(struct nvme_log *log, struct header_read *h);

static void header_read(struct nvme_io *io)
{
	struct nvme_log *log = io->log;
	struct nvme_recovery *r = log->recovery;
	struct header_read *h = io->owner;
	struct nvme_identity who;
	struct nvme_budget budget;
	uint64_t sequence;

	if (io->op.status) {
		r->headers_failed++;
		r->header_status = io->op.status;
	} else {
		nvme_identify(log, h->segment, &who);
		if (!nvme_header_check(h->page, &who, &sequence, &budget) &&
		    sequence < log->next_sequence) {
			log->segments[h->segment].sequence = sequence;
			heap_push(log, h->segment);
			if (sequence >= r->newest) {
				r->newest = sequence;
				r->budget = budget;
			}
		}
	}
	if (r->next_header < log->n_segments)
		read_header(log, h);
	else if (--r->headers_left == 0)
		headers_done(log);
}

static void read_header(struct nvme_log *log, struct header_read *h)
{
	h->segment = log->recovery->next_header++;
	nvme_io_set(&h->io, log, IO_READ, nvme_segment_offset(h->segment, log->facts.segment_bytes),
		    h->page, NVME_PAGE);
	h->io.done = header_read;
	h->io.owner = h;
	nvme_io_start(&h->io);
}

int nvme_recover_segments(struct nvme_log *log,
			  void (*done)(struct nvme_log *log, int status, const char *text))
{
	const int r = reserve_recovery(log);

	if (r)
		return r;
	log->recovery->done = done;
	for (uint32_t i = 0; i < HEADERS && i < log->n_segments; i++) {
		log->recovery->headers_left++;
		read_header(log, &log->recovery->header[i]);
	}
	return 0;
}
