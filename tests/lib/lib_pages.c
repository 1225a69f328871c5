/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_pages.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

#include "kernels/fp8.h"
#include "test.h"

#define KV(l, h, k, v, t)                                                                       \
	{                                                                                       \
		.layers = l, .kv_heads = h, .head_dim_k = k, .head_dim_v = v, .block_tokens = t \
	}
#define GQA(l, h, d, t) KV(l, h, d, d, t)
#define TYPED(segments, values, tokens)                                                    \
	{                                                                                  \
		.typed_segments = segments, .typed_values = values, .block_tokens = tokens \
	}

const struct pages_named pages_named[] = {
	{ "token-major, 8 heads x 128, 16 tokens", GQA(2, 8, 128, 16), PAGES_TOKEN_MAJOR, 0 },
	{ "token-major, 3 heads x 64, 64 tokens", GQA(2, 3, 64, 64), PAGES_TOKEN_MAJOR, 0 },
	{ "token-major, 1 head x 80, 1 token", GQA(1, 1, 80, 1), PAGES_TOKEN_MAJOR, 0 },
	{ "token-major, 2 heads x 31, 17 tokens", GQA(2, 2, 31, 17), PAGES_TOKEN_MAJOR, 0 },
	{ "token-major, 1 head x 256, 33 tokens", GQA(1, 1, 256, 33), PAGES_TOKEN_MAJOR, 0 },
	{ "head-major, 8 heads x 128, 16 tokens", GQA(2, 8, 128, 16), PAGES_HEAD_MAJOR, 0 },
	{ "head-major, 5 heads x 72, 15 tokens", GQA(2, 5, 72, 15), PAGES_HEAD_MAJOR, 0 },
	{ "head-major, 2 heads x 64, 130 tokens", GQA(1, 2, 64, 130), PAGES_HEAD_MAJOR, 0 },
	{ "K and V together, 4 heads x 128, 32 tokens", GQA(2, 4, 128, 32), PAGES_TOGETHER, 0 },
	{ "K and V side by side, 4 heads x 64, 16 tokens", GQA(2, 4, 64, 16), PAGES_SIDE_BY_SIDE,
	  0 },
	{ "K 192 and V 128 side by side", KV(1, 3, 192, 128, 16), PAGES_SIDE_BY_SIDE, 0 },
	{ "cross-layer, 3 layers, 2 heads x 128", GQA(3, 2, 128, 16), PAGES_CROSS_LAYER, 0 },
	{ "MLA, 512 latent dims and 128 bytes as they are", KV(3, 1, 512, 0, 32), PAGES_LATENT,
	  128 },
	{ "MLA, 576 latent dims", KV(2, 1, 576, 0, 64), PAGES_TOKEN_MAJOR, 0 },
	{ "656-byte rows", { .layers = 3, .block_tokens = 64 }, PAGES_ROWS, 656 },
	{ "rows of 5,001 bytes", { .layers = 2, .block_tokens = 5 }, PAGES_ROWS, 5001 },
	{ "one row of 70,000 bytes", { .layers = 1, .block_tokens = 1 }, PAGES_ROWS, 70000 },
	{ "typed, 3 x 4,097 values", TYPED(3, 4097, 16), PAGES_TYPED, 0 },
	{ "typed, 2 x 1,024 values", TYPED(2, 1024, 16), PAGES_TYPED, 0 },
	{ "typed, 1 x 1,023 values", TYPED(1, 1023, 16), PAGES_TYPED, 0 },
	{ "typed, 1 x 1,025 values", TYPED(1, 1025, 16), PAGES_TYPED, 0 },
	{ "typed, 1 value", TYPED(1, 1, 1), PAGES_TYPED, 0 },
	{ "K 4096 and V 2056 side by side", KV(1, 1, 4096, 2056, 16), PAGES_SIDE_BY_SIDE, 0 },
	{ "V only, head dim 4096", KV(1, 1, 0, 4096, 17), PAGES_HEAD_MAJOR, 0 },
	{ "head dim 1", KV(1, 7, 1, 1, 48), PAGES_TOKEN_MAJOR, 0 },
};
const uint32_t pages_named_n = sizeof(pages_named) / sizeof(*pages_named);

static struct page_piece *add(struct pages *p, uint32_t kind, uint32_t layer, uint64_t at)
{
	assert(p->layout.n_pieces < PAGES_MAX_PIECES);
	p->pieces[p->layout.n_pieces] = (struct page_piece){
		.base = (uint8_t *)(uintptr_t)(p->base + at), .kind = kind, .layer = layer
	};
	return &p->pieces[p->layout.n_pieces++];
}

static uint64_t new_region(struct pages *p, uint64_t bytes, uint64_t shift)
{
	const uint64_t at = (p->bytes + 255) / 256 * 256 + shift;

	p->bytes = at + bytes;
	return at;
}

/* One plane at the first byte of page 0, K or V. */
static void plane(struct pages *p, uint32_t kind, uint32_t layer, uint64_t at, uint64_t page,
		  uint64_t head, uint64_t token)
{
	struct page_piece *piece = add(p, kind, layer, at);

	piece->page_stride = page;
	piece->head_stride = head;
	piece->token_stride = token;
}

static void make_planes(struct pages *p, const struct pages_named *named, uint32_t layer,
			uint64_t shift)
{
	const struct image_geometry *g = &p->layout.geometry;
	const uint64_t e = image_element_bytes(g->dtype), dim_k = e * g->head_dim_k,
		       dim_v = e * g->head_dim_v, heads = g->kv_heads, tokens = g->block_tokens,
		       k = dim_k * heads * tokens, v = dim_v * heads * tokens;
	const bool head_major = named->order == PAGES_HEAD_MAJOR;
	uint64_t at;

	switch (named->order) {
	case PAGES_TOKEN_MAJOR:
	case PAGES_HEAD_MAJOR:
		for (uint32_t kind = KIND_K; kind <= KIND_V; kind++) {
			const uint64_t dim = kind == KIND_K ? dim_k : dim_v;

			if (dim == 0)
				continue;
			at = new_region(p, p->n_pages * dim * heads * tokens, shift);
			plane(p, kind, layer, at, dim * heads * tokens,
			      head_major ? dim * tokens : dim, head_major ? dim : dim * heads);
		}
		break;
	case PAGES_TOGETHER:
		at = new_region(p, p->n_pages * (k + v), shift);
		plane(p, KIND_K, layer, at, k + v, dim_k, dim_k * heads);
		plane(p, KIND_V, layer, at + k, k + v, dim_v, dim_v * heads);
		break;
	case PAGES_SIDE_BY_SIDE:
		at = new_region(p, p->n_pages * (k + v), shift);
		plane(p, KIND_K, layer, at, k + v, dim_k + dim_v, (dim_k + dim_v) * heads);
		plane(p, KIND_V, layer, at + dim_k, k + v, dim_k + dim_v, (dim_k + dim_v) * heads);
		break;
	case PAGES_CROSS_LAYER:
		if (layer == 0)
			new_region(p, p->n_pages * g->layers * (k + v), shift);
		at = p->bytes - p->n_pages * g->layers * (k + v) + layer * (k + v);
		plane(p, KIND_K, layer, at, g->layers * (k + v), dim_k, dim_k * heads);
		plane(p, KIND_V, layer, at + k, g->layers * (k + v), dim_v, dim_v * heads);
		break;
	case PAGES_LATENT:
		at = new_region(p, p->n_pages * tokens * (dim_k + named->opaque_row), shift);
		plane(p, KIND_K, layer, at, tokens * (dim_k + named->opaque_row), dim_k,
		      dim_k + named->opaque_row);
		break;
	default:
		break;
	}
}

static void make_opaque(struct pages *p, const struct pages_named *named, uint32_t layer,
			uint64_t shift)
{
	struct image_geometry *g = &p->layout.geometry;
	const uint64_t latent =
		named->order == PAGES_LATENT ? image_element_bytes(g->dtype) * g->head_dim_k : 0;
	const uint64_t row = latent + named->opaque_row, page = row * g->block_tokens;
	const uint64_t at = latent ? (uintptr_t)p->pieces[layer].base - p->base + latent :
				     new_region(p, p->n_pages * page, shift);
	struct page_piece *piece = add(p, KIND_OPAQUE, 0, at);

	piece->page_stride = page;
	piece->token_stride = g->block_tokens > 1 ? row : 0;
	piece->length = named->opaque_row;
	g->opaque_bytes += named->opaque_row * g->block_tokens;
}

void pages_make(struct pages *ret, const struct pages_named *named, uint32_t dtype, uint64_t base,
		uint64_t n_pages, uint64_t shift)
{
	struct image_geometry *g = &ret->layout.geometry;

	*ret = (struct pages){ .base = base, .n_pages = n_pages };
	*g = named->geometry;
	g->dtype = dtype;
	ret->layout.pieces = ret->pieces;
	for (uint32_t l = 0; l < g->layers; l++)
		make_planes(ret, named, l, shift);
	for (uint32_t i = 0; i < g->typed_segments; i++) {
		const uint64_t n = (uint64_t)image_element_bytes(dtype) * g->typed_values;
		struct page_piece *piece =
			add(ret, KIND_TYPED, 0, new_region(ret, n * n_pages, shift));

		piece->page_stride = n;
		piece->length = g->typed_values;
	}
	for (uint32_t l = 0; named->opaque_row && l < g->layers; l++)
		make_opaque(ret, named, l, shift);
}

static void random_geometry(struct pages *p, struct random *r, uint32_t dtype)
{
	static const uint32_t dims[] = { 0, 1, 3, 16, 31, 32, 33, 64, 80, 127, 128, 129, 256, 576 };
	static const uint32_t tokens[] = { 1, 5, 15, 16, 17, 31, 32, 33, 40, 64 };
	struct image_geometry *g = &p->layout.geometry;

	*g = (struct image_geometry){
		.dtype = dtype,
		.layers = 1 + random_below(r, 3),
		.kv_heads = 1 + random_below(r, 5),
		.head_dim_k = dims[random_below(r, 14)],
		.head_dim_v = dims[random_below(r, 14)],
		.block_tokens = tokens[random_below(r, 10)],
		.typed_segments = random_below(r, 3),
	};
	if (!g->head_dim_k && !g->head_dim_v && !g->typed_segments)
		g->head_dim_k = 64;
	if (g->typed_segments)
		g->typed_values =
			random_below(r, 2) ? 1 + random_below(r, 3000) : 1023 + random_below(r, 3);
}

/* After a gap, at any multiple of the alignment; half of the pieces at a multiple of 16. */
static uint64_t random_place(struct pages *p, struct random *r, uint64_t bytes, uint64_t align)
{
	const uint64_t gap = random_below(r, 100) * align;

	p->bytes += random_below(r, 2) ? gap : -p->bytes & 15;
	p->bytes += bytes;
	return p->bytes - bytes;
}

static void random_plane(struct pages *p, struct random *r, uint32_t layer, uint32_t kind)
{
	const struct image_geometry *g = &p->layout.geometry;
	const uint64_t e = image_element_bytes(g->dtype),
		       dim = e * (kind == KIND_K ? g->head_dim_k : g->head_dim_v),
		       gap = random_below(r, 2) ? 0 : e * random_below(r, 40);
	uint64_t head = dim + gap, token = head * g->kv_heads, page;

	if (dim == 0)
		return;
	if (random_below(r, 2)) {
		token = dim + gap;
		head = token * g->block_tokens;
	}
	page = (g->block_tokens - 1) * token + (g->kv_heads - 1) * head + dim +
	       (random_below(r, 2) ? 0 : e * random_below(r, 40));
	plane(p, kind, layer, random_place(p, r, page * p->n_pages, e), page, head, token);
}

static void random_opaque(struct pages *p, struct random *r)
{
	struct image_geometry *g = &p->layout.geometry;
	const uint32_t rows = random_below(r, 2) ? g->block_tokens : 1;
	const uint32_t length =
		random_below(r, 6) ? 1 + random_below(r, 200) : 4095 + random_below(r, 3000);
	const uint64_t stride = length + random_below(r, 2) * random_below(r, 30);
	struct page_piece *piece =
		add(p, KIND_OPAQUE, 0, random_place(p, r, rows * stride * p->n_pages, 1));

	piece->page_stride = rows * stride;
	piece->token_stride = rows > 1 ? stride : 0;
	piece->length = length;
	g->opaque_bytes += rows * length;
}

void pages_random(struct pages *ret, struct random *r, uint32_t dtype, uint64_t base)
{
	const uint64_t e = image_element_bytes(dtype);

	*ret = (struct pages){ .base = base, .n_pages = 1 + random_below(r, 3) };
	ret->layout.pieces = ret->pieces;
	random_geometry(ret, r, dtype);
	for (uint32_t l = 0; l < ret->layout.geometry.layers; l++) {
		random_plane(ret, r, l, KIND_K);
		random_plane(ret, r, l, KIND_V);
	}
	for (uint32_t i = 0; i < ret->layout.geometry.typed_segments; i++) {
		const uint64_t n = e * ret->layout.geometry.typed_values;
		struct page_piece *piece =
			add(ret, KIND_TYPED, 0, random_place(ret, r, n * ret->n_pages, e));

		piece->page_stride = n;
		piece->length = ret->layout.geometry.typed_values;
	}
	for (uint32_t i = random_below(r, 4); i; i--)
		random_opaque(ret, r);
}

void pages_print(const struct pages *pages)
{
	const struct image_geometry *g = &pages->layout.geometry;

	printf("dtype %u, %u layers, %u heads x %u, %u, %u tokens, %u typed x %u, %u opaque\n",
	       g->dtype, g->layers, g->kv_heads, g->head_dim_k, g->head_dim_v, g->block_tokens,
	       g->typed_segments, g->typed_values, g->opaque_bytes);
	for (uint32_t i = 0; i < pages->layout.n_pieces; i++) {
		const struct page_piece *p = &pages->pieces[i];

		printf("  kind %u at %#llx: page %llu, head %llu, token %llu, length %llu\n",
		       p->kind, (unsigned long long)((uintptr_t)p->base - pages->base),
		       (unsigned long long)p->page_stride, (unsigned long long)p->head_stride,
		       (unsigned long long)p->token_stride, (unsigned long long)p->length);
	}
}

static int all_steps(const struct codec_kernels *kernels, struct codec_run *run, uint8_t *scratch)
{
	int r;

	do
		r = kernels->step(run, CODEC_PIECE_BYTES, scratch);
	while (r == CODEC_MORE);
	return r;
}

int codec_encode(const struct codec_kernels *kernels, const struct page_layout *layout,
		 uint64_t page, enum image_codec codec_k, enum image_codec codec_v,
		 const struct image_identity *identity, uint8_t *image, uint8_t *scratch)
{
	struct codec_run run;
	const int r = kernels->encode_start(&run, layout, page, codec_k, codec_v, identity, image);

	return r ? r : all_steps(kernels, &run, scratch);
}

int codec_decode(const struct codec_kernels *kernels, const struct page_layout *layout,
		 uint64_t page, const uint8_t *image, uint8_t *scratch)
{
	struct codec_run run;
	const int r = kernels->decode_start(&run, layout, page, image);

	return r ? r : all_steps(kernels, &run, scratch);
}

const struct codec_kernels *codec_or_skip(const char *name)
{
	const struct codec_kernels *kernels = codec_kernels(name);

	if (!kernels)
		skip();
	return kernels;
}

double codec_value(int is_fp16, uint32_t code)
{
	const struct fp8_source s = fp8_source(is_fp16);
	int e;
	const uint32_t m = fp8_split(&s, code, &e);

	return ldexp(code & 0x8000 ? -(double)m : m, e);
}
