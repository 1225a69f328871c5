/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_io_faults.h - a plan for the transfers of both I/O engines: how each of them ends.
 *
 * The linker puts the functions in lib_io_faults.c in front of the system's (-Wl,--wrap= pread,
 * pwrite, fdatasync, io_uring_peek_batch_cqe): a call of pread and its kind is cut, fails or waits;
 * a completion of io_uring is kept in a stash, where it is changed (a read's bytes behind a cut are
 * spoiled) or held back. The bytes of a read that is held back get to its buffer when the read
 * ends, not before: code that uses the buffer meanwhile finds out.
 *
 * The plan (lib_io_plan.c) is this process's, or lies in a file that two processes map. So a test
 * commands a daemon's disk in any state of the daemon, also while it dies.
 */
#pragma once

#include <stdbool.h>

#include "tiers/io/io.h"
#include "random.h"

enum { IO_ALL_KINDS = 1 << IO_READ | 1 << IO_WRITE | 1 << IO_FDATASYNC };

struct io_plan {
	uint32_t kinds;       /* bits 1 << IO_READ... that it is for */
	uint32_t skip, times; /* transfers left alone, then hit */
	int32_t result;       /* -errno, or bytes at most */
	uint32_t page_every;  /* every so many hits: one page instead */
	bool flip;            /* instead of result: one bit of the bytes read is wrong */
	/* instead: now and then something harmless. Not for two processes */
	struct random *random;
};

void io_plan_set(struct io_plan plan);
void io_hold(uint32_t kinds); /* these stall, until they are held no more */
/* likewise, the transfers of one file: any file, the same one as long as it is open */
void io_hold_file(uint32_t kinds);
uint32_t io_held(void);      /* ops that stall now, alone or in a run */
uint32_t io_transfers(void); /* since the last plan was set */
void io_plan_none(void);     /* everything as it is */

/* From here on the plan lies in this file. make: the file is made, with the plan as it is; else
 * another process made it. 0 or -errno. */
int io_plan_share(const char *path, bool make);

/* --- for lib_io_faults.c --- */

enum { IO_AS_IT_IS = INT32_MIN };

/* The planned end of a transfer that would end with `real`: it, less, or -errno. */
int32_t io_planned(enum io_kind kind, int32_t real, bool *ret_flip);
/* file: the how-manieth of this process */
bool io_is_held(enum io_kind kind, uint32_t file);
void io_held_add(int n);
