/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_cuda_client.h - a client with blocks of 1 MiB in the memory of a GPU, and a kvtierd of its
 * own, for cases that go through both.
 *
 * The pages are those of a rig. Each is filled with one byte, and compared at both ends.
 */
#ifndef KVTIER_BENCH_CUDA_CLIENT_H
#define KVTIER_BENCH_CUDA_CLIENT_H

#include "bench_cuda.h"
#include "bench_daemon.h"

enum {
	CUDA_CLIENT_PAGE = 1 << 20,
	CUDA_CLIENT_OP = 32,    /* blocks of an op at most */
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
	uint32_t gpu_times;  /* the GPU's own memory, likewise; 0: no tier there */
	const char *mode;    /* [gpu] mode */
};

/* Of one whose rig is open and all else zeroed. Returns when host memory is registered with the
 * driver. On errors close it, too. */
int cuda_client_open(struct cuda_client *c, const struct cuda_client_setup *setup);
int cuda_client_close(struct cuda_client *c); /* the rig too; its error */
uint64_t cuda_client_stat(const struct cuda_client *c, const char *name);
/* Keys of n blocks, others for each run. */
int cuda_client_keys(const struct cuda_client *c, uint32_t run, uint32_t n, struct kvtier_key *ret);
/* Pages first .. first + n - 1, all ops at once; *ret_s: seconds. -errno: not all of them moved. */
int cuda_client_move(struct cuda_client *c, bool load, const struct kvtier_key *keys,
		     uint32_t first, uint32_t n, double *ret_s);
int cuda_client_fill(struct cuda_client *c, uint32_t first, uint32_t n, uint8_t value);
/* -EBADMSG: not all are filled with CUDA_CLIENT_VALUE. */
int cuda_client_compare(struct cuda_client *c, uint32_t first, uint32_t n);

#endif
