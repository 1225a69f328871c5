/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard.h - a page that its owner has not allocated is refused. The kernel charges a hole of a
 * memfd to the process that touches it first, and that must not be the daemon.
 *
 * With userfaultfd the kernel watches. A worker that touches a hole gets SIGBUS, which ends its
 * piece of work with -EFAULT. Nothing is looked up beforehand, and a hole that is made at any time
 * is met the same way.
 *
 * Where userfaultfd is refused (some containers), mincore() is asked before each job, in pieces of
 * a few calls, as all of a job is done in pieces. That costs a call for each run of bytes that lie
 * end to end. Memory that is swapped out, or that was fallocate()d and never touched, passes for a
 * hole. And the daemon fills a hole that is made after mincore() was asked. `kvtierctl status` has
 * a note then.
 *
 * Any thread. A thread that runs guarded work must not have SIGBUS blocked.
 */
#ifndef KVTIER_GUARD_H
#define KVTIER_GUARD_H

#include "kernels/kernels.h"

/* *ret: a userfaultfd; -1: there is none, mincore() it is. 0 or -errno. The handler of SIGBUS stays
 * installed. */
int guard_open(int *ret);
void guard_close(int guard);
/* from now on; until it is unmapped */
int guard_region(int guard, void *base, uint64_t length);

/* fn(arg), or -EFAULT: it touched a hole and was left in the middle. It must hold no lock. */
int guard_run(int (*fn)(void *arg), void *arg);

/* How far a page was looked at without a guard; zeroed: not yet. */
struct guard_look {
	uint32_t piece; /* of the layout */
	uint32_t run;   /* of the piece */
	uint64_t at;    /* bytes of the run */
};

/* Goes on, with as many calls of mincore() at most (> 0). CODEC_MORE; 0: the page has no holes;
 * -EFAULT: it has one. */
int guard_look(struct guard_look *look, const struct page_layout *layout, uint64_t page,
	       uint32_t calls);

#endif
