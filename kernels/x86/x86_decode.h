/* SPDX-License-Identifier: Apache-2.0 */
/*
 * x86_decode.h - image -> page, for x86_codec.h alone; read that first.
 *
 * The payload is one sequential stream, prefetched; rows go out non-temporally when they are whole
 * cache lines, through the cache otherwise.
 */
#pragma once

/* lines: dst, and n in bytes of the page, are whole lines. */
MATH_FN void decode_as(bool is_fp16, bool lines, const struct math_decode *m, const uint8_t *src,
		       uint8_t *dst, size_t n)
{
	uint8_t codes[DECODE_STEP] = { 0 };
	uint16_t last[DECODE_STEP];
	size_t i = 0;

	for (; i + DECODE_STEP <= n; i += DECODE_STEP)
		math_decode32(is_fp16, m, src + i, dst + 2 * i, lines);
	if (lines || i == n)
		return;
	memcpy(codes, src + i, n - i);
	math_decode32(is_fp16, m, codes, (uint8_t *)last, false);
	memcpy(dst + 2 * i, last, 2 * (n - i));
}

static void decode_foreign(bool is_fp16, int k, const uint8_t *src, uint8_t *dst, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const uint16_t v = fp8_decode(is_fp16, k, src[i]);

		memcpy(dst + 2 * i, &v, sizeof(v));
	}
}

static void decode_tile(const struct page_tile *u, bool is_fp16, int k, const uint8_t *src)
{
	const uint32_t n = u->row_bytes / 2;
	const bool legal = math_decode_takes(is_fp16, k), lines = tile_is_lines(u);
	struct math_decode m;

	if (legal)
		m = math_decode_at(is_fp16, k);
	for (uint32_t r = 0; r < u->rows; r++, src += n) {
		uint8_t *row = u->base + r * u->stride;

		prefetch_payload(src, n);
		if (!legal)
			decode_foreign(is_fp16, k, src, row, n);
		else
			BY_TYPE_AND_LINES(decode_as, is_fp16, lines, &m, src, row, n);
	}
}

/* Rows of int8 codes, at the scales of their columns. */
MATH_FN void decode_columns_as(bool is_fp16, bool lines, const struct page_tile *u,
			       const float *powers, const uint8_t *src)
{
	const uint32_t n = u->row_bytes / 2;

	for (uint32_t r = 0; r < u->rows; r++, src += n) {
		uint8_t *row = u->base + r * u->stride;
		uint8_t codes[DECODE_STEP] = { 0 };
		uint16_t last[DECODE_STEP];
		uint32_t i = 0;

		prefetch_payload(src, n);
		for (; i + DECODE_STEP <= n; i += DECODE_STEP)
			math_int8_decode32(is_fp16, src + i, powers + i, row + 2 * i, lines);
		if (lines || i == n)
			continue;
		memcpy(codes, src + i, n - i);
		math_int8_decode32(is_fp16, codes, powers + i, (uint8_t *)last, false);
		memcpy(row + 2 * i, last, 2 * (n - i));
	}
}

static void decode_foreign_columns(const struct page_tile *u, bool is_fp16, const uint8_t *scales,
				   const uint8_t *src)
{
	for (uint32_t r = 0; r < u->rows; r++)
		for (uint32_t i = 0; i < u->row_bytes / 2; i++) {
			const uint16_t v =
				int8_decode(is_fp16, (int)scales[i] - FP8_BIAS, (int8_t)*src++);

			memcpy(u->base + r * u->stride + 2 * i, &v, sizeof(v));
		}
}

static void decode_columns(const struct page_tile *u, bool is_fp16, const uint8_t *scales,
			   const uint8_t *src, float *powers)
{
	const uint32_t n = u->row_bytes / 2;
	const bool lines = tile_is_lines(u);
	bool legal = true;

	for (uint32_t i = 0; i < n; i += 16) {
		uint8_t last[16];

		memset(last, FP8_BIAS, sizeof(last));
		memcpy(last, scales + i, n - i < 16 ? n - i : 16);
		legal = math_int8_powers16(last, powers + i) && legal;
	}
	if (!legal)
		decode_foreign_columns(u, is_fp16, scales, src);
	else
		BY_TYPE_AND_LINES(decode_columns_as, is_fp16, lines, u, powers, src);
}

static void scatter_tile(const struct page_tile *u, const uint8_t *src)
{
	const bool past_cache = tile_is_lines(u) || u->row_bytes >= 1024;

	for (uint32_t r = 0; r < u->rows; r++, src += u->row_bytes) {
		prefetch_payload(src, u->row_bytes);
		if (past_cache)
			stream(u->base + r * u->stride, src, u->row_bytes);
		else
			memcpy(u->base + r * u->stride, src, u->row_bytes);
	}
}

struct decode_run {
	struct tiles tiles;
	const uint8_t *scale, *payload, *end;
	const uint8_t *group; /* the scales of the group that is under way */
	bool is_fp16;
};

static int decode_start(struct decode_run *d, const struct page_layout *layout, uint64_t page,
			const uint8_t *image)
{
	struct image_header header;
	struct image_shape shape;

	memcpy(&header, image, sizeof(header));
	if (image_header_shape(&header, &layout->geometry, &shape) ||
	    (header.codec_k == CODEC_LOSSLESS &&
	     !image_packs_fit(&layout->geometry, &shape, image + sizeof(header))))
		return -EBADMSG;
	d->is_fp16 = layout->geometry.dtype == DTYPE_FP16;
	d->scale = image + sizeof(header);
	d->payload = image + shape.payload_offset;
	d->end = image + shape.image_bytes;
	tiles_start(&d->tiles, layout, page, header.codec_k, header.codec_v, &shape, false);
	return 0;
}

static void decode_layers(struct decode_run *d, uint32_t first, uint32_t end)
{
	const struct tiles *w = &d->tiles;
	uint32_t scale, payload;

	image_layer_at(&w->layout->geometry, w->codec_k, w->codec_v, first, d->scale, &scale,
		       &payload);
	d->scale += scale;
	d->payload += payload;
	tiles_layers(&d->tiles, first, end);
}

static int decode_next_pack(struct decode_run *d, const struct page_tile *u, uint8_t *scratch)
{
	const size_t left = (size_t)(d->end - d->payload) - IMAGE_PACK_SPARE -
			    d->tiles.layout->geometry.opaque_bytes;
	const uint32_t n = decode_pack(u, d->is_fp16, d->scale, d->payload, left, scratch);

	d->scale += IMAGE_PACK_SCALES;
	d->payload += n;
	return n ? 0 : -EBADMSG;
}

static int decode_next(struct decode_run *d, const struct page_tile *u, uint8_t *scratch)
{
	const uint32_t values = u->row_bytes / 2;
	/* a joined tile of fp8 has one scale, and one row */
	const uint32_t bytes = u->codec == CODEC_RAW ?
				       u->rows * u->row_bytes :
				       u->rows * image_row_bytes(u->codec, DTYPE_BF16, values);

	if (u->codec == CODEC_LOSSLESS)
		return decode_next_pack(d, u, scratch);
	assert(bytes <= (size_t)(d->end - d->payload));
	if (u->codec != CODEC_RAW && !u->more) {
		d->group = d->scale;
		d->scale +=
			u->codec == CODEC_FP8 ? 1 : image_scale_bytes(u->codec, u->rows, values);
	}
	if (u->codec == CODEC_RAW)
		scatter_tile(u, d->payload);
	else if (u->codec == CODEC_INT8)
		decode_columns(u, d->is_fp16, d->group, d->payload, powers_of(scratch));
	else if (u->codec == CODEC_K4 || u->codec == CODEC_V4)
		q4_decode(d->is_fp16, u, d->group, d->payload, scratch);
	else
		decode_tile(u, d->is_fp16, (int)*d->group - FP8_BIAS, d->payload);
	d->payload += bytes;
	return 0;
}

static int decode_step(struct decode_run *d, uint32_t budget, uint8_t *scratch)
{
	struct page_tile u;
	int r = 0;

	for (uint64_t cost = 0; cost < budget && r == 0; cost += u.cost) {
		if (!tiles_next(&d->tiles, &u))
			return 0;
		r = decode_next(d, &u, scratch);
	}
	return r ? r : CODEC_MORE;
}
