/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tiles.h - cuts a page into tiles, in the image's canonical order, for the fast kernels. ref.c has
 * loops of its own, so that one mistake cannot be in both.
 *
 * A tile is the values that share a scale (a head's 16 tokens, or 1,024 typed values), or with int8
 * and k4 a row of scales (a head's 64 tokens), or with v4 up to 16 tokens of a head, or a pack, or
 * a run of bytes that are copied verbatim. It has `rows` rows, which lie one after the other in the
 * image.
 */
#pragma once

#include <stdbool.h>

#include "image.h"

enum {
	TILES_OPAQUE_BYTES = 4096,  /* opaque rows are cut to this */
	TILES_RUN_BYTES = 16 << 10, /* verbatim planes are cut to this */
	/* other tiles are, but for packs, and groups that are being encoded */
	TILES_ROWS_BYTES = 64 << 10,
	TILES_PAGE_BYTES = 4096, /* of memory */
	TILES_LINE_BYTES = 64,
	TILES_AHEAD_BYTES = 16 << 10, /* at least so many between a prefetch and the use */
	TILES_AHEAD_MOST = 256 << 10, /* and at most so many: two planes stay in L2 */
};

struct page_tile {
	uint8_t *base;
	uint64_t stride; /* bytes from row to row */
	uint32_t rows;
	uint32_t row_bytes; /* rows * row_bytes <= 64 * 4096 * 2 */
	/* CODEC_FP8: one scale; CODEC_INT8, CODEC_K4: one for each column; CODEC_V4: some for each
	 * row; CODEC_LOSSLESS: a pack (its rows need not be whole steps); CODEC_RAW: verbatim */
	enum image_codec codec;
	bool more; /* it goes on with the scales of the tile before; not of CODEC_V4 */
	/* as many bytes in a row that will be used soon; NULL: not known */
	const uint8_t *ahead;
	uint32_t cost; /* what it costs to touch it, in bytes: see kernels.h */
};

struct tiles {
	const struct page_layout *layout;
	uint64_t page;
	uint32_t element_bytes;
	enum image_codec codec_k, codec_v;
	bool whole;           /* groups are not cut: encode needs all rows for the scales */
	uint32_t piece, head; /* where the next tile starts */
	uint32_t end;         /* the piece that it stops before */
	uint64_t done;        /* bytes of the plane */
	uint64_t run;         /* bytes of the plane, if it is one run; else 0 */
	const uint8_t *ahead; /* the plane that will be used soon, if that is known, and its size */
	uint64_t ahead_bytes;
	/* bytes between a prefetch and the use, at least; may be changed before the first tile */
	uint64_t ahead_least;
	uint64_t at;  /* token, value or byte, by kind */
	uint32_t row; /* opaque rows */
};

void tiles_start(struct tiles *tiles, const struct page_layout *layout, uint64_t page,
		 enum image_codec codec_k, enum image_codec codec_v,
		 const struct image_shape *shape, bool whole);
/* Restricts the walk to layers [first, end), before the first tile. With the last layer also the
 * bytes that follow the planes. */
void tiles_layers(struct tiles *tiles, uint32_t first, uint32_t end);
/* The bytes of the first planes, which no tile's `ahead` names. False: there are none, or they are
 * not one run. */
bool tiles_first(const struct tiles *tiles, const uint8_t **ret, uint64_t *ret_bytes);
bool tiles_next(struct tiles *tiles, struct page_tile *ret); /* false: the page is done */
