/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_io_faults.h - one plan of what becomes of the transfers of both I/O engines.
 *
 * The linker puts the functions in lib_io_faults.c in front of the system's (-Wl,--wrap= pread,
 * pwrite, fdatasync, io_uring_peek_batch_cqe): a call of pread and its kind is cut, fails or waits;
 * a completion of io_uring is kept in a stash, where it is changed (a read's bytes behind a cut are
 * spoiled) or held back. What was read by a transfer that is held back gets to its buffer when that
 * ends, not before: whoever uses the buffer meanwhile finds out.
 *
 * The plan (lib_io_plan.c) is that of this process; or lies in a file that two processes map, so
 * that a test tells a daemon's disk what to do, in whatever state the daemon is, or dies.
 */
#ifndef KVTIER_TESTS_LIB_IO_FAULTS_H
#define KVTIER_TESTS_LIB_IO_FAULTS_H

#include <stdbool.h>

#include "tiers/io/io.h"
#include "random.h"

enum { IO_ALL_KINDS = 1 << IO_READ | 1 << IO_WRITE | 1 << IO_FDATASYNC };

struct io_plan {
	uint32_t kinds;       /* bits 1 << IO_READ... that it is for */
	uint32_t skip, times; /* transfers left alone, then hit */
	int32_t result;       /* -errno, or bytes at most */
	uint32_t page_every;  /* every so many hits: one page instead */
	bool flip;            /* instead of result: one bit of what was read is wrong */
	/* instead: now and then something harmless. Not for two processes */
	struct random *random;
};

void io_plan_set(struct io_plan plan);
void io_hold(uint32_t kinds); /* these stall, until they are held no more */
/* likewise, those of one file: which one is left open, as long as it lives */
void io_hold_file(uint32_t kinds);
uint32_t io_held(void);      /* transfers that stall now */
uint32_t io_transfers(void); /* since the last plan was set */
void io_plan_none(void);     /* everything as it is */

/* From here on the plan lies in this file: made (and everything as it is), or of whoever made it. 0
 * or -errno. */
int io_plan_share(const char *path, bool make);

/* --- for lib_io_faults.c --- */

enum { IO_AS_IT_IS = INT32_MIN };

/* What becomes of a transfer that would end with `real`: it, less, or -errno. */
int32_t io_planned(enum io_kind kind, int32_t real, bool *ret_flip);
/* file: the how-manieth of this process */
bool io_is_held(enum io_kind kind, uint32_t file);
void io_held_add(int n);

#endif
