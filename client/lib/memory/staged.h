/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staged.h - memory that stands between the daemon and pages that it cannot touch. It is sealed
 * memory that the library makes, and has copies of pages. The caller holds the ring lock.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/abi/wire.h"
#include "client/kvtier.h"
#include "client/lib/base/client_ring.h"

struct cuda_memory;
struct space_layout;
struct staged_segment;

struct staged {
	const struct cuda_memory *cuda; /* NULL: the engine's pages are in host memory */
	bool pinned;                    /* by the driver */
	struct staged_segment *segments;
	size_t n_segments;
	uint64_t page_bytes;
	uint64_t bytes;
	uint32_t pages;
	uint64_t user_pages;
	int fd;
	uint8_t *memory;
	uint64_t populated; /* bytes from its start that are allocated */
	struct arena arena;
};

/* cuda: the GPU's memory that has the regions, and outlives this; NULL: they are in host memory. */
int staged_open(const struct space_layout *layout, uint64_t staging_bytes,
		const struct cuda_memory *cuda, struct staged **ret);
void staged_close(struct staged *staged);
/* Makes a new memfd for a new connection, as an old daemon that wakes late must not write into
 * it. */
int staged_renew(struct staged *staged);
/* Allocates the pages below `end`. */
void staged_populate(struct staged *staged, uint32_t end);
/* The i-th segment of the staging pages, as the daemon is told. */
void staged_segment(const struct staged *staged, size_t i, struct wire_segment *ret);
/* Copies a page: out: from the staging memory to the engine, else from the engine. With a GPU the
 * copies begin here, and have ended when staged_copied() has returned. 0, or -errno. */
int staged_copy(struct staged *staged, uint64_t user_page, uint32_t page, bool out);
/* Waits for all copies that were begun, even if one has failed. */
int staged_copied(struct staged *staged);
