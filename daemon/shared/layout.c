/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.c - makes a page_layout of a segment list. The list comes from a client: every sum and
 * product is checked before it becomes an address. A page index is valid only when each of the
 * page's segments lies wholly in its region.
 */
#include "layout.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct builder {
	const struct image_geometry *geometry;
	struct page_piece *pieces;
	uint32_t planes;        /* K and V pieces: they come first, layer by layer */
	uint32_t typed, opaque; /* placed so far */
	uint64_t opaque_bytes;
	uint32_t value_bytes;
	char *text;
	size_t text_bytes;
};

__attribute__((format(printf, 3, 4))) static int refuse(struct builder *b, uint32_t at,
							const char *format, ...)
{
	va_list args;
	const int n = snprintf(b->text, b->text_bytes, "segments[%u].", at);

	va_start(args, format);
	if (n >= 0 && (size_t)n < b->text_bytes)
		vsnprintf(b->text + n, b->text_bytes - (size_t)n, format, args);
	va_end(args);
	return -EINVAL;
}

static uint32_t planes_per_layer(const struct image_geometry *g)
{
	return (g->head_dim_k ? 1u : 0u) + (g->head_dim_v ? 1u : 0u);
}

/* ret += a * b, false on overflow. */
static bool add_product(uint64_t *ret, uint64_t a, uint64_t b)
{
	uint64_t product;

	return !__builtin_mul_overflow(a, b, &product) &&
	       !__builtin_add_overflow(*ret, product, ret);
}

/* Bytes from the first to one past the last byte of one page of this segment; false on overflow. */
static bool page_span(const struct builder *b, const struct wire_segment *s, uint64_t *ret)
{
	const struct image_geometry *g = b->geometry;
	uint64_t span = 0;
	bool ok = true;

	switch (s->kind) {
	case KIND_K:
	case KIND_V:
		ok = add_product(&span, s->token_stride, g->block_tokens - 1) &&
		     add_product(&span, s->head_stride, g->kv_heads - 1) &&
		     add_product(&span, s->kind == KIND_K ? g->head_dim_k : g->head_dim_v,
				 b->value_bytes);
		break;
	case KIND_TYPED:
		ok = add_product(&span, s->length, b->value_bytes);
		break;
	case KIND_OPAQUE:
		if (s->token_stride)
			ok = add_product(&span, s->token_stride, g->block_tokens - 1);
		ok = ok && add_product(&span, s->length, 1);
		break;
	default:
		break;
	}
	*ret = span;
	return ok;
}

static int count_pages(struct builder *b, uint32_t at, const struct wire_segment *s,
		       uint64_t region_length, uint64_t *pages)
{
	uint64_t span, end, fit;

	if (s->page_stride == 0)
		return refuse(b, at, "page_stride is 0; must be at least 1");
	if (!page_span(b, s, &span) || __builtin_add_overflow(span, s->offset, &end))
		return refuse(b, at, "offset and strides overflow 64 bits");
	if (end > region_length)
		return refuse(
			b, at,
			"offset %llu + one page of %llu bytes is past the region's %llu bytes",
			(unsigned long long)s->offset, (unsigned long long)span,
			(unsigned long long)region_length);
	fit = (region_length - end) / s->page_stride + 1;
	if (fit < *pages)
		*pages = fit;
	return 0;
}

static int check_alignment(struct builder *b, uint32_t at, const struct wire_segment *s)
{
	const struct {
		const char *name;
		uint64_t value;
	} fields[] = {
		{ "offset", s->offset },
		{ "page_stride", s->page_stride },
		{ "head_stride", s->head_stride },
		{ "token_stride", s->token_stride },
	};

	if (s->kind == KIND_OPAQUE)
		return 0;
	for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
		if (fields[i].value % b->value_bytes)
			return refuse(b, at,
				      "%s is %llu; must be a multiple of the dtype's %u bytes",
				      fields[i].name, (unsigned long long)fields[i].value,
				      b->value_bytes);
	return 0;
}

/* Where in canonical order the segment goes; *ret = its piece. */
static int place(struct builder *b, uint32_t at, const struct wire_segment *s,
		 struct page_piece **ret)
{
	const struct image_geometry *g = b->geometry;
	const uint32_t per_layer = planes_per_layer(g);

	switch (s->kind) {
	case KIND_K:
	case KIND_V:
		if ((s->kind == KIND_K ? g->head_dim_k : g->head_dim_v) == 0)
			return refuse(b, at, "kind is %s but the geometry's head_dim_%s is 0",
				      s->kind == KIND_K ? "k" : "v", s->kind == KIND_K ? "k" : "v");
		if (s->layer >= g->layers)
			return refuse(b, at, "layer is %u; must be 0 to %u", s->layer,
				      g->layers - 1);
		*ret = &b->pieces[s->layer * per_layer + (s->kind == KIND_V && g->head_dim_k != 0)];
		if ((*ret)->kind)
			return refuse(b, at, "layer %u has two %s segments", s->layer,
				      s->kind == KIND_K ? "k" : "v");
		return 0;
	case KIND_TYPED:
		if (b->typed == g->typed_segments)
			return refuse(b, at,
				      "kind is typed but the geometry's typed_segments is %u",
				      g->typed_segments);
		if (s->length != g->typed_values)
			return refuse(b, at,
				      "length is %llu; must be the geometry's typed_values, %u",
				      (unsigned long long)s->length, g->typed_values);
		*ret = &b->pieces[b->planes + b->typed++];
		return 0;
	case KIND_OPAQUE:
		if (s->length == 0 || s->length > g->opaque_bytes)
			return refuse(
				b, at,
				"length is %llu; must be 1 to the geometry's opaque_bytes, %u",
				(unsigned long long)s->length, g->opaque_bytes);
		b->opaque_bytes += s->length * (s->token_stride ? g->block_tokens : 1);
		*ret = &b->pieces[b->planes + g->typed_segments + b->opaque++];
		return 0;
	default:
		return refuse(b, at, "kind is %u; must be 1 (k), 2 (v), 3 (typed) or 4 (opaque)",
			      s->kind);
	}
}

static int add(struct builder *b, uint32_t at, const struct wire_segment *s,
	       uint8_t *const *region_bases, const uint64_t *region_lengths, uint32_t n_regions,
	       uint64_t *pages)
{
	struct page_piece *piece = NULL;
	int r;

	if (s->region >= n_regions)
		return refuse(b, at, "region is %u; must be less than the %u regions given",
			      s->region, n_regions);
	r = place(b, at, s, &piece);
	if (!r)
		r = check_alignment(b, at, s);
	if (!r)
		r = count_pages(b, at, s, region_lengths[s->region], pages);
	if (r)
		return r;
	*piece = (struct page_piece){
		.base = region_bases[s->region] + s->offset,
		.page_stride = s->page_stride,
		.head_stride = s->head_stride,
		.token_stride = s->token_stride,
		.length = s->length,
		.kind = s->kind,
		.layer = s->layer,
	};
	return 0;
}

static int check_complete(struct builder *b, uint32_t n)
{
	const struct image_geometry *g = b->geometry;
	uint32_t planes = 0;

	for (uint32_t i = 0; i < b->planes; i++)
		planes += b->pieces[i].kind != 0;
	if (planes != b->planes || b->typed != g->typed_segments) {
		snprintf(b->text, b->text_bytes,
			 "segments: %u of %u k and v segments and %u of %u typed ones given",
			 planes, b->planes, b->typed, g->typed_segments);
		return -EINVAL;
	}
	if (b->opaque_bytes != g->opaque_bytes) {
		snprintf(
			b->text, b->text_bytes,
			"segments: opaque ones hold %llu bytes a page; the geometry's opaque_bytes "
			"is %u",
			(unsigned long long)b->opaque_bytes, g->opaque_bytes);
		return -EINVAL;
	}
	assert(planes + b->typed + b->opaque == n);
	return 0;
}

int layout_build(const struct wire_segment *segments, uint32_t n, uint8_t *const *region_bases,
		 const uint64_t *region_lengths, uint32_t n_regions,
		 const struct image_geometry *geometry, struct page_layout *ret,
		 uint64_t *ret_pages, char *text, size_t text_bytes)
{
	struct builder b = { .geometry = geometry, .text = text, .text_bytes = text_bytes };
	struct image_shape shape;
	uint64_t pages = UINT32_MAX;
	int r = image_shape(geometry, CODEC_RAW, CODEC_RAW, &shape, NULL);

	if (r)
		return r;
	b.value_bytes = shape.element_bytes;
	b.planes = geometry->layers * planes_per_layer(geometry);
	/* Room for every plane and typed piece, and for n opaque pieces. */
	b.pieces = calloc((size_t)b.planes + geometry->typed_segments + n + 1, sizeof(*b.pieces));
	if (!b.pieces) {
		snprintf(text, text_bytes, "out of memory for %u segments", n);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < n && r == 0; i++)
		r = add(&b, i, &segments[i], region_bases, region_lengths, n_regions, &pages);
	if (r == 0 && n > 0)
		r = check_complete(&b, n);
	if (r) {
		free(b.pieces);
		return r;
	}
	*ret = (struct page_layout){ .geometry = *geometry, .n_pieces = n, .pieces = b.pieces };
	*ret_pages = n ? pages : 0;
	return 0;
}

void layout_free(struct page_layout *layout)
{
	free((void *)(uintptr_t)layout->pieces);
	layout->pieces = NULL;
	layout->n_pieces = 0;
}
