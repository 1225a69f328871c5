/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme.h - the NVMe tier beyond its ops table: what it is opened with, what it tells the block table, what it is
 * told of blocks. Core thread only.
 *
 * One disk a path, each with its own I/O engine, log (nvme_log.h) and state, so that one that fails or stalls
 * takes its share of blocks along and nothing else. Which disk a block is written to is a hash of its key among
 * those that take writes.
 *
 *	            recovered, formatted
 *	  starting ──────────────────────> up <──── probe ok ────┬─────────────────┐
 *	     │                              │ writes fail        │                 │
 *	     │                              ├──────────────> readonly              │
 *	     │                              │ reads fail, I/O stalls, disk gone  │
 *	     │                              └────────────────────────────────> offline
 *	     └─ not ours, damaged, no permission...: offline for good, text says why and what to do; never written to
 *
 * The tier: starting while one is; up when all are; offline when all are; readonly when none takes writes; else
 * degraded. `xfer.where` is the log's location: disk, slot = segment << 16 | page, generation (20 bits, the tag
 * page's bit included), class 0.
 *
 * tier_submit() of a read: -ESTALE: no such place any more; -ENODEV: its disk does not answer now; -EAGAIN. Of a
 * write: -EROFS: no disk takes writes; -EAGAIN: queue, room, budget: `changed` tells when to try again; -E2BIG,
 * -EINVAL: not an image for this tier. A read that is stalled ends with -ETIMEDOUT, a cancelled one with
 * -ECANCELED, both kept; a cancelled write goes on.
 */
#ifndef KVTIER_NVME_H
#define KVTIER_NVME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tiers/io/io.h"
#include "nvme_log.h"
#include "tiers/tier.h"

enum {
	NVME_TIER_PATHS = 16,
	NVME_TIER_PATH_BYTES = 256,
};

/* The block table's side; see struct nvme_table. Same rules: called from completions and timers only; they may
 * forget and touch, but start nothing. */
struct nvme_events {
	void *arg;
	bool (*found)(void *arg, const struct nvme_entry *entry, const struct extent *where);
	enum nvme_answer (*ask)(void *arg, const struct nvme_entry *entry, const struct extent *where,
				uint64_t *ret_tick);
	bool (*moved)(void *arg, const struct nvme_entry *entry, const struct extent *from, const struct extent *to,
		      uint64_t *ret_tick);
	void (*dropped)(void *arg, const struct nvme_entry *entry, const struct extent *where);
	/* The slot of a read that ended `kept` is the core's again. */
	void (*release)(void *arg, const struct extent *home);
	/* A disk changed its state, or can take writes again. From a timer of its own: may start anything. */
	void (*changed)(void *arg);
};

struct nvme_tier_conf {
	const char *paths[NVME_TIER_PATHS];	/* files or block devices; copied */
	uint32_t n_paths;
	uint64_t bytes;			/* of each; of a block device 0: all of it */
	uint32_t segment_bytes;		/* of a store that is made here */
	uint32_t read_depth, write_depth;	/* I/Os in one disk at once */
	uint64_t write_budget_bytes_per_day;	/* all disks together; 0: none */
	uint64_t stall_ns;		/* an I/O this old: the disk is offline */
	uint64_t probe_ns;		/* from trouble to the first probe; 0: 1 s. The last: 30 times that */
	enum io_engine_choice engine;
	uint32_t max_image_bytes;	/* of a write */
	struct tier *host;		/* its memory is registered with the I/O engines; NULL: none */
	struct nvme_events events;
};

struct nvme_disk_row {
	char path[NVME_TIER_PATH_BYTES];
	enum tier_state state;
	bool for_good;			/* offline until the operator does something and starts anew */
	char text[NVME_TEXT_BYTES];	/* why it is not up; "" */
	uint64_t capacity_bytes, live_bytes;
	uint32_t segment_bytes;
	struct nvme_counters log;
	struct io_counters io;
};

struct nvme_tier_status {
	const char *engine;		/* "io_uring", "threads", "io_uring+threads", or "none" */
	char text[NVME_TEXT_BYTES];	/* of the first disk that is not up, "PATH: why"; else what io_note() says; "" */
	bool quarantined;		/* a path holds something that is not ours, or damaged: `kvtierctl format` */
	uint32_t disks, usable;	/* usable: reads go there */
	uint32_t budget_percent;	/* of the write budget's reserve; 100: there is no budget */
	struct nvme_counters log;	/* sums */
	struct io_counters io;		/* sums; oldest_ns: the largest */
	uint64_t stalls_total;
	uint64_t residency[NVME_RESIDENCY_BUCKETS];	/* blocks dropped by reclaim, by how long their segment had been full: */
				/* up to 1 min, 10 min, 1 h, 6 h, 1 day, 7 days, 30 days, more */
	uint64_t recovery_ns;		/* of the slowest, from open to up */
};

/* Where a key is to be written now; false: no disk takes writes. tier_submit() goes there. */
bool nvme_writable(const struct tier *t, const uint8_t key[32]);
/* The disk answers reads now. */
bool nvme_readable(const struct tier *t, const struct extent *where);
/* The block is gone from there, or was accessed; `tick` as the tier knows it (record.tick of the write, found,
 * ask, moved, or the last touch). A stale extent is fine. */
void nvme_forget(struct tier *t, const struct extent *where, uint64_t tick);
void nvme_touch(struct tier *t, const struct extent *where, uint64_t tick, uint64_t now_tick);
/* As nvme_log_purge() on every disk that is up; done with the first error, or 0. -EBUSY: one is under way. A disk
 * that is not up makes it -EIO: what it holds could come back with it. */
int  nvme_purge(struct tier *t, const uint8_t tenant[NVME_TENANT_BYTES], void (*done)(void *arg, int status),
		void *arg);
/* As nvme_log_flush() on every disk that takes writes. One that is in trouble makes it -EIO: what it was given before
 * may not be synced. */
int  nvme_flush(struct tier *t, bool last, void (*done)(void *arg, int status), void *arg);
/* No disk is in trouble that may pass. Writes given to a disk in trouble are synced only when it is back, so a flush
 * waits for it; a disk that is out for good, or was never up, has none of our writes. */
bool nvme_answers(const struct tier *t);
/* How much is left of the write budget's reserve: 0 to 100, the mean of all disks; 100: there is no budget. */
uint32_t nvme_budget_percent(const struct tier *t);
/* Nothing is in the hands of a disk: tier_close() is possible. */
bool nvme_idle(const struct tier *t);
void nvme_status(const struct tier *t, struct nvme_tier_status *ret);
bool nvme_row(const struct tier *t, uint32_t i, struct nvme_disk_row *ret);	/* false: no such */

#endif
