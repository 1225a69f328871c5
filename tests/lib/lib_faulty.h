/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_faulty.h - shared by system tests with a failing disk: a kvtierd whose disk acts as
 * lib_io_faults.h says and whose clock the test holds (lib_clock.h), and loads of which the
 * statuses are looked at. Such a test is linked with wrap=clock_gettime,epoll_wait.
 */
#ifndef KVTIER_TESTS_LIB_FAULTY_H
#define KVTIER_TESTS_LIB_FAULTY_H

#include "lib_disk.h"
#include "lib_io_faults.h"

enum { ALWAYS = 1 << 30, READS = 1 << IO_READ, WRITES = 1 << IO_WRITE, SYNCS = 1 << IO_FDATASYNC };

/* The longest wait before a disk in trouble is probed, and a quarter more; an op's deadline where a
 * test says no other. */
enum { FAULTY_STALL_MS = 5000, FAULTY_PROBE_MS = 38000, FAULTY_OP_MS = 20000 };

/* Small host and NVMe tiers; an I/O that takes FAULTY_STALL_MS makes the disk offline... */
extern const char faulty_quick[];
/* ...or only one of a minute does. */
extern const char faulty_patient[];

/* disk_place(), with a daemon that takes its plan from here: everything is as it is. */
struct disk_world *faulty_place(void **state, const char *config);
/* The daemon starts, the tier is up, the engine connects. */
void faulty_live(struct disk_world *w);
/* It lives, the chain is on NVMe and nowhere else. With two_paths, on both. */
struct disk_world *faulty_away(void **state, const char *config, bool two_paths);
/* From now on: the nth (0: next) and so many of these kinds. */
void faulty_plan(uint32_t kinds, uint32_t nth, uint32_t times, int32_t result);
void faulty_flip(uint32_t times);
/* The disk does not answer for longer than it may. The I/O to be held must be in it:
 * faulty_held(). */
void faulty_stall(void);
/* Time passes until it is. */
void faulty_becomes(const struct disk_world *w, const char *state);
void faulty_is(const struct disk_world *w, const char *state); /* now */
/* Held I/O goes on, and the tier is up. */
void faulty_answers(struct disk_world *w);
/* Everything as it is, it is probed, and the tier comes up again. */
void faulty_heal(struct disk_world *w);
bool faulty_log_says(const struct disk_world *w, const char *word);
/* A child or the daemon ends, while time passes; its status as waitpid() gives it. */
int faulty_wait(pid_t pid);
/* host memory is given up, as far as nobody uses it */
void faulty_evict(struct disk_world *w);
/* Time passes until this gauge is that; it is not read before a heartbeat of the daemon, which sets
 * it. */
void faulty_gauge(const struct disk_world *w, const char *path, uint64_t value);
void faulty_none(const struct disk_world *w, const char *path);
/* Asserts the state in which nothing is under way: no slot of host memory, no lease, no op is left.
 * Ends everything. */
void faulty_end(struct disk_world *w);

/* Blocks first.. of the chain go to the pages of the same numbers, which are poisoned before. */
uint64_t faulty_load_begin(struct disk_world *w, uint32_t first, uint32_t n, uint32_t timeout_ms);
/* Waits for it; how many blocks came. A block is right, or has this status and its page is
 * untouched. */
uint32_t faulty_load_end(struct disk_world *w, uint64_t op, uint32_t first, uint32_t n,
			 int32_t otherwise);
void faulty_all_there(struct disk_world *w); /* the whole chain loads */
void faulty_untouched(const struct disk_world *w, uint32_t first, uint32_t n); /* all poison */
void faulty_held(uint32_t n); /* so many transfers stall, sooner or later */

#endif
