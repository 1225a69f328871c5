/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tiles.c - see tiles.h. One function per kind of piece: it gives the tile at the walk's position,
 * moves the position on, and returns false when the piece was done before.
 */
#include "tiles.h"

void tiles_start(struct tiles *tiles, const struct page_layout *layout, uint64_t page,
		 enum image_codec codec_k, enum image_codec codec_v,
		 const struct image_shape *shape, bool whole)
{
	*tiles = (struct tiles){
		.layout = layout,
		.page = page,
		.element_bytes = shape->element_bytes,
		.codec_k = codec_k,
		.codec_v = codec_v,
		.whole = whole,
		.ahead_least = TILES_AHEAD_BYTES,
		.end = layout->n_pieces,
	};
}

void tiles_layers(struct tiles *w, uint32_t first, uint32_t end)
{
	w->piece = page_layer_piece(w->layout, first);
	if (end < w->layout->geometry.layers)
		w->end = page_layer_piece(w->layout, end);
}

/* A row costs at least a line. If each row is in a page of memory of its own, it costs that page as
 * well; but where the heads between two rows fill the page, other tiles share its cost. */
static uint32_t cost_of(const struct tiles *w, const struct page_tile *u)
{
	const uint32_t row = u->row_bytes < TILES_LINE_BYTES ? TILES_LINE_BYTES : u->row_bytes;

	if (u->stride < TILES_PAGE_BYTES)
		return u->rows * row;
	return u->rows * (row + (u->stride / u->row_bytes <= 2ull * w->layout->geometry.kv_heads ?
					 TILES_PAGE_BYTES / 16 :
					 TILES_PAGE_BYTES));
}

/* Rows without a gap are one row. */
static void join_rows(struct page_tile *u)
{
	if (u->stride == u->row_bytes) {
		u->row_bytes *= u->rows;
		u->rows = 1;
	}
}

/* The codec, or CODEC_RAW for all that is verbatim. */
static enum image_codec coded_as(enum image_codec codec)
{
	return codec == CODEC_LOSSLESS || image_codec_scales(codec) ? codec : CODEC_RAW;
}

static enum image_codec plane_codec(const struct tiles *w, const struct page_piece *p)
{
	return coded_as(p->kind == KIND_K ? w->codec_k : w->codec_v);
}

static uint64_t plane_row(const struct tiles *w, const struct page_piece *p)
{
	const struct image_geometry *g = &w->layout->geometry;

	return (uint64_t)(p->kind == KIND_K ? g->head_dim_k : g->head_dim_v) * w->element_bytes;
}

/* Bytes of a plane whose token rows lie one after the other, heads side by side; else 0. */
static uint64_t token_major(const struct tiles *w, const struct page_piece *p)
{
	const struct image_geometry *g = &w->layout->geometry;
	const uint64_t row = p->kind <= KIND_V ? plane_row(w, p) : 0;

	return p->head_stride == row && p->token_stride == row * g->kv_heads ?
		       p->token_stride * g->block_tokens :
		       0;
}

static void plane_start(struct tiles *w, const struct page_piece *p)
{
	const struct image_geometry *g = &w->layout->geometry;
	const uint64_t row = plane_row(w, p), here = token_major(w, p);
	const uint64_t n = here ? (w->ahead_least + here - 1) / here : 0;
	const bool gapless = p->token_stride == row && p->head_stride == row * g->block_tokens;

	w->run =
		gapless && plane_codec(w, p) == CODEC_RAW ? row * g->block_tokens * g->kv_heads : 0;
	w->ahead = NULL;
	if (n && here <= TILES_AHEAD_MOST && w->piece + n < w->layout->n_pieces) {
		w->ahead_bytes = token_major(w, &p[n]);
		w->ahead = w->ahead_bytes ? p[n].base + w->page * p[n].page_stride : NULL;
	}
}

bool tiles_first(const struct tiles *w, const uint8_t **ret, uint64_t *ret_bytes)
{
	const struct page_piece *p = w->layout->pieces;

	*ret_bytes = w->layout->n_pieces ? token_major(w, p) : 0;
	*ret = *ret_bytes ? p->base + w->page * p->page_stride : NULL;
	return *ret_bytes > 0 && *ret_bytes <= TILES_AHEAD_MOST;
}

static uint32_t group_tokens(const struct page_tile *u)
{
	if (u->codec == CODEC_LOSSLESS)
		return image_pack_tokens(u->row_bytes / 2);
	return image_codec_channels(u->codec) ? IMAGE_CHANNEL_TOKENS : IMAGE_GROUP_TOKENS;
}

/* Rows of the next tile. A coded tile ends with its group at the latest, and has all of the group
 * where the scales must be found. Other tiles have few rows where each is in a page of its own. */
static uint32_t plane_rows(const struct tiles *w, const struct page_tile *u, uint32_t tokens)
{
	const uint32_t left = tokens - (uint32_t)w->at, group = group_tokens(u);
	const bool coded = u->codec != CODEC_RAW;
	uint32_t most = group - (uint32_t)w->at % group;

	if (u->codec == CODEC_LOSSLESS) /* decoded whole, too */
		return left < most ? left : most;
	if (!coded && u->stride < TILES_PAGE_BYTES)
		most = TILES_RUN_BYTES / u->row_bytes;
	else if (!(coded && w->whole) && most > TILES_ROWS_BYTES / u->row_bytes)
		most = TILES_ROWS_BYTES / u->row_bytes;
	if (!w->whole && u->stride >= TILES_PAGE_BYTES && most > IMAGE_GROUP_TOKENS)
		most = IMAGE_GROUP_TOKENS;
	most = most ? most : 1;
	return left < most ? left : most;
}

/* A verbatim plane without gaps is one run. */
static bool run_next(struct tiles *w, const struct page_piece *p, struct page_tile *ret)
{
	const uint64_t left = w->run - w->done;
	const uint32_t n = left < TILES_RUN_BYTES ? (uint32_t)left : TILES_RUN_BYTES;

	*ret = (struct page_tile){
		.base = p->base + w->page * p->page_stride + w->done,
		.rows = 1,
		.row_bytes = n,
		.codec = CODEC_RAW,
		.cost = n,
	};
	w->done += n;
	return n > 0;
}

static bool plane_next(struct tiles *w, const struct page_piece *p, struct page_tile *ret)
{
	const struct image_geometry *g = &w->layout->geometry;
	uint64_t bytes;

	if (w->done == 0)
		plane_start(w, p);
	if (w->run)
		return run_next(w, p, ret);
	if (w->at == g->block_tokens) {
		w->at = 0;
		w->head++;
	}
	if (w->head == g->kv_heads)
		return false;
	*ret = (struct page_tile){
		.base = p->base + w->page * p->page_stride + w->head * p->head_stride +
			w->at * p->token_stride,
		.stride = p->token_stride,
		.row_bytes = (uint32_t)plane_row(w, p),
		.codec = plane_codec(w, p),
	};
	if (ret->row_bytes == 0)
		return false;
	ret->more = ret->codec != CODEC_V4 && w->at % group_tokens(ret) != 0;
	ret->rows = plane_rows(w, ret, g->block_tokens);
	bytes = (uint64_t)ret->rows * ret->row_bytes;
	ret->cost = cost_of(w, ret);
	ret->ahead = w->ahead && w->done + bytes <= w->ahead_bytes ? w->ahead + w->done : NULL;
	w->at += ret->rows;
	w->done += bytes;
	if (!image_codec_channels(ret->codec) && ret->codec != CODEC_V4)
		join_rows(ret); /* of these the columns must stay apart */
	return true;
}

static bool typed_next(struct tiles *w, const struct page_piece *p, struct page_tile *ret)
{
	/* beside planes with other scales they are fp8: their channels are not known */
	const enum image_codec codec =
		image_codec_scales(w->codec_k) ? CODEC_FP8 : coded_as(w->codec_k);
	const uint64_t left = p->length - w->at,
		       most = codec == CODEC_LOSSLESS ? IMAGE_PACK_TYPED : IMAGE_GROUP_TYPED;
	const uint32_t n = (uint32_t)(left < most ? left : most);

	if (n == 0)
		return false;
	*ret = (struct page_tile){
		.base = p->base + w->page * p->page_stride + w->at * w->element_bytes,
		.rows = 1,
		.row_bytes = n * w->element_bytes,
		.codec = codec,
		.cost = n * w->element_bytes,
	};
	w->at += n;
	return true;
}

/* Short rows sixteen at a time, long ones cut. */
static bool opaque_next(struct tiles *w, const struct page_piece *p, struct page_tile *ret)
{
	const uint32_t rows = p->token_stride ? w->layout->geometry.block_tokens : 1;
	const uint64_t left = p->length - w->at;
	const bool short_rows = p->length <= TILES_OPAQUE_BYTES;

	if (w->row == rows || p->length == 0)
		return false;
	*ret = (struct page_tile){
		.base = p->base + w->page * p->page_stride + w->row * p->token_stride + w->at,
		.stride = p->token_stride,
		.rows = 1,
		.row_bytes = left < TILES_OPAQUE_BYTES ? (uint32_t)left : TILES_OPAQUE_BYTES,
		.codec = CODEC_RAW,
	};
	if (short_rows) {
		ret->rows = rows - w->row < IMAGE_GROUP_TOKENS ? rows - w->row : IMAGE_GROUP_TOKENS;
		ret->cost = cost_of(w, ret);
		w->row += ret->rows;
		join_rows(ret);
		return true;
	}
	ret->cost = ret->row_bytes;
	w->at += ret->row_bytes;
	if (w->at == p->length) {
		w->at = 0;
		w->row++;
	}
	return true;
}

bool tiles_next(struct tiles *w, struct page_tile *ret)
{
	for (; w->piece < w->end; w->piece++, w->head = w->row = 0, w->at = w->done = 0) {
		const struct page_piece *p = &w->layout->pieces[w->piece];
		const bool more = p->kind == KIND_OPAQUE ? opaque_next(w, p, ret) :
				  p->kind == KIND_TYPED  ? typed_next(w, p, ret) :
							   plane_next(w, p, ret);

		if (more)
			return true;
	}
	return false;
}
