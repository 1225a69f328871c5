/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foresee.h - brings blocks from NVMe to host memory shortly before they are expected back
 * (expected_back_s of a hint). It evicts no block that is expected sooner. Core thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct devices;
struct foresee;
struct loop;
struct tables;

enum { FORESEE_JOBS = 8 }; /* blocks that are being brought; the CPU takes as many of its jobs */

/* Makes tables->foresee; the arguments stay the caller's. lead_s: so long before; 0: never. It is
 * looked at each time. -ENOMEM. */
int foresee_open(struct tables *tables, struct loop *loop, const struct devices *devices,
		 const uint32_t *lead_s);
void foresee_close(struct foresee *f); /* it is idle; may be NULL */

/* An away block, or one that may be when its return comes, is expected back at this tick. */
void foresee_expect(struct foresee *f, uint32_t block, uint64_t back);
void foresee_stop(struct foresee *f);       /* no block is begun any more; may be NULL */
bool foresee_idle(const struct foresee *f); /* no block is being brought; NULL: so it is */
