/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard.h - a page that its owner has not allocated is refused, not allocated for it: whoever touches a hole of a memfd
 * first is charged for the memory, and that must not be the daemon.
 *
 * With userfaultfd the kernel watches: a worker that touches a hole gets SIGBUS, which ends its piece of work with
 * -EFAULT; nothing is looked up beforehand, and a hole made at any time is met the same way. Where it is refused (some
 * containers), mincore() is asked before each job: it costs a call a segment, takes memory that is swapped out or
 * fallocate()d and never touched for a hole, and a hole made after it was asked is filled by the daemon.
 *
 * Any thread. A thread that runs guarded work must not have SIGBUS blocked.
 */
#ifndef KVTIER_GUARD_H
#define KVTIER_GUARD_H

#include "kernels/image.h"

/* *ret: a userfaultfd; -1: there is none, mincore() it is. 0 or -errno. The handler of SIGBUS stays installed. */
int  guard_open(int *ret);
void guard_close(int guard);
int  guard_region(int guard, void *base, uint64_t length);	/* from now on; until it is unmapped */

/* fn(arg), or -EFAULT: it touched a hole and was left in the middle. It must hold no lock. */
int  guard_run(int (*fn)(void *arg), void *arg);
int  guard_check(const struct page_layout *layout, uint64_t page);	/* without a guard: 0; -EFAULT: it has holes */

#endif
