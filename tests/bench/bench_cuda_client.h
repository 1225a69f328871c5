/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_cuda_client.h - a client with blocks of 1 MiB in the memory of a GPU, and a kvtierd of its
 * own, for cases that go through both.
 *
 * The pages are those of a rig. Each is filled with one byte, and compared at both ends.
 */
#pragma once

#include "bench_cuda.h"
#include "bench_daemon.h"

enum {
	CUDA_CLIENT_PAGE = 1 << 20,
	CUDA_CLIENT_VALUE = 64, /* BF16 3.0, which FP8 holds exactly */
};

struct cuda_client {
	struct rig rig;
	struct bench_daemon d;
	struct kvtier_space *space;
	uint32_t blocks; /* pages 0 .. blocks - 1 */
};

struct cuda_client_setup {
	uint32_t codec;      /* enum kvtier_codec */
	uint32_t host_times; /* host memory holds the blocks of all pages so many times */
	uint32_t gpu_times;  /* the GPU's own memory: so many times; 0: no tier there */
};

/* A space of small FP8 blocks, its pages on the GPU of the rig, or in a memfd. */
struct kvtier_space *cuda_small_space(struct rig *rig, struct kvtier_client *client, bool on_gpu,
				      uint32_t blocks);

/* Of a zeroed one whose rig is open, until the case ends. Returns when host memory is registered
 * with the driver. */
void cuda_client_open(struct cuda_client *c, const struct cuda_client_setup *setup);
/* Any thread may call these two: bench_keys(), bench_move(). */
int cuda_client_keys(const struct cuda_client *c, uint32_t run, uint32_t n, struct kvtier_key *ret);
int cuda_client_move(const struct cuda_client *c, bool load, const struct kvtier_key *keys,
		     uint32_t first, uint32_t n);
void cuda_client_fill(struct cuda_client *c, uint32_t first, uint32_t n, uint8_t value);
/* All are filled with CUDA_CLIENT_VALUE. */
void cuda_client_compare(struct cuda_client *c, uint32_t first, uint32_t n);
