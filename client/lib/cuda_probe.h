/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_probe.h - asks the driver for an address's kind, and for the rungs by which it can be
 * exported. */
#ifndef KVTIER_LIB_CUDA_PROBE_H
#define KVTIER_LIB_CUDA_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/cuda_api.h"
#include "client/kvtier.h"

/* The driver's answers about an address. */
struct cuda_facts {
	unsigned type;
	int ordinal;
	bool managed, legacy_ipc, pool;
	bool mapped;           /* by cuMemMap() */
	uint64_t start, bytes; /* of its allocation, or of its mapping */
	uint64_t handle_types;
	CUcontext context; /* NULL: by cuMemMap, which belongs to none */
};

/* The allocations that hold a region, side by side. */
struct cuda_range {
	uint64_t start, bytes;
	uint32_t parts;
};

enum cuda_rung {
	CUDA_RUNG_ENGINE,
	CUDA_RUNG_IPC,
	CUDA_RUNG_FD,
	CUDA_RUNG_FABRIC,
	CUDA_RUNG_STAGED,
	CUDA_RUNGS
};

int cuda_facts_ask(const struct cuda_api *api, uint64_t address, struct cuda_facts *ret);
/* regions[i]: the kind of its base, the allocations that hold it, its rungs (1 << enum cuda_rung)
 * and why there are no more. -EINVAL: not a GPU's memory, or not all of it allocated. */
int cuda_probe(const struct cuda_api *api, const struct kvtier_region *region, size_t i,
	       struct cuda_facts *ret, struct cuda_range *ret_range, uint32_t *ret_rungs,
	       char why[200]);

#endif
