/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_log.h - a log of images on one NVMe disk (file or partition). Core thread only.
 *
 * A state machine without threads, clock or files: I/O goes out through struct nvme_medium (in the
 * daemon nvme_disk.c, in tests a simulator) and comes back as completions. The log never syncs on
 * the data path, keeps nothing in memory for each record, reserves no memory after it is up, and
 * runs no callback from inside append or read. The bytes on disk, and how far they may be trusted:
 * nvme_format.h.
 *
 *	        nvme_log_recover                    nvme_log_flush(last)
 *	  NEW ───────────────────> STARTING ──> UP ─────────────────────> STOPPED
 *	   │    nvme_log_format        │
 *	   │                           └──> FAILED: nvme_log_text() says why. The store is untouched
 *	   └─ nvme_log_free() from any, when nvme_log_busy() says no
 *
 * A location is where a record lies, for the block table: 7 bytes, never stored, meaningless after
 * a restart. It becomes stale when its segment is used again: -ESTALE, never other bytes. The
 * caller tells the log of its blocks (touch, forget); the log keeps that as sums per segment. When
 * a segment is about to go, the log asks about its blocks.
 *
 * Several files share this header; nvme_log_inner.h lists them. A caller has one log, whose calls
 * share locations, ticks and struct nvme_append, and need not know which file a call is in.
 */
#ifndef KVTIER_NVME_LOG_H
#define KVTIER_NVME_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tiers/io/io.h"
#include "nvme_format.h"
#include "nvme_location.h"

struct nvme_log;

enum { NVME_TEXT_BYTES = 256, NVME_RESIDENCY_BUCKETS = 8 };

enum nvme_log_state { NVME_NEW, NVME_STARTING, NVME_UP, NVME_STOPPED, NVME_FAILED };

/* A log lies on a medium: the first member of a disk (nvme_disk.h) or of the tests' simulator.
 * submit: as io_submit(); it sets op->file. */
struct nvme_medium {
	int (*submit)(struct nvme_medium *medium, struct io_op *op);
	uint64_t (*now_ns)(struct nvme_medium *medium); /* never goes back */
	uint64_t (*wall_s)(struct nvme_medium *medium); /* CLOCK_REALTIME, which may */
	/* NULL, or called for every op that was submitted and has ended, right before the log looks
	 * at the op. */
	void (*ended)(struct nvme_medium *medium, const struct io_op *op);
};

struct nvme_conf {
	uint64_t disk_bytes; /* size of the file or partition */
	uint64_t bytes;      /* as configured; the store must not be smaller. 0: any size */
	uint64_t write_budget_bytes_per_day; /* 0: none */
	uint32_t segment_bytes;              /* for format; a store keeps its own */
	uint32_t max_image_bytes;            /* of an append. 0: as fits a segment */
	/* format: the store's, random. Recover: the store must have this uuid; zeros: any */
	uint8_t uuid[16];
	uint8_t disk; /* < NVME_MAX_DISKS; goes into locations */
};

enum nvme_answer {
	NVME_GONE, /* the block is not at this location any more */
	NVME_LIVE, /* the block is there; carry it over if it is recent enough */
	/* the block is there; carry it over if there is room at all: other blocks depend on it */
	NVME_WANTED,
};

/*
 * The block table's side. Called from completions and nvme_log_poll(), never from inside another
 * call; may call nvme_log_forget() and nvme_log_touch(), but start nothing.
 */
struct nvme_table {
	void *arg;
	/* Recovery: a record, the newest first; a key can come again, with an older copy of the
	 * same bytes. True: the block is now at this location, with the entry's tick. */
	bool (*found)(void *arg, const struct nvme_entry *entry, uint64_t location);
	/* Its segment is to be used again: is the block still there, and when was it last
	 * accessed? */
	enum nvme_answer (*ask)(void *arg, const struct nvme_entry *entry, uint64_t location,
				uint64_t *ret_tick);
	/* The record was copied. True: the block was still at `from`, is now at `to`, and *ret_tick
	 * is its last access. */
	bool (*moved)(void *arg, const struct nvme_entry *entry, uint64_t from, uint64_t to,
		      uint64_t *ret_tick);
	/* A block that was not carried over. Its location is stale when this returns. Where a
	 * segment's footer cannot be read back, this is not called: its blocks are found to be
	 * stale one by one. */
	void (*dropped)(void *arg, const struct nvme_entry *entry, uint64_t location);
	/* Recovery or format ended: 0, or why not. */
	void (*ready)(void *arg, int status);
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
	uint8_t *image;     /* page-aligned; header complete */
	uint32_t bytes;     /* of the image */
	uint8_t owner[32];  /* bytes 0..15: tenant */
	uint8_t parent[32]; /* key; zeros: none */
	uint64_t tick;      /* last access, < 2^48 */
	void (*done)(struct nvme_append *append);
	int status;
	uint64_t location;

	/* the log's own */
	struct nvme_io io[2]; /* image; then the tag page, if there is one */
	struct nvme_fill *fill;
	uint32_t entry;    /* in the segment's footer */
	uint32_t tag_page; /* of the pool; UINT32_MAX: none */
};

/* Lent likewise. status 0: `bytes` were read, and the caller checks header, identity and
 * checksum. */
struct nvme_read {
	uint64_t location;
	/* page-aligned, with room up to the next multiple of 4 KiB */
	uint8_t *buffer;
	uint32_t bytes; /* of the image */
	void (*done)(struct nvme_read *read);
	int status;
	/* status 0: as kept in the image's padding; zeros: none, or not known */
	uint8_t parent[32];

	struct nvme_io io;
};

struct nvme_counters {
	uint64_t appended_records, appended_bytes; /* of callers, completed */
	uint64_t carried_records, carried_bytes;   /* written again */
	uint64_t dropped_records;                  /* live ones, not carried over */
	uint64_t written_bytes;                    /* all: headers, footers, superblocks */
	uint64_t read_bytes;
	uint64_t recovery_bytes, recovered_records, recovered_segments, walked_segments;
	uint64_t refused_budget, refused_space, refused_queue;
	uint64_t stale_reads;
	uint64_t write_errors, read_errors;
	/* lost: without a footer that could be read back */
	uint64_t segments_reclaimed, segments_lost;
	/* dropped_records, by how long their segment had been full (a recovered one: since the
	 * start): up to 1 min, 10 min, 1 h, 6 h, 1 day, 7 days, 30 days, more */
	uint64_t residency[NVME_RESIDENCY_BUCKETS];
};

/* -EINVAL: conf out of its limits, with text; -ENOMEM. medium and table outlive the log. */
int nvme_log_new(const struct nvme_conf *conf, struct nvme_medium *medium,
		 const struct nvme_table *table, struct nvme_log **ret, char *text, size_t n);
void nvme_log_free(struct nvme_log *log); /* not busy; NULL is fine */
/* An I/O is in the medium. I/Os that wait for room there do not count: nvme_log_free() forgets
 * them. */
bool nvme_log_busy(const struct nvme_log *log);
/* Something waits, and no completion will carry it on: nvme_log_poll() soon. */
bool nvme_log_waits(const struct nvme_log *log);

/*
 * Reads the records that are there, and calls table->ready, which may be before this returns.
 * Nothing is written unless the superblock is one of this log's, and whole. -ENODATA: blank;
 * -EMEDIUMTYPE: not a kvtier store, or another one than conf.uuid; -EPROTONOSUPPORT: a format of
 * the future; -EBADMSG: both superblocks damaged; -EUCLEAN: the file is shorter than the store;
 * -ENOSPC: the store is smaller than configured; -EIO and the like: the disk's.
 */
void nvme_log_recover(struct nvme_log *log);
/* Makes an empty store on conf.bytes, over anything: the caller made sure that this is right. Calls
 * ready, likewise. */
void nvme_log_format(struct nvme_log *log);

/*
 * A disk came back, or another one came to its place. Are its superblocks (both, one after the
 * other) as this log left them? The log is UP. 0: go on with the disk. Else -errno and a sentence.
 * -EMEDIUMTYPE: another store, or none. -ESTALE: an older copy (purged records would come back), or
 * another daemon has used it (this log's picture of the segments is out of date). -EUCLEAN: cut
 * short.
 */
int nvme_log_recognise(const struct nvme_log *log, const uint8_t *supers, uint64_t disk_bytes,
		       char *text, size_t n);

enum nvme_log_state nvme_log_state(const struct nvme_log *log);
const char *nvme_log_text(const struct nvme_log *log); /* why FAILED, and the remedy */

/*
 * 0: lent. -EAGAIN: not now (write budget, space, queue: counted apart); nothing happened. -E2BIG:
 * larger than max_image_bytes. -EINVAL: no image header, or not of so many bytes. -ESHUTDOWN: not
 * UP.
 */
int nvme_log_append(struct nvme_log *log, struct nvme_append *append);
/* 0: lent. -ESTALE: its segment was used again; -EAGAIN: queue; -EINVAL: more bytes than the
 * segment has. */
int nvme_log_read(struct nvme_log *log, struct nvme_read *read);
/* The block is gone from there, or was accessed. `tick`: as the log knows it from append, moved,
 * found or the last touch. A stale location is fine. The record's length is not given: the
 * segment's live bytes shrink by its mean record. That is exact for records of one length, and when
 * the last record goes. */
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

/* Carries on work that found no room in the queue or failed, as every completion does. To be called
 * every few milliseconds while nvme_log_waits(); cheap. */
void nvme_log_poll(struct nvme_log *log);
/* While the disk is in trouble no segment is reclaimed: records that cannot be moved just now are
 * not lost. */
void nvme_log_pause(struct nvme_log *log, bool paused);
/* UP. The offset of a page that may hold anything until the next append or poll of a log that is
 * not paused: where the next record would go if there is room for one, else outside all segments
 * (NVME_SPARE_OFFSET). */
uint64_t nvme_log_spare(const struct nvme_log *log);

void nvme_log_counters(const struct nvme_log *log, struct nvme_counters *ret);
uint64_t nvme_log_capacity(const struct nvme_log *log);      /* bytes of all segments */
uint32_t nvme_log_segment_bytes(const struct nvme_log *log); /* 0: not known yet */
uint64_t nvme_log_live_bytes(const struct nvme_log *log);    /* of records that the table has */
uint64_t nvme_log_live_records(const struct nvme_log *log);
/* The rest of the write budget's reserve: 0 to 100; 100 without a budget. */
uint32_t nvme_log_budget_percent(const struct nvme_log *log);
uint64_t nvme_log_memory(const struct nvme_log *log);

#endif
