/* SPDX-License-Identifier: Apache-2.0 */
/* runs.c - see runs.h. */
#include "runs.h"

#include "check.h"

struct runs runs_of(const struct kvtier_geometry *g, const struct kvtier_segment *s)
{
	const uint64_t element = check_element_bytes(g->dtype);
	struct runs ret = {
		.page_stride = s->page_stride, .rows = 1, .pieces = 1, .bytes = s->length
	};

	if (s->kind == KVTIER_TYPED) {
		ret.bytes *= element;
		return ret;
	}
	if (s->kind == KVTIER_K || s->kind == KVTIER_V) {
		ret.bytes = element * (s->kind == KVTIER_K ? g->head_dim_k : g->head_dim_v);
		ret.pieces = g->kv_heads;
		ret.piece_stride = s->head_stride;
	} else if (!s->token_stride) {
		return ret;
	}
	ret.rows = g->block_tokens;
	ret.row_stride = s->token_stride;
	return ret;
}

struct runs runs_joined(const struct runs *runs)
{
	struct runs ret = *runs;

	if (ret.piece_stride == ret.bytes) {
		ret.bytes *= ret.pieces;
		ret.pieces = 1;
	}
	if (ret.pieces == 1 && ret.row_stride == ret.bytes) {
		ret.bytes *= ret.rows;
		ret.rows = 1;
	}
	return ret;
}

uint64_t runs_pages(const struct runs *runs, uint64_t offset, uint64_t length)
{
	const unsigned __int128 end =
		(unsigned __int128)offset + (unsigned __int128)(runs->rows - 1) * runs->row_stride +
		(unsigned __int128)(runs->pieces - 1) * runs->piece_stride + runs->bytes;

	return end > length ? 0 : (uint64_t)((length - end) / runs->page_stride) + 1;
}
