/* SPDX-License-Identifier: Apache-2.0 */
/*
 * walk.h - a page cut into units, in the image's canonical order. For the fast kernels; ref.c has loops of
 * its own, so that one mistake cannot be in both.
 *
 * A unit is what one scale covers (a head's 16 tokens, or 1,024 typed values) or as much verbatim. Its
 * bytes are `rows` rows; in the image they lie one after the other.
 */
#ifndef KVTIER_WALK_H
#define KVTIER_WALK_H

#include <stdbool.h>

#include "image.h"

enum {
	WALK_UNIT_BYTES = 4096, /* verbatim runs are cut to this */
	WALK_ROWS_BYTES = 64 << 10, /* rows of a unit, unless it is being encoded to fp8 */
	WALK_PAGE_BYTES = 4096, /* of memory */
	WALK_LINE_BYTES = 64,
};

struct walk_unit {
	uint8_t *base;
	uint64_t stride; /* bytes from row to row */
	uint32_t rows;
	uint32_t row_bytes; /* rows * row_bytes <= 16 * 4096 * 4 */
	bool fp8;
	bool more; /* of the unit before: has its scale */
	uint32_t cost; /* of touching it, in bytes: see kernels.h */
};

struct walk {
	const struct page_layout *layout;
	uint64_t page;
	uint32_t element_bytes;
	bool fp8_k, fp8_v;
	bool whole; /* fp8 units are not cut: encode needs all rows for the scale */
	uint32_t piece, head; /* where the next unit starts */
	uint64_t at;          /* token, value or byte, by kind */
	uint32_t row;         /* opaque rows */
};

void walk_start(struct walk *walk, const struct page_layout *layout, uint64_t page, enum image_codec codec_k,
		enum image_codec codec_v, const struct image_shape *shape, bool whole);
bool walk_next(struct walk *walk, struct walk_unit *ret); /* false: the page is done */

#endif
