/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_run.h - does a job in pieces, for devices that work with kernels/. It has no threads. A
 * run may go on in another thread, which must be told of it after kernels->fence().
 *
 *	begin -> DECODE, VERIFY: [look...] -> header checked -> [verify...] -> [decode...] -> end
 *	      |-> ENCODE: [look...] -> [encode...] -> [measure...], if asked for -> end
 *	      `-> COPY: [copy...] -> end
 *
 * [...]: pieces. [look...]: for holes in the page of a DECODE or ENCODE, if the kernel does not
 * watch the page (guard.h).
 */
#pragma once

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

/* guarded: the kernel watches the page for holes */
void device_run_begin(struct device_run *run, const struct codec_kernels *kernels,
		      struct device_job *job, bool guarded);

/* Does the next piece, and returns CODEC_MORE or the job's status. It asks first whether the job
 * was stopped, and then touches no byte. now_ns is compared with the job's deadline; 0: the
 * deadline is not looked at this time. */
int device_run_piece(struct device_run *run, uint64_t now_ns, uint8_t *scratch);
