/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_parts.h - a region of an engine that lies in several allocations. It is one reservation of
 * addresses, mapped from its beginning on without a gap, up to mapped_bytes. Helper threads.
 *
 *	cuda_region_import_parts, several times --request--> thread: maps the next ones
 *
 * The thread takes the allocations of one PARTS at a time, so that jobs of others go on between
 * them. A failure, in the first call or a later one, undoes the whole region.
 */
#ifndef KVTIER_CUDA_PARTS_H
#define KVTIER_CUDA_PARTS_H

#include "cuda_region.h"

/* Adds allocations to *region; NULL: makes it. -errno: it is gone, and *region NULL; or as it was.
 */
int cuda_region_import_parts(struct cuda_gpu *gpu, const struct region_parts *more,
			     struct cuda_region **region, char *text, size_t n);

#endif
