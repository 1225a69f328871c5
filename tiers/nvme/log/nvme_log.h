/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_log.h - a log of images on one NVMe disk (file or partition). Core thread only.
 *
 * It is a state machine without threads, clock or files: I/O is submitted through struct
 * nvme_medium (in the daemon nvme_disk.c, in tests a simulator) and comes back as completions. The
 * log never syncs on the data path, keeps no memory for each record, reserves no memory after it is
 * up, and runs no callback from inside append or read. The bytes on disk, and how far they may be
 * trusted: nvme_format.h.
 *
 *	        nvme_log_recover                    nvme_log_flush(last)
 *	  NEW ───────────────────> STARTING ──> UP ─────────────────────> STOPPED
 *	   │    nvme_log_format        │
 *	   │                           └──> FAILED: the facts' text says why. The store is untouched
 *	   └─ nvme_log_free() from any, when no I/O is in the medium
 *
 * A location tells the block table where a record lies. It has 7 bytes, is never stored, and has no
 * meaning after a restart. It becomes stale when its segment is used again: a read then gives
 * -ESTALE, never other bytes. The caller tells the log of its blocks (touch, forget); the log keeps
 * that as sums per segment. Before a segment is used again, the log asks about its blocks.
 *
 * Several files share this header; nvme_log_inner.h lists them. A caller has one log, whose calls
 * share locations, ticks and struct nvme_append, and need not know which file a call is in.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tiers/io/io.h"
#include "tiers/tier.h"
#include "nvme_format.h"

struct nvme_log;

/*
 * A location has 56 bits: disk 4 | tag page 1 | segment 16 | page 16 | generation 19. The same as
 * an extent of the NVMe tier: unit = disk, slot = segment << 16 | page, generation = tag page << 19
 * | generation, class 0. The functions are pure; any thread may call them.
 */
enum {
	NVME_NOWHERE = 0,
	NVME_MAX_DISKS = 16,
	/* a segment's run from 1 to the last of these, so no location is NVME_NOWHERE */
	NVME_GENERATIONS = 1 << 19,
};

/* the record begins with a page for its tag */
bool nvme_location_tag_page(uint64_t location);
uint32_t nvme_location_segment(uint64_t location);
uint32_t nvme_location_page(uint64_t location); /* of the image, from the segment's start */
struct extent nvme_location_extent(uint64_t location);
uint64_t nvme_extent_location(const struct extent *where);

enum { NVME_TEXT_BYTES = 256 };

enum nvme_log_state { NVME_NEW, NVME_STARTING, NVME_UP, NVME_STOPPED, NVME_FAILED };

/* A log lies on a medium: the first member of a disk (nvme_disk.h) or of the tests' simulator.
 * submit: as io_submit(). */
struct nvme_medium {
	int (*submit)(struct nvme_medium *medium, struct io_op *op);
	uint64_t (*now_ns)(struct nvme_medium *medium); /* never goes back */
	uint64_t (*wall_s)(struct nvme_medium *medium); /* CLOCK_REALTIME, which may */
	/* Work that takes long is to go on in a later nvme_log_poll(). */
	bool (*tired)(struct nvme_medium *medium);
	/* NULL, or called for every op that was submitted and has ended, right before the log looks
	 * at the op. */
	void (*ended)(struct nvme_medium *medium, const struct io_op *op);
	/* Recovery or format ended: 0, or why not. */
	void (*ready)(struct nvme_medium *medium, int status);
};

struct nvme_conf {
	uint64_t disk_bytes; /* size of the file or partition */
	uint64_t bytes;      /* as configured; the store must not be smaller. 0: any size */
	uint64_t write_budget_bytes_per_day; /* 0: no limit */
	uint32_t segment_bytes;              /* for format; a store keeps its own */
	uint8_t uuid[16];                    /* for format: random */
	uint8_t disk;                        /* < NVME_MAX_DISKS; goes into locations */
};

/*
 * The block table's side. The first six are the log's, called from completions and
 * nvme_log_poll(), never from inside another call; they may call nvme_log_forget() and
 * nvme_log_touch(), but start no I/O. The others are the tier's (nvme.h).
 */
struct nvme_events {
	void *arg;
	/* Recovery: about so many records are still to come, by the number in the first segments.
	 * NULL: no matter */
	void (*expect)(void *arg, uint64_t records);
	/* Recovery: found() will be asked about this record some records later. NULL: no matter */
	void (*soon)(void *arg, const struct nvme_entry *entry);
	/* Recovery: a record, the newest first; a key can come again, with an older copy of the
	 * same bytes. True: the block is now there, with the entry's tick. */
	bool (*found)(void *arg, const struct nvme_entry *entry, const struct extent *where);
	/* Its segment is to take other records. False: the block is not at this location any
	 * more. *ret_tick: it is worth as much as a block that was last accessed then. */
	bool (*ask)(void *arg, const struct nvme_entry *entry, const struct extent *where,
		    uint64_t *ret_tick);
	/* The record stays, and has another location. True: the block was still at `from`, is now
	 * at `to`, and *ret_tick is its last access. from and to may be one. */
	bool (*moved)(void *arg, const struct nvme_entry *entry, const struct extent *from,
		      const struct extent *to, uint64_t *ret_tick);
	/* The record makes room for others. The log knows it no more, and reads of it fail
	 * soon. Where a segment's footer cannot be read back, this is not called: its blocks are
	 * found to be stale one by one. */
	void (*dropped)(void *arg, const struct nvme_entry *entry, const struct extent *where);
	/* The slot of a read that ended `kept` is the core's again. */
	void (*release)(void *arg, const struct extent *home);
	/* A disk changed its state, or can take writes again. Called from a timer: may start
	 * anything. */
	void (*changed)(void *arg);
};

/* One I/O of the log's own. */
struct nvme_io {
	struct io_op op;
	struct nvme_log *log;
	struct nvme_io *next; /* among the I/Os that wait for room in the queue */
	void (*done)(struct nvme_io *io);
	void *owner;
};

/*
 * Embedded in the caller's request and lent until `done` ran: once, after nvme_log_append()
 * returned. The image is lent, too, up to the next multiple of 4 KiB (the bytes behind the image
 * are written as they are). The log writes 128 bytes of its padding: they are no part of the image,
 * and no checksum covers them. status 0: the whole record is in the disk's hands, at `location`,
 * and counted there with `tick`.
 */
struct nvme_append {
	uint8_t *image; /* page-aligned; header complete */
	uint32_t bytes; /* of the image */
	/* 0, or what lies at `image` is a coded record of so many bytes: the header's page, then
	 * the form, then zeros to the end of its page */
	uint32_t coded_bytes;
	uint8_t owner[32];  /* bytes 0..15: tenant */
	uint8_t parent[32]; /* key; zeros: no parent */
	uint64_t tick;      /* last access, < 2^48 */
	void (*done)(struct nvme_append *append);
	int status;
	uint64_t location;

	/* the log's own */
	struct nvme_io io[2]; /* image; then the tag page, if there is one */
	struct nvme_fill *fill;
	uint32_t entry;    /* in the segment's footer */
	uint32_t tag_page; /* of the pool; UINT32_MAX: not used */
};

/* A read is lent in the same way. With status 0 all `bytes` were read, or all that the segment has
 * from there on: a coded record is shorter. The caller checks header, identity and checksum. */
struct nvme_read {
	uint64_t location;
	/* page-aligned, with room up to the next multiple of 4 KiB */
	uint8_t *buffer;
	uint32_t bytes; /* of the image */
	void (*done)(struct nvme_read *read);
	int status;
	/* status 0: as kept in the image's padding; zeros: no parent, or not known */
	uint8_t parent[32];
	uint32_t coded_bytes; /* status 0: of a coded record, which is to be undone; or 0 */

	struct nvme_io io;
};

/* uint64_t only: nvme.c adds them up. */
struct nvme_counters {
	uint64_t appended_bytes; /* of callers, completed */
	/* of these: coded records, and the bytes by which they were shorter */
	uint64_t coded_records, saved_bytes;
	uint64_t dropped_records; /* live ones, which made room */
	/* how long live records were in full segments, summed up (recovered ones: since the start).
	 * Divided by dropped_records it is how long a record stays. */
	uint64_t lived_s;
	uint64_t written_bytes; /* all: headers, footers, superblocks */
	uint64_t read_bytes;
	uint64_t recovery_bytes, recovered_records, recovered_segments, walked_segments;
	uint64_t refused_budget;
	uint64_t write_errors, read_errors;
	/* refilled: some of its records were kept. lost: without a footer that could be read
	 * back */
	uint64_t segments_reclaimed, segments_refilled, segments_lost;
};

/* -ENOMEM. medium outlives the log. */
int nvme_log_new(const struct nvme_conf *conf, struct nvme_medium *medium,
		 const struct nvme_events *events, struct nvme_log **ret);
/* No I/O is in the medium; I/Os that wait for room there are forgotten. log may be NULL. */
void nvme_log_free(struct nvme_log *log);
/* Something waits, and no completion will carry it on: nvme_log_poll() soon. */
bool nvme_log_waits(const struct nvme_log *log);

/*
 * Reads the records that are there, and calls medium->ready, which may be before this returns. The
 * disk is not written to unless the superblock is one of this log's, and whole. -ENODATA: blank;
 * -EMEDIUMTYPE: not a kvtier store; -EPROTONOSUPPORT: a format of
 * the future; -EBADMSG: both superblocks damaged; -EUCLEAN: the file is shorter than the store;
 * -ENOSPC: the store is smaller than configured; -EIO and the like: the disk's.
 */
void nvme_log_recover(struct nvme_log *log);
/* Makes an empty store on conf.bytes, over anything: the caller has made sure that this is right.
 * Calls medium->ready in the same way. */
void nvme_log_format(struct nvme_log *log);

/*
 * A disk came back, or another one came to its place. Are its superblocks (both, one after the
 * other) as this log left them? The log is UP. 0: go on with the disk. Else -errno and a sentence.
 * -EMEDIUMTYPE: another store, or no store. -ESTALE: an older copy (purged records would come
 * back), or another daemon has used it (this log's picture of the segments is out of date).
 * -EUCLEAN: cut short.
 */
int nvme_log_recognise(const struct nvme_log *log, const uint8_t *supers, uint64_t disk_bytes,
		       char *text, size_t n);

/* What a log tells of itself: as it is now, and at any later moment until the log is freed. */
struct nvme_facts {
	enum nvme_log_state state;
	uint32_t segment_bytes;  /* 0: not known yet */
	uint64_t capacity_bytes; /* of all segments */
	uint64_t live_bytes;     /* of records that the table has */
	uint64_t live_records;
	struct nvme_counters counters;
	char text[NVME_TEXT_BYTES]; /* why FAILED, and the remedy */
};
const struct nvme_facts *nvme_log_facts(const struct nvme_log *log);

/*
 * 0: lent. -EAGAIN: not now (write budget, space, queue); the append is not lent.
 * -E2BIG: larger than a segment holds. -EINVAL: no image header, or not of so many bytes.
 * -ESHUTDOWN: not UP.
 */
int nvme_log_append(struct nvme_log *log, struct nvme_append *append);
/* 0: lent. -ESTALE: its segment was used again; -EAGAIN: queue; -EINVAL: more bytes than the
 * segment has. */
int nvme_log_read(struct nvme_log *log, struct nvme_read *read);
/* The block is gone from there, or was accessed. `tick`: as the log knows it from append, moved,
 * found or the last touch. A stale location is fine. The record's length is not given: the
 * segment's live bytes shrink by its mean record. That is exact for records of one length, and when
 * the last record is forgotten. */
void nvme_log_forget(struct nvme_log *log, uint64_t location, uint64_t tick);
void nvme_log_touch(struct nvme_log *log, uint64_t location, uint64_t tick, uint64_t now_tick);
bool nvme_log_stale(const struct nvme_log *log, uint64_t location);

/*
 * All of the tenant's records written before this call are dead for every recovery once `done` ran
 * with status 0. The caller itself forgets its blocks in memory. With another status a recovery may
 * find the records or not: try again. -EBUSY: a purge is under way; -ESHUTDOWN: not UP.
 */
int nvme_log_purge(struct nvme_log *log, const uint8_t tenant[NVME_TENANT_BYTES],
		   void (*done)(void *arg, int status), void *arg);
/* Syncs all appends that are done. last: the log takes no more appends, seals the open segment once
 * the lent appends are done, so that a restart need not walk it, and is STOPPED then. -EBUSY,
 * -ESHUTDOWN. A disk that stalls keeps a flush from ending: the caller has a time limit, and may
 * exit without it. */
int nvme_log_flush(struct nvme_log *log, bool last, void (*done)(void *arg, int status), void *arg);

/* Work is left that no I/O is waited for: nvme_log_poll() in the next iteration of the loop. */
bool nvme_log_works(const struct nvme_log *log);
/* Carries on work that found no room in the queue or failed, as every completion does. To be called
 * every few milliseconds while nvme_log_waits(); cheap. */
void nvme_log_poll(struct nvme_log *log);
/* While the disk is in trouble no segment is reclaimed: records that cannot be moved just now are
 * not lost. */
void nvme_log_pause(struct nvme_log *log, bool paused);
/* The log is UP. The offset of a page that may hold anything until the next append or poll of a log
 * that is not paused: where the next record would go if there is room for one, else outside all
 * segments (NVME_SPARE_OFFSET). */
uint64_t nvme_log_spare(const struct nvme_log *log);

/* Whether the write budget has so many bytes now. */
bool nvme_log_affords(struct nvme_log *log, uint64_t bytes);
/* Changes the write budget: what is left of it stays, and a new one begins full. */
void nvme_log_set_budget(struct nvme_log *log, uint64_t bytes_per_day);
/* The rest of the write budget's reserve: 0 to 100; 100 without a budget. */
uint32_t nvme_log_budget_percent(const struct nvme_log *log);
