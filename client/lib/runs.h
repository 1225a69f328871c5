/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runs.h - where the bytes of a segment lie within a page: `rows` x `pieces` runs of `bytes` each.
 * A row is a token, a piece is a head. A pure function of arguments that have passed
 * check_layout(); any thread.
 */
#ifndef KVTIER_LIB_RUNS_H
#define KVTIER_LIB_RUNS_H

#include <stdint.h>

#include "client/kvtier.h"

struct runs {
	uint64_t page_stride, row_stride, piece_stride; /* in bytes; any 64-bit numbers */
	uint64_t rows, pieces, bytes;
};

/* One run for each head of each token, for each opaque row, or for all typed values. */
struct runs runs_of(const struct kvtier_geometry *geometry, const struct kvtier_segment *segment);
/* The same bytes in the same order, in fewer runs: pieces that lie end to end are one, and so are
 * rows of one piece. */
struct runs runs_joined(const struct runs *runs);
/* How many pages of them lie in a region of `length` bytes, if page 0 begins at `offset`. */
uint64_t runs_pages(const struct runs *runs, uint64_t offset, uint64_t length);

#endif
