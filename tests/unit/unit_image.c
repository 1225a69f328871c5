/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: image.c gives the sizes and checks that daemon/IMAGE.md states, and refuses everything
 * else. Method: known figures, every single-bit flip of a header, every field changed and sealed
 * again, limits one past.
 */
#include <xxhash.h>

#include "kernels/image.h"
#include "tests/lib/test.h"

static const struct image_geometry llama = {
	/* 2 MiB of BF16: a 1 MiB image */
	.dtype = DTYPE_BF16, .layers = 32,      .kv_heads = 8,
	.head_dim_k = 128,   .head_dim_v = 128, .block_tokens = 16,
};

static const struct image_identity who = { { 1, 2, 3 }, { 4, 5, 6 } };

static struct image_shape shape_of(const struct image_geometry *g, enum image_codec codec)
{
	struct image_shape ret;

	assert_int_equal(image_shape(g, codec, codec, &ret, NULL), 0);
	return ret;
}

static struct image_shape shape, found; /* of a good header; what a check finds in one */
static struct image_header good;

FIXTURE(begin)
{
	shape = shape_of(&llama, CODEC_FP8);
	image_header_fill(&good, &llama, CODEC_FP8, CODEC_FP8, &shape, &who);
	image_seal(&good, 0x1122334455667788u);
	return 0;
}

TEST_EACH(begin, NULL);

static int check(const struct image_header *h)
{
	return image_header_check(h, &llama, &who, &found);
}

TEST(sizes_of_a_1_mib_image)
{
	const struct image_shape s = shape_of(&llama, CODEC_FP8);

	assert_int_equal(s.payload_bytes, 1 << 20);
	assert_int_equal(s.scale_bytes, 512);
	assert_int_equal(s.payload_offset, 4096);
	assert_int_equal(s.image_bytes, 4096 + (1 << 20));
	assert_int_equal(s.packed_bytes, 128 + 512 + (1 << 20));
	assert_int_equal(s.logical_bytes, 2 << 20);
	assert_true(s.packed_bytes <= 0.5006 * s.logical_bytes);
	assert_true(s.image_bytes <= 0.503 * s.logical_bytes);
}

TEST(sizes_of_partial_groups_typed_and_opaque)
{
	const struct image_geometry g = {
		.dtype = DTYPE_FP16,
		.layers = 3,
		.kv_heads = 5,
		.head_dim_k = 7,
		.head_dim_v = 0,
		.block_tokens = 17,
		.typed_segments = 2,
		.typed_values = 1025,
		.opaque_bytes = 11,
	};
	const struct image_shape fp8 = shape_of(&g, CODEC_FP8), raw = shape_of(&g, CODEC_RAW);

	assert_int_equal(fp8.groups, 2);
	assert_int_equal(fp8.scale_bytes, 3 * 5 * 2 + 2 * 2);
	assert_int_equal(fp8.payload_bytes, 3 * 5 * 17 * 7 + 2 * 1025 + 11);
	assert_int_equal(fp8.logical_bytes, 2 * (3 * 5 * 17 * 7 + 2 * 1025) + 11);
	assert_int_equal(raw.scale_bytes, 0);
	assert_int_equal(raw.payload_bytes, raw.logical_bytes);
	assert_int_equal(raw.logical_bytes, fp8.logical_bytes);
}

/* A scale for each channel of 64 tokens; typed values keep fp8's. */
TEST(sizes_of_int8)
{
	const struct image_geometry g = {
		.dtype = DTYPE_BF16,
		.layers = 3,
		.kv_heads = 5,
		.head_dim_k = 7,
		.head_dim_v = 4,
		.block_tokens = 65,
		.typed_segments = 2,
		.typed_values = 1025,
		.opaque_bytes = 11,
	};
	const struct image_shape s = shape_of(&g, CODEC_INT8);
	uint32_t scale, payload;

	assert_int_equal(s.scale_bytes, 3 * 5 * 2 * (7 + 4) + 2 * 2);
	assert_int_equal(s.payload_bytes, 3 * 5 * 65 * (7 + 4) + 2 * 1025 + 11);
	assert_int_equal(s.logical_bytes, shape_of(&g, CODEC_RAW).payload_bytes);
	image_layer_at(&g, CODEC_INT8, CODEC_INT8, 2, NULL, &scale, &payload);
	assert_int_equal(scale, 2 * 5 * 2 * (7 + 4));
	assert_int_equal(payload, 2 * 5 * 65 * (7 + 4));
}

/* A head of 65 tokens is a pack of 64 and one of 1; a typed segment one of 4,096 and one of 64. */
static const struct image_geometry packed = {
	.dtype = DTYPE_BF16,
	.layers = 3,
	.kv_heads = 5,
	.head_dim_k = 64,
	.head_dim_v = 128,
	.block_tokens = 65,
	.typed_segments = 2,
	.typed_values = 4096 + 64,
	.opaque_bytes = 11,
};
enum {
	PACKED_STEPS = 3 * 5 * 65 * (1 + 2) + 2 * 65,
	PACKED_LAYERS = 3 * 5 * 2 * 2 * IMAGE_PACK_SCALES,
	PACKED_LEAST = PACKED_STEPS * 80 + IMAGE_PACK_SPARE + 11,
};

TEST(lossless_has_a_most_and_packs_have_scales)
{
	struct image_geometry fp16 = packed;
	const struct image_shape s = shape_of(&packed, CODEC_LOSSLESS);

	assert_int_equal(s.scale_bytes, PACKED_LAYERS + 2 * 2 * IMAGE_PACK_SCALES);
	/* 92 bytes a step, and packs of one step go up to 96 */
	assert_int_equal(s.payload_bytes,
			 PACKED_STEPS * 92 + 3 * 5 * 4 + 2 * 4 + IMAGE_PACK_SPARE + 11);
	fp16.dtype = DTYPE_FP16;
	assert_int_equal(shape_of(&fp16, CODEC_LOSSLESS).payload_bytes,
			 PACKED_STEPS * 116 + 3 * 5 * 4 + 2 * 4 + IMAGE_PACK_SPARE + 11);
	assert_int_equal(s.logical_bytes, shape_of(&packed, CODEC_RAW).payload_bytes);
}

/* Each far part has 16 bytes. */
TEST(lossless_layers_are_found_by_their_lengths)
{
	uint8_t scales[PACKED_LAYERS + 2 * 2 * IMAGE_PACK_SCALES] = { 0 };
	struct image_shape s = shape_of(&packed, CODEC_LOSSLESS);
	uint32_t scale, payload;

	for (uint32_t i = 0; i < sizeof(scales); i += IMAGE_PACK_SCALES)
		scales[i + 1] = 16;
	image_layer_at(&packed, CODEC_LOSSLESS, CODEC_LOSSLESS, 2, scales, &scale, &payload);
	assert_int_equal(scale, PACKED_LAYERS / 3 * 2);
	assert_int_equal(payload, 2 * 5 * (65 * (1 + 2) * 80 + 4 * 16));
	image_shape_cut(&s, PACKED_LEAST + sizeof(scales) / IMAGE_PACK_SCALES * 16);
	assert_true(image_packs_fit(&packed, &s, scales));
	scales[sizeof(scales) - 2]++;
	assert_false(image_packs_fit(&packed, &s, scales));
}

/* Its header alone says how long it is. */
TEST(lossless_payload_has_limits)
{
	const struct image_shape most = shape_of(&packed, CODEC_LOSSLESS);
	const struct {
		uint32_t bytes;
		int r;
	} cases[] = {
		{ PACKED_LEAST - 1, -EBADMSG },  { PACKED_LEAST, 0 },
		{ most.payload_bytes, 0 },       { most.payload_bytes + 1, -EBADMSG },
		{ UINT32_MAX - 4096, -EBADMSG },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct image_shape s = most, is;
		struct image_header h;

		s.payload_bytes = cases[i].bytes;
		image_header_fill(&h, &packed, CODEC_LOSSLESS, CODEC_LOSSLESS, &s, &who);
		assert_int_equal(image_header_check(&h, &packed, &who, &is), cases[i].r);
		if (cases[i].r)
			continue;
		assert_int_equal(is.payload_bytes, cases[i].bytes);
		assert_int_equal(is.image_bytes, is.payload_offset + cases[i].bytes);
		assert_int_equal(is.packed_bytes, 128 + is.scale_bytes + cases[i].bytes);
	}
}

TEST(lossless_is_of_both_or_of_none)
{
	struct image_shape s;

	assert_int_equal(image_shape(&packed, CODEC_LOSSLESS, CODEC_FP8, &s, NULL), -EINVAL);
	assert_int_equal(image_shape(&packed, CODEC_RAW, CODEC_LOSSLESS, &s, NULL), -EINVAL);
}

TEST(scales_beyond_a_page_move_the_payload)
{
	struct image_geometry g = llama;

	g.head_dim_k = g.head_dim_v = 16;
	g.kv_heads = 62; /* 32 * 2 * 62 = 3968 = 4096 - 128 */
	assert_int_equal(shape_of(&g, CODEC_FP8).payload_offset, 4096);
	g.kv_heads = 63;
	assert_int_equal(shape_of(&g, CODEC_FP8).payload_offset, 8192);
}

static void refuse(struct image_geometry g, enum image_codec codec, int error, const char *field)
{
	const char *named = NULL;

	memset(&shape, 0x5a, sizeof(shape));
	assert_int_equal(image_shape(&g, codec, codec, &shape, &named), error);
	if (field)
		assert_string_equal(named, field);
	assert_int_equal(shape.image_bytes, 0x5a5a5a5a); /* untouched */
}

/* A good geometry with one field (its offset) set to a value. */
static struct image_geometry with(size_t field, uint32_t value)
{
	struct image_geometry g = {
		.dtype = DTYPE_BF16,
		.layers = 2,
		.kv_heads = 2,
		.head_dim_k = 8,
		.head_dim_v = 8,
		.block_tokens = 16,
		.typed_segments = 1,
		.typed_values = 1,
	};

	memcpy((uint8_t *)&g + field, &value, sizeof(value));
	return g;
}

#define AT(field) offsetof(struct image_geometry, field)

TEST(geometry_out_of_limits_is_named)
{
	refuse(with(AT(dtype), 0), CODEC_RAW, -EINVAL, "dtype");
	refuse(with(AT(dtype), 7), CODEC_RAW, -EINVAL, "dtype");
	refuse(with(AT(layers), 0), CODEC_RAW, -EINVAL, "layers");
	refuse(with(AT(layers), 1025), CODEC_RAW, -EINVAL, "layers");
	refuse(with(AT(kv_heads), 0), CODEC_RAW, -EINVAL, "kv_heads");
	refuse(with(AT(kv_heads), 1025), CODEC_RAW, -EINVAL, "kv_heads");
	refuse(with(AT(head_dim_k), 4097), CODEC_RAW, -EINVAL, "head_dim_k");
	refuse(with(AT(head_dim_v), UINT32_MAX), CODEC_RAW, -EINVAL, "head_dim_v");
	refuse(with(AT(block_tokens), 0), CODEC_RAW, -EINVAL, "block_tokens");
	refuse(with(AT(block_tokens), 4097), CODEC_RAW, -EINVAL, "block_tokens");
	refuse(with(AT(typed_segments), 2049), CODEC_RAW, -EINVAL, "typed_segments");
	refuse(with(AT(typed_values), 0), CODEC_RAW, -EINVAL, "typed_values");
	refuse(with(AT(typed_values), UINT32_MAX), CODEC_RAW, -EINVAL, "typed_values");
	refuse(with(AT(opaque_bytes), UINT32_MAX), CODEC_RAW, -EINVAL, "opaque_bytes");
	refuse((struct image_geometry){ .dtype = DTYPE_BF16, .block_tokens = 1 }, CODEC_RAW,
	       -EINVAL, "head_dim_k");
}

TEST(codec_that_does_not_take_the_dtype_is_named)
{
	refuse(with(AT(dtype), DTYPE_FP32), CODEC_FP8, -EINVAL, "codec");
	refuse(with(AT(dtype), DTYPE_INT8), CODEC_FP8, -EINVAL, "codec");
	refuse(with(AT(dtype), DTYPE_BF16), CODEC_FP8_NATIVE, -EINVAL, "codec");
	refuse(with(AT(dtype), DTYPE_FP32), CODEC_LOSSLESS, -EINVAL, "codec");
	refuse(with(AT(dtype), DTYPE_E4M3), CODEC_LOSSLESS, -EINVAL, "codec");
	refuse(with(AT(dtype), DTYPE_BF16), 0, -EINVAL, "codec");
	refuse(with(AT(dtype), DTYPE_FP32), CODEC_INT8, -EINVAL, "codec");
	refuse(with(AT(dtype), DTYPE_INT8), CODEC_INT8, -EINVAL, "codec");
}

/* They would be fp8 under another name. */
TEST(int8_without_planes_is_refused)
{
	const struct image_geometry typed = {
		.dtype = DTYPE_BF16, .block_tokens = 16, .typed_segments = 1, .typed_values = 64
	};

	refuse(typed, CODEC_INT8, -EINVAL, "codec");
	refuse((struct image_geometry){ .dtype = DTYPE_BF16, .block_tokens = 1, .opaque_bytes = 9 },
	       CODEC_INT8, -EINVAL, "codec");
}

TEST(lossless_of_steps_that_are_mostly_empty_is_refused)
{
	struct image_geometry g = packed;

	g.head_dim_k = g.head_dim_v = 1;
	g.block_tokens = 16;
	g.typed_segments = g.typed_values = 0;
	refuse(g, CODEC_LOSSLESS, -EINVAL, "codec");
}

TEST(largest_image_fits_and_one_more_byte_does_not)
{
	struct image_geometry g = { .dtype = DTYPE_INT8,
				    .block_tokens = 1,
				    .opaque_bytes = IMAGE_MAX_BYTES - 4096 };

	assert_int_equal(shape_of(&g, CODEC_RAW).image_bytes, IMAGE_MAX_BYTES);
	g.opaque_bytes++;
	refuse(g, CODEC_RAW, -EOVERFLOW, NULL);
}

TEST(products_do_not_wrap)
{
	const struct image_geometry g = {
		.dtype = DTYPE_FP32,
		.layers = 1024,
		.kv_heads = 1024,
		.head_dim_k = 4096,
		.head_dim_v = 4096,
		.block_tokens = 4096,
		.typed_segments = 2048,
		.typed_values = IMAGE_MAX_BYTES,
	};

	refuse(g, CODEC_RAW, -EOVERFLOW, NULL);
}

TEST(header_passes_its_own_check)
{
	assert_int_equal(check(&good), 0);
	assert_memory_equal(&found, &shape, sizeof(shape));
}

TEST(header_of_the_raw_fallback_passes)
{
	shape = shape_of(&llama, CODEC_RAW);
	image_header_fill(&good, &llama, CODEC_RAW, CODEC_RAW, &shape, &who);
	assert_int_equal(check(&good), 0);
	assert_int_equal(found.payload_bytes, 2 << 20);
}

TEST(every_bit_flip_of_a_header_is_refused)
{
	for (size_t bit = 0; bit < 8 * sizeof(good); bit++) {
		struct image_header h = good;

		((uint8_t *)&h)[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_int_equal(check(&h), -EBADMSG);
	}
}

/* The crc right, the content wrong: only the checksum, which the header cannot judge, may
 * differ. */
TEST(every_field_is_checked_though_sealed)
{
	for (size_t byte = 0; byte < offsetof(struct image_header, header_crc); byte++) {
		struct image_header h = good;

		((uint8_t *)&h)[byte] ^= 0x41;
		if (byte - offsetof(struct image_header, checksum) < sizeof(h.checksum))
			continue;
		image_seal(&h, h.checksum);
		assert_int_equal(check(&h), -EBADMSG);
	}
}

TEST(foreign_identity_is_refused)
{
	struct image_identity other = who;

	other.key[31] ^= 1;
	assert_int_equal(image_header_check(&good, &llama, &other, &found), -EBADMSG);
	other = who;
	other.space_id[0] ^= 1;
	assert_int_equal(image_header_check(&good, &llama, &other, &found), -EBADMSG);
}

TEST(foreign_geometry_is_refused)
{
	struct image_geometry g = llama;

	g.kv_heads = 16; /* same bytes, another shape */
	g.layers = 16;
	assert_int_equal(image_header_check(&good, &g, &who, &found), -EBADMSG);
}

TEST(checksum_is_xxh3_of_payload_then_scales)
{
	const struct image_shape s = shape_of(&llama, CODEC_FP8);
	uint8_t *image = malloc(s.image_bytes), *flat = malloc(s.payload_bytes + s.scale_bytes);

	for (uint32_t i = 0; i < s.image_bytes; i++)
		image[i] = (uint8_t)(i * 2654435761u >> 13);
	memcpy(flat, image + s.payload_offset, s.payload_bytes);
	memcpy(flat + s.payload_bytes, image + 128, s.scale_bytes);
	assert_true(image_checksum(image, &s) ==
		    XXH3_64bits(flat, s.payload_bytes + s.scale_bytes)); /* libxxhash's */
	/* padding is not covered */
	image[128 + s.scale_bytes] ^= 1;
	assert_true(image_checksum(image, &s) ==
		    XXH3_64bits(flat, s.payload_bytes + s.scale_bytes));
	free(image);
	free(flat);
}

TEST(crc32c_known_answers)
{
	uint8_t zeros[32] = { 0 };
	struct image_header h;

	assert_int_equal(image_crc32c("123456789", 9), 0xe3069283);
	assert_int_equal(image_crc32c(zeros, sizeof(zeros)), 0x8a9136aa); /* RFC 3720, B.4 */
	assert_int_equal(image_crc32c("", 0), 0);
	memset(&h, 0x37, sizeof(h));
	assert_int_equal(image_crc32c(&h, 124), image_crc32c_portable(&h, 124));
	assert_int_equal(image_crc32c("123456789", 9), image_crc32c_portable("123456789", 9));
}
