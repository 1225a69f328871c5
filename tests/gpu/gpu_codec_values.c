/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=20 no=thread (it is single-threaded) */
/*
 * Goal: the CUDA kernels make of each of the 65,536 inputs, at each exponent that a group with it
 * can have, the code of ref.c; and of each code at each scale its value.
 * Method: groups of 1,024 values (int8: channels of 64), the first of which gives the group its
 * exponent; the others go through all inputs that it allows, in order, and scattered so that the
 * ways in which chunks are done mix. Each input alone is a group, too: its scale, or its flag. All
 * 256 codes at all 256 scales, foreign ones included. Of k4 and v4 all least values and amaxes,
 * beside inputs that their groups can hold; random ones where there are too many (SEED). Each input
 * comes back as it was from lossless.
 */

#include "kernels/int8.h"
#include "kernels/q4.h"
#include "tests/lib/lib_cuda_codec.h"
#include "tests/lib/test.h"

enum {
	GROUP = IMAGE_GROUP_TYPED,
	GROUPS = 1024,
	VALUES = GROUP * GROUPS,
	CHANNEL = IMAGE_CHANNEL_TOKENS,
	DIM = 128,
	INPUTS = 65536,
	HEADS = 1024,
	LAYERS = 4,
	APART = 24,
};

static const struct rule {
	enum image_codec codec;
	int (*exponent)(int is_fp16, uint32_t amax);
	uint32_t group, limit[2], exponents[2], seen[2];
} fp8 = { CODEC_FP8,   fp8_exponent,       GROUP, { FP8_BF16_LIMIT, FP8_FP16_LIMIT },
	  { 230, 40 }, { 7000000, 800000 } },
  int8 = { CODEC_INT8,  int8_exponent,      CHANNEL, { INT8_BF16_LIMIT, INT8_FP16_LIMIT },
	   { 240, 38 }, { 7000000, 800000 } };

static void typed_pages(struct cuda_bed *b, int is_fp16, uint32_t groups)
{
	const struct pages_named typed = {
		.geometry = { .typed_segments = 1,
			      .typed_values = groups * GROUP,
			      .block_tokens = 1 },
		.order = PAGES_TYPED,
	};

	pages_make(&b->pages, &typed, is_fp16 ? DTYPE_FP16 : DTYPE_BF16, CUDA_BED_DEVICE, 1, 0);
	assert_true(cuda_bed_plan(b, CODEC_FP8, CODEC_FP8));
}

/* Channels of 64 tokens, token by token, VALUES of them. */
static void channel_pages(struct cuda_bed *b, int is_fp16, uint32_t dim)
{
	const struct pages_named channels = {
		.geometry = { .layers = 1,
			      .kv_heads = VALUES / CHANNEL / dim,
			      .head_dim_k = dim,
			      .block_tokens = CHANNEL },
		.order = PAGES_HEAD_MAJOR,
	};

	pages_make(&b->pages, &channels, is_fp16 ? DTYPE_FP16 : DTYPE_BF16, CUDA_BED_DEVICE, 1, 0);
	assert_true(cuda_bed_plan(b, CODEC_INT8, CODEC_INT8));
}

/* Groups as they fill up. */
struct inputs {
	struct cuda_bed *bed;
	const struct rule *rule;
	int is_fp16;
	uint32_t amax, n; /* values so far */
	uint64_t seen;    /* inputs */
};

static void put_value(struct inputs *in, uint32_t code)
{
	const uint32_t group = in->n / in->rule->group, i = in->n % in->rule->group;
	uint16_t *values = (void *)in->bed->memory;

	if (in->rule->codec == CODEC_INT8)
		values[(group / DIM * CHANNEL + i) * DIM + group % DIM] = (uint16_t)code;
	else
		values[in->n] = (uint16_t)code;
	in->n++;
}

static void add(struct inputs *in, uint32_t code)
{
	const uint32_t group = in->rule->group;

	if (in->n % group == 0)
		put_value(in, in->amax);
	put_value(in, code);
	in->seen++;
	if (in->n < VALUES)
		return;
	assert_int_equal(cuda_bed_encode(in->bed), 0);
	in->n = 0;
}

/* The rest of a group has the value that gives the group its exponent. */
static void end_group(struct inputs *in)
{
	while (in->n % in->rule->group)
		add(in, in->amax);
}

static void all_inputs(struct cuda_bed *b, const struct rule *rule, int is_fp16,
		       uint32_t multiplier)
{
	struct inputs in = { .bed = b, .rule = rule, .is_fp16 = is_fp16 };
	const uint32_t limit = rule->limit[is_fp16];
	uint32_t exponents = 0;

	if (rule->codec == CODEC_INT8)
		channel_pages(b, is_fp16, DIM);
	else
		typed_pages(b, is_fp16, GROUPS);
	for (uint32_t amax = 0; amax < limit; amax++) {
		const int k = rule->exponent(is_fp16, amax);

		if (k == FP8_K_NONE || (amax + 1 < limit && rule->exponent(is_fp16, amax + 1) == k))
			continue; /* the largest of each exponent allows the most */
		in.amax = amax;
		for (uint32_t i = 0; i < INPUTS; i++) {
			const uint32_t code = i * multiplier & 0xffff;

			if ((code & 0x7fff) <= amax)
				add(&in, code);
		}
		end_group(&in);
		exponents++;
	}
	for (in.amax = 0; in.n;) /* the last launch */
		add(&in, 0);
	assert_true(exponents > rule->exponents[is_fp16]);
	assert_true(in.seen > rule->seen[is_fp16]);
}

TEST_DO(every_input_in_order, all_inputs(*state, &fp8, 0, 1); all_inputs(*state, &fp8, 1, 1));
TEST_DO(every_input_scattered, all_inputs(*state, &fp8, 0, 40503);
	all_inputs(*state, &fp8, 1, 40503));
TEST_DO(every_input_of_a_channel, all_inputs(*state, &int8, 0, 1); all_inputs(*state, &int8, 1, 1));
TEST_DO(every_input_of_a_channel_scattered, all_inputs(*state, &int8, 0, 40503);
	all_inputs(*state, &int8, 1, 40503));

/* Groups of one value, LAYERS * HEADS of them from `first` on; without values that the codec cannot
 * hold. A head has as many groups as it can: it is a tile, which costs a team's turn. */
static void alone(struct cuda_bed *b, const struct rule *rule, int is_fp16, uint32_t first)
{
	const uint32_t dim = rule->codec == CODEC_INT8 ? DIM : 1;
	const struct pages_named one = {
		.geometry = { .layers = LAYERS,
			      .kv_heads = HEADS / dim,
			      .head_dim_k = dim,
			      .block_tokens = 1 },
		.order = PAGES_TOKEN_MAJOR,
	};
	uint16_t *values = (void *)b->memory;

	pages_make(&b->pages, &one, is_fp16 ? DTYPE_FP16 : DTYPE_BF16, CUDA_BED_DEVICE, 1, 0);
	assert_true(cuda_bed_plan(b, rule->codec, rule->codec));
	for (uint32_t i = 0; i < LAYERS * HEADS; i++) {
		const uint32_t code = first + i;

		values[i] =
			(uint16_t)(rule->exponent(is_fp16, code & 0x7fff) == FP8_K_NONE ? 0 : code);
	}
	assert_int_equal(cuda_bed_encode(b), 0);
}

static void all_alone(struct cuda_bed *b, const struct rule *rule)
{
	for (int h = 0; h < 2; h++)
		for (uint32_t first = 0; first < INPUTS; first += LAYERS * HEADS)
			alone(b, rule, h, first);
}

TEST_DO(every_input_alone, all_alone(*state, &fp8));
TEST_DO(every_input_alone_in_a_channel, all_alone(*state, &int8));

static void all_that_do_not_fit(struct cuda_bed *b, const struct rule *rule)
{
	const struct pages_named one = {
		.geometry = { .layers = 1,
			      .kv_heads = CUDA_TASKS,
			      .head_dim_k = 1,
			      .block_tokens = 1 },
		.order = PAGES_TOKEN_MAJOR,
	};
	uint16_t *values = (void *)b->memory;

	for (int h = 0; h < 2; h++) {
		uint32_t n = 0;

		pages_make(&b->pages, &one, h ? DTYPE_FP16 : DTYPE_BF16, CUDA_BED_DEVICE, 1, 0);
		assert_true(cuda_bed_plan(b, rule->codec, rule->codec));
		for (uint32_t code = 0; code < INPUTS; code++) {
			if (rule->exponent(h, code & 0x7fff) != FP8_K_NONE)
				continue;
			values[n++] = (uint16_t)code;
			if (n == CUDA_TASKS) {
				cuda_bed_flags(b, n);
				n = 0;
			}
		}
		memset(values + n, 0, 2 * (CUDA_TASKS - n));
		cuda_bed_flags(b, n);
	}
}

TEST_DO(every_input_that_fp8_cannot_hold, all_that_do_not_fit(*state, &fp8));
TEST_DO(every_input_that_int8_cannot_hold, all_that_do_not_fit(*state, &int8));

/* Four heads of 256 channels: each has a scale of its own, in order and scattered, and 64 codes a
 * head. */
TEST(every_code_of_a_channel_at_every_scale)
{
	struct cuda_bed *b = *state;

	for (uint32_t i = 0; i < 4; i++) {
		const uint32_t multiplier = i / 2 ? 77 : 1;

		channel_pages(b, i % 2, 256);
		memset(b->image, 0, b->shape.image_bytes);
		image_header_fill((void *)b->image, &b->pages.layout.geometry, CODEC_INT8,
				  CODEC_INT8, &b->shape, &(struct image_identity){ 0 });
		for (uint32_t n = 0; n < b->shape.scale_bytes; n++)
			b->image[sizeof(struct image_header) + n] = (uint8_t)(n * multiplier);
		for (uint32_t n = 0; n < b->shape.payload_bytes; n++)
			b->image[b->shape.payload_offset + n] = (uint8_t)(n / 256 * 13);
		cuda_bed_decode(b);
	}
}

TEST(every_code_at_every_scale)
{
	struct cuda_bed *b = *state;

	for (int h = 0; h < 2; h++) {
		typed_pages(b, h, 256);
		memset(b->image, 0, b->shape.image_bytes);
		image_header_fill((void *)b->image, &b->pages.layout.geometry, CODEC_FP8, CODEC_FP8,
				  &b->shape, &(struct image_identity){ 0 });
		for (uint32_t s = 0; s < 256; s++) {
			uint8_t *codes = b->image + b->shape.payload_offset + s * GROUP;

			b->image[sizeof(struct image_header) + s] = (uint8_t)s;
			for (uint32_t i = 0; i < GROUP; i++) /* four orders of all codes */
				codes[i] = (uint8_t)(i * (i < 256 ? 1 :
							  i < 512 ? 77 :
							  i < 768 ? 13 :
								    201));
		}
		cuda_bed_decode(b);
	}
}

/* --- k4 and v4 --- */

/* A head of 64 tokens, all of them K or V. dim 1,024: whole chunks, aligned. 1,021: neither. */
static void four_bit_pages(struct cuda_bed *b, enum image_codec codec, int is_fp16, uint32_t dim)
{
	const struct pages_named one = {
		.geometry = { .layers = 1,
			      .kv_heads = 1,
			      .head_dim_k = codec == CODEC_K4 ? dim : 0,
			      .head_dim_v = codec == CODEC_K4 ? 0 : dim,
			      .block_tokens = CHANNEL },
		.order = PAGES_HEAD_MAJOR,
	};

	pages_make(&b->pages, &one, is_fp16 ? DTYPE_FP16 : DTYPE_BF16, CUDA_BED_DEVICE, 1, 0);
	assert_true(cuda_bed_plan(b, CODEC_K4, CODEC_V4));
}

static const uint32_t dims[] = { 1024, 1021 };

/* All inputs, where a group can hold them: beside every 16th amax, at any place of the group. */
static void v4_inputs(struct cuda_bed *b, int is_fp16, uint32_t dim)
{
	uint16_t *values = (void *)b->memory;
	uint32_t v = 0;

	four_bit_pages(b, CODEC_V4, is_fp16, dim);
	for (uint32_t amax = 0; v4_step(is_fp16, amax) != Q4_STEP_NONE; amax++) {
		if (v4_step(is_fp16, amax) == v4_step(is_fp16, amax + 1) && amax % 256)
			continue;
		if (v4_step(is_fp16, amax) % 4 && amax % 256)
			continue;
		for (uint32_t i = 0; i < CHANNEL * dim; i++, v += 40503) {
			const bool top = i % dim % IMAGE_V4_VALUES == i / dim % 29 % (dim % 32 + 1);

			values[i] =
				(uint16_t)(top || (v & 0x7fff) > amax ? amax | (v & 0x8000) : v);
		}
		assert_int_equal(cuda_bed_encode(b), 0);
	}
}

TEST_DO(every_input_of_v4, v4_inputs(*state, 0, dims[0]); v4_inputs(*state, 1, dims[0]));
TEST_DO(every_input_of_v4_not_aligned, v4_inputs(*state, 0, dims[1]);
	v4_inputs(*state, 1, dims[1]));

/* All amaxes, those that v4 cannot hold left out, a group each. */
static void v4_amaxes(struct cuda_bed *b, int is_fp16, uint32_t dim)
{
	uint16_t *values = (void *)b->memory;
	uint32_t amax = 0;

	four_bit_pages(b, CODEC_V4, is_fp16, dim);
	while (amax < 0x8000) {
		memset(values, 0, 2ull * CHANNEL * dim);
		for (uint32_t i = 0; i < CHANNEL * dim; i++)
			if (i % dim % IMAGE_V4_VALUES == 0 && amax++ < 0x8000 &&
			    v4_step(is_fp16, amax) != Q4_STEP_NONE)
				values[i + amax % (dim - i % dim < 32 ? dim - i % dim : 32)] =
					(uint16_t)amax;
		assert_int_equal(cuda_bed_encode(b), 0);
	}
}

TEST_DO(every_amax_of_v4, for (int h = 0; h < 4; h++) v4_amaxes(*state, h / 2, dims[h % 2]));

/* The code that is so many ranks above, at most the largest finite one. */
static uint32_t above(int is_fp16, uint32_t code, uint32_t n)
{
	const int most = is_fp16 ? 0x7bff : 0x7f7f, rank = q4_rank(code) + (int)n;

	return (uint32_t)q4_rank((uint32_t)(rank > most ? most : rank) & 0xffff) & 0xffff;
}

/* Channels with each code as their least value, and up to 65,536 ranks to the largest. */
static void k4_inputs(struct cuda_bed *b, int is_fp16, uint32_t dim)
{
	uint16_t *values = (void *)b->memory;

	four_bit_pages(b, CODEC_K4, is_fp16, dim);
	for (uint32_t round = 0; round < 65536; round += dim) {
		for (uint32_t c = 0; c < dim; c++) {
			uint32_t lo = (round + c) & 0xffff,
				 range = 65535u >> random_below(&b->random, 17),
				 least = random_below(&b->random, CHANNEL),
				 largest = least + 1 + random_below(&b->random, CHANNEL - 1);

			if ((lo & 0x7fff) >= fp8_source(is_fp16).inf)
				lo = 0;
			while (range && k4_step(is_fp16, k4_least(is_fp16, lo),
						above(is_fp16, lo, range)) == Q4_STEP_NONE)
				range /= 2;
			if (k4_step(is_fp16, k4_least(is_fp16, lo), lo) == Q4_STEP_NONE)
				lo = range = 0;
			for (uint32_t r = 0; r < CHANNEL; r++)
				values[r * dim + c] =
					(uint16_t)above(is_fp16, lo,
							random_below(&b->random, range + 1));
			values[least * dim + c] = (uint16_t)lo;
			values[largest % CHANNEL * dim + c] = (uint16_t)above(is_fp16, lo, range);
		}
		assert_int_equal(cuda_bed_encode(b), 0);
	}
}

TEST_DO(every_least_value_of_k4, for (int h = 0; h < 4; h++) k4_inputs(*state, h / 2, dims[h % 2]));

/* One input that four bits cannot hold, at places in turn: `step` is prime to a row, a chunk and
 * the kinds of input. */
static void four_bits_refuse(struct cuda_bed *b, enum image_codec codec, uint32_t dim,
			     uint32_t step)
{
	static const uint32_t bad[2][3] = { { 0x7f80, 0xffff, 0x4600 },
					    { 0x7c00, 0xfe00, 0x7000 } };
	uint16_t *values = (void *)b->memory;

	b->max_blocks = 1; /* there is one tile */
	for (uint32_t at = 0; at < CHANNEL * dim; at += step) {
		const int h = at % 2;

		four_bit_pages(b, codec, h, dim);
		memset(values, 0, 2ull * CHANNEL * dim);
		values[at] = (uint16_t)bad[h][at / 2 % 3];
		cuda_bed_flags(b, 1);
	}
}

TEST_DO(four_bits_refuse_what_ref_refuses, four_bits_refuse(*state, CODEC_K4, 1021, 307);
	four_bits_refuse(*state, CODEC_K4, 64, 61); four_bits_refuse(*state, CODEC_V4, 1021, 307);
	four_bits_refuse(*state, CODEC_V4, 40, 61));

/* `lo` counts through all codes, also those that are no numbers, steps through all bytes. */
static void four_bits_decode(struct cuda_bed *b, enum image_codec codec, int is_fp16, uint32_t dim)
{
	const uint32_t rounds = codec == CODEC_K4 ? 65536 / dim + 1 : 4;

	four_bit_pages(b, codec, is_fp16, dim);
	memset(b->image, 0, b->shape.image_bytes);
	image_header_fill((void *)b->image, &b->pages.layout.geometry, CODEC_K4, CODEC_V4,
			  &b->shape, &(struct image_identity){ 0 });
	for (uint32_t round = 0; round < rounds; round++) {
		uint8_t *scales = b->image + sizeof(struct image_header);

		for (uint32_t i = 0; i < b->shape.scale_bytes; i++)
			scales[i] = (uint8_t)(i * (2 * round + 1) + i / 256 + round);
		for (uint32_t c = 0; c < dim && codec == CODEC_K4; c++) {
			scales[2 * c] = (uint8_t)(round * dim + c);
			scales[2 * c + 1] = (uint8_t)((round * dim + c) >> 8);
		}
		for (uint32_t i = 0; i < b->shape.payload_bytes; i++)
			b->image[b->shape.payload_offset + i] = (uint8_t)(i / 5 + i / dim * 19);
		cuda_bed_decode(b);
	}
}

TEST_DO(every_scale_of_k4,
	for (int h = 0; h < 4; h++) four_bits_decode(*state, CODEC_K4, h / 2, dims[h % 2]));
TEST_DO(every_scale_of_v4,
	for (int h = 0; h < 4; h++) four_bits_decode(*state, CODEC_V4, h / 2, dims[h % 2]));
/* Each input among values whose exponents are near, one in 24: mostly an outlier. */
static void lossless_inputs(struct cuda_bed *b, int is_fp16, uint32_t multiplier)
{
	const struct pages_named packs = {
		.geometry = { .layers = 1,
			      .kv_heads = INPUTS * APART / IMAGE_PACK_TOKENS / DIM,
			      .head_dim_k = DIM,
			      .block_tokens = IMAGE_PACK_TOKENS },
		.order = PAGES_HEAD_MAJOR,
	};
	const uint32_t one = is_fp16 ? 0x3c00 : 0x3f80;
	uint16_t *values = (void *)b->memory;

	pages_make(&b->pages, &packs, is_fp16 ? DTYPE_FP16 : DTYPE_BF16, CUDA_BED_DEVICE, 1, 0);
	assert_true(cuda_bed_plan(b, CODEC_LOSSLESS, CODEC_LOSSLESS));
	for (uint32_t i = 0; i < INPUTS * APART; i++)
		values[i] = (uint16_t)(i % APART == i / APART % APART ? i / APART * multiplier :
									one + i % 97);
	assert_int_equal(cuda_bed_encode(b), 0);
	cuda_bed_decode(b);
	for (uint32_t i = 0; i < INPUTS * APART; i++) /* NaN payloads, infinities, denormals, -0 */
		assert_int_equal(values[i], i % APART == i / APART % APART ?
						    i / APART * multiplier & 0xffff :
						    one + i % 97);
}

TEST_DO(every_input_of_a_pack, lossless_inputs(*state, 0, 1); lossless_inputs(*state, 1, 1));
TEST_DO(every_input_of_a_pack_scattered, lossless_inputs(*state, 0, 40503);
	lossless_inputs(*state, 1, 40503));

TEST_GROUP(cuda_bed_begin, cuda_bed_end);
