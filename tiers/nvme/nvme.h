/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme.h - the NVMe tier: its ops table, its configuration, the calls that only this tier has, and
 * what it shows operators. Core thread only.
 *
 * A path is a disk. Each disk has its own I/O engine, log (nvme_log.h) and state, so a disk that
 * fails or stalls takes its own share of the blocks with it. The hash of a block's key
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
 * the log (log/nvme_log.h).
 *
 * tier_submit() of a read: -ESTALE: its segment was used again; -ENODEV: its disk does not answer
 * now; -EAGAIN: the queue is full.
 * tier_submit() of a write: -EROFS: no disk takes writes; -EAGAIN: no room in queue or log, or no
 * budget: events.changed tells when to try again; -E2BIG, -EINVAL: not an image for this tier.
 * A read that stalls ends with -ETIMEDOUT, a cancelled read with -ECANCELED; the tier keeps the
 * buffers of both (xfer.kept). A cancelled write goes on.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/own.h"
#include "tiers/io/io.h"
#include "tiers/nvme/log/nvme_log.h"
#include "tiers/tier.h"

extern const struct tier_ops nvme_ops;

enum {
	NVME_TIER_PATHS = 16,
	NVME_TIER_PATH_BYTES = 256,
};

struct nvme_tier_conf {
	const char *paths[NVME_TIER_PATHS]; /* files or block devices; copied */
	uint32_t n_paths;
	uint64_t bytes;                      /* of each; of a block device 0: all of it */
	uint32_t segment_bytes;              /* of a store that is made here */
	uint32_t read_depth, write_depth;    /* I/Os in one disk at once */
	uint64_t write_budget_bytes_per_day; /* all disks together; 0: no limit */
	uint64_t stall_ns;                   /* an I/O this old: the disk is offline */
	enum io_engine_choice engine;
	bool compress; /* records are coded where that saves enough (form_trial.h) */
	/* its memory is registered with the I/O engines; may be NULL */
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
	struct io_load io;
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
	uint64_t capacity_bytes;  /* of all disks that have a log */
	struct nvme_counters log; /* sums */
	uint64_t coding_full;     /* records that were not coded for want of room */
	uint64_t stalls_total;
	uint64_t recovery_ns; /* of the slowest, from open to up */
};

/* No disk has a trouble that may pass. Writes given to a disk in trouble are synced only when it is
 * back, so a flush waits for that disk. A disk that is out for good, or was never up, has no writes
 * of ours. */
bool nvme_answers(const struct tier *t);
/* How much is left of the write budget's reserve: 0 to 100, the mean of all disks; 100: there is no
 * budget. */
uint32_t nvme_budget_percent(const struct tier *t);
/* Changes the write budget of all disks together; 0: no limit. */
void nvme_set_budget(struct tier *t, uint64_t bytes_per_day);
void nvme_status(const struct tier *t, struct nvme_tier_status *ret);
/* false: there is no i-th disk */
bool nvme_row(const struct tier *t, uint32_t i, struct nvme_disk_row *ret);
