/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tile.h - where a tile (codec.h) lies in its page and in its image. Short computations from plan
 * and piece, shared by plan.c and the kernels.
 *
 * The file that includes this one defines how the table of pieces is read: piece_first(plan, i),
 * the first tile of a piece.
 */
#ifndef KVTIER_TILE_H
#define KVTIER_TILE_H

#include <stdbool.h>

#include "codec.h"
#include "kernels/fp8.h"

#define TILE_FN FP8_FN

TILE_FN uint32_t piece_first(const struct cuda_plan *plan, uint32_t piece);

/* `rows` rows of row_bytes, row_bytes > 0. In the image they lie one after the other. */
struct tile {
	uint64_t address, stride;
	uint32_t rows, row_bytes;
	uint32_t scale, payload; /* after the image's first scale, first byte of payload */
	bool fp8;
};

/* n / divisor, n < 2^31. */
TILE_FN uint32_t tile_quotient(const struct cuda_divisor *by, uint32_t n)
{
	const uint32_t high = (uint32_t)((uint64_t)n * by->multiplier >> 32) >> by->shift;

	return by->multiplier ? high : n;
}

/* The last of pieces[low ..] that begins at the tile or before. */
TILE_FN uint32_t tile_search(const struct cuda_plan *plan, uint32_t low, uint32_t tile)
{
	uint32_t high = plan->n_pieces;

	while (high - low > 1) {
		const uint32_t middle = low + (high - low) / 2;

		if (piece_first(plan, middle) <= tile)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* The piece of a tile < n_tiles. */
TILE_FN uint32_t tile_piece(const struct cuda_plan *plan, uint32_t tile)
{
	const uint32_t fixed = plan->plane_tiles + plan->typed_tiles;

	if (tile < plan->plane_tiles)
		return tile_quotient(&plan->plane, tile);
	if (tile < fixed)
		return plan->n_planes + tile_quotient(&plan->typed, tile - plan->plane_tiles);
	if (plan->opaque.divisor)
		return plan->n_fixed + tile_quotient(&plan->opaque, tile - fixed);
	return tile_search(plan, plan->n_fixed, tile);
}

TILE_FN struct tile tile_plane(const struct cuda_plan *plan, const struct cuda_piece *piece,
			       uint32_t at)
{
	const uint32_t head = tile_quotient(&plan->groups, at);
	const uint32_t token = (at - head * plan->groups.divisor) * IMAGE_GROUP_TOKENS;
	const uint32_t left = plan->block_tokens - token;
	const uint32_t dim = piece->kind == KIND_K ? plan->head_dim_k : plan->head_dim_v;
	struct tile u = { 0 };

	u.address = head * piece->head_stride + token * piece->token_stride;
	u.stride = piece->token_stride;
	u.rows = left < IMAGE_GROUP_TOKENS ? left : IMAGE_GROUP_TOKENS;
	u.row_bytes = dim * plan->element_bytes;
	u.scale = at;
	u.payload = (head * plan->block_tokens + token) * dim; /* in values */
	return u;
}

TILE_FN struct tile tile_typed(const struct cuda_plan *plan, uint32_t at)
{
	const uint32_t value = at * IMAGE_GROUP_TYPED, left = plan->typed_values - value;
	struct tile u = { 0 };

	u.address = (uint64_t)value * plan->element_bytes;
	u.stride = 0;
	u.rows = 1;
	u.row_bytes = (left < IMAGE_GROUP_TYPED ? left : IMAGE_GROUP_TYPED) * plan->element_bytes;
	u.scale = at;
	u.payload = value; /* in values */
	return u;
}

TILE_FN struct tile tile_opaque(const struct cuda_plan *plan, const struct cuda_piece *piece,
				uint32_t at)
{
	const uint32_t rows = piece->token_stride ? plan->block_tokens : 1;
	const uint32_t cuts = (piece->length + plan->tile_bytes - 1) / plan->tile_bytes;
	const uint32_t row = cuts > 1 ? at / cuts : at * piece->rows;
	const uint32_t byte = cuts > 1 ? at % cuts * plan->tile_bytes : 0;
	struct tile u = { 0 };

	u.address = row * piece->token_stride + byte;
	u.stride = piece->token_stride;
	u.rows = rows - row < piece->rows ? rows - row : piece->rows;
	u.row_bytes =
		piece->length - byte < plan->tile_bytes ? piece->length - byte : plan->tile_bytes;
	u.scale = 0;
	u.payload = row * piece->length + byte;
	return u;
}

/* A tile of this piece, in page `page`. */
TILE_FN struct tile tile_of(const struct cuda_plan *plan, const struct cuda_piece *piece,
			    uint32_t codec_k, uint32_t codec_v, uint64_t page, uint32_t tile)
{
	const bool fp8_k = codec_k == CODEC_FP8, fp8_v = codec_v == CODEC_FP8;
	const uint32_t value_k = fp8_k ? 1 : plan->element_bytes,
		       value_v = fp8_v ? 1 : plan->element_bytes, at = tile - piece->first_tile;
	struct tile u = piece->kind == KIND_OPAQUE ? tile_opaque(plan, piece, at) :
			piece->kind == KIND_TYPED  ? tile_typed(plan, at) :
						     tile_plane(plan, piece, at);

	u.fp8 = piece->kind == KIND_V ? fp8_v : piece->kind != KIND_OPAQUE && fp8_k;
	u.payload *= piece->kind == KIND_OPAQUE ? 1 : piece->kind == KIND_V ? value_v : value_k;
	u.payload += piece->values_k * value_k + piece->values_v * value_v + piece->opaque_bytes;
	u.scale = (u.fp8 ? u.scale : 0) + (fp8_k ? piece->scales_k : 0) +
		  (fp8_v ? piece->scales_v : 0);
	u.address += piece->base + page * piece->page_stride;
	if (u.stride == u.row_bytes) { /* rows without a gap are one row */
		u.row_bytes *= u.rows;
		u.rows = 1;
	}
	return u;
}

#endif
