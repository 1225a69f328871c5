/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme.h - the NVMe tier: its ops table, its configuration, its calls to the block table, and the
 * table's calls about blocks. Core thread only.
 *
 * A path is a disk. Each disk has its own I/O engine, log (nvme_log.h) and state, so a disk that
 * fails or stalls takes its share of the blocks with it and nothing else. The hash of a block's key
 * picks one of the disks that take writes.
 *
 *	      recovered, formatted
 *  starting ──────────────────────> up <──── probe ok ────┬─────────────────┐
 *     │                              │ writes fail        │                 │
 *     │                              ├──────────────> readonly              │
 *     │                              │ reads fail, I/O stalls, disk gone  │
 *     │                              └────────────────────────────────> offline
 *     └─ not ours, damaged, no permission: offline for good, and never written to; text says why
 *
 * The tier is starting while a disk is starting, up when all disks are up, offline when all disks
 * are offline, readonly when no disk takes writes, and else degraded. `xfer.where` is a location of
 * the log (nvme_location.h).
 *
 * tier_submit() of a read: -ESTALE: its segment was used again; -ENODEV: its disk does not answer
 * now; -EAGAIN: the queue is full.
 * tier_submit() of a write: -EROFS: no disk takes writes; -EAGAIN: no room in queue or log, or no
 * budget: events.changed tells when to try again; -E2BIG, -EINVAL: not an image for this tier.
 * A read that stalls ends with -ETIMEDOUT, a cancelled read with -ECANCELED; the tier keeps the
 * buffers of both (xfer.kept). A cancelled write goes on.
 */
#ifndef KVTIER_NVME_H
#define KVTIER_NVME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/own.h"
#include "tiers/io/io.h"
#include "nvme_log.h"
#include "tiers/tier.h"

extern const struct tier_ops nvme_ops;

enum {
	NVME_TIER_PATHS = 16,
	NVME_TIER_PATH_BYTES = 256,
};

/* The block table's side, with the rules of struct nvme_table: completions and timers alone call
 * these. A callback may forget and touch, and starts nothing. */
struct nvme_events {
	void *arg;
	bool (*found)(void *arg, const struct nvme_entry *entry, const struct extent *where);
	enum nvme_answer (*ask)(void *arg, const struct nvme_entry *entry,
				const struct extent *where, uint64_t *ret_tick);
	bool (*moved)(void *arg, const struct nvme_entry *entry, const struct extent *from,
		      const struct extent *to, uint64_t *ret_tick);
	void (*dropped)(void *arg, const struct nvme_entry *entry, const struct extent *where);
	/* The slot of a read that ended `kept` is the core's again. */
	void (*release)(void *arg, const struct extent *home);
	/* A disk changed its state, or can take writes again. Called from a timer: may start
	 * anything. */
	void (*changed)(void *arg);
};

struct nvme_tier_conf {
	const char *paths[NVME_TIER_PATHS]; /* files or block devices; copied */
	uint32_t n_paths;
	uint64_t bytes;                      /* of each; of a block device 0: all of it */
	uint32_t segment_bytes;              /* of a store that is made here */
	uint32_t read_depth, write_depth;    /* I/Os in one disk at once */
	uint64_t write_budget_bytes_per_day; /* all disks together; 0: none */
	uint64_t stall_ns;                   /* an I/O this old: the disk is offline */
	enum io_engine_choice engine;
	uint32_t max_image_bytes; /* of a write */
	/* its memory is registered with the I/O engines; NULL: none */
	struct tier *host;
	struct nvme_events events;
};

struct nvme_disk_row {
	char path[NVME_TIER_PATH_BYTES];
	struct own own; /* the file or device that is open */
	enum tier_state state;
	/* offline until the operator does something and starts anew */
	bool for_good;
	char text[NVME_TEXT_BYTES]; /* why it is not up; "" */
	uint64_t capacity_bytes, live_bytes;
	uint32_t segment_bytes;
	struct nvme_counters log;
	struct io_counters io;
};

struct nvme_tier_status {
	const char *engine; /* "io_uring", "threads", "io_uring+threads", or "none" */
	/* of the first disk that is not up: "PATH: why". All are up: io_note()'s sentence, or "" */
	char text[NVME_TEXT_BYTES];
	/* a path holds something that is not ours, or damaged: `kvtierctl format` */
	bool quarantined;
	bool larger;              /* a store has more segments than conf.bytes is room for */
	uint32_t disks, usable;   /* usable: reads go there */
	uint32_t budget_percent;  /* of the write budget's reserve; 100: there is no budget */
	struct nvme_counters log; /* sums */
	struct io_counters io;    /* sums; oldest_ns: the largest */
	uint64_t stalls_total;
	/* blocks dropped by reclaim, by how long their segment had been full: */
	uint64_t residency[NVME_RESIDENCY_BUCKETS];
	/* up to 1 min, 10 min, 1 h, 6 h, 1 day, 7 days, 30 days, more */
	uint64_t recovery_ns; /* of the slowest, from open to up */
};

/* A disk takes writes of this key now. */
bool nvme_writable(const struct tier *t, const uint8_t key[32]);
/* The disk answers reads now. */
bool nvme_readable(const struct tier *t, const struct extent *where);
/* The block that was at `where` is gone (forget) or was accessed (touch). `tick` is the access that
 * the tier knows of: record.tick of the write, found, ask, moved, or the last touch. A stale extent
 * is fine. */
void nvme_forget(struct tier *t, const struct extent *where, uint64_t tick);
void nvme_touch(struct tier *t, const struct extent *where, uint64_t tick, uint64_t now_tick);
/* nvme_log_purge() on every disk that is up. done() gets the first error, or 0; -EIO where a disk
 * is not up, since its records could come back with it. Returns 0, or -EBUSY: a purge is under
 * way. */
int nvme_purge(struct tier *t, const uint8_t tenant[NVME_TENANT_BYTES],
	       void (*done)(void *arg, int status), void *arg);
/* nvme_log_flush() on every disk that takes writes. done() gets the first error, or 0; -EIO where a
 * disk is in trouble, since its earlier writes may not be synced. Returns 0, or -EBUSY: a flush is
 * under way. */
int nvme_flush(struct tier *t, bool last, void (*done)(void *arg, int status), void *arg);
/* No disk has a trouble that may pass. Writes given to a disk in trouble are synced only when it is
 * back, so a flush waits for that disk. A disk that is out for good, or was never up, has no writes
 * of ours. */
bool nvme_answers(const struct tier *t);
/* How much is left of the write budget's reserve: 0 to 100, the mean of all disks; 100: there is no
 * budget. */
uint32_t nvme_budget_percent(const struct tier *t);
/* No disk has an I/O of ours: tier_close() is possible. */
bool nvme_idle(const struct tier *t);
void nvme_status(const struct tier *t, struct nvme_tier_status *ret);
/* false: there is no i-th disk */
bool nvme_row(const struct tier *t, uint32_t i, struct nvme_disk_row *ret);

#endif
