/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref.c - the kernels in plain C: the oracle of every other implementation, and the fallback.
 *
 * Written to be read beside daemon/IMAGE.md: nested loops in canonical order, one value at a time, nothing
 * shared with the fast paths but fp8.h. Two passes over a group (amax, codes); should the page change
 * in between, values saturate and the image is wrong as a page changed under its reader is, no more. The
 * checksum is of the finished image. Any thread.
 */
#include <errno.h>
#include <string.h>

#include "fp8.h"
#include "kernels.h"

/* Where the next bytes of an image go to or come from. */
struct image_cursor {
	uint8_t *scales, *payload;
};

/* One group: rows x cols values of the source dtype, row r at base + r * stride. */
struct group {
	uint8_t *base;
	uint64_t stride;
	uint32_t rows, cols;
};

static uint32_t load16(const uint8_t *p)
{
	uint16_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static uint32_t group_amax(const struct group *g)
{
	uint32_t amax = 0;

	for (uint32_t r = 0; r < g->rows; r++)
		for (uint32_t c = 0; c < g->cols; c++) {
			const uint32_t v = load16(g->base + r * g->stride + 2ull * c) & 0x7fff;

			amax = v > amax ? v : amax;
		}
	return amax;
}

static int encode_group(const struct group *g, int is_fp16, struct image_cursor *to)
{
	const int k = fp8_exponent(is_fp16, group_amax(g));

	if (k == FP8_K_NONE)
		return -ERANGE;
	*to->scales++ = (uint8_t)(k + FP8_BIAS);
	for (uint32_t r = 0; r < g->rows; r++)
		for (uint32_t c = 0; c < g->cols; c++)
			*to->payload++ = fp8_encode(is_fp16, k, load16(g->base + r * g->stride + 2ull * c));
	return 0;
}

static void decode_group(const struct group *g, int is_fp16, struct image_cursor *from)
{
	const int k = (int)*from->scales++ - FP8_BIAS;

	for (uint32_t r = 0; r < g->rows; r++)
		for (uint32_t c = 0; c < g->cols; c++) {
			const uint16_t v = fp8_decode(is_fp16, k, *from->payload++);

			memcpy(g->base + r * g->stride + 2ull * c, &v, sizeof(v));
		}
}

/* Rows of bytes as they are; decode is the other direction. */
static void copy_rows(uint8_t *base, uint64_t stride, uint32_t rows, uint64_t bytes, struct image_cursor *at,
		      int decode)
{
	for (uint32_t r = 0; r < rows; r++, at->payload += bytes) {
		if (decode)
			memcpy(base + r * stride, at->payload, bytes);
		else
			memcpy(at->payload, base + r * stride, bytes);
	}
}

static int fp8_group(const struct group *g, int is_fp16, struct image_cursor *at, int decode)
{
	if (!decode)
		return encode_group(g, is_fp16, at);
	decode_group(g, is_fp16, at);
	return 0;
}

static int plane(const struct page_layout *l, const struct page_piece *p, uint64_t page, int fp8,
		 const struct image_shape *shape, struct image_cursor *at, int decode)
{
	const uint32_t dim = p->kind == KIND_K ? l->geometry.head_dim_k : l->geometry.head_dim_v;
	const uint32_t tokens = l->geometry.block_tokens;
	int r = 0;

	for (uint32_t head = 0; head < l->geometry.kv_heads; head++)
		for (uint32_t t = 0; t < tokens && !r; t += IMAGE_GROUP_TOKENS) {
			const struct group g = {
				.base = p->base + page * p->page_stride + head * p->head_stride +
					t * p->token_stride,
				.stride = p->token_stride,
				.rows = tokens - t < IMAGE_GROUP_TOKENS ? tokens - t : IMAGE_GROUP_TOKENS,
				.cols = dim,
			};

			if (fp8)
				r = fp8_group(&g, l->geometry.dtype == DTYPE_FP16, at, decode);
			else
				copy_rows(g.base, g.stride, g.rows, (uint64_t)dim * shape->element_bytes, at,
					  decode);
		}
	return r;
}

static int typed(const struct page_layout *l, const struct page_piece *p, uint64_t page, int fp8,
		 const struct image_shape *shape, struct image_cursor *at, int decode)
{
	uint8_t *base = p->base + page * p->page_stride;
	int r = 0;

	if (!fp8) {
		copy_rows(base, 0, 1, p->length * shape->element_bytes, at, decode);
		return 0;
	}
	for (uint64_t v = 0; v < p->length && !r; v += IMAGE_GROUP_TYPED) {
		const uint64_t left = p->length - v;
		const struct group g = {
			.base = base + v * 2,
			.rows = 1,
			.cols = left < IMAGE_GROUP_TYPED ? (uint32_t)left : IMAGE_GROUP_TYPED,
		};

		r = fp8_group(&g, l->geometry.dtype == DTYPE_FP16, at, decode);
	}
	return r;
}

static void opaque(const struct page_layout *l, const struct page_piece *p, uint64_t page,
		   struct image_cursor *at, int decode)
{
	copy_rows(p->base + page * p->page_stride, p->token_stride,
		  p->token_stride ? l->geometry.block_tokens : 1, p->length, at, decode);
}

static int walk(const struct page_layout *l, uint64_t page, enum image_codec codec_k,
		enum image_codec codec_v, const struct image_shape *shape, struct image_cursor *at,
		int decode)
{
	int r = 0;

	for (uint32_t i = 0; i < l->n_pieces && !r; i++) {
		const struct page_piece *p = &l->pieces[i];

		if (p->kind == KIND_OPAQUE)
			opaque(l, p, page, at, decode);
		else if (p->kind == KIND_TYPED)
			r = typed(l, p, page, codec_k == CODEC_FP8, shape, at, decode);
		else
			r = plane(l, p, page, (p->kind == KIND_K ? codec_k : codec_v) == CODEC_FP8, shape, at,
				  decode);
	}
	return r;
}

static int ref_encode(const struct page_layout *layout, uint64_t page, enum image_codec codec_k,
		      enum image_codec codec_v, const struct image_identity *identity, uint8_t *image,
		      uint8_t *scratch)
{
	struct image_header *header = (void *)image;
	struct image_cursor at;
	struct image_shape shape;
	int r;

	(void)scratch;
	r = image_shape(&layout->geometry, codec_k, codec_v, &shape, NULL);
	if (r)
		return r;
	at.scales = image + sizeof(*header);
	at.payload = image + shape.payload_offset;
	memset(at.scales, 0, shape.payload_offset - sizeof(*header)); /* the padding too */
	r = walk(layout, page, codec_k, codec_v, &shape, &at, 0);
	if (r)
		return r;
	assert(at.payload == image + shape.image_bytes);
	image_header_fill(header, &layout->geometry, codec_k, codec_v, &shape, identity);
	image_seal(header, image_checksum(image, &shape));
	return 0;
}

static int ref_decode(const struct page_layout *layout, uint64_t page, const uint8_t *image, uint8_t *scratch)
{
	struct image_header header;
	struct image_cursor at;
	struct image_shape shape;

	(void)scratch;
	memcpy(&header, image, sizeof(header));
	if (image_shape(&layout->geometry, header.codec_k, header.codec_v, &shape, NULL))
		return -EBADMSG;
	at.scales = (uint8_t *)image + sizeof(header); /* decode only reads through it */
	at.payload = (uint8_t *)image + shape.payload_offset;
	(void)walk(layout, page, header.codec_k, header.codec_v, &shape, &at, 1);
	return 0;
}

static void ref_copy(void *dst, const void *src, size_t n)
{
	memcpy(dst, src, n);
}

static void ref_encode_run(uint32_t dtype, int k, const uint16_t *src, uint8_t *dst, size_t n)
{
	for (size_t i = 0; i < n; i++)
		dst[i] = fp8_encode(dtype == DTYPE_FP16, k, src[i]);
}

static void ref_decode_run(uint32_t dtype, int k, const uint8_t *src, uint16_t *dst, size_t n)
{
	for (size_t i = 0; i < n; i++)
		dst[i] = fp8_decode(dtype == DTYPE_FP16, k, src[i]);
}

const struct codec_kernels codec_ref = {
	.name = "ref",
	.encode = ref_encode,
	.decode = ref_decode,
	.copy = ref_copy,
	.checksum = image_checksum,
	.encode_run = ref_encode_run,
	.decode_run = ref_decode_run,
};
