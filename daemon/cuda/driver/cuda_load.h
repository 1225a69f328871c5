/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_load.h - finds and opens the CUDA driver at run time, and puts its results into words.
 *
 * kvtierd is never linked with libcuda: the same program runs where there is no driver. Once
 * cuInit() was called the library stays in the process, since the driver has threads of its own by
 * then.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/abi/cuda_api.h"
#include "client/abi/wire.h"
#include "kernels/cuda/binaries.h"

enum { CUDA_GPUS_MAX = 16 };

/* What decides which of the kernels inside a GPU can run. */
struct cuda_kernels_for {
	int driver;     /* 1000 * major + 10 * minor */
	int capability; /* 10 * major + minor */
};

/* A GPU that the driver shows. */
struct cuda_found {
	CUdevice device;
	uint8_t uuid[WIRE_UUID_BYTES];
	char name[64];
	struct cuda_kernels_for kernels;
	int processors;    /* multiprocessors; 0: the driver does not say */
	int32_t numa_node; /* of the host, nearest to it; -1: the driver does not say */
	bool mps;          /* this process is a client of MPS */
	char why[160];     /* kvtierd cannot use it; "": it can */
};

struct cuda_driver {
	struct cuda_api api;
	struct {
		int (*handle)(const char *uuid, void **ret); /* NULL: there is no NVML */
		int (*memory)(void *handle, void *ret);
	} nvml;
	int version; /* 1000 * major + 10 * minor */
	/* later: cuda_load() has failed, and may succeed later; none: it failed because the driver
	 * sees no GPU */
	bool later, none;
	uint32_t n;
	struct cuda_found found[CUDA_GPUS_MAX];
};

/* Opens the driver and lists its GPUs. It may take as long as the driver likes: not on the core
 * thread. 0, or -errno with text: -ENOENT: no libcuda here; -ENODEV: no GPU; -ENOSYS: the driver is
 * too old, or misses a call. */
int cuda_load(struct cuda_driver *ret, char *text, size_t n);

CUresult cuda_kernels_ask(const struct cuda_api *api, CUdevice device,
			  struct cuda_kernels_for *ret);
/* Whether this GPU can run the kernels with this driver: 0, or -ENOEXEC with a sentence. */
int cuda_kernels_check(struct cuda_kernels_for gpu, char *text, size_t n);
/* Loads the kernels into the current context. The best binary is tried first. If the driver refuses
 * a binary that it should know (because it came without the JIT compiler, say), the next one is. */
CUresult cuda_kernels_load(const struct cuda_api *api, struct cuda_kernels_for gpu, CUmodule *ret);

/* The bytes of a GPU's memory that all processes use; 0: not known. Any thread. It asks NVML
 * (libnvidia-ml, which comes with the driver), because the driver API tells this only to a process
 * that has a context there, and the question is what the context costs. */
uint64_t cuda_used_bytes(const struct cuda_driver *driver, const uint8_t uuid[WIRE_UUID_BYTES]);

/* Returns cuda_errno() of the result. For an error, text gets the call, and the driver's name and
 * words for the error; it may be NULL. Any thread. */
int cuda_error(const struct cuda_api *api, CUresult result, const char *call, char *text, size_t n);

/* Whether every further call fails after such a result, since the context is lost. */
bool cuda_sticky(CUresult result);
