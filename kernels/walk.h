/* SPDX-License-Identifier: Apache-2.0 */
/*
 * walk.h - a page cut into units, in the image's canonical order. For the fast kernels; ref.c has
 * loops of its own, so that one mistake cannot be in both.
 *
 * A unit is the values of one scale (a head's 16 tokens, or 1,024 typed values), or as many bytes
 * verbatim. Its bytes are `rows` rows; in the image the rows lie one after the other.
 */
#ifndef KVTIER_WALK_H
#define KVTIER_WALK_H

#include <stdbool.h>

#include "image.h"

enum {
	WALK_UNIT_BYTES = 4096,     /* opaque rows are cut to this */
	WALK_RUN_BYTES = 16 << 10,  /* verbatim planes are cut to this */
	WALK_ROWS_BYTES = 64 << 10, /* other units are, but for fp8 that is being made */
	WALK_PAGE_BYTES = 4096,     /* of memory */
	WALK_LINE_BYTES = 64,
	WALK_AHEAD_BYTES = 16 << 10, /* at least so many between a prefetch and the use */
	WALK_AHEAD_MOST = 256 << 10, /* and at most so many: two planes stay in L2 */
};

struct walk_unit {
	uint8_t *base;
	uint64_t stride; /* bytes from row to row */
	uint32_t rows;
	uint32_t row_bytes; /* rows * row_bytes <= 16 * 4096 * 4 */
	bool fp8;
	bool more; /* of the unit before: has its scale */
	/* as many bytes, one after the other, that will be used soon; NULL: not known */
	const uint8_t *ahead;
	uint32_t cost; /* of touching it, in bytes: see kernels.h */
};

struct walk {
	const struct page_layout *layout;
	uint64_t page;
	uint32_t element_bytes;
	bool fp8_k, fp8_v;
	bool whole;           /* fp8 units are not cut: encode needs all rows for the scale */
	uint32_t piece, head; /* where the next unit starts */
	uint32_t end;         /* the piece that it stops before */
	uint64_t done;        /* bytes of the plane */
	uint64_t run;         /* bytes of the plane, if it is one run; else 0 */
	const uint8_t *ahead; /* the plane that will be used soon, if that is known, and its size */
	uint64_t ahead_bytes;
	/* bytes between a prefetch and the use, at least; may be changed before the first unit */
	uint64_t ahead_least;
	uint64_t at;  /* token, value or byte, by kind */
	uint32_t row; /* opaque rows */
};

void walk_start(struct walk *walk, const struct page_layout *layout, uint64_t page,
		enum image_codec codec_k, enum image_codec codec_v, const struct image_shape *shape,
		bool whole);
/* Restricts the walk to layers [first, end), before the first unit. With the last layer also the
 * bytes that follow the planes. */
void walk_layers(struct walk *walk, uint32_t first, uint32_t end);
/* The bytes of the first planes, which no unit's `ahead` names. False: there are none, or they are
 * not one run. */
bool walk_first(const struct walk *walk, const uint8_t **ret, uint64_t *ret_bytes);
bool walk_next(struct walk *walk, struct walk_unit *ret); /* false: the page is done */

#endif
