/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_faulty.h - what system tests with a failing disk share: a kvtierd whose disk does what
 * lib_io_faults.h says, and loads of which the statuses are looked at.
 */
#ifndef KVTIER_TESTS_LIB_FAULTY_H
#define KVTIER_TESTS_LIB_FAULTY_H

#include "lib_disk.h"
#include "lib_io_faults.h"

enum { ALWAYS = 1 << 30, READS = 1 << IO_READ, WRITES = 1 << IO_WRITE, SYNCS = 1 << IO_FDATASYNC };

/* A small host and a small NVMe tier; an I/O that takes 300 ms makes the disk offline... */
extern const char faulty_quick[];
/* ...or only one of a minute does. */
extern const char faulty_patient[];
/* Likewise, for a stop while the disk stalls: drains for 500 ms. A disk that is merely busy needs
 * longer than that now and then, and the daemon says so with its exit status: no test that stops it
 * for another reason uses these. */
extern const char faulty_quick_stop[], faulty_patient_stop[];

/* disk_place(), with a daemon that takes its plan from here: everything is as it is. */
struct disk_world *faulty_place(void **state, const char *config);
/* It lives, the chain is on NVMe and nowhere else. With two_paths, on both. */
struct disk_world *faulty_away(void **state, const char *config, bool two_paths);
/* From now on: the nth (0: next) and so many of these kinds. */
void faulty_plan(uint32_t kinds, uint32_t nth, uint32_t times, int32_t result);
void faulty_flip(uint32_t times);
/* everything as it is, and the tier comes up again */
void faulty_heal(struct disk_world *w);
/* host memory is given up, as far as nobody uses it */
void faulty_evict(struct disk_world *w);
/* This gauge is 0, or will be; it was not read before the daemon's last heartbeat, which sets it.
 * */
void faulty_none(const struct disk_world *w, const char *path);
/* What must hold when nothing is under way: no slot of host memory, no lease, no op is left. Ends
 * everything. */
void faulty_end(struct disk_world *w);

/* Blocks first.. of the chain go to the pages of the same numbers, which are poisoned before. */
uint64_t faulty_load_begin(struct disk_world *w, uint32_t first, uint32_t n, uint32_t timeout_ms);
/* Waits for it; how many blocks came. A block is right, or has this status and its page is
 * untouched. */
uint32_t faulty_load_end(struct disk_world *w, uint64_t op, uint32_t first, uint32_t n,
			 int32_t otherwise);
void faulty_untouched(const struct disk_world *w, uint32_t first, uint32_t n); /* all poison */
void faulty_held(uint32_t n); /* so many transfers stall, sooner or later */

#endif
