/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages.h - an engine's pages: their description (space_layout), checked; where the bytes of a
 * segment lie within a page (runs); and the allocation of shared pages before the daemon sees them
 * (populate). Any thread.
 *
 * The bytes of a segment are `rows` x `pieces` runs of `bytes` each. A row is a token, a piece is a
 * head.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/abi/wire.h"
#include "client/kvtier.h"

/* The arguments that a space was opened with, checked. The geometry's strings are the caller's, and
 * not valid after the call: use the copies in `wire`. */
struct space_layout {
	struct kvtier_geometry geometry;
	struct wire_geometry wire;
	uint32_t memory; /* enum kvtier_memory_kind; 0: no regions */
	size_t n_regions, n_segments;
	struct kvtier_region regions[KVTIER_MAX_REGIONS];
	struct kvtier_segment segments[KVTIER_MAX_SEGMENTS];
};

/* Checks and copies the arguments of kvtier_space_open(). *ret zeroed. */
int check_layout(const struct kvtier_geometry *geometry, const struct kvtier_region *regions,
		 size_t n_regions, const struct kvtier_segment *segments, size_t n_segments,
		 struct space_layout *ret);
/* Puts other regions for the same segments into layout, as many and of the same kind. -EINVAL:
 * layout is as it was. */
int check_regions_again(struct space_layout *layout, const struct kvtier_region *in, size_t n);

struct runs {
	uint64_t page_stride, row_stride, piece_stride; /* in bytes; any 64-bit numbers */
	uint64_t rows, pieces, bytes;
};

/* The runs of a segment: one for each head of each token, for each opaque row, or for all typed
 * values. */
struct runs runs_of(const struct kvtier_geometry *geometry, const struct kvtier_segment *segment);
/* The same bytes in the same order, in fewer runs: pieces that lie end to end become one, and so do
 * rows of one piece. */
struct runs runs_joined(const struct runs *runs);
/* How many pages of them lie in a region of `length` bytes, if page 0 begins at `offset`. */
uint64_t runs_pages(const struct runs *runs, uint64_t offset, uint64_t length);

struct populate;
/* If *ret is NULL, a region cannot be mapped, and the daemon will say why. -ENOMEM. */
int populate_open(const struct space_layout *layout, struct populate **ret);
void populate_close(struct populate *populate);
/* Touches those of these pages that were not touched before. populate may be NULL. No lock held.
 * -ETIMEDOUT. */
int populate_pages(struct populate *populate, const uint32_t *pages, size_t n,
		   uint64_t deadline_ns);
/* The daemon refused the page, so that it is to be touched again. Under any lock. */
void populate_forget(struct populate *populate, uint32_t page);
/* Allocates n bytes of memory; both are multiples of 4096. */
void populate_touch(uint8_t *base, uint64_t n);
