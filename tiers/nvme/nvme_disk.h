/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_disk.h - one path of the NVMe tier: file, I/O engine, log, state, and the transfers on their
 * way there. Core thread only.
 *
 *  nvme_disk_open ──> STARTING ──recovered, formatted──> UP <───────────── probe ok ──────────┐
 *	│                   │ cannot be read                 │ writes fail                        │
 *	│                   v                                ├─────────────────────────> READONLY ┤
 *	│                OFFLINE, and tried again            │ reads fail, gone, I/O stalls       │
 *	│                                                    └─────────────────────────> OFFLINE ─┤
 *	│                                                           probes fail │  ^ not back,    │
 *	│                                                       and it is idle  v  │ not ours     │
 *	│                                                             path opened again ──ours────┘
 *	└─ not ours, damaged, in use, no permission: OFFLINE for good, never written to
 *
 * A disk that was pulled never answers on its old descriptor again, even when it is back. So when a
 * probe finds the disk gone, or three probes in a row fail, the descriptor is closed, and each
 * probe that is due opens the path again, in a thread that no caller waits for. The store that is
 * found there is taken for this disk's only if both superblocks together say that it is this log's
 * store, as this log left it (nvme_log_recognise()). Any other store is left alone, and the text
 * names the remedy.
 *
 * The log goes on where it was, in its open segment, too. The disk may have lost its cache. Then
 * unsynced writes are missing, in any order, as after a power cut (nvme_format.h), and later writes
 * lie behind them. Every reader bears that:
 *   - a record that is missing: the bytes there are not the image that was asked for, by key and
 *     checksum: the load is a miss
 *   - a header that is missing: the next start reads the segment under the sequence that it had
 *     before, or not at all
 *   - a footer that is missing: the next start walks the segment
 *   - a footer that lists a missing record: the record is a miss when it is read
 *   - no sequence is used twice, since the superblock of this life was synced before any record was
 *     written
 *   - a purge stays: it ended with both superblocks synced, and a store with less is refused as an
 *     older copy
 * Blocks that were written and not flushed when the disk went may be lost.
 *
 * Invariants
 *   D1 While OFFLINE only two things are submitted: the probe, which reads a superblock, and the
 *      reads of a recovery that has begun. So I/Os in the disk only get fewer. The log is paused
 *      whenever the disk is not UP.
 *   D2 While READONLY no record, header or footer is written and no segment is reclaimed. The probe
 *      writes a page where the next record would go, or in a reserved place (nvme_log_spare()). A
 *      full file system refuses that page as it would refuse the record; a full log does not. So
 *      the disk comes UP even if no engine stores.
 *   D3 A read that was given up keeps its transfer until the disk is done with the buffer; then
 *      release().
 *   D4 An I/O counts as stalled when two polls in a row found it too old: one poll may follow a
 *      sleep of the daemon itself.
 *   D5 A descriptor is closed when no I/O is in the disk and the I/O engine does not use it any
 *      more. file.fd is -1 only while OFFLINE, with a log that is not STARTING: no I/O is submitted
 *      then, not even the probe.
 */
#pragma once

#include "nvme.h"
#include "nvme_coder.h"
#include "nvme_file.h"

struct loop;
struct nvme_disk;
struct nvme_opening;

/*
 * An xfer of the tier as a read or an append of this disk's log. A disk has as many transfers as
 * its I/O engine takes I/Os. A read can be given up: its xfer ends at once, with x->kept, and its
 * transfer stays with the disk until the disk is done with the buffer; then events.release() gives
 * the buffer's slot back.
 */
struct nvme_transfer {
	union { /* first: done() gets back to us */
		struct nvme_read read;
		struct nvme_append append;
	} io;
	struct nvme_disk *disk;
	struct xfer *x;     /* NULL: given up */
	struct extent home; /* of that xfer */
	bool lent, is_read, cancelled;
	/* A write: its record is made, then appended. A read: its record is undone. */
	struct nvme_coder coder;
	bool waits; /* its append was refused for now: the next poll tries it again */
	struct nvme_transfer *next_free;
};

struct nvme_disk {
	struct nvme_medium medium; /* first: the log gets back to us */
	const struct nvme_tier_conf *conf;
	struct nvme_coders *coders; /* the tier's */
	struct loop *loop;
	char path[NVME_TIER_PATH_BYTES];
	uint8_t number;
	uint64_t budget_bytes_per_day; /* its share */

	struct nvme_file file;
	struct io *io;        /* NULL: refused when it was opened */
	struct nvme_log *log; /* likewise */
	enum tier_state state;
	bool for_good, quarantined;
	char text[NVME_TEXT_BYTES];   /* why it is not UP */
	bool changed;                 /* events.changed is to be called */
	bool refused, refused_budget; /* an append was refused, for want of room or of budget */
	uint64_t opened_ns, recovery_ns, up_ns;

	uint32_t reads_failed, writes_failed; /* in a row */
	uint32_t stall_polls;
	uint64_t stalls_total;
	uint64_t probe_due_ns, probe_wait_ns;
	struct io_op probe_op; /* READONLY: a write, OFFLINE: a read */
	uint8_t *probe_page;
	uint32_t probes_failed; /* in a row */
	/* the descriptor leads nowhere: the path is to be opened again */
	bool lost;
	struct nvme_opening *opening; /* the path is being opened */

	struct nvme_transfer *transfers, *free;
	uint32_t n_transfers, cancels; /* cancels: to be ended by the next poll */
	/* transfers whose record is being made or undone, and those that wait */
	uint32_t coding, waiting;
	uint64_t coding_bytes; /* of the images of writes among them */
};

/* path, number, conf, coders, loop and budget are set. State and text tell of a failure. */
void nvme_disk_open(struct nvme_disk *d);
/* The disk is idle. It may be half-open, or never opened. */
void nvme_disk_close(struct nvme_disk *d);
void nvme_disk_poll(struct nvme_disk *d);
/* No I/O is in it, and nothing that belongs to one is under way. */
bool nvme_disk_idle(const struct nvme_disk *d);
/* It waits for a poll: no completion will carry it on. */
bool nvme_disk_waits(const struct nvme_disk *d);
/* Until a poll will probe it, in ns; UINT64_MAX: it needs no probe. */
uint64_t nvme_disk_probe_in(const struct nvme_disk *d);
bool nvme_disk_readable(const struct nvme_disk *d);
bool nvme_disk_writable(const struct nvme_disk *d);

int nvme_transfer_start(struct nvme_disk *d, struct xfer *x); /* as tier_submit() */
/* True: the xfer is a read of this disk, and the next poll ends it. */
bool nvme_transfer_cancel(struct nvme_disk *d, struct xfer *x);
