/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_run.h - a job done in pieces, for devices whose work is kernels/. No threads here; a run
 * may go on in another one (device_run_leave() before).
 *
 *	begin -> DECODE, VERIFY: [look...] -> header checked -> [verify...] -> [decode...] -> end
 *	      |-> ENCODE: [look...] -> [encode...] -> [measure...], if asked for -> end
 *	      `-> COPY: [copy...] -> end
 *
 * [...]: pieces. [look...]: for holes in the page of a DECODE or ENCODE, if nothing watches the
 * page (guard.h).
 */
#ifndef KVTIER_DEVICE_RUN_H
#define KVTIER_DEVICE_RUN_H

#include "device.h"
#include "guard.h"

struct device_run {
	struct codec_run codec;
	const struct codec_kernels *kernels;
	struct device_job *job;
	/* COPY: the copy that is at work, and how much of it is done */
	uint32_t copy, copied;
	struct guard_look look; /* RUN_LOOK */
	enum { RUN_LOOK, RUN_NEW, RUN_VERIFY, RUN_CODEC, RUN_MEASURE } stage;
};

/* guarded: the page is watched for holes */
void device_run_begin(struct device_run *run, const struct codec_kernels *kernels,
		      struct device_job *job, bool guarded);

/* The next piece: CODEC_MORE, or the job's status. now_ns is compared with the job's deadline; 0:
 * not looked at this time. Before it touches anything it asks whether the job was stopped, and
 * touches nothing after. */
int device_run_piece(struct device_run *run, uint64_t now_ns, uint8_t *scratch);
void device_run_leave(struct device_run *run); /* another thread goes on, told after this */

#endif
