/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard.h - refuses pages that their owner has not allocated. The kernel charges a hole of a memfd
 * to the process that touches it first, and that must not be the daemon.
 *
 * With userfaultfd the kernel watches. A worker that touches a hole gets SIGBUS, which ends its
 * piece of work with -EFAULT. The page is not looked at beforehand, and a hole that is made at any
 * time is met the same way.
 *
 * Where userfaultfd is refused (some containers), mincore() is asked before each job, in pieces of
 * a few calls, as all of a job is done in pieces. That costs a call for each run of bytes that lie
 * end to end. Memory that is swapped out, or that was fallocate()d and never touched, is taken for
 * a hole. If a hole is made after mincore() was asked, the daemon fills it. `kvtierctl status` has
 * a note about this mode.
 *
 * Any thread. A thread that runs guarded work must not have SIGBUS blocked.
 */
#pragma once

#include "kernels/kernels.h"

/* 0 or -errno. *ret is a userfaultfd, or -1 if that is refused and mincore() will be asked. The
 * handler of SIGBUS stays installed. */
int guard_open(int *ret);
void guard_close(int guard);
/* watches the region from now on until it is unmapped; 0 or -errno */
int guard_region(int guard, void *base, uint64_t length);

/* Returns fn(arg), or -EFAULT if fn touched a hole and was left in the middle. fn must hold no
 * lock. */
int guard_run(int (*fn)(void *arg), void *arg);

/* How far a page was searched for holes by mincore(); zeroed: not at all yet. */
struct guard_look {
	uint32_t piece; /* of the layout */
	uint32_t run;   /* of the piece */
	uint64_t at;    /* bytes of the run */
};

/* Goes on with at most `calls` (> 0) calls of mincore(). CODEC_MORE: the search must go on; 0: the
 * page has no hole; -EFAULT: it has one. */
int guard_look(struct guard_look *look, const struct page_layout *layout, uint64_t page,
	       uint32_t calls);
