/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staged.h - memory in front of pages that the daemon does not touch: sealed memory that the
 * library makes, with copies of pages; or, in engine mode, memory of the GPU that the daemon makes,
 * with encoded images (encoded.h).
 */
#ifndef KVTIER_LIB_STAGED_H
#define KVTIER_LIB_STAGED_H

#include <stdint.h>
#include <stddef.h>

#include "client/kvtier.h"
#include "client/wire.h"

struct arena;
struct cuda_memory;
struct encoded;
struct staged;

/* Arguments have passed check_layout(). cuda: the memory that the regions are of, which outlives
 * this; NULL: host memory. */
int staged_open(const struct kvtier_geometry *geometry, const struct kvtier_region *regions,
		const struct kvtier_segment *segments, size_t n_segments, uint64_t staging_bytes,
		const struct cuda_memory *cuda, struct staged **ret);
/* The same in engine mode. -errno and its sentence: this process cannot do it. */
int staged_open_encoded(const struct kvtier_geometry *geometry, const struct kvtier_region *regions,
			const struct kvtier_segment *segments, size_t n_segments,
			uint64_t staging_bytes, const struct cuda_memory *cuda,
			struct staged **ret);
struct encoded *staged_encoded(const struct staged *staged); /* NULL: not in engine mode */
/* Of that: the daemon's memory came. As encoded_map(). */
int staged_map(struct staged *staged, int fd, const struct wire_space_ok *ok);
void staged_close(struct staged *staged);
/* A new memfd for a new connection: an old daemon that wakes late must not write into it. In engine
 * mode the daemon makes new memory, and the memory that it made before is let go. */
int staged_renew(struct staged *staged);
int staged_fd(const struct staged *staged);
uint64_t staged_bytes(const struct staged *staged); /* of the memory */
uint64_t staged_user_pages(const struct staged *staged);
uint32_t staged_pages(const struct staged *staged);
struct arena *staged_arena(struct staged *staged);
void staged_populate(struct staged *staged, uint32_t end); /* pages below: allocated */
void staged_segment(const struct staged *staged, size_t i, struct wire_segment *ret);
/* user -> staging. From a GPU: the copies begin here, and have ended when staged_copied() has
 * returned. 0, or -errno */
int staged_copy_in(struct staged *staged, uint64_t user_page, uint32_t page);
/* staging -> user; likewise */
int staged_copy_out(struct staged *staged, uint64_t user_page, uint32_t page);
/* Afterwards all copies that were begun have ended, also when one has failed. */
int staged_copied(struct staged *staged);

#endif
