/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_cuda.h - blocks in the memory of this machine's first GPU, with the kernels and copies that
 * kvtierd would make of them. For the cases cuda.*.
 */
#pragma once

#include "bench.h"
#include "client/abi/cuda_api.h"
#include "kernels/cuda/codec.h"

enum rig_priority { RIG_NORMAL, RIG_STORES, RIG_LOADS }; /* default, lowest, highest */

enum { RIG_ALLOCS = 4 };

struct rig {
	struct cuda_api api;
	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction encode, decode;
	CUstream stream, other;
	CUdeviceptr pages, images, allocs[RIG_ALLOCS];
	uint32_t n_allocs;
	void *host; /* pinned */
	uint64_t bytes, image_bytes;
	uint32_t blocks;
	struct cuda_plan plan;
	struct cuda_task task; /* of block 0, in page 0 */
};

/* With less memory there is one run of each: it is an emulated GPU, and no figure counts. */
enum { RIG_SMALL = 64 << 20 };

/* $KVTIER_BENCH_CUDA_BLOCKS: of kernels, and `[gpu] max_ctas` of a case's daemon; else `usual`. */
uint32_t rig_blocks(uint32_t usual);

enum rig_copy { INSIDE, DOWN, UP, BOTH };

/* A call of the driver that must succeed. */
#define CALL(r, name, ...) rig_call(r, (r)->api.name(__VA_ARGS__), #name)
void rig_call(const struct rig *r, CUresult result, const char *call);

/* Until the case ends. It is skipped where there is no GPU to measure. `divisor`: of the memory
 * that cases take, one part in so many. The note says which GPU. */
void rig_open(struct rig *r, enum rig_priority priority, uint32_t divisor,
	      struct bench_result *ret);
/* Blocks, and a task for each. Raw: rows of 656 bytes; k4: V as v4. */
void rig_plan(struct rig *r, enum image_codec codec);
CUdeviceptr rig_alloc(struct rig *r, uint64_t bytes); /* at most RIG_ALLOCS times */
/* Queues launches over all blocks, one after the other, by so many blocks of threads each. */
void rig_launch(struct rig *r, CUfunction f, uint32_t blocks);
/* Queues a copy of all images to pinned memory, or back. */
void rig_cross(struct rig *r, enum rig_copy way);
void rig_wait(struct rig *r); /* for r->stream */
/* Seconds of copying `bytes` in pieces; BOTH: as many bytes each way at the same time. */
double rig_copy(struct rig *r, enum rig_copy which, uint64_t bytes, uint64_t piece);
