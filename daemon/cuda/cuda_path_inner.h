/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_path_inner.h - struct cuda_path, which cuda_path.c, cuda_lane.c and cuda_job.c work on.
 * Nobody else includes it.
 */
#ifndef KVTIER_CUDA_PATH_INNER_H
#define KVTIER_CUDA_PATH_INNER_H

#include "cuda_lane.h"
#include "daemon/device/device_turns.h"

struct cuda_path {
	struct cuda_gpu *gpu;
	uint32_t lane_bytes;
	struct workers *workers;
	struct cuda_job *jobs; /* the pool */
	struct cuda_job **free_jobs;
	uint32_t n_free_jobs; /* the core's, like free_jobs */
	uint32_t n_jobs;      /* taken and not ended */
	uint32_t lent;        /* pieces and checks that workers have */
	struct list waiting;  /* ORDER */
	struct list fetches;  /* cuda_fetch.h */
	struct device_turns turns[CUDA_WAYS];
	struct cuda_lane lanes[CUDA_WAYS][CUDA_LANES];
	uint32_t first[CUDA_WAYS], busy[CUDA_WAYS]; /* lanes that are not free */
	uint32_t on_gpu[CUDA_WAYS];
	uint32_t mark;        /* of the last lane: each has one of its own */
	uint64_t quiet_turns; /* in a row without news */
	struct mails ended;   /* to the core, at the end of the turn */
	uint64_t out_bytes, in_bytes, batches;
	uint64_t direct_bytes[CUDA_WAYS], bounced_bytes[CUDA_WAYS];
};

#endif
