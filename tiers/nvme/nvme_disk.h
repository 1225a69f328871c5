/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_disk.h - one path of the NVMe tier: file, I/O engine, log, state, and the transfers on their way there.
 * Core thread only.
 *
 *	nvme_disk_open ──> STARTING ──recovered, formatted──> UP <───────────── probe ok ──────────┐
 *	    │                   │ cannot be read                 │ writes fail                        │
 *	    │                   v                                ├─────────────────────────> READONLY ┤
 *	    │                OFFLINE, and tried again            │ reads fail, gone, I/O stalls       │
 *	    │                                                    └─────────────────────────> OFFLINE ─┤
 *	    │                                                           probes fail │  ^ not back,    │
 *	    │                                                       and it is idle  v  │ not ours     │
 *	    │                                                             path opened again ──ours────┘
 *	    └─ not ours, damaged, in use, no permission: OFFLINE for good, never written to
 *
 * A disk that was pulled never answers on its old descriptor again, though it may be back long since. So when
 * a probe finds it gone, or three in a row fail, that is closed and the path opened again with each probe that
 * is due, by a thread that nobody waits for. What is there is taken for the disk only if both superblocks
 * together say that it is this log's store as this log left it (nvme_log_recognise()); anything else is left
 * alone, and the text says what to do.
 *
 * The log goes on where it was, in its open segment, too, though the disk may have lost what was in its
 * cache: unsynced writes of any order may be missing behind it then, which is what a power cut leaves
 * (nvme_format.h), only that more is written afterwards. Every reader has to bear that in any case. A record
 * that is not there is not the image its reader asked for, by key and checksum: a miss. A segment whose header
 * is missing is read under the sequence that it had before, or not at all, by the next start; a footer that is
 * missing is replaced by a walk; one that lists a record that is not there is believed as far as a read. No
 * sequence is used twice, since the superblock with this life was synced before anything was written. What was
 * purged stays so, since a purge ended with both superblocks synced: less is refused as an older copy. What is
 * lost is the promise of a flush for blocks from before, not flushed when the disk went.
 *
 * Invariants
 *	D1 While OFFLINE nothing is submitted but the probe (a read of the superblock) and what a recovery that has
 *	   begun still wants; so what is in the disk only gets less. The log is paused whenever it is not UP.
 *	D2 While READONLY no record, header or footer is written and nothing is reclaimed. The probe is a page where the
 *	   next record would go, or else in a reserved place (nvme_log_spare()): a full file system refuses it as it
 *	   would the record, a full log does not, and nobody need store anything for the disk to come UP.
 *	D3 A read that was given up keeps its transfer until the disk is done with the buffer; then release().
 *	D4 An I/O counts as stalled when two polls in a row found it too old: a daemon that slept is not a disk
 *	   that does.
 *	D5 A descriptor is closed when nothing is in the disk's hands and it is out of the I/O engine. file.fd is -1
 *	   only while OFFLINE, with a log that is not STARTING: nothing is submitted then, not even the probe.
 */
#ifndef KVTIER_NVME_DISK_H
#define KVTIER_NVME_DISK_H

#include "nvme.h"
#include "nvme_file.h"

struct loop;
struct nvme_opening;
struct nvme_transfer;

struct nvme_disk {
	struct nvme_medium medium;	/* first: the log gets back to us */
	const struct nvme_tier_conf *conf;
	struct loop *loop;
	char path[NVME_TIER_PATH_BYTES];
	uint8_t number;
	uint64_t budget_bytes_per_day;	/* its share */

	struct nvme_file file;
	struct io *io;		/* NULL: refused when it was opened */
	uint32_t io_file;
	struct nvme_log *log;	/* likewise */
	enum tier_state state;
	bool for_good, quarantined;
	char text[NVME_TEXT_BYTES];	/* why it is not UP */
	bool changed;		/* to be told */
	bool refused, refused_budget;	/* an append was; try again soon, later */
	uint64_t opened_ns, recovery_ns, up_ns;

	uint32_t reads_failed, writes_failed;	/* in a row */
	uint32_t stall_polls;
	uint64_t stalls_total;
	uint64_t probe_due_ns, probe_wait_ns;
	struct io_op probe_op;		/* READONLY: a write, OFFLINE: a read */
	uint8_t *probe_page;
	uint32_t probes_failed;		/* in a row */
	bool lost;			/* the old descriptor leads nowhere: the path is to be opened again */
	struct nvme_opening *opening;	/* that, under way */

	struct nvme_transfer *transfers, *free;
	uint32_t n_transfers, cancels;	/* cancels: to be ended by the next poll */
};

/* path, number, conf, loop and budget are set. What goes wrong goes into state and text. */
void nvme_disk_open(struct nvme_disk *d);
void nvme_disk_close(struct nvme_disk *d);		/* idle; half-open and never opened is fine */
void nvme_disk_poll(struct nvme_disk *d);
bool nvme_disk_idle(const struct nvme_disk *d);	/* nothing in its hands */
bool nvme_disk_waits(const struct nvme_disk *d);	/* for a poll: no completion will carry it on */
/* Until a poll will probe it, in ns; UINT64_MAX: it needs no probe. */
uint64_t nvme_disk_probe_in(const struct nvme_disk *d);
bool nvme_disk_readable(const struct nvme_disk *d);
bool nvme_disk_writable(const struct nvme_disk *d);

#endif
