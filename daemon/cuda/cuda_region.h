/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_region.h - memory of engines, opened in the daemon's context. Helper threads.
 *
 *	helper: cuda_region_import --request--> thread: opens, checks --> helper: address
 *	helper: cuda_region_release --request--> thread: closes
 *
 * A region that lies in several allocations is one reservation of addresses, mapped from its
 * beginning on without a gap. The thread takes the allocations of one message at a time, so that
 * jobs of others go on between them. A failure, in the first call or a later one, undoes the whole
 * region.
 *
 * Invariants
 *   H1 no word of a client is believed: the memory must lie on this GPU, and the driver's own range
 *      must hold the whole region that the client describes.
 *   H2 a legacy handle is open once, however many regions and clients name it. Its 64 bytes tell
 *      it from every other: the driver makes new ones for memory that comes to lie where freed
 *      memory lay.
 *   H3 the descriptor of a VMM allocation is the asker's; the thread closes no such descriptor, as
 *      to close one from outside can block. The handle that it stands for is released as soon as it
 *      is mapped.
 *   H4 an import whose asker has left is undone by the thread.
 *   H5 a mapping is not the context's: it is unmapped with its region, or, while the GPU is FAILING
 *      and may still use it, once the context is gone.
 */
#pragma once

#include "daemon/cuda/driver/cuda_gpu.h"

/* These are functions of device_ops (device.h). An import has one more error: -EOPNOTSUPP says that
 * the driver does not open the memory this way. */
int cuda_region_import(struct device *device, const struct region_desc *desc,
		       struct device_region *ret, char *text, size_t n);
int cuda_region_import_allocs(struct device *device, const struct region_allocs *more,
			      struct device_region *region, char *text, size_t n);
void cuda_region_release(struct device *device, struct device_region *region);

/* On the GPU's thread: the context is gone with all that was open in it. Mappings of
 * regions that left meanwhile are unmapped. */
void cuda_regions_lost(struct cuda_gpu *gpu);
