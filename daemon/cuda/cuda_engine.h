/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_engine.h - memory of a GPU that is lent to a client in engine mode: its kernels encode into
 * it and decode from it, and the daemon copies between it and the host. Helper threads.
 *
 *	helper: cuda_engine_import --request--> thread: makes, zeroes, maps, exports --> helper:
 *	address, descriptor
 *	helper: cuda_region_release --request--> thread: unmaps
 *
 * Invariants
 *   E1 each space has memory of its own, which nobody had before: it is made for the space, zeroed
 *      before its descriptor goes out, and given back to the driver whole. No other client is ever
 *      lent it.
 *   E2 memory of cuMemCreate() alone. A client that keeps its mapping keeps these bytes and no
 *      others, whatever the daemon does meanwhile. Of a legacy handle nothing of that is promised.
 *   E3 all clients together are lent conf.engine_bytes at most.
 */
#ifndef KVTIER_CUDA_ENGINE_H
#define KVTIER_CUDA_ENGINE_H

#include "cuda_region.h"

/* As cuda_region_import(), of WIRE_DEVICE_ENGINE. -ENOSPC: too little is left to be lent. */
int cuda_engine_import(struct cuda_gpu *gpu, const struct region_desc *desc,
		       struct cuda_region **ret, char *text, size_t n);

#endif
