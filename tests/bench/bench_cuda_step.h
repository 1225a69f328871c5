/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_cuda_step.h - a stand-in for an engine's step of decoding, alone and beside other work on
 * the same GPU.
 */
#pragma once

#include "bench.h"

/* The other work. The stand-in runs alone, too, before each start(). */
struct step_beside {
	void (*start)(void *arg); /* returns when the work is under way */
	void (*stop)(void *arg);  /* after each start() */
	void *arg;
};

/* 99th percentiles of a step, beside the work and alone, with memory and a stream of its own in
 * the primary context. The note says which GPU, and whether it has MPS. */
void step_run(const struct step_beside *beside, struct bench_result *ret);
