/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_kernel.h - the CUDA kernels, compiled for the host: found by name, run with the arguments of
 * cuLaunchKernel().
 *
 * A launch runs its blocks one after the other, in an order that its seed decides. The threads of a
 * block are fibers of the calling thread; the seed decides which of them goes on. A launch ends
 * with the first mistake: an access that `access` refuses, threads of a warp that meet at different
 * shuffles, a barrier that a thread does not reach, a race on shared memory, a read of shared
 * memory that nobody wrote. Its sentence names kernel, block and thread.
 *
 * Any number of threads may run launches at the same time. Nothing is kept between launches but
 * the memory of a thread's stacks.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { HOST_KERNEL_PARAMS = 4, HOST_KERNEL_THREADS = 1024, HOST_STACK_BYTES = 64 << 10 };

struct host_kernel {
	const char *name;
	/* The driver copies the arguments when the launch is queued: so many, of these sizes. */
	uint32_t n_params;
	size_t param_bytes[HOST_KERNEL_PARAMS];
	uint32_t max_threads; /* of a block */
	void (*thread)(void *const *params);
};

struct host_launch {
	unsigned grid[3], block[3];
	size_t shared_bytes; /* dynamic; no kernel here uses any */
	void *const *params; /* as of cuLaunchKernel() */
	uint64_t seed;
	/* Each access to global memory: `bytes` (1, 2, 4, 8 or 16) at a device address that is a
	 * multiple of them. Returns where they lie here, or NULL: the launch ends with -EFAULT.
	 * It runs on a stack of HOST_STACK_BYTES, and must return. */
	void *(*access)(void *arg, uint64_t address, size_t bytes, int write);
	void *arg;
};

/* NULL: there is no such kernel. */
const struct host_kernel *host_kernel_find(const char *name);

/* 0; -EINVAL: a launch that a driver would refuse; -EFAULT: `access` refused, or an address is not
 * aligned; -EDEADLK: a shuffle or barrier that a thread does not reach; -EBUSY: a race on shared
 * memory. Then text (n bytes, >= 200) names the mistake; memory is as the threads left it. */
int host_kernel_run(const struct host_kernel *kernel, const struct host_launch *launch, char *text,
		    size_t n);
