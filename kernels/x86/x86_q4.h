/* SPDX-License-Identifier: Apache-2.0 */
/*
 * x86_q4.h - tiles of k4 and v4, for x86_codec.h alone; read that first.
 *
 * Codes are put together in scratch, whose bytes are a quarter of the page's. A k4 tile is gone
 * through twice, as one of int8: down its columns for their ends, then along its rows.
 */
#pragma once

enum { Q4_STEP_BYTES = STEP / 2 };

static struct q4_columns *q4_columns_of(uint8_t *scratch)
{
	return (struct q4_columns *)(void *)(scratch + CODEC_SCRATCH_BYTES -
					     sizeof(struct q4_columns));
}

/* The ends of up to 64 columns of a tile. */
MATH_FN struct math_ends k4_ends(const struct page_tile *u, const uint8_t *row, uint32_t columns)
{
	struct math_ends ends;
	uint16_t last[STEP] = { 0 };

	if (columns == STEP) {
		math_ends_start(&ends, row);
		for (uint32_t r = 1; r < u->rows; r++)
			math_ends_look(&ends, row + r * u->stride);
		return ends;
	}
	memcpy(last, row, 2 * columns);
	math_ends_start(&ends, (const uint8_t *)last);
	for (uint32_t r = 1; r < u->rows; r++) {
		memcpy(last, row + r * u->stride, 2 * columns);
		math_ends_look(&ends, (const uint8_t *)last);
	}
	return ends;
}

/* False: k4 cannot hold one of the columns. */
MATH_FN bool k4_scales(bool is_fp16, const struct page_tile *u, uint8_t *scales,
		       struct q4_columns *columns)
{
	const uint32_t n = u->row_bytes / 2;
	bool good = true;

	for (uint32_t i = 0; i < n; i += STEP) {
		const uint32_t now = n - i < STEP ? n - i : STEP;
		const struct math_ends ends = k4_ends(u, u->base + 2 * i, now);
		uint8_t lo[2 * STEP], j[STEP];

		good = math_k4_scales(is_fp16, &ends, i, lo, j, columns) && good;
		memcpy(scales + 2 * i, lo, 2 * now);
		memcpy(scales + 2 * n + i, j, now);
	}
	return good;
}

/* The codes of a step. k4: whose first column is i. v4: its scales, up to two, to *scale, which
 * moves on. False: v4 cannot hold it. */
MATH_FN bool q4_encode_step(bool is_fp16, bool k4, const uint8_t *src, uint32_t i,
			    const struct q4_columns *columns, uint32_t groups, uint8_t **scale,
			    uint8_t *dst)
{
	const int first = k4 ? 0 : math_v4_step(is_fp16, math_v4_amax32(src)),
		  second = k4 ? 0 : math_v4_step(is_fp16, math_v4_amax32(src + 64));

	if (!k4)
		*(*scale)++ = (uint8_t)first;
	if (!k4 && groups > 1)
		*(*scale)++ = (uint8_t)second;
	if (first < 0 || second < 0)
		return false;
	_mm256_storeu_si256((void *)dst, k4 ? math_k4_64(is_fp16, src, columns, i) :
					      math_v4_64(is_fp16, src, first, second));
	return true;
}

/* False: v4 cannot hold one of the groups. */
MATH_FN bool q4_encode_as(bool is_fp16, bool k4, const struct page_tile *u,
			  const struct q4_columns *columns, struct far far, uint8_t *scale,
			  uint8_t *dst)
{
	const uint32_t n = u->row_bytes / 2;
	bool good = true;

	for (uint32_t r = 0; r < u->rows; r++, dst += (n + 1) / 2) {
		const uint8_t *row = u->base + r * u->stride, *far_row = far.base + r * far.stride;
		uint16_t last[STEP] = { 0 };
		uint32_t i = 0;

		for (; i + STEP <= n; i += STEP) {
			prefetch_values(far, far_row + 2 * i);
			good = q4_encode_step(is_fp16, k4, row + 2 * i, i, columns, 2, &scale,
					      dst + i / 2) &&
			       good;
		}
		if (i == n)
			continue;
		memcpy(last, row + 2 * i, 2 * (n - i));
		good = q4_encode_step(is_fp16, k4, (const uint8_t *)last, i, columns,
				      n - i > IMAGE_V4_VALUES ? 2 : 1, &scale, dst + i / 2) &&
		       good;
		if (n % 2) /* the half that no code has */
			dst[n / 2] &= Q4_MOST;
	}
	return good;
}

/* Codes to dst, and up to Q4_STEP_BYTES of anything after them. False: the codec cannot hold the
 * tile. */
static bool q4_encode(bool is_fp16, const struct page_tile *u, struct far far, uint8_t *scale,
		      uint8_t *dst, uint8_t *scratch)
{
	struct q4_columns *columns = q4_columns_of(scratch);

	static_assert(FLUSH_BYTES + IMAGE_CHANNEL_TOKENS * IMAGE_MAX_HEAD_DIM / 2 + STEP <=
			      CODEC_SCRATCH_BYTES - sizeof(struct q4_columns),
		      "scratch");
	if (u->codec == CODEC_V4)
		return BY_TYPE(q4_encode_as, is_fp16, false, u, columns, far, scale, dst);
	return BY_TYPE(k4_scales, is_fp16, u, scale, columns) &&
	       BY_TYPE(q4_encode_as, is_fp16, true, u, columns, far, scale, dst);
}

/* The values of a step. v4: its scale is *scale, which moves on. */
MATH_FN void q4_decode_step(bool is_fp16, bool lines, bool k4, const uint8_t *codes, uint32_t i,
			    const struct q4_columns *columns, const uint8_t **scale, uint8_t *dst)
{
	static_assert((int)DECODE_STEP == (int)IMAGE_V4_VALUES, "a scale is a step's");
	if (k4)
		math_k4_decode32(is_fp16, codes, columns, i, dst, lines);
	else
		math_v4_decode32(is_fp16, codes, *(*scale)++, dst, lines);
}

MATH_FN void q4_decode_as(bool is_fp16, bool lines, bool k4, const struct page_tile *u,
			  const struct q4_columns *columns, const uint8_t *scale,
			  const uint8_t *src)
{
	const uint32_t n = u->row_bytes / 2;

	for (uint32_t r = 0; r < u->rows; r++, src += (n + 1) / 2) {
		uint8_t *row = u->base + r * u->stride;
		uint8_t codes[DECODE_STEP / 2] = { 0 };
		uint16_t last[DECODE_STEP];
		uint32_t i = 0;

		prefetch_payload(src, (n + 1) / 2);
		for (; i + DECODE_STEP <= n; i += DECODE_STEP)
			q4_decode_step(is_fp16, lines, k4, src + i / 2, i, columns, &scale,
				       row + 2 * i);
		if (lines || i == n)
			continue;
		memcpy(codes, src + i / 2, (n - i + 1) / 2);
		q4_decode_step(is_fp16, false, k4, codes, i, columns, &scale, (uint8_t *)last);
		memcpy(row + 2 * i, last, 2 * (n - i));
	}
}

static void k4_decode_foreign(const struct page_tile *u, bool is_fp16, const uint8_t *scales,
			      const uint8_t *src)
{
	const uint32_t n = u->row_bytes / 2;

	for (uint32_t r = 0; r < u->rows; r++, src += (n + 1) / 2)
		for (uint32_t i = 0; i < n; i++) {
			const uint16_t v =
				k4_decode(is_fp16,
					  (uint32_t)scales[2 * i] | (uint32_t)scales[2 * i + 1]
									    << 8,
					  scales[2 * n + i], src[i / 2] >> (i % 2 * 4) & Q4_MOST);

			memcpy(u->base + r * u->stride + 2 * i, &v, sizeof(v));
		}
}

/* False: a least value is Inf or NaN. */
static bool k4_decode_columns(bool is_fp16, uint32_t n, const uint8_t *scales,
			      struct q4_columns *ret)
{
	bool legal = true;

	for (uint32_t i = 0; i < n; i += 16) {
		const uint32_t now = n - i < 16 ? n - i : 16;
		uint8_t lo[32] = { 0 }, steps[16] = { 0 };

		memcpy(lo, scales + 2 * i, 2 * now);
		memcpy(steps, scales + 2 * n + i, now);
		legal = math_k4_columns16(is_fp16, lo, steps, i, ret) && legal;
	}
	return legal;
}

static void q4_decode(bool is_fp16, const struct page_tile *u, const uint8_t *scales,
		      const uint8_t *src, uint8_t *scratch)
{
	struct q4_columns *columns = q4_columns_of(scratch);
	const bool lines = tile_is_lines(u);

	if (u->codec == CODEC_K4 && !k4_decode_columns(is_fp16, u->row_bytes / 2, scales, columns))
		k4_decode_foreign(u, is_fp16, scales, src);
	else if (u->codec == CODEC_K4)
		BY_TYPE_AND_LINES(q4_decode_as, is_fp16, lines, true, u, columns, scales, src);
	else
		BY_TYPE_AND_LINES(q4_decode_as, is_fp16, lines, false, u, columns, scales, src);
}
