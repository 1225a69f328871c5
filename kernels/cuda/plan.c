/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.c - plans for the CUDA kernels: contract in plan.h. Pure functions of their arguments.
 *
 * Sums stay below 2^30: an image has at most 256 MiB, or twice that where only its fp8 form fits.
 * Scales of int8 are no more than its codes.
 */
#include "plan.h"

#include <errno.h>
#include <string.h>

#include "tile.h"

enum { LEAST_LANES = 32 };

TILE_FN uint32_t piece_first(const struct cuda_plan *plan, uint32_t piece)
{
	return ((const struct cuda_piece *)(uintptr_t)plan->pieces)[piece].first_tile;
}

static uint32_t ceil_div(uint32_t n, uint32_t by)
{
	return (n + by - 1) / by;
}

/* Exact for n < 2^31: the multiplier is 2^(32 + shift) / n rounded up, with 2^shift < n, so it is
 * less than n * 2^-(32 + shift) too large. For one (or none) it is 0. */
static struct cuda_divisor divisor_of(uint32_t n)
{
	struct cuda_divisor d = { .divisor = n };

	if (n < 2)
		return d;
	while (1ull << (d.shift + 1) < n)
		d.shift++;
	d.multiplier = (uint32_t)(((1ull << (32 + d.shift)) + n - 1) / n);
	return d;
}

/* Chunks of a row of this piece. */
static uint32_t row_chunks(const struct image_geometry *g, uint32_t kind, uint64_t length)
{
	const uint32_t element = image_element_bytes(g->dtype);

	return ceil_div(kind == KIND_OPAQUE ? (uint32_t)length :
			kind == KIND_TYPED  ? g->typed_values * element :
			kind == KIND_K      ? g->head_dim_k * element :
					      g->head_dim_v * element,
			CUDA_CHUNK_BYTES);
}

/* So many that each has CUDA_CHUNKS chunks of 16 tokens or fewer. Groups of more than 64 KiB
 * (fp8 of head dims beyond 2,048) have more. Without planes: a row of opaque bytes side by side,
 * if that takes no more than four warps. */
static uint32_t lanes_of(const struct page_layout *layout)
{
	const struct image_geometry *g = &layout->geometry;
	const uint32_t rows =
		g->block_tokens < IMAGE_GROUP_TOKENS ? g->block_tokens : IMAGE_GROUP_TOKENS;
	uint32_t lanes = LEAST_LANES, wanted = 0;

	for (uint32_t i = 0; i < layout->n_pieces; i++) {
		const struct page_piece *p = &layout->pieces[i];
		const uint32_t n = row_chunks(g, p->kind, p->length);
		uint32_t mine = 0;

		if (p->kind == KIND_K || p->kind == KIND_V)
			mine = n * ceil_div(rows, CUDA_CHUNKS);
		else if (p->kind == KIND_OPAQUE && !g->head_dim_k && !g->head_dim_v && n <= 128)
			mine = n;
		wanted = mine > wanted ? mine : wanted;
	}
	while (lanes < wanted && lanes < CUDA_THREADS)
		lanes *= 2;
	return lanes;
}

/* An image as raw may be too large where it is not as fp8. */
static int check_geometry(const struct image_geometry *g)
{
	struct image_shape shape;
	const int r = image_shape(g, CODEC_RAW, CODEC_RAW, &shape, NULL);

	if (r == -EOVERFLOW && image_element_bytes(g->dtype) == 2)
		return image_shape(g, CODEC_FP8, CODEC_FP8, &shape, NULL);
	return r;
}

/* Tokens of a head in a pack, or all of them. */
static uint32_t pack_tokens(const struct image_geometry *g, uint32_t dim)
{
	const uint32_t most = dim ? image_pack_tokens(dim) : IMAGE_PACK_TOKENS;

	return most < g->block_tokens ? most : g->block_tokens;
}

bool cuda_plan_takes_packs(const struct image_geometry *g)
{
	return !g->head_dim_k || !g->head_dim_v ||
	       pack_tokens(g, g->head_dim_k) == pack_tokens(g, g->head_dim_v);
}

static uint32_t tiles_of(const struct cuda_plan *plan, const struct cuda_piece *piece)
{
	switch (piece->kind) {
	case KIND_OPAQUE:
		return piece->length > plan->tile_bytes ?
			       (piece->token_stride ? plan->block_tokens : 1) *
				       ceil_div(piece->length, plan->tile_bytes) :
			       ceil_div(piece->token_stride ? plan->block_tokens : 1, piece->rows);
	case KIND_TYPED:
		return plan->typed.divisor;
	default:
		return plan->plane.divisor;
	}
}

/* Rows of opaque bytes in a tile: as many as its chunks hold. */
static uint16_t opaque_rows(const struct cuda_piece *piece)
{
	const uint32_t n = piece->row_step * CUDA_CHUNKS;

	return (uint16_t)(n == 0 ? 1 : n > IMAGE_MAX_TOKENS ? IMAGE_MAX_TOKENS : n);
}

/* Counts a piece into *at: the place behind it. */
static void count_piece(const struct cuda_plan *plan, const struct image_geometry *g,
			const struct cuda_piece *p, struct cuda_piece *at)
{
	at->first_tile += tiles_of(plan, p);
	at->planes_k += p->kind == KIND_K;
	at->planes_v += p->kind == KIND_V;
	at->typed += p->kind == KIND_TYPED;
	if (p->kind == KIND_OPAQUE)
		at->opaque_bytes += (uint32_t)p->length * (p->token_stride ? g->block_tokens : 1);
}

/* The kind that canonical order has at this place; anything after planes and typed is opaque. */
static uint32_t kind_at(const struct image_geometry *g, uint32_t n_planes, uint32_t i)
{
	if (i >= n_planes)
		return i < n_planes + g->typed_segments ? KIND_TYPED : KIND_OPAQUE;
	if (g->head_dim_k && g->head_dim_v)
		return i % 2 ? KIND_V : KIND_K;
	return g->head_dim_k ? KIND_K : KIND_V;
}

static bool fits(const struct image_geometry *g, uint32_t n_planes, uint32_t i,
		 const struct page_piece *p)
{
	const uint64_t rows = p->token_stride ? g->block_tokens : 1;

	if (p->kind != kind_at(g, n_planes, i))
		return false;
	if (p->kind == KIND_TYPED)
		return p->length == g->typed_values;
	return p->kind != KIND_OPAQUE || (p->length > 0 && p->length <= g->opaque_bytes / rows);
}

/* Bytes of a head's packs, without far parts. */
static uint32_t head_packs(const struct cuda_plan *plan, uint32_t dim)
{
	return plan->block_tokens / plan->tile_tokens * tile_pack(plan, plan->tile_tokens * dim) +
	       tile_pack(plan, plan->block_tokens % plan->tile_tokens * dim);
}

static void set_packs(struct cuda_plan *plan)
{
	plan->packs = plan->plane_tiles + plan->typed_tiles;
	plan->packs_k = head_packs(plan, plan->head_dim_k);
	plan->packs_v = head_packs(plan, plan->head_dim_v);
	plan->packs_typed =
		plan->typed_values / plan->tile_values * tile_pack(plan, plan->tile_values) +
		tile_pack(plan, plan->typed_values % plan->tile_values);
}

static uint32_t tile_tokens(const struct image_geometry *g, bool lossless)
{
	if (lossless)
		return pack_tokens(g, g->head_dim_k ? g->head_dim_k : g->head_dim_v);
	return image_element_bytes(g->dtype) > 2 ? IMAGE_CHANNEL_TOKENS / 2 : IMAGE_CHANNEL_TOKENS;
}

static void plan_start(const struct page_layout *layout, bool lossless, struct cuda_plan *ret)
{
	const struct image_geometry *g = &layout->geometry;
	const uint32_t per_layer = (g->head_dim_k ? 1u : 0u) + (g->head_dim_v ? 1u : 0u);
	const uint32_t element = image_element_bytes(g->dtype), tokens = tile_tokens(g, lossless),
		       tiles = ceil_div(g->block_tokens, tokens),
		       values = lossless ? IMAGE_PACK_TYPED : IMAGE_GROUP_TYPED;

	*ret = (struct cuda_plan){
		.n_pieces = layout->n_pieces,
		.n_planes = per_layer * g->layers,
		.n_fixed = per_layer * g->layers + g->typed_segments,
		.is_fp16 = g->dtype == DTYPE_FP16,
		.element_bytes = element,
		.kv_heads = g->kv_heads,
		.block_tokens = g->block_tokens,
		.head_dim_k = g->head_dim_k,
		.head_dim_v = g->head_dim_v,
		.typed_values = g->typed_values,
		.lanes = lossless ? LEAST_LANES : lanes_of(layout), /* a warp does a pack */
		.tile_tokens = tokens,
		.tile_values = values,
		.plane = divisor_of(per_layer ? g->kv_heads * tiles : 0),
		.head = divisor_of(tiles),
		.typed = divisor_of(ceil_div(g->typed_values, values)),
	};
	ret->tile_bytes = ret->lanes * CUDA_CHUNKS * CUDA_CHUNK_BYTES;
	ret->plane_tiles = ret->n_planes * ret->plane.divisor;
	ret->typed_tiles = g->typed_segments * ret->typed.divisor;
	if (lossless)
		set_packs(ret);
}

static void set_piece(const struct cuda_plan *plan, const struct image_geometry *g,
		      const struct page_piece *p, struct cuda_piece *at)
{
	at->base = (uintptr_t)p->base;
	at->page_stride = p->page_stride;
	at->head_stride = p->head_stride;
	at->token_stride = p->token_stride;
	at->length = (uint32_t)p->length;
	at->kind = (uint16_t)p->kind;
	at->row_chunks = row_chunks(g, p->kind, p->length);
	at->row_step = plan->lanes / at->row_chunks;
	at->row_multiplier = ((1u << 20) + at->row_chunks - 1) / at->row_chunks;
	at->rows = p->kind == KIND_OPAQUE ? opaque_rows(at) : 1;
}

int cuda_plan_make(const struct page_layout *layout, bool lossless, struct cuda_plan *ret,
		   struct cuda_piece *ret_pieces)
{
	const struct image_geometry *g = &layout->geometry;
	struct cuda_plan plan;
	struct cuda_piece at = { 0 };
	uint32_t same = 0;
	const int r = check_geometry(g);

	if (r)
		return r;
	if (lossless && (image_element_bytes(g->dtype) != 2 || !cuda_plan_takes_packs(g)))
		return -EINVAL;
	plan_start(layout, lossless, &plan);
	if (layout->n_pieces < plan.n_fixed)
		return -EINVAL;
	for (uint32_t i = 0; i < layout->n_pieces; i++) {
		const struct page_piece *p = &layout->pieces[i];

		if (!fits(g, plan.n_planes, i, p) || at.opaque_bytes > g->opaque_bytes)
			return -EINVAL;
		set_piece(&plan, g, p, &at);
		ret_pieces[i] = at;
		if (i == plan.n_fixed)
			plan.opaque = divisor_of(tiles_of(&plan, &at));
		same += i >= plan.n_fixed && tiles_of(&plan, &at) == plan.opaque.divisor;
		count_piece(&plan, g, &ret_pieces[i], &at);
	}
	if (at.opaque_bytes != g->opaque_bytes)
		return -EINVAL;
	if (same != layout->n_pieces - plan.n_fixed)
		plan.opaque = (struct cuda_divisor){ 0 };
	plan.n_tiles = at.first_tile;
	plan.planes_k = at.planes_k;
	plan.planes_v = at.planes_v;
	plan.typed_segments = at.typed;
	plan.opaque_bytes = at.opaque_bytes;
	*ret = plan;
	return 0;
}

void cuda_plan_at(const struct cuda_plan *plan, const struct cuda_piece *pieces,
		  enum image_codec codec_k, enum image_codec codec_v, uint32_t tile,
		  uint32_t *ret_scale, uint32_t *ret_payload)
{
	struct cuda_plan here = *plan;
	const struct cuda_piece *piece;
	struct tile u;

	if (tile == plan->n_tiles) {
		const struct cuda_piece all = {
			.planes_k = plan->planes_k,
			.planes_v = plan->planes_v,
			.typed = plan->typed_segments,
			.opaque_bytes = plan->opaque_bytes,
		};

		tile_after(plan, codec_k, codec_v, &all, ret_scale, ret_payload);
		if (codec_k == CODEC_LOSSLESS) {
			*ret_scale = plan->packs * IMAGE_PACK_SCALES;
			*ret_payload = tile_packs_after(plan, &all);
		}
		return;
	}
	here.pieces = (uintptr_t)pieces;
	piece = &pieces[tile_piece(&here, tile)];
	u = plan->packs ? tile_of_packs(&here, piece, codec_k, 0, tile) :
			  tile_of(&here, piece, codec_k, codec_v, 0, tile);
	*ret_scale = u.scale;
	*ret_payload = u.payload;
}

uint32_t cuda_plan_blocks(const struct cuda_plan *plan, uint32_t n_tiles, uint32_t most)
{
	const uint32_t n = ceil_div(n_tiles, CUDA_THREADS / plan->lanes);

	return n == 0 || most == 0 ? 1 : n < most ? n : most;
}

uint32_t cuda_tasks_number(struct cuda_tasks *tasks)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < tasks->n && sum < 1u << 31; i++) {
		tasks->task[i].start = (uint32_t)sum;
		sum += tasks->task[i].n_tiles;
	}
	tasks->n_tiles = sum < 1u << 31 ? (uint32_t)sum : 0;
	return tasks->n_tiles;
}
