/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref.c - the kernels in plain C: the oracle of every other implementation, and the fallback.
 *
 * Written to be read beside daemon/IMAGE.md: canonical order, one value at a time, no code shared
 * with the fast paths but fp8.h and int8.h. A group takes two passes: amax, then codes. If the page
 * changes between them, values saturate: the image is as wrong as any image of a page that changed
 * under its reader, and memory stays safe. The checksum is of the finished image. Any thread.
 */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#define XXH_INLINE_ALL /* the state lives in the run, which the shared library does not promise */
#include <xxhash.h>

#include "int8.h"
#include "kernels.h"
#include "lossless.h"
#include "q4.h"

/* Where the next bytes of an image go to or come from, and where its packs end at the latest. */
struct image_cursor {
	uint8_t *scales, *payload, *packs_end;
};

/* One group: rows x cols values of the source dtype, row r at base + r * stride. With int8 and k4
 * each column is one, with v4 32 values of each row. */
struct group {
	uint8_t *base;
	uint64_t stride;
	uint32_t rows, cols;
	enum image_codec codec;
	bool ends; /* the last rows of its scales */
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
			*to->payload++ =
				fp8_encode(is_fp16, k, load16(g->base + r * g->stride + 2ull * c));
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
static void copy_rows(uint8_t *base, uint64_t stride, uint32_t rows, uint64_t bytes,
		      struct image_cursor *at, int decode)
{
	for (uint32_t r = 0; r < rows; r++, at->payload += bytes) {
		if (decode)
			memcpy(base + r * stride, at->payload, bytes);
		else
			memcpy(at->payload, base + r * stride, bytes);
	}
}

static int encode_channels(const struct group *g, int is_fp16, struct image_cursor *to)
{
	const uint8_t *scales = to->scales;

	for (uint32_t c = 0; c < g->cols; c++) {
		const struct group channel = {
			.base = g->base + 2ull * c, .stride = g->stride, .rows = g->rows, .cols = 1
		};
		const int k = int8_exponent(is_fp16, group_amax(&channel));

		if (k == FP8_K_NONE)
			return -ERANGE;
		*to->scales++ = (uint8_t)(k + FP8_BIAS);
	}
	for (uint32_t r = 0; r < g->rows; r++)
		for (uint32_t c = 0; c < g->cols; c++)
			*to->payload++ =
				(uint8_t)int8_encode(is_fp16, (int)scales[c] - FP8_BIAS,
						     load16(g->base + r * g->stride + 2ull * c));
	return 0;
}

static void decode_channels(const struct group *g, int is_fp16, struct image_cursor *from)
{
	for (uint32_t r = 0; r < g->rows; r++)
		for (uint32_t c = 0; c < g->cols; c++) {
			const uint16_t v = int8_decode(is_fp16, (int)from->scales[c] - FP8_BIAS,
						       (int8_t)*from->payload++);

			memcpy(g->base + r * g->stride + 2ull * c, &v, sizeof(v));
		}
	from->scales += g->ends ? g->cols : 0;
}

static uint32_t group_value(const struct group *g, uint32_t row, uint32_t col)
{
	return load16(g->base + row * g->stride + 2ull * col);
}

/* Writes the c-th code of a row: two share a byte, the first one its low half. */
static void put_code(uint8_t *row, uint32_t c, uint32_t code)
{
	row[c / 2] = (uint8_t)(c % 2 ? row[c / 2] | code << 4 : code);
}

static uint32_t get_code(const uint8_t *row, uint32_t c)
{
	return row[c / 2] >> (c % 2 * 4) & Q4_MOST;
}

/* The scales of k4: all least values of the columns, then all steps. */
static uint32_t k4_lo(const uint8_t *scales, uint32_t c)
{
	return load16(scales + 2ull * c);
}

static int encode_k4(const struct group *g, int is_fp16, struct image_cursor *to)
{
	uint8_t *steps = to->scales + 2ull * g->cols;

	for (uint32_t c = 0; c < g->cols; c++) {
		uint32_t least = group_value(g, 0, c), most = least;
		uint16_t lo;
		int j;

		for (uint32_t r = 1; r < g->rows; r++) {
			const uint32_t v = group_value(g, r, c);

			least = q4_rank(v) < q4_rank(least) ? v : least;
			most = q4_rank(v) > q4_rank(most) ? v : most;
		}
		lo = (uint16_t)k4_least(is_fp16, least);
		j = k4_step(is_fp16, lo, most);
		if (j == Q4_STEP_NONE)
			return -ERANGE;
		memcpy(to->scales + 2ull * c, &lo, sizeof(lo));
		steps[c] = (uint8_t)j;
	}
	for (uint32_t r = 0; r < g->rows; r++, to->payload += (g->cols + 1) / 2)
		for (uint32_t c = 0; c < g->cols; c++)
			put_code(to->payload, c,
				 k4_encode(is_fp16, k4_lo(to->scales, c), steps[c],
					   group_value(g, r, c)));
	to->scales += IMAGE_K4_SCALES * g->cols;
	return 0;
}

static void decode_k4(const struct group *g, int is_fp16, struct image_cursor *from)
{
	const uint8_t *steps = from->scales + 2ull * g->cols;

	for (uint32_t r = 0; r < g->rows; r++, from->payload += (g->cols + 1) / 2)
		for (uint32_t c = 0; c < g->cols; c++) {
			const uint16_t v = k4_decode(is_fp16, k4_lo(from->scales, c), steps[c],
						     get_code(from->payload, c));

			memcpy(g->base + r * g->stride + 2ull * c, &v, sizeof(v));
		}
	from->scales += g->ends ? IMAGE_K4_SCALES * g->cols : 0;
}

static int encode_v4(const struct group *g, int is_fp16, struct image_cursor *to)
{
	for (uint32_t r = 0; r < g->rows; r++, to->payload += (g->cols + 1) / 2)
		for (uint32_t first = 0; first < g->cols; first += IMAGE_V4_VALUES) {
			const uint32_t left = g->cols - first;
			const struct group part = {
				.base = g->base + r * g->stride + 2ull * first,
				.rows = 1,
				.cols = left < IMAGE_V4_VALUES ? left : IMAGE_V4_VALUES,
			};
			const int j = v4_step(is_fp16, group_amax(&part));

			if (j == Q4_STEP_NONE)
				return -ERANGE;
			*to->scales++ = (uint8_t)j;
			for (uint32_t c = 0; c < part.cols; c++)
				put_code(to->payload, first + c,
					 v4_encode(is_fp16, j, group_value(&part, 0, c)));
		}
	return 0;
}

static void decode_v4(const struct group *g, int is_fp16, struct image_cursor *from)
{
	const uint32_t scales = (g->cols + IMAGE_V4_VALUES - 1) / IMAGE_V4_VALUES;

	for (uint32_t r = 0; r < g->rows; r++) {
		for (uint32_t c = 0; c < g->cols; c++) {
			const uint16_t v = v4_decode(is_fp16, from->scales[c / IMAGE_V4_VALUES],
						     get_code(from->payload, c));

			memcpy(g->base + r * g->stride + 2ull * c, &v, sizeof(v));
		}
		from->scales += scales;
		from->payload += (g->cols + 1) / 2;
	}
}

/* Value i of a pack. Its last value fills its last step up. */
static uint32_t pack_value(const struct group *g, uint32_t i)
{
	const uint32_t n = g->rows * g->cols, at = i < n ? i : n - 1;

	return load16(g->base + at / g->cols * g->stride + 2ull * (at % g->cols));
}

static uint8_t pack_base(const struct group *g, int is_fp16)
{
	const uint32_t steps = (g->rows * g->cols + LOSSLESS_STEP - 1) / LOSSLESS_STEP;
	uint32_t least[LOSSLESS_WINDOWS + 2] = { 0 }, n[257] = { 0 }, values = 0, top = 255;

	for (uint32_t s = 0; s < steps; s += lossless_stride(steps))
		for (uint32_t i = 0; i < LOSSLESS_STEP; i++, values++)
			n[lossless_exponent(is_fp16, pack_value(g, s * LOSSLESS_STEP + i))]++;
	for (uint32_t e = 255; e--;) /* so many have at least this exponent */
		n[e] += n[e + 1];
	while (n[top] < lossless_enough(values))
		top--;
	for (uint32_t i = 0; i < LOSSLESS_WINDOWS + 2; i++)
		least[i] = n[top > i ? top - i : 0];
	return lossless_base(top, least);
}

/* The parts of a pack that lie at fixed places. The far part begins where they end. */
struct pack {
	uint32_t values, steps;
	uint8_t *low, *high, *near, *far;
};

static struct pack pack_at(const struct group *g, int is_fp16, uint8_t *payload)
{
	const uint32_t values = g->rows * g->cols;
	const uint32_t steps = (values + LOSSLESS_STEP - 1) / LOSSLESS_STEP;
	uint8_t *high = payload + (size_t)steps * LOSSLESS_LOW_BYTES;
	uint8_t *near = high + (is_fp16 ? (size_t)steps * LOSSLESS_HIGH_BYTES : 0);

	return (struct pack){ values, steps, payload,
			      high,   near,  near + (size_t)steps * LOSSLESS_NEAR_BYTES };
}

static uint32_t get_bit(const uint8_t *words, uint32_t word, uint32_t bit)
{
	return words[8 * word + bit / 8] >> bit % 8 & 1;
}

static void put_bit(uint8_t *words, uint32_t word, uint32_t bit, uint32_t value)
{
	words[8 * word + bit / 8] |= (uint8_t)(value << bit % 8);
}

/* The word of the far part that has this one of the three bits of its i-th value. */
static uint32_t far_word(uint32_t i, uint32_t bit)
{
	return i / LOSSLESS_STEP * 3 + bit;
}

static uint32_t pack_bits(const struct group *g, int is_fp16, uint32_t base, uint32_t i)
{
	return lossless_bits((base - lossless_exponent(is_fp16, pack_value(g, i))) & 255);
}

/* How many values are not near, and how many of these are beyond. */
static void pack_count(const struct group *g, int is_fp16, uint32_t base, uint32_t steps,
		       uint32_t *ret_far, uint32_t *ret_beyond)
{
	*ret_far = *ret_beyond = 0;
	for (uint32_t i = 0; i < steps * LOSSLESS_STEP; i++) {
		const uint32_t bits = pack_bits(g, is_fp16, base, i);

		*ret_far += (bits & 3) == 3;
		*ret_beyond += bits == (3 | LOSSLESS_BEYOND << 2);
	}
}

static int encode_pack(const struct group *g, int is_fp16, struct image_cursor *to)
{
	const uint8_t base = pack_base(g, is_fp16);
	const struct pack p = pack_at(g, is_fp16, to->payload);
	uint32_t far, beyond, bytes;
	uint8_t *last;

	pack_count(g, is_fp16, base, p.steps, &far, &beyond);
	bytes = (far + LOSSLESS_STEP - 1) / LOSSLESS_STEP * LOSSLESS_FAR_BYTES + beyond;
	to->scales[0] = base;
	to->scales[1] = (uint8_t)bytes;
	to->scales[2] = (uint8_t)(bytes >> 8);
	to->scales += IMAGE_PACK_SCALES;
	last = p.far + bytes - beyond;
	bytes = image_pack_bytes(is_fp16 ? DTYPE_FP16 : DTYPE_BF16, p.values, bytes);
	if (bytes > (size_t)(to->packs_end - to->payload))
		return -ERANGE;
	memset(p.high, 0, bytes - (size_t)(p.high - p.low));
	far = 0;
	for (uint32_t i = 0; i < p.steps * LOSSLESS_STEP; i++) {
		const uint32_t step = i / LOSSLESS_STEP, place = i % LOSSLESS_STEP;
		const uint32_t at = step * LOSSLESS_STEP + lossless_value_at(place);
		const uint32_t rest = lossless_rest(is_fp16, pack_value(g, at));
		const uint32_t bits = pack_bits(g, is_fp16, base, at);

		p.low[i] = (uint8_t)rest;
		for (uint32_t b = 0; b < 3 && is_fp16; b++)
			put_bit(p.high, 3 * step + b, place, rest >> (8 + b) & 1);
		for (uint32_t b = 0; b < 2; b++)
			put_bit(p.near, 2 * step + b, place, bits >> b & 1);
		if ((bits & 3) < 3)
			continue;
		for (uint32_t b = 0; b < 3; b++)
			put_bit(p.far, far_word(far, b), far % LOSSLESS_STEP, bits >> (2 + b) & 1);
		far++;
		if (bits >> 2 == LOSSLESS_BEYOND)
			*last++ = (uint8_t)lossless_exponent(is_fp16, pack_value(g, at));
	}
	to->payload += bytes;
	return 0;
}

/* The three bits of the i-th value that is not near. */
static uint32_t far_bits(const struct pack *p, uint32_t i)
{
	uint32_t bits = 0;

	for (uint32_t b = 0; b < 3; b++)
		bits |= get_bit(p->far, far_word(i, b), i % LOSSLESS_STEP) << b;
	return bits;
}

/* Whether the far part has as many bytes as the bits say. */
static bool pack_holds(const struct pack *p, uint32_t bytes, uint32_t *ret_words)
{
	uint32_t far = 0, beyond = 0;

	for (uint32_t i = 0; i < p->steps * LOSSLESS_STEP; i++)
		far += get_bit(p->near, i / LOSSLESS_STEP * 2, i % LOSSLESS_STEP) &
		       get_bit(p->near, i / LOSSLESS_STEP * 2 + 1, i % LOSSLESS_STEP);
	*ret_words = (far + LOSSLESS_STEP - 1) / LOSSLESS_STEP * LOSSLESS_FAR_BYTES;
	if (*ret_words > bytes)
		return false;
	for (uint32_t i = 0; i < far; i++)
		beyond += far_bits(p, i) == LOSSLESS_BEYOND;
	return *ret_words + beyond == bytes;
}

static int decode_pack(const struct group *g, int is_fp16, struct image_cursor *from)
{
	const struct pack p = pack_at(g, is_fp16, from->payload);
	const uint32_t base = from->scales[0], far_bytes = image_pack_far(from->scales);
	const uint32_t bytes =
		image_pack_bytes(is_fp16 ? DTYPE_FP16 : DTYPE_BF16, p.values, far_bytes);
	uint32_t words, far = 0;
	const uint8_t *last;

	if (bytes > (size_t)(from->packs_end - from->payload) || !pack_holds(&p, far_bytes, &words))
		return -EBADMSG;
	last = p.far + words;
	for (uint32_t i = 0; i < p.steps * LOSSLESS_STEP; i++) {
		const uint32_t step = i / LOSSLESS_STEP, place = i % LOSSLESS_STEP;
		const uint32_t at = step * LOSSLESS_STEP + lossless_value_at(place);
		const uint32_t near = get_bit(p.near, 2 * step, place) |
				      get_bit(p.near, 2 * step + 1, place) << 1;
		const uint32_t three = near == 3 ? far_bits(&p, far++) : 0;
		const uint32_t e = three == LOSSLESS_BEYOND ?
					   *last++ :
					   (base - lossless_distance(near, three)) & 255;
		uint32_t rest = p.low[i];
		uint16_t v;

		for (uint32_t b = 0; b < 3 && is_fp16; b++)
			rest |= get_bit(p.high, 3 * step + b, place) << (8 + b);
		v = lossless_code(is_fp16, e, rest);
		if (at < p.values)
			memcpy(g->base + at / g->cols * g->stride + 2ull * (at % g->cols), &v,
			       sizeof(v));
	}
	from->scales += IMAGE_PACK_SCALES;
	from->payload += bytes;
	return 0;
}

static int encode_coded(const struct group *g, int is_fp16, struct image_cursor *to)
{
	switch (g->codec) {
	case CODEC_LOSSLESS:
		return encode_pack(g, is_fp16, to);
	case CODEC_INT8:
		return encode_channels(g, is_fp16, to);
	case CODEC_K4:
		return encode_k4(g, is_fp16, to);
	case CODEC_V4:
		return encode_v4(g, is_fp16, to);
	default:
		return encode_group(g, is_fp16, to);
	}
}

static int decode_coded(const struct group *g, int is_fp16, struct image_cursor *from)
{
	switch (g->codec) {
	case CODEC_LOSSLESS:
		return decode_pack(g, is_fp16, from);
	case CODEC_INT8:
		decode_channels(g, is_fp16, from);
		return 0;
	case CODEC_K4:
		decode_k4(g, is_fp16, from);
		return 0;
	case CODEC_V4:
		decode_v4(g, is_fp16, from);
		return 0;
	default:
		decode_group(g, is_fp16, from);
		return 0;
	}
}

static int coded_group(const struct group *g, int is_fp16, struct image_cursor *at, int decode)
{
	return decode ? decode_coded(g, is_fp16, at) : encode_coded(g, is_fp16, at);
}

/* Rows of a group; 1: rows are verbatim. Rows of channels are decoded a few at a time. */
static uint32_t group_rows(enum image_codec codec, uint32_t dim, bool decode)
{
	if (codec == CODEC_LOSSLESS)
		return dim ? image_pack_tokens(dim) : 1;
	if (image_codec_channels(codec) && !decode)
		return IMAGE_CHANNEL_TOKENS;
	return image_codec_scales(codec) ? IMAGE_GROUP_TOKENS : 1;
}

/* Where a run is. It goes through the groups, or through a few rows at a time, in canonical order;
 * the checksum of the whole comes last. */
struct ref_run {
	enum { REF_ENCODE, REF_DECODE, REF_SUM, REF_VERIFY } doing;
	const struct page_layout *layout;
	uint64_t page;
	enum image_codec codec_k, codec_v;
	const struct image_identity *identity;
	uint8_t *image;
	struct image_shape shape;
	struct image_cursor at;
	uint32_t piece, head, row; /* the next piece, head, token or row of it */
	uint32_t end;              /* the piece that it stops before */
	uint64_t value;            /* of typed: value; of opaque: byte of the row */
	XXH3_state_t *hash;        /* in the run, aligned */
	uint32_t summed;           /* bytes of payload, then scales */
	uint64_t expected;
};
enum { REF_HASH_AT = 1024, REF_COPY_BYTES = 4096 };
static_assert(sizeof(struct ref_run) <= REF_HASH_AT &&
		      REF_HASH_AT + sizeof(XXH3_state_t) <= CODEC_RUN_BYTES,
	      "codec_run");

static struct ref_run *ref_run_of(struct codec_run *run)
{
	return (struct ref_run *)(void *)run->own;
}

/* The next group of a plane, or row where it is verbatim; *cost: bytes, and pages of rows that are
 * far apart. False: there is none. */
static bool plane(struct ref_run *x, const struct page_piece *p, int *r, uint64_t *cost)
{
	const struct image_geometry *geometry = &x->layout->geometry;
	const uint32_t dim = p->kind == KIND_K ? geometry->head_dim_k : geometry->head_dim_v;
	const enum image_codec codec = p->kind == KIND_K ? x->codec_k : x->codec_v;
	const uint32_t left = geometry->block_tokens - x->row,
		       most = group_rows(codec, dim, x->doing == REF_DECODE);
	const struct group g = {
		.base = p->base + x->page * p->page_stride + x->head * p->head_stride +
			x->row * p->token_stride,
		.stride = p->token_stride,
		.rows = left < most ? left : most,
		.cols = dim,
		.codec = codec,
		.ends = left <= most || (x->row + most) % IMAGE_CHANNEL_TOKENS == 0,
	};

	if (x->head == geometry->kv_heads || dim == 0)
		return false;
	*cost += g.rows * ((uint64_t)dim * x->shape.element_bytes + (g.stride < 4096 ? 0 : 4096));
	if (most > 1)
		*r = coded_group(&g, geometry->dtype == DTYPE_FP16, &x->at, x->doing == REF_DECODE);
	else
		copy_rows(g.base, g.stride, g.rows, (uint64_t)dim * x->shape.element_bytes, &x->at,
			  x->doing == REF_DECODE);
	x->row += g.rows;
	if (x->row == geometry->block_tokens) {
		x->row = 0;
		x->head++;
	}
	return true;
}

static bool typed(struct ref_run *x, const struct page_piece *p, int *r, uint64_t *cost)
{
	const bool lossless = x->codec_k == CODEC_LOSSLESS;
	const uint64_t left = p->length - x->value,
		       most = lossless ? IMAGE_PACK_TYPED : IMAGE_GROUP_TYPED;
	const struct group g = {
		.base = p->base + x->page * p->page_stride + x->value * x->shape.element_bytes,
		.rows = 1,
		.cols = (uint32_t)(left < most ? left : most),
		.codec = lossless ? CODEC_LOSSLESS : CODEC_FP8,
	};

	if (left == 0)
		return false;
	*cost += (uint64_t)g.cols * x->shape.element_bytes;
	if (lossless || image_codec_scales(x->codec_k))
		*r = coded_group(&g, x->layout->geometry.dtype == DTYPE_FP16, &x->at,
				 x->doing == REF_DECODE);
	else
		copy_rows(g.base, 0, 1, (uint64_t)g.cols * x->shape.element_bytes, &x->at,
			  x->doing == REF_DECODE);
	x->value += g.cols;
	return true;
}

static bool opaque(struct ref_run *x, const struct page_piece *p, uint64_t *cost)
{
	const uint32_t rows = p->token_stride ? x->layout->geometry.block_tokens : 1;
	const uint64_t left = p->length - x->value,
		       n = left < REF_COPY_BYTES ? left : REF_COPY_BYTES;

	if (x->row == rows || p->length == 0)
		return false;
	*cost += n + (p->token_stride < 4096 ? 0 : 4096);
	copy_rows(p->base + x->page * p->page_stride + x->row * p->token_stride + x->value, 0, 1, n,
		  &x->at, x->doing == REF_DECODE);
	x->value += n;
	if (x->value == p->length) {
		x->value = 0;
		x->row++;
	}
	return true;
}

/* CODEC_MORE, or 0 when all pieces are done. */
static int walk(struct ref_run *x, uint32_t budget)
{
	uint64_t cost = 0;
	int r = 0;

	while (x->piece < x->end && !r) {
		const struct page_piece *p = &x->layout->pieces[x->piece];
		const bool more = p->kind == KIND_OPAQUE ? opaque(x, p, &cost) :
				  p->kind == KIND_TYPED  ? typed(x, p, &r, &cost) :
							   plane(x, p, &r, &cost);

		if (!more) {
			x->piece++;
			x->head = x->row = 0;
			x->value = 0;
		} else if (cost >= budget) {
			return r ? r : CODEC_MORE;
		}
	}
	return r;
}

/* Hashes the image's bytes as they are now. */
static void sum_start(struct ref_run *x, struct codec_run *run)
{
	x->hash = (XXH3_state_t *)(void *)(run->own + REF_HASH_AT);
	x->summed = 0;
	XXH3_INITSTATE(x->hash);
	(void)XXH3_64bits_reset(x->hash);
}

static int sum(struct ref_run *x, uint32_t budget, uint64_t *ret)
{
	const uint32_t all = x->shape.payload_bytes + x->shape.scale_bytes;

	for (uint32_t n; budget && x->summed < all; budget -= n, x->summed += n) {
		const bool payload = x->summed < x->shape.payload_bytes;
		const uint32_t left = (payload ? x->shape.payload_bytes : all) - x->summed;

		n = left < budget ? left : budget;
		(void)XXH3_64bits_update(x->hash,
					 payload ? x->image + x->shape.payload_offset + x->summed :
						   x->image + sizeof(struct image_header) +
							   x->summed - x->shape.payload_bytes,
					 n);
	}
	if (x->summed < all)
		return CODEC_MORE;
	*ret = XXH3_64bits_digest(x->hash);
	return 0;
}

static void cursor_start(struct ref_run *x)
{
	x->at.scales = x->image + sizeof(struct image_header);
	x->at.payload = x->image + x->shape.payload_offset;
	if (x->codec_k == CODEC_LOSSLESS)
		x->at.packs_end = x->at.payload + x->shape.payload_bytes -
				  x->layout->geometry.opaque_bytes - IMAGE_PACK_SPARE;
	x->end = x->layout->n_pieces;
}

static int ref_encode_start(struct codec_run *run, const struct page_layout *layout, uint64_t page,
			    enum image_codec codec_k, enum image_codec codec_v,
			    const struct image_identity *identity, uint8_t *image)
{
	struct ref_run *x = ref_run_of(run);
	int r;

	*x = (struct ref_run){
		.doing = REF_ENCODE,
		.layout = layout,
		.page = page,
		.codec_k = codec_k,
		.codec_v = codec_v,
		.identity = identity,
		.image = image,
	};
	r = image_shape(&layout->geometry, codec_k, codec_v, &x->shape, NULL);
	if (r)
		return r;
	cursor_start(x);
	memset(x->at.scales + x->shape.scale_bytes, 0,
	       /* the padding */
	       x->shape.payload_offset - sizeof(struct image_header) - x->shape.scale_bytes);
	return 0;
}

static int ref_decode_start(struct codec_run *run, const struct page_layout *layout, uint64_t page,
			    const uint8_t *image)
{
	struct ref_run *x = ref_run_of(run);
	struct image_header header;

	memcpy(&header, image, sizeof(header));
	*x = (struct ref_run){
		.doing = REF_DECODE,
		.layout = layout,
		.page = page,
		.codec_k = header.codec_k,
		/* decode only reads it */
		.codec_v = header.codec_v,
		.image = (uint8_t *)(uintptr_t)image,
	};
	if (image_header_shape(&header, &layout->geometry, &x->shape) ||
	    (header.codec_k == CODEC_LOSSLESS &&
	     !image_packs_fit(&layout->geometry, &x->shape, image + sizeof(header))))
		return -EBADMSG;
	cursor_start(x);
	return 0;
}

static void ref_decode_layers(struct codec_run *run, uint32_t first, uint32_t end)
{
	struct ref_run *x = ref_run_of(run);
	uint32_t scale, payload;

	image_layer_at(&x->layout->geometry, x->codec_k, x->codec_v, first, x->at.scales, &scale,
		       &payload);
	x->at.scales += scale;
	x->at.payload += payload;
	x->piece = page_layer_piece(x->layout, first);
	if (end < x->layout->geometry.layers)
		x->end = page_layer_piece(x->layout, end);
}

static void ref_verify_start(struct codec_run *run, const uint8_t *image,
			     const struct image_shape *shape, uint64_t checksum)
{
	struct ref_run *x = ref_run_of(run);

	*x = (struct ref_run){
		.doing = REF_VERIFY,
		.shape = *shape,
		.image = (uint8_t *)(uintptr_t)image,
		.expected = checksum,
	};
	sum_start(x, run);
}

static void encode_end(struct ref_run *x, uint64_t checksum)
{
	struct image_header *header = (void *)x->image;

	image_header_fill(header, &x->layout->geometry, x->codec_k, x->codec_v, &x->shape,
			  x->identity);
	image_seal(header, checksum);
}

/* A lossless image ends before the most that it may have; zeros follow. */
static void cut(struct ref_run *x)
{
	uint8_t *const payload = x->image + x->shape.payload_offset;

	memset(x->at.payload, 0, (size_t)(payload + x->shape.payload_bytes - x->at.payload));
	x->at.payload += IMAGE_PACK_SPARE;
	image_shape_cut(&x->shape, (uint32_t)(x->at.payload - payload));
}

static int ref_step(struct codec_run *run, uint32_t budget, uint8_t *scratch)
{
	struct ref_run *x = ref_run_of(run);
	uint64_t checksum = 0;
	int r;

	(void)scratch;
	if (x->doing == REF_ENCODE || x->doing == REF_DECODE) {
		r = walk(x, budget);
		if (r || x->doing == REF_DECODE)
			return r;
		if (x->codec_k == CODEC_LOSSLESS)
			cut(x);
		assert(x->at.payload == x->image + x->shape.image_bytes);
		x->doing = REF_SUM;
		sum_start(x, run);
		return CODEC_MORE;
	}
	r = sum(x, budget, &checksum);
	if (r)
		return r;
	if (x->doing == REF_VERIFY)
		return checksum == x->expected ? 0 : -EBADMSG;
	encode_end(x, checksum);
	return 0;
}

static void ref_fence(void)
{
}

static void ref_copy(void *dst, const void *src, size_t n)
{
	memcpy(dst, src, n);
}

const struct codec_kernels codec_ref = {
	.name = "ref",
	.encode_start = ref_encode_start,
	.decode_start = ref_decode_start,
	.decode_layers = ref_decode_layers,
	.verify_start = ref_verify_start,
	.step = ref_step,
	.fence = ref_fence,
	.copy = ref_copy,
	.nibbles_pack = nibbles_pack_ref,
	.nibbles_unpack = nibbles_unpack_ref,
};
