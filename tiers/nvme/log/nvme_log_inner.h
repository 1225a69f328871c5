/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_log_inner.h - shared by the files of the log, and included by no other file. Core thread
 * only.
 *
 *	nvme_log.c      superblocks; made and freed; the step that carries everything on
 *	nvme_recover.c  finds the records when the log is opened
 *	nvme_record.c   append, read, and drain, which makes room in a segment
 *	nvme_victim.c   the policy of that (nvme_victim.h)
 *	nvme_segment.c  life of a segment, its live records, the write budget; the log's own I/O
 *
 * Each file calls the files below it. Only done() of an I/O or an append, and log->step, call
 * upwards.
 *
 * A segment:
 *		    prepare               use              seal: footer written or not
 *  ┌──────> FREE ─────────> PREPARING ───> READY ──> FILLING ───────────────────────> SEALED
 *  │          ^               │   ^  header written                                     │
 *  │          └─ error: FREE ─┘   └────── records are kept ──────┐                      │
 *  │ release                                                     │      drain (victim)  │
 *  └────────────────────── nothing lives there <───────────── DRAINING <────────────────┘
 *
 * Invariants
 *	L1 A segment's header write, and that of the footer of its kept records, ended well before
 *	   a record of its sequence is written.
 *	L2 A segment's generation changes when it becomes FREE, and while it is DRAINING, when all
 *	   records that are kept are known: each of them gets a new location. Until all have it,
 *	   reads may use the generation before, too. Bytes that are free stay until no read of the
 *	   generation before needs them (readers[]), and PREPARING writes nothing before that.
 *	L3 At most one segment is READY or on its way there. A victim is drained when none is, and
 *	   none is FREE.
 *	L4 The footer of a FILLING segment fits behind its last record at all times: all entries,
 *	   kept ones included, and one more while there is room in a hole (nvme_hole_end()).
 *	L5 heat[s] counts the records that the table has in segment s under its generation, ages all
 *	   of them. Bytes are about theirs (nvme_log_forget()). facts.live_* are the sums.
 *	L6 the table's callbacks run from completions and nvme_log_poll() only.
 *	L7 A footer lists records in the order of their places.
 */
#pragma once

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
	uint64_t sequence;   /* of its header; 0: its header is not of this store */
	uint64_t full_ns;    /* SEALED: since when */
	uint32_t generation; /* below NVME_GENERATIONS */
	uint32_t readers[2]; /* of an even generation, of an odd one */
	uint16_t entries;    /* SEALED: in its footer */
	uint8_t state;       /* enum segment_state */
};

/* The records of a segment with holes: `count` entries at the start of `footer` for what lies
 * before the hole at hand, then `ahead` at the end of its room for what is kept behind it. A
 * segment that was FREE is one hole. */
struct nvme_holes {
	uint8_t *footer; /* footer_max bytes */
	uint32_t used;   /* bytes, from the segment's start: the hole begins there */
	uint32_t count;  /* image_bytes 0: its write failed */
	uint32_t ahead;
};

/*	NONE ──open──> OPEN ──full, flush──> CLOSED ──its writes ended──> FOOTER ──written──> NONE
 */
enum fill_state { FILL_NONE = 0, FILL_OPEN, FILL_CLOSED, FILL_FOOTER };

struct nvme_fill {
	enum fill_state state;
	uint32_t segment;
	struct nvme_holes holes;
	uint32_t writes; /* records on their way */
	uint32_t bytes;  /* FILL_FOOTER: of all its records */
	struct nvme_io io;
};

/* IDLE ──victim──> FOOTER ──read──> ASK ──all asked──> MOVE ──none is kept──> IDLE
 *                                                       └──> KEPT, until no read needs the holes,
 *                                            and the segment is READY and then opened ──> IDLE
 * ASK and MOVE go over the victim's records, as many at a time as the medium is not tired. */
enum drain_state { DRAIN_IDLE = 0, DRAIN_FOOTER, DRAIN_ASK, DRAIN_MOVE, DRAIN_KEPT };

struct nvme_drain {
	enum drain_state state;
	uint32_t segment;
	uint32_t generation; /* of the segment before */
	uint64_t tick;       /* records used since are kept */
	/* entries: in the footer; of these asked, or moved; of these kept, at the start of
	 * `footer` */
	uint32_t records, asked, kept;
	uint8_t *footer; /* footer_max bytes */
	struct nvme_io io;
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
	bool paused;     /* no segment is drained */
	uint32_t need;   /* bytes of the largest record that wanted room since the last drain */
	uint32_t n_free; /* segments that are FREE */
	uint32_t cursor; /* where to look for one */
	uint32_t ready;  /* READY, or NVME_NONE */
	uint32_t preparing;
	/* not before: the last header could not be written; 0 */
	uint64_t prepare_after_ns;
	struct nvme_io prepare_io;
	uint8_t *prepare_page;
	struct nvme_fill fill[NVME_FILLS];
	struct nvme_fill *open; /* FILL_OPEN, or NULL */
	struct nvme_drain drain;

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
/* A record that was accounted does not live any more. */
void nvme_unaccount(struct nvme_log *log, uint32_t segment, uint64_t tick, uint32_t bytes);
/* SEALED or DRAINING, and nothing lives there: FREE, its locations stale. */
void nvme_segment_release(struct nvme_log *log, uint32_t segment);
void nvme_segment_drain(struct nvme_log *log, uint32_t segment); /* SEALED becomes DRAINING */
/* The DRAINING segment gets another generation. No record of it is accounted then, until
 * nvme_account() is called for each kept one. */
void nvme_segment_move(struct nvme_log *log);
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
/* The segment is SEALED, with so many entries in its footer. It has so many bytes beside its live
 * records: of records that died while it was filled, too. */
void nvme_segment_sealed(struct nvme_log *log, uint32_t segment, uint32_t entries,
			 uint32_t free_bytes);
/* `kept` entries, in the order of places, are what the segment has; the hole before the first of
 * them is at hand. holes->footer may have them. */
void nvme_holes_open(const struct nvme_log *log, struct nvme_holes *holes,
		     const struct nvme_entry *entries, uint32_t kept);
/* Bytes from the segment's start: a record may reach up to there. 0: the segment takes none. */
uint32_t nvme_hole_end(const struct nvme_log *log, const struct nvme_holes *holes);
/* The next hole is at hand. False: this is the last one. */
bool nvme_hole_next(const struct nvme_log *log, struct nvme_holes *holes);
static inline struct nvme_entry *nvme_entries(uint8_t *footer)
{
	return (struct nvme_entry *)(void *)footer; /* page-aligned */
}

/* Bytes from the segment's start. */
static inline uint32_t nvme_first_byte(const struct nvme_entry *entry)
{
	return nvme_record_first_page(entry) * NVME_PAGE;
}

static inline uint32_t nvme_end_byte(const struct nvme_entry *entry)
{
	return nvme_first_byte(entry) + (uint32_t)nvme_record_bytes(entry);
}

/* READY becomes the open one. False: no segment is READY, or no buffer for its footer. */
bool nvme_fill_open(struct nvme_log *log);
void nvme_fill_close(struct nvme_log *log); /* the open one, if any */

/* --- nvme_record.c --- */

bool nvme_drain_works(const struct nvme_log *log); /* as nvme_log_works() */
/* Carries on with the victim, or picks one if it is time to. Called by nvme_log_poll(). */
void nvme_drain_step(struct nvme_log *log);

/* --- nvme_recover.c --- */

/* The superblock is good and saved. Reads the segments; then done() runs, once (text: why, or "").
 * -ENOMEM: done() does not run. */
int nvme_recover_segments(struct nvme_log *log,
			  void (*done)(struct nvme_log *log, int status, const char *text));
void nvme_recovery_free(struct nvme_log *log); /* its memory, if there is any */
/* Records that were found are told to the table, some at a time. Called by nvme_log_poll(). */
bool nvme_recovery_works(const struct nvme_log *log);
void nvme_recovery_step(struct nvme_log *log);
