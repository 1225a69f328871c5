/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_log_inner.h - shared by the files of the log, and included by no other file. Core thread
 * only.
 *
 *	nvme_log.c      superblocks; made and freed; the step that carries everything on
 *	nvme_recover.c  finds the records when the log is opened
 *	nvme_record.c   append, read, and carry-over, which empties a segment
 *	nvme_victim.c   the policy of carry-over (nvme_victim.h)
 *	nvme_segment.c  life of a segment, its live records, the write budget; the log's own I/O
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
 *	   bytes stay until no read needs them any more (readers == 0 before PREPARING).
 *	L3 clean = FREE + PREPARING + READY. A caller's append leaves one of them to the carry-over.
 *	L4 The footer of a FILLING segment fits behind its records, one more included, at all times.
 *	L5 heat[s] counts the records that the table has in segment s (not while it is DRAINING: it
 *	   is not read then), ages all of them. segments[s].live_bytes is about their bytes
 *	   (nvme_log_forget()). live_* are the sums.
 *	L6 the table's callbacks run from completions and nvme_log_poll() only.
 */
#pragma once

#include "nvme_log.h"
#include "nvme_victim.h"

enum { NVME_CARRY_PERCENT = 75 };

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
	uint64_t sequence; /* of its header; 0: its header is not of this store */
	uint64_t full_ns;  /* SEALED: since when */
	uint32_t live_bytes;
	uint32_t generation; /* below NVME_GENERATIONS */
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

/* IDLE ──victim──> FOOTER ──read──> ASK ──> PICK ──> DROP ──> NEXT <──> READ, then APPEND,
 *   ^                                                          │        then WRITE
 *   └─────────────────── none left ────────────────────────────┘
 * ASK, PICK and DROP go over the victim's records, as many at a time as the medium is not tired. */
enum carry_state {
	CARRY_IDLE = 0,
	CARRY_FOOTER,
	CARRY_ASK,
	CARRY_PICK,
	CARRY_DROP,
	CARRY_NEXT,
	CARRY_READ,
	CARRY_APPEND,
	CARRY_WRITE
};

struct nvme_carry {
	enum carry_state state;
	uint32_t segment;
	uint32_t records; /* in the footer */
	/* Candidates: so many were asked, or are left to pick, drop or carry; those from `count` on
	 * are carried over, the last one first. */
	uint32_t next, count;
	uint64_t lain, taken; /* bytes: of all records, of those that are carried over */
	uint64_t tick;        /* records used since are worth it */
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
	struct nvme_events events;
	struct nvme_facts facts; /* live_*: of all segments */
	/* nvme_log_poll(), after each completion, too */
	void (*step)(struct nvme_log *log);

	struct nvme_super super;
	uint64_t super_saved; /* the generation that both copies surely have */
	struct nvme_super_write super_write;
	void (*purge_done)(void *arg, int status);
	void *purge_arg;
	struct nvme_flush flush;
	struct nvme_recovery *recovery; /* while STARTING */

	uint64_t next_sequence, epoch;
	uint32_t n_segments;
	uint32_t entries_max, footer_max; /* of a segment; bytes */
	uint32_t image_max;               /* bytes */
	struct nvme_segment *segments;
	struct nvme_heat *heat; /* of the same numbers */
	struct nvme_ages ages;
	struct nvme_credit credit;
	uint32_t seed;       /* of the sample among which the victim is chosen */
	uint32_t clean, low; /* fewer clean ones than this: reclaim */
	bool paused;         /* no segment is reclaimed */
	uint32_t cursor;     /* where to look for a free one */
	uint32_t ready;      /* READY, or NVME_NONE */
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
};

/* --- nvme_segment.c --- */

/* Zeroed and page-aligned memory, which no core dump has; NULL: out of memory. unset: not zeroed,
 * for what is written before it is read: pages that are never reached cost no memory. */
void *nvme_reserve(uint64_t bytes);
void *nvme_reserve_unset(uint64_t bytes);
/* The location of this record, under the segment's generation of now. */
uint64_t nvme_location_make(const struct nvme_log *log, uint32_t segment,
			    const struct nvme_entry *entry);
void nvme_account(struct nvme_log *log, uint32_t segment, const struct nvme_entry *entry,
		  uint64_t tick);
/* SEALED or DRAINING, and no record there is worth keeping: FREE, its locations stale. */
void nvme_segment_release(struct nvme_log *log, uint32_t segment);
/* Counts a live record that was not carried over. */
void nvme_count_dropped(struct nvme_log *log, uint32_t segment);
bool nvme_budget_allows(struct nvme_log *log, uint64_t bytes);
/* At a start: the bucket as the newest header had it. The records behind that header are paid for
 * one by one. */
void nvme_budget_recall(struct nvme_log *log, const struct nvme_budget *budget);
void nvme_budget_pay(struct nvme_log *log, uint64_t bytes);

/* Fills in an I/O of the log's own, before it is tried or started. The caller sets done and
 * owner. */
void nvme_io_set(struct nvme_io *io, struct nvme_log *log, enum io_kind kind, uint64_t offset,
		 uint8_t *buffer, uint32_t bytes);
int nvme_io_try(struct nvme_io *io); /* 0: on its way. -errno of the medium: not started */
/* Now, or when the queue has room. done() runs in any case, with io->op.status. */
void nvme_io_start(struct nvme_io *io);
void nvme_io_retry(struct nvme_log *log); /* I/Os that wait for room in the queue */
/* Called by nvme_log_poll(): a flush, footers, the next segment to be READY. */
void nvme_segment_step(struct nvme_log *log);
/* The identity that a header, footer or tag of this segment must name until the segment is used
 * again. */
void nvme_identify(const struct nvme_log *log, uint32_t segment, struct nvme_identity *ret);
/* The segment is full: SEALED, with so many entries in its footer. */
void nvme_segment_sealed(struct nvme_log *log, uint32_t segment, uint32_t entries);
/* READY becomes the open one. False: no segment is READY, or no buffer for its footer. */
bool nvme_fill_open(struct nvme_log *log);
void nvme_fill_close(struct nvme_log *log); /* the open one, if any */

/* --- nvme_record.c --- */

bool nvme_carry_works(const struct nvme_log *log); /* as nvme_log_works() */
/* Carries on with the victim, or picks one if clean segments run low. Called by nvme_log_poll(). */
void nvme_carry_step(struct nvme_log *log);

/* --- nvme_recover.c --- */

/* The superblock is good and saved. Reads the segments; then done() runs, once (text: why, or "").
 * -ENOMEM: done() does not run. */
int nvme_recover_segments(struct nvme_log *log,
			  void (*done)(struct nvme_log *log, int status, const char *text));
void nvme_recovery_free(struct nvme_log *log); /* its memory, if there is any */
/* Records that were found are told to the table, some at a time. Called by nvme_log_poll(). */
bool nvme_recovery_works(const struct nvme_log *log);
void nvme_recovery_step(struct nvme_log *log);
