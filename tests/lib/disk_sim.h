/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_sim.h - a block device for tests of the log, with time of its own and everything a disk may
 * do to unsynced data. Deterministic by its seed.
 *
 * Ops end in an order of random latencies. A write is visible to reads when it has ended. A crash
 * keeps of each write since the last fdatasync any subset of its 512-byte sectors, in any order of
 * writes; of writes that had not ended, too. An fdatasync makes those writes durable that had ended
 * when it was submitted.
 *
 * It may also lie: end a write well and lose it, or write it elsewhere; answer a read with earlier
 * bytes.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "tiers/nvme/log/nvme_log.h"
#include "random.h"

enum { SIM_SECTOR = 512, SIM_DEPTH = 32, SIM_UNSYNCED = 4096 };

/* of a write, a write, a read */
enum sim_lie { SIM_LOST, SIM_MISDIRECTED, SIM_STALE, SIM_LIES };
enum sim_crash { SIM_KEEP_ALL, SIM_DROP_ALL, SIM_DROP_WRITES, SIM_TEAR_SECTORS, SIM_CRASHES };

struct sim_write { /* not durable yet */
	uint64_t offset;
	uint32_t bytes;
	uint64_t ended; /* number of the op that it was to end; 0: it has not */
	uint8_t data[];
};

struct disk_sim {
	struct nvme_medium medium;
	struct random random;
	uint64_t bytes;
	uint8_t *now, *durable; /* as reads see it; as a crash surely leaves it */
	uint64_t time_ns;
	struct {
		struct io_op *op;
		uint64_t due_ns;
		uint64_t ends; /* when it was submitted */
		struct sim_write *write;
		bool stale;
	} lent[SIM_DEPTH];
	uint32_t n_lent, depth;                /* depth: at most SIM_DEPTH */
	struct sim_write *write[SIM_UNSYNCED]; /* in the order of submission */
	uint32_t n_writes;

	/* counted from 1; 0: never */
	uint64_t submits, ends, write_ends;
	uint64_t fail_nth;  /* op, as submitted: ends with fail_status */
	uint64_t fail_from; /* and every one from here */
	int fail_status;
	bool fail_done;      /* with the write carried out: the disk lies */
	uint64_t refuse_nth; /* submit answers refuse_status, once */
	int refuse_status;
	uint64_t lie_nth; /* op, as submitted, or the next one of its kind */
	enum sim_lie lie;
	uint32_t lie_one_in;      /* any lie, by chance; 0: none */
	uint64_t lies;            /* told so far */
	uint64_t stall_nth;       /* never ends until disk_sim_unstall() */
	uint64_t power_off_after; /* so many ended writes: nothing ends any more */
};

void disk_sim_open(struct disk_sim *sim, uint64_t bytes, uint64_t seed);
void disk_sim_close(struct disk_sim *sim);
bool disk_sim_step(struct disk_sim *sim); /* lets the next op end; false: none can */
void disk_sim_unstall(struct disk_sim *sim);
void disk_sim_crash(struct disk_sim *sim, enum sim_crash how); /* lent buffers are forgotten */
/* rot, on the medium */
void disk_sim_flip(struct disk_sim *sim, uint64_t offset, uint8_t bits);
