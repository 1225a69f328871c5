/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tile.h - where a tile (codec.h) lies in its page and in its image. Short computations from plan
 * and piece, shared by plan.c and the kernels.
 *
 * The file that includes this one defines how the table of pieces is read: piece_first(plan, i),
 * the first tile of a piece.
 */
#pragma once

#include <stdbool.h>

#include "codec.h"
#include "kernels/fp8.h"
#include "kernels/lossless.h"

#define TILE_FN FP8_FN

TILE_FN uint32_t piece_first(const struct cuda_plan *plan, uint32_t piece);

/* `rows` rows of row_bytes, row_bytes > 0. In the image they lie one after the other. */
struct tile {
	uint64_t address, stride;
	uint32_t rows, row_bytes;
	uint32_t scale, payload; /* after the image's first scale, first byte of payload */
	/* one with scales; CODEC_LOSSLESS: a pack, whose payload begins behind the far parts of
	 * those before; CODEC_RAW: verbatim, whatever the image's is */
	uint32_t codec;
};

/* Rows without a gap are one row. */
TILE_FN void tile_join(struct tile *u)
{
	if (u->stride != u->row_bytes)
		return;
	u->row_bytes *= u->rows;
	u->rows = 1;
}

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

/* The codec of a plane's values, and of typed ones, where the image has this. */
TILE_FN uint32_t tile_codec(uint32_t codec)
{
	return codec == CODEC_FP8 || (codec >= CODEC_INT8 && codec <= CODEC_V4) ? codec : CODEC_RAW;
}

/* Whether a tile of tile_codec() is done in strips (chunks.cuh). */
TILE_FN bool tile_in_strips(uint32_t codec)
{
	return codec >= CODEC_INT8;
}

TILE_FN uint32_t tile_typed_codec(uint32_t codec)
{
	return tile_codec(codec) == CODEC_RAW ? CODEC_RAW : CODEC_FP8;
}

/* Bytes of a page have so many times 2 fewer in an image. */
TILE_FN uint32_t tile_shift(uint32_t codec)
{
	return codec == CODEC_RAW ? 0 : codec == CODEC_K4 || codec == CODEC_V4 ? 2 : 1;
}

/* Bytes in an image of a row of so many bytes. */
TILE_FN uint32_t tile_row(uint32_t codec, uint32_t row_bytes)
{
	const uint32_t shift = tile_shift(codec);

	return (row_bytes + (1u << shift) - 1) >> shift;
}

/* Bytes in an image of so many rows of values. */
TILE_FN uint32_t tile_payload(const struct cuda_plan *plan, uint32_t codec, uint32_t rows,
			      uint32_t values)
{
	return rows * tile_row(codec, values * plan->element_bytes);
}

/* Scales of the first `tokens` tokens of a head. */
TILE_FN uint32_t tile_scales(uint32_t codec, uint32_t tokens, uint32_t dim)
{
	if (codec == CODEC_FP8)
		return (tokens + IMAGE_GROUP_TOKENS - 1) / IMAGE_GROUP_TOKENS;
	if (codec == CODEC_V4)
		return tokens * ((dim + IMAGE_V4_VALUES - 1) / IMAGE_V4_VALUES);
	return tile_in_strips(codec) ? (tokens + IMAGE_CHANNEL_TOKENS - 1) / IMAGE_CHANNEL_TOKENS *
					       dim * (codec == CODEC_K4 ? IMAGE_K4_SCALES : 1u) :
				       0;
}

TILE_FN struct tile tile_plane(const struct cuda_plan *plan, const struct cuda_piece *piece,
			       uint32_t codec, uint32_t at)
{
	const uint32_t head = tile_quotient(&plan->head, at);
	const uint32_t token = (at - head * plan->head.divisor) * plan->tile_tokens;
	const uint32_t left = plan->block_tokens - token;
	const uint32_t dim = piece->kind == KIND_K ? plan->head_dim_k : plan->head_dim_v;
	struct tile u = { 0 };

	u.address = head * piece->head_stride + token * piece->token_stride;
	u.stride = piece->token_stride;
	u.rows = left < plan->tile_tokens ? left : plan->tile_tokens;
	u.row_bytes = dim * plan->element_bytes;
	u.codec = codec;
	u.scale =
		head * tile_scales(codec, plan->block_tokens, dim) + tile_scales(codec, token, dim);
	u.payload = tile_payload(plan, codec, head * plan->block_tokens + token, dim);
	return u;
}

TILE_FN struct tile tile_typed(const struct cuda_plan *plan, uint32_t codec, uint32_t at)
{
	const uint32_t value = at * plan->tile_values, left = plan->typed_values - value;
	struct tile u = { 0 };

	u.address = (uint64_t)value * plan->element_bytes;
	u.rows = 1;
	u.row_bytes = (left < plan->tile_values ? left : plan->tile_values) * plan->element_bytes;
	u.codec = codec;
	u.scale = codec == CODEC_RAW ? 0 : at;
	u.payload = tile_payload(plan, codec, 1, value);
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
	u.codec = CODEC_RAW;
	u.payload = row * piece->length + byte;
	return u;
}

/* Where the bytes begin that come after so many planes, typed segments and opaque bytes: those
 * before a piece, or all. */
TILE_FN void tile_after(const struct cuda_plan *plan, uint32_t codec_k, uint32_t codec_v,
			const struct cuda_piece *before, uint32_t *ret_scale, uint32_t *ret_payload)
{
	const uint32_t k = tile_codec(codec_k), v = tile_codec(codec_v),
		       typed = tile_typed_codec(codec_k),
		       rows = plan->kv_heads * plan->block_tokens,
		       groups = typed == CODEC_RAW ? 0 : plan->typed.divisor;

	*ret_scale =
		plan->kv_heads *
			(before->planes_k * tile_scales(k, plan->block_tokens, plan->head_dim_k) +
			 before->planes_v * tile_scales(v, plan->block_tokens, plan->head_dim_v)) +
		before->typed * groups;
	*ret_payload = before->planes_k * tile_payload(plan, k, rows, plan->head_dim_k) +
		       before->planes_v * tile_payload(plan, v, rows, plan->head_dim_v) +
		       before->typed * tile_payload(plan, typed, 1, plan->typed_values) +
		       before->opaque_bytes;
}

/* A tile of this piece, in page `page`. */
TILE_FN struct tile tile_of(const struct cuda_plan *plan, const struct cuda_piece *piece,
			    uint32_t codec_k, uint32_t codec_v, uint64_t page, uint32_t tile)
{
	const uint32_t at = tile - piece->first_tile;
	struct tile u =
		piece->kind == KIND_OPAQUE ?
			tile_opaque(plan, piece, at) :
		piece->kind == KIND_TYPED ?
			tile_typed(plan, tile_typed_codec(codec_k), at) :
			tile_plane(plan, piece,
				   tile_codec(piece->kind == KIND_K ? codec_k : codec_v), at);
	uint32_t scale, payload;

	tile_after(plan, codec_k, codec_v, piece, &scale, &payload);
	u.scale += scale;
	u.payload += payload;
	u.address += piece->base + page * piece->page_stride;
	if (u.codec == CODEC_RAW)
		tile_join(&u);
	return u;
}

/* Bytes of a pack of n values without its far part. Whole packs of a plan have as many. */
TILE_FN uint32_t tile_pack(const struct cuda_plan *plan, uint32_t n)
{
	return (n + LOSSLESS_STEP - 1) / LOSSLESS_STEP * lossless_step_bytes((int)plan->is_fp16);
}

/* What comes after so many planes, typed segments and opaque bytes of a lossless image. */
TILE_FN uint32_t tile_packs_after(const struct cuda_plan *plan, const struct cuda_piece *before)
{
	return plan->kv_heads *
		       (before->planes_k * plan->packs_k + before->planes_v * plan->packs_v) +
	       before->typed * plan->packs_typed + before->opaque_bytes;
}

/* The same as tile_of() with the plan of a lossless space. */
TILE_FN struct tile tile_of_packs(const struct cuda_plan *plan, const struct cuda_piece *piece,
				  uint32_t codec, uint64_t page, uint32_t tile)
{
	const uint32_t at = tile - piece->first_tile, head = tile_quotient(&plan->head, at);
	struct tile u = tile_of(plan, piece, CODEC_RAW, CODEC_RAW, page, tile);

	if (codec != CODEC_LOSSLESS)
		return u;
	u.payload = tile_packs_after(plan, piece);
	u.scale = (tile < plan->packs ? tile : plan->packs) * IMAGE_PACK_SCALES;
	if (piece->kind == KIND_OPAQUE) {
		u.payload += tile_opaque(plan, piece, at).payload;
	} else if (piece->kind == KIND_TYPED) {
		u.codec = CODEC_LOSSLESS;
		u.payload += at * tile_pack(plan, plan->tile_values);
	} else {
		const uint32_t dim = piece->kind == KIND_K ? plan->head_dim_k : plan->head_dim_v;

		u.codec = CODEC_LOSSLESS;
		u.payload +=
			head * (piece->kind == KIND_K ? plan->packs_k : plan->packs_v) +
			(at - head * plan->head.divisor) * tile_pack(plan, plan->tile_tokens * dim);
	}
	return u;
}
