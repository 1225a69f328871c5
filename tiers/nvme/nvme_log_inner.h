/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_log_inner.h - shared by the files of the log, and included by no other file. Core thread
 * only.
 *
 *	nvme_super.c    superblocks: read, written, format, purge
 *	nvme_log.c      made and freed; the step that carries everything on
 *	nvme_recover.c  finds the records when the log is opened
 *	nvme_carry.c    a victim's records are moved, the segment is free again
 *	nvme_record.c   append, read
 *	nvme_segment.c  life of a segment; the log's own I/O
 *	nvme_account.c  live records by segment, write budget, memory
 *
 * Each file calls the files below it. Only done() of an I/O or an append, and log->step, call
 * upwards.
 *
 * A segment:
 *		    prepare             use               seal: footer written or not
 *  ┌──────> FREE ──────────> PREPARING ───> READY ──> FILLING ──────────────────────> SEALED
 *  │          ^    header        │ write                                                │
 *  │          └── error ─────────┘            nothing lives there any more              │
 *  │ release <──────────────────────────────────────────────────────────────────────────┤
 *  └─────────────── DRAINING <──────────────────────────────────────────────────────────┘
 *					   carry (victim)
 *
 * Invariants
 *	L1 A segment's header write ended well before a record of its sequence is written.
 *	L2 A segment's generation changes when it becomes FREE, so no location survives that. Its
 *	   bytes stay until nobody reads them any more (readers == 0 before PREPARING).
 *	L3 clean = FREE + PREPARING + READY. A caller's append leaves one of them to the carry-over.
 *	L4 The footer of a FILLING segment fits behind its records, one more included, at all times.
 *	L5 heat[s].blocks and tick_sum are of the records that the table has in segment s (not while
 *	   it is DRAINING: nobody looks then). segments[s].live_bytes is about their bytes
 *	   (nvme_log_forget()). live_* are the sums.
 *	L6 table callbacks run from completions and nvme_log_poll() only.
 */
#ifndef KVTIER_NVME_LOG_INNER_H
#define KVTIER_NVME_LOG_INNER_H

#include "nvme_log.h"
#include "nvme_victim.h"

enum {
	NVME_NONE = 0xffffffff,
	NVME_FILLS = 2,      /* one takes records, one waits for its footer */
	NVME_TAG_PAGES = 64, /* records with a page for the tag, on their way at once */
};

enum segment_state {
	SEGMENT_FREE = 0,
	SEGMENT_PREPARING,
	SEGMENT_READY,
	SEGMENT_FILLING,
	SEGMENT_SEALED,
	SEGMENT_DRAINING,
};

struct nvme_segment {
	uint64_t sequence; /* of its header; 0: it has none of this store */
	uint64_t full_ns;  /* SEALED: since when */
	uint32_t live_bytes;
	uint32_t generation; /* 1 .. NVME_GENERATIONS - 1 */
	uint32_t readers;
	uint16_t entries; /* SEALED: in its footer */
	uint8_t state;    /* enum segment_state */
};

/*	NONE ──open──> OPEN ──full, flush──> CLOSED ──its writes ended──> FOOTER ──written──> NONE
 */
enum fill_state { FILL_NONE = 0, FILL_OPEN, FILL_CLOSED, FILL_FOOTER };

struct nvme_fill {
	enum fill_state state;
	uint32_t segment;
	uint32_t used;   /* bytes, header included */
	uint32_t count;  /* entries; image_bytes 0: its write failed */
	uint32_t writes; /* records on their way */
	uint8_t *footer; /* entries grow here; footer_max bytes */
	struct nvme_io io;
};

/* IDLE ──victim──> FOOTER ──read──> NEXT <──> READ, then APPEND, then WRITE ──none left──> IDLE */
enum carry_state {
	CARRY_IDLE = 0,
	CARRY_FOOTER,
	CARRY_NEXT,
	CARRY_READ,
	CARRY_APPEND,
	CARRY_WRITE
};

struct nvme_carry {
	enum carry_state state;
	uint32_t segment;
	uint32_t count, next; /* candidates to carry over; these are first */
	uint64_t middle;
	uint8_t *footer;
	const struct nvme_entry *entries; /* in footer */
	struct nvme_candidate *candidates;
	uint8_t *buffer; /* a record */
	struct nvme_io io;
	struct nvme_append append;
	struct nvme_entry entry; /* of the record on its way */
};

/* Both copies are written, one after the other, each synced. Then one copy may rot, and nothing is
 * forgotten. */
struct nvme_super_write {
	uint32_t step;  /* write, sync, write, sync; 0: idle */
	uint32_t first; /* the copy to be written first: not the newest good one */
	uint8_t *pages; /* one for each copy */
	struct nvme_io io;
	void (*done)(struct nvme_log *log, int status);
};

enum nvme_flush_stage { FLUSH_IDLE = 0, FLUSH_SEAL, FLUSH_SYNC };

struct nvme_flush {
	enum nvme_flush_stage stage;
	bool last;
	struct nvme_io io;
	void (*done)(void *arg, int status);
	void *arg;
};

struct nvme_log {
	struct nvme_conf conf;
	struct nvme_medium *medium;
	struct nvme_table table;
	enum nvme_log_state state;
	/* carries on all that can go on: after each completion, and from nvme_log_poll() */
	void (*step)(struct nvme_log *log);
	char text[NVME_TEXT_BYTES];
	struct nvme_counters counters;

	struct nvme_super super;
	uint64_t super_saved; /* the generation that both copies surely have */
	struct nvme_super_write super_write;
	void (*purge_done)(void *arg, int status);
	void *purge_arg;
	struct nvme_flush flush;
	struct nvme_recovery *recovery; /* while STARTING */

	uint64_t next_sequence, epoch;
	uint32_t n_segments, segment_bytes;
	uint32_t entries_max, footer_max; /* of a segment; bytes */
	uint32_t image_max;               /* bytes */
	struct nvme_segment *segments;
	struct nvme_heat *heat; /* of the same numbers */
	uint32_t *scratch;
	uint64_t live_bytes, live_records; /* of all segments */
	uint32_t clean, low;               /* fewer clean ones than this: reclaim */
	bool paused;                       /* reclaim nothing */
	uint32_t cursor;                   /* where to look for a free one */
	uint32_t ready;                    /* READY, or NVME_NONE */
	uint32_t preparing;
	/* not before: the last header could not be written; 0 */
	uint64_t prepare_after_ns;
	struct nvme_io prepare_io;
	uint8_t *prepare_page;
	struct nvme_fill fill[NVME_FILLS];
	struct nvme_fill *open; /* FILL_OPEN, or NULL */
	struct nvme_carry carry;

	uint8_t *tag_pages;
	uint64_t tag_pages_used; /* bits */
	double tokens;           /* bytes that may be written now */
	uint64_t tokens_ns;      /* when that was so */

	uint32_t lent;                          /* I/Os in the disk's hands */
	struct nvme_io *waiting, **waiting_end; /* for room there */
	uint64_t memory;
};

/* nvme_log.c: reserves the memory that depends on log->super. */
int nvme_log_reserve(struct nvme_log *log);

#endif
