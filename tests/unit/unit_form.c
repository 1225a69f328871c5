/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: the coded form of an image gives every byte back, and bytes that are no form of it are
 * refused, with nothing written but scales and payload. Method: codes by chance, skewed as those of
 * KV or not at all, in every implementation beside nibbles.c; images of several geometries, packed
 * and unpacked in steps and in pieces by chance, between bytes that must stay as they are; forms
 * with flipped bits and lengths that lie. Seed printed; SEED=n repeats.
 */
#include "kernels/form.h"
#include "tests/lib/lib_pages.h"
#include "tests/lib/test.h"

enum { ROOM = 1 << 20, FORM_ROOM = ROOM + FORM_SPARE, ROUNDS = 300, FILLER = 0xa5 };

static struct bed {
	struct random random;
	struct image_geometry geometry;
	struct image_shape shape;
	_Alignas(4096) uint8_t image[ROOM], other[ROOM];
	uint8_t form[FORM_ROOM], damaged[FORM_ROOM];
	uint32_t n; /* bytes of the form */
} b;

FIXTURE_DO(begin, b.random = random_seeded("unit_form"));
TEST_EACH(begin, NULL);

/* A code whose nibble has rank r about 2^(r / 2) times as seldom as the first; noise: any code. */
static uint8_t code(bool noise)
{
	const uint64_t x = random_next(&b.random);
	const uint32_t rank = (uint32_t)__builtin_ctzll(x >> 16 | 1ull << 40);

	if (noise)
		return (uint8_t)x;
	return (uint8_t)((x & 0x87) | ((13 - (2 * rank + (x >> 8 & 1)) % 16) & 15) << 3);
}

/* --- nibbles --- */

static void check_nibbles(const struct codec_kernels *k, const uint8_t *codes, uint32_t n)
{
	static uint8_t want[NIBBLES_MOST_BYTES], have[NIBBLES_MOST_BYTES + NIBBLES_SPARE],
		back[NIBBLES_MOST + 1];
	const uint32_t bytes = nibbles_pack_ref(codes, n, want);

	assert_true(bytes <= NIBBLES_MOST_BYTES);
	assert_int_equal(k->nibbles_pack(codes, n, have), bytes);
	assert_memory_equal(have, want, bytes);
	back[n] = FILLER;
	assert_int_equal(k->nibbles_unpack(have, bytes, n, back), 0);
	assert_memory_equal(back, codes, n);
	assert_int_equal(back[n], FILLER);
	assert_int_equal(k->nibbles_unpack(have, bytes - 1, n, back), -EBADMSG);
	assert_int_equal(k->nibbles_unpack(have, bytes + 1, n, back), -EBADMSG);
}

static void check_all_nibbles(const struct codec_kernels *k)
{
	static uint8_t codes[NIBBLES_MOST];

	for (uint32_t round = 0; round < ROUNDS; round++) {
		const uint32_t n =
			NIBBLES_STEP * (1 + random_below(&b.random, NIBBLES_MOST / NIBBLES_STEP));

		for (uint32_t i = 0; i < n; i++)
			codes[i] = code(round % 3 == 0);
		check_nibbles(k, codes, n);
	}
	for (uint32_t c = 0; c < 256; c++) { /* one code among others, all of one code */
		memset(codes, (int)c, NIBBLES_MOST);
		check_nibbles(k, codes, NIBBLES_MOST);
		for (uint32_t i = 0; i < 4096; i++)
			codes[i] = i % 7 ? (uint8_t)(0x38 + i % 3 * 8) : (uint8_t)c;
		check_nibbles(k, codes, 4096);
	}
}

TEST_DO(codes_come_back_from_ref, check_all_nibbles(&codec_ref));
TEST_FAST(codes_come_back_as_from_ref)
{
	check_all_nibbles(codec_or_skip(*state));
}

TEST(codes_as_those_of_kv_become_fewer_bytes)
{
	static uint8_t codes[NIBBLES_MOST], to[NIBBLES_MOST_BYTES];

	for (uint32_t i = 0; i < NIBBLES_MOST; i++)
		codes[i] = code(false);
	assert_true(nibbles_pack_ref(codes, NIBBLES_MOST, to) < NIBBLES_MOST * 0.92);
}

/* Bits of table and rest may be any; those that say lengths are found. */
static void check_lies(const struct codec_kernels *k)
{
	enum { N = 1024, FIXED = NIBBLES_TABLE_BYTES + N / NIBBLES_STEP * NIBBLES_REST_BYTES };
	static uint8_t codes[N], to[NIBBLES_MOST_BYTES + NIBBLES_SPARE], back[N + 64], ref[N + 64];

	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint32_t bytes, bit;
		int r;

		for (uint32_t i = 0; i < N; i++)
			codes[i] = code(round % 3 == 0);
		bytes = nibbles_pack_ref(codes, N, to);
		bit = 8 * FIXED + random_below(&b.random, 8 * (bytes - FIXED));
		to[bit / 8] ^= (uint8_t)(1 << bit % 8);
		memset(back, FILLER, sizeof(back));
		memset(ref, FILLER, sizeof(ref));
		r = nibbles_unpack_ref(to, bytes, N, ref);
		assert_int_equal(k->nibbles_unpack(to, bytes, N, back), r);
		assert_memory_equal(back, ref, sizeof(ref));
		if (r)
			assert_int_equal(back[0], FILLER);
	}
}

TEST_DO(bits_that_lie_are_refused_by_ref, check_lies(&codec_ref));
TEST_FAST(bits_that_lie_end_as_with_ref)
{
	check_lies(codec_or_skip(*state));
}

/* --- images --- */

static const struct image_geometry geometries[] = {
	{ DTYPE_BF16, 2, 3, 64, 64, 64, 0, 0, 0 },
	{ DTYPE_FP16, 3, 2, 80, 0, 16, 0, 0, 1000 },
	{ DTYPE_BF16, 1, 1, 31, 33, 5, 2, 3000, 70000 },
	{ DTYPE_BF16, 0, 0, 0, 0, 16, 3, 5000, 0 },
	{ DTYPE_E4M3, 2, 4, 128, 128, 16, 0, 0, 0 },
	{ DTYPE_FP32, 2, 2, 64, 64, 16, 0, 0, 100 },
	{ DTYPE_BF16, 0, 0, 0, 0, 16, 0, 0, 200000 },
};
enum { GEOMETRIES = sizeof(geometries) / sizeof(geometries[0]) };

/* An image of codes as those of KV, and of opaque bytes that repeat themselves. */
static void image_make(uint32_t which, enum image_codec codec, bool noise)
{
	const struct image_identity who = { .key = { 1 } };
	uint32_t plain;

	b.geometry = geometries[which];
	assert_int_equal(image_shape(&b.geometry, codec, codec, &b.shape, NULL), 0);
	memset(b.image, FILLER, sizeof(b.image));
	image_header_fill((struct image_header *)(void *)b.image, &b.geometry, codec, codec,
			  &b.shape, &who);
	plain = b.shape.payload_bytes - b.geometry.opaque_bytes;
	for (uint32_t i = 0; i < b.shape.scale_bytes; i++)
		b.image[sizeof(struct image_header) + i] = (uint8_t)random_next(&b.random);
	for (uint32_t i = 0; i < b.shape.payload_bytes; i++)
		b.image[b.shape.payload_offset + i] =
			noise || i < plain ? code(noise) : (uint8_t)(i % 100);
}

static enum image_codec codec_of(uint32_t which)
{
	switch (geometries[which].dtype) {
	case DTYPE_BF16:
	case DTYPE_FP16:
		return CODEC_FP8;
	case DTYPE_E4M3:
		return CODEC_FP8_NATIVE;
	default:
		return CODEC_RAW;
	}
}

static int pack(const struct codec_kernels *k)
{
	const uint32_t most = form_most(&b.shape);
	struct form_pack p;
	int r;

	memset(b.form + most + FORM_SPARE, FILLER, sizeof(b.form) - most - FORM_SPARE);
	form_pack_start(&p, k, &b.geometry, &b.shape, b.image, b.form);
	do
		r = form_pack_step(&p, 1 + random_below(&b.random, 100000));
	while (r == CODEC_MORE);
	b.n = p.n;
	assert_true(p.n <= most);
	for (size_t i = most + FORM_SPARE; i < sizeof(b.form); i++)
		assert_int_equal(b.form[i], FILLER);
	return r;
}

/* Unpacks n bytes in pieces into `other`. 0: all of the image is there, and no byte after it. */
static int unpack(const struct codec_kernels *k, const uint8_t *form, uint32_t n)
{
	static uint8_t stage[FORM_CHUNK_MOST + 4096 + FORM_SPARE];
	struct form_unpack u;
	uint32_t have = 0, taken = 0;
	size_t used;

	memset(b.other, FILLER, sizeof(b.other));
	memcpy(b.other, b.image, sizeof(struct image_header));
	form_unpack_start(&u, k, &b.shape, b.other);
	while (taken < n) {
		uint32_t some = 1 + random_below(&b.random, 4096);

		some = some < n - taken ? some : n - taken;
		memcpy(stage + have, form + taken, some);
		have += some;
		taken += some;
		if (form_unpack_some(&u, stage, have, &used))
			return -EBADMSG;
		assert_true(used <= have);
		have -= (uint32_t)used;
		memmove(stage, stage + used, have);
		assert_true(have < FORM_CHUNK_MOST);
	}
	return have == 0 && form_unpack_whole(&u) ? 0 : -EBADMSG;
}

/* Header, gap, and what lies behind the image. */
static void check_rest_untouched(void)
{
	const uint32_t scales_end = sizeof(struct image_header) + b.shape.scale_bytes;

	assert_memory_equal(b.other, b.image, sizeof(struct image_header));
	for (uint32_t i = scales_end; i < b.shape.payload_offset; i++)
		assert_int_equal(b.other[i], FILLER);
	for (uint32_t i = b.shape.image_bytes; i < ROOM; i++)
		assert_int_equal(b.other[i], FILLER);
}

static void check_images(const struct codec_kernels *k)
{
	for (uint32_t g = 0; g < GEOMETRIES; g++) {
		image_make(g, codec_of(g), false);
		if (geometries[g].dtype == DTYPE_FP32) {
			assert_int_equal(pack(k), -E2BIG);
			continue;
		}
		assert_int_equal(pack(k), 0);
		assert_int_equal(unpack(k, b.form, b.n), 0);
		assert_memory_equal(b.other, b.image, ROOM);
		assert_int_equal(unpack(k, b.form, b.n - 1), -EBADMSG);
		b.form[b.n] = 0;
		assert_int_equal(unpack(k, b.form, b.n + 1), -EBADMSG);
		check_rest_untouched();
	}
}

TEST_DO(images_come_back_from_ref, check_images(&codec_ref));
TEST_FAST(images_come_back)
{
	check_images(codec_or_skip(*state));
}

TEST(noise_is_not_worth_it)
{
	for (uint32_t g = 0; g < GEOMETRIES; g++) {
		image_make(g, codec_of(g), true);
		assert_int_equal(pack(codec_kernels(NULL)), -E2BIG);
	}
}

TEST(opaque_bytes_that_repeat_take_few)
{
	image_make(GEOMETRIES - 1, CODEC_RAW, false);
	assert_int_equal(pack(codec_kernels(NULL)), 0);
	assert_true(b.n < b.shape.payload_bytes / 20);
}

static int unpack_with(uint32_t at, uint8_t byte)
{
	memcpy(b.damaged, b.form, b.n + FORM_SPARE);
	b.damaged[at] = byte;
	return unpack(codec_kernels(NULL), b.damaged, b.n);
}

/* The first chunk is of 48 scales, verbatim. */
TEST(heads_that_lie_are_refused)
{
	image_make(0, CODEC_FP8, false);
	assert_int_equal(b.shape.scale_bytes, 48);
	assert_int_equal(pack(codec_kernels(NULL)), 0);
	assert_int_equal(b.form[0], 0);
	assert_int_equal(unpack_with(0, 0), 0);
	assert_int_equal(unpack_with(0, 3), -EBADMSG); /* a method */
	assert_int_equal(unpack_with(1, 1), -EBADMSG); /* zeros */
	assert_int_equal(unpack_with(3, 1), -EBADMSG);
	assert_int_equal(unpack_with(4, 46), -EBADMSG); /* fewer bytes than follow */
	assert_int_equal(unpack_with(4, 48), -EBADMSG); /* beyond the scales */
	assert_int_equal(unpack_with(5, 1), -EBADMSG);
	assert_int_equal(unpack_with(6, 46), -EBADMSG);
	assert_int_equal(unpack_with(7, 1), -EBADMSG);
	assert_int_equal(unpack_with(0, 2), -EBADMSG); /* no LZ4 block */
}

/* It says truly how long it is, and would become the scales and a byte more. */
TEST(a_chunk_of_scales_and_payload_is_refused)
{
	image_make(0, CODEC_FP8, false);
	assert_int_equal(pack(codec_kernels(NULL)), 0);
	memcpy(b.damaged, b.form, b.n);
	b.damaged[4] = b.damaged[6] = (uint8_t)b.shape.scale_bytes; /* less 1 */
	assert_int_equal(unpack(codec_kernels(NULL), b.damaged, b.n), -EBADMSG);
	check_rest_untouched();
}

TEST(damage_ends_in_a_refusal_or_in_the_image_alone)
{
	image_make(2, CODEC_FP8, false);
	assert_int_equal(pack(codec_kernels(NULL)), 0);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		memcpy(b.damaged, b.form, b.n + FORM_SPARE);
		for (uint32_t i = random_below(&b.random, 4) + 1; i > 0; i--)
			b.damaged[random_below(&b.random, round % 2 ? b.n : 2000)] ^=
				(uint8_t)(1 << random_below(&b.random, 8));
		(void)unpack(codec_kernels(NULL), b.damaged, b.n);
		check_rest_untouched();
	}
}
