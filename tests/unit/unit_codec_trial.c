/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_codec_trial.c - goal: a dump gives the same figures in pieces of any size, and a dump that
 * is damaged, cut or of two spaces gives none. Method: images of small pages, through
 * kernels/trial.h.
 */
#include "kernels/trial.h"
#include "tests/lib/lib_pages.h"
#include "tests/lib/test.h"

enum { LAYERS = 2, HEADS = 2, DIM = 32, TOKENS = 16, VALUES = 2 * LAYERS * HEADS * DIM * TOKENS };

static _Alignas(64) uint16_t page[VALUES];
static _Alignas(IMAGE_ALIGN) uint8_t image[64 << 10];
static _Alignas(64) uint8_t scratch[CODEC_SCRATCH_BYTES];
static struct image_shape shape;
static struct trial *trial;

FIXTURE_DO(begin, trial = trial_new(codec_kernels(NULL), UINT32_MAX));
FIXTURE_DO(end, trial_free(trial));
TEST_EACH(begin, end);

/* The image of a page whose values are 1/2 to 2, but for the first. */
static void make(enum image_codec codec, uint16_t first, uint8_t space)
{
	struct page_piece pieces[2 * LAYERS];
	const struct page_layout layout = {
		.geometry = { DTYPE_BF16, LAYERS, HEADS, DIM, DIM, TOKENS, 0, 0, 0 },
		.n_pieces = 2 * LAYERS,
		.pieces = pieces,
	};
	const struct image_identity identity = { .space_id = { space } };

	for (uint32_t i = 0; i < 2 * LAYERS; i++)
		pieces[i] = (struct page_piece){
			.base = (uint8_t *)&page[i * HEADS * TOKENS * DIM],
			.page_stride = sizeof(page),
			.head_stride = TOKENS * DIM * 2,
			.token_stride = DIM * 2,
			.kind = i & 1 ? KIND_V : KIND_K,
			.layer = i / 2,
		};
	for (uint32_t i = 0; i < VALUES; i++)
		page[i] = (uint16_t)(0x3f00 + i * 37 % 256 + (i & 1) * 0x8000);
	page[0] = first;
	assert_int_equal(image_shape(&layout.geometry, codec, codec, &shape, NULL), 0);
	assert_true(shape.image_bytes <= sizeof(image));
	assert_int_equal(codec_encode(codec_kernels(NULL), &layout, 0, codec, codec, &identity,
				      image, scratch),
			 0);
}

static int feed(size_t piece)
{
	int r = 0;

	for (size_t at = 0; at < shape.image_bytes && r == 0; at += piece)
		r = trial_feed(trial, image + at,
			       shape.image_bytes - at < piece ? shape.image_bytes - at : piece);
	return r;
}

static struct trial_result result(enum image_codec codec)
{
	struct trial_result ret;

	assert_int_equal(trial_result(trial, codec, &ret), 0);
	return ret;
}

TEST(pieces_of_any_size_make_the_same_figures)
{
	struct trial_result whole, parts;

	make(CODEC_RAW, 0x3f80, 0);
	assert_int_equal(feed(shape.image_bytes), 0);
	whole = result(CODEC_FP8);
	trial_free(trial);
	trial = trial_new(codec_kernels(NULL), UINT32_MAX);
	for (int i = 0; i < 3; i++)
		assert_int_equal(feed(i == 0 ? 1 : i == 1 ? 127 : 4097), 0);
	parts = result(CODEC_FP8);
	assert_int_equal(parts.blocks, 3);
	assert_int_equal(parts.image_bytes, 3 * whole.image_bytes);
	for (int kind = TRIAL_K; kind <= TRIAL_V; kind++) {
		assert_true(whole.error[kind] > 0.02 && whole.error[kind] < 0.04);
		assert_true(whole.worst[kind] >= whole.error[kind]);
		assert_true(parts.error[kind] > 0.999 * whole.error[kind] &&
			    parts.error[kind] < 1.001 * whole.error[kind]);
	}
	assert_true(whole.error[TRIAL_TYPED] < 0);
}

TEST(codecs_that_lose_no_bit_have_no_error)
{
	make(CODEC_LOSSLESS, 0x3f80, 0);
	assert_int_equal(feed(1000), 0);
	for (int kind = TRIAL_K; kind <= TRIAL_V; kind++) {
		assert_true(result(CODEC_RAW).error[kind] == 0);
		assert_true(result(CODEC_LOSSLESS).error[kind] == 0);
		assert_true(result(CODEC_INT8).error[kind] > 0);
	}
	assert_true(result(CODEC_RAW).image_bytes > result(CODEC_LOSSLESS).image_bytes);
	assert_int_equal(trial_result(trial, CODEC_FP8_NATIVE, &(struct trial_result){ 0 }),
			 -EINVAL);
}

TEST(a_block_that_a_codec_cannot_hold_counts_as_raw)
{
	make(CODEC_RAW, 0x7f80, 0); /* Inf */
	assert_int_equal(feed(4096), 0);
	assert_int_equal(result(CODEC_FP8).raw_blocks, 1);
	assert_int_equal(result(CODEC_FP8).image_bytes, result(CODEC_RAW).image_bytes);
	assert_true(result(CODEC_FP8).error[TRIAL_K] == 0);
}

TEST(a_damaged_byte_ends_it)
{
	make(CODEC_FP8, 0x3f80, 0);
	image[shape.payload_offset + 100] ^= 1;
	assert_int_equal(feed(4096), -EBADMSG);
}

TEST(a_damaged_header_ends_it)
{
	make(CODEC_FP8, 0x3f80, 0);
	image[12] ^= 1; /* heads */
	assert_int_equal(feed(4096), -EBADMSG);
}

TEST(images_of_two_spaces_end_it)
{
	make(CODEC_FP8, 0x3f80, 0);
	assert_int_equal(feed(4096), 0);
	make(CODEC_FP8, 0x3f80, 1);
	assert_int_equal(feed(4096), -EBADMSG);
}

TEST(a_dump_that_ends_within_an_image_is_not_whole)
{
	assert_null(trial_whole(trial));
	make(CODEC_FP8, 0x3f80, 0);
	assert_int_equal(trial_feed(trial, image, shape.image_bytes - 1), 0);
	assert_null(trial_whole(trial));
	assert_int_equal(trial_feed(trial, image + shape.image_bytes - 1, 1), 0);
	assert_int_equal(trial_whole(trial)->codec_k, CODEC_FP8);
	assert_int_equal(trial_feed(trial, image, 100), 0);
	assert_null(trial_whole(trial));
}
