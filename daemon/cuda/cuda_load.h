/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_load.h - the CUDA driver, found and opened at run time, and its results in our words.
 *
 * kvtierd is never linked with libcuda: the same program runs where there is none. Once cuInit()
 * was called the library stays in the process, since the driver has threads of its own by then.
 */
#ifndef KVTIER_CUDA_LOAD_H
#define KVTIER_CUDA_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/cuda_api.h"
#include "client/cuda_kernels.h"
#include "client/wire.h"
#include "cuda_meter.h"

enum { CUDA_GPUS_MAX = 16 };

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
	struct cuda_meter meter;
	int version; /* 1000 * major + 10 * minor */
	/* cuda_load() failed, and may succeed later; no GPU was seen: later it may be */
	bool later, none;
	uint32_t n;
	struct cuda_found found[CUDA_GPUS_MAX];
};

/* Opens the driver and lists its GPUs. It may take as long as the driver likes: not on the core
 * thread. 0, or -errno with text: -ENOENT: no libcuda here; -ENODEV: no GPU; -ENOSYS: the driver is
 * too old, or misses a call. */
int cuda_load(struct cuda_driver *ret, char *text, size_t n);

/* cuda_errno() and a sentence. text: the call, and the driver's name and words for the error. Any
 * thread. text NULL: no sentence is wanted. */
int cuda_error(const struct cuda_api *api, CUresult result, const char *call, char *text, size_t n);

/* After such a result every further call fails: the context is lost. */
bool cuda_sticky(CUresult result);

#endif
