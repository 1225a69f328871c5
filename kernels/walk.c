/* SPDX-License-Identifier: Apache-2.0 */
/*
 * walk.c - see walk.h. One function per kind of piece: it gives the unit at the walk's position, moves the
 * position on, and returns false when the piece was done before.
 */
#include "walk.h"

void walk_start(struct walk *walk, const struct page_layout *layout, uint64_t page, enum image_codec codec_k,
		enum image_codec codec_v, const struct image_shape *shape, bool whole)
{
	*walk = (struct walk){
		.layout = layout,
		.page = page,
		.element_bytes = shape->element_bytes,
		.fp8_k = codec_k == CODEC_FP8,
		.fp8_v = codec_v == CODEC_FP8,
		.whole = whole,
	};
}

/* Of rows that lie apart: at least a line each; where each is in a page of memory of its own that, too, unless
 * the heads between them fill it: then other units touch the same pages. */
static uint32_t cost_of(const struct walk *w, const struct walk_unit *u)
{
	const uint32_t row = u->row_bytes < WALK_LINE_BYTES ? WALK_LINE_BYTES : u->row_bytes;
	const bool filled = u->stride / u->row_bytes <= 2ull * w->layout->geometry.kv_heads;

	if (u->stride < WALK_PAGE_BYTES)
		return u->rows * row;
	return u->rows * (row + (filled ? WALK_PAGE_BYTES / 16 : WALK_PAGE_BYTES));
}

/* Rows without a gap are one row. */
static void join_rows(struct walk_unit *u)
{
	if (u->stride == u->row_bytes) {
		u->row_bytes *= u->rows;
		u->rows = 1;
	}
}

/* To the end of the group, or of the plane, or as many as a unit may have. */
static uint32_t plane_rows(const struct walk *w, const struct walk_unit *u, uint32_t tokens)
{
	const uint32_t left = tokens - (uint32_t)w->at;
	const uint32_t group = IMAGE_GROUP_TOKENS - (uint32_t)w->at % IMAGE_GROUP_TOKENS;
	const uint32_t most = u->fp8 && w->whole ? group : WALK_ROWS_BYTES / u->row_bytes;
	const uint32_t rows = group < left ? group : left;

	return rows < most ? rows : most;
}

static bool plane_next(struct walk *w, const struct page_piece *p, struct walk_unit *ret)
{
	const struct image_geometry *g = &w->layout->geometry;
	const uint32_t dim = p->kind == KIND_K ? g->head_dim_k : g->head_dim_v;

	if (w->at == g->block_tokens) {
		w->at = 0;
		w->head++;
	}
	if (w->head == g->kv_heads || dim == 0)
		return false;
	*ret = (struct walk_unit){
		.base = p->base + w->page * p->page_stride + w->head * p->head_stride +
			w->at * p->token_stride,
		.stride = p->token_stride,
		.row_bytes = dim * w->element_bytes,
		.fp8 = p->kind == KIND_K ? w->fp8_k : w->fp8_v,
		.more = w->at % IMAGE_GROUP_TOKENS != 0,
	};
	ret->rows = plane_rows(w, ret, g->block_tokens);
	ret->cost = cost_of(w, ret);
	w->at += ret->rows;
	join_rows(ret);
	return true;
}

static bool typed_next(struct walk *w, const struct page_piece *p, struct walk_unit *ret)
{
	const uint64_t left = p->length - w->at;
	const uint32_t n = left < IMAGE_GROUP_TYPED ? (uint32_t)left : IMAGE_GROUP_TYPED;

	if (n == 0)
		return false;
	*ret = (struct walk_unit){
		.base = p->base + w->page * p->page_stride + w->at * w->element_bytes,
		.rows = 1,
		.row_bytes = n * w->element_bytes,
		.fp8 = w->fp8_k,
		.cost = n * w->element_bytes,
	};
	w->at += n;
	return true;
}

/* Short rows sixteen at a time, long ones cut. */
static bool opaque_next(struct walk *w, const struct page_piece *p, struct walk_unit *ret)
{
	const uint32_t rows = p->token_stride ? w->layout->geometry.block_tokens : 1;
	const uint64_t left = p->length - w->at;
	const bool short_rows = p->length <= WALK_UNIT_BYTES;

	if (w->row == rows || p->length == 0)
		return false;
	*ret = (struct walk_unit){
		.base = p->base + w->page * p->page_stride + w->row * p->token_stride + w->at,
		.stride = p->token_stride,
		.rows = 1,
		.row_bytes = left < WALK_UNIT_BYTES ? (uint32_t)left : WALK_UNIT_BYTES,
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

bool walk_next(struct walk *w, struct walk_unit *ret)
{
	for (; w->piece < w->layout->n_pieces; w->piece++, w->head = w->row = 0, w->at = 0) {
		const struct page_piece *p = &w->layout->pieces[w->piece];
		const bool more = p->kind == KIND_OPAQUE  ? opaque_next(w, p, ret)
				  : p->kind == KIND_TYPED ? typed_next(w, p, ret)
							  : plane_next(w, p, ret);

		if (more)
			return true;
	}
	return false;
}
