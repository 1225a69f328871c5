/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: an image becomes, bit by bit, what the encoder makes of its decoded values, under the
 * header of the same block; a damaged image becomes nothing. Method: values that each codec holds,
 * ref's decode and encode beside recode's steps, with small budgets.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/test.h"
#include "tiers/recode.h"

enum { TOKENS = 40, LAYERS = 2, HEADS = 2, DIM = 64 };

static const struct image_geometry geometry = {
	.dtype = DTYPE_BF16,
	.layers = LAYERS,
	.kv_heads = HEADS,
	.head_dim_k = DIM,
	.head_dim_v = DIM,
	.block_tokens = TOKENS,
	.typed_segments = 1,
	.typed_values = 1500,
	.opaque_bytes = 100,
};

static struct page_piece pieces[2 * LAYERS + 3];
static struct page_layout layout = { .pieces = pieces };
static uint8_t *page, *image, *expected, *scratch;
static struct image_shape shape;
static const struct image_identity identity = { .key = { 1, 2 }, .space_id = { 3, 4 } };

static int steps(const struct codec_kernels *k, struct codec_run *run)
{
	int r;

	do
		r = k->step(run, CODEC_PIECE_BYTES, scratch);
	while (r == CODEC_MORE);
	return r;
}

static int encode(enum image_codec codec_k, enum image_codec codec_v, uint8_t *to)
{
	struct codec_run run;
	int r = codec_ref.encode_start(&run, &layout, 0, codec_k, codec_v, &identity, to);

	return r ? r : steps(&codec_ref, &run);
}

static uint8_t *pages(size_t bytes)
{
	uint8_t *ret = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);

	assert_non_null(ret);
	return ret;
}

static void make(enum image_codec codec)
{
	struct codec_run run;
	uint64_t bytes;

	layout.geometry = geometry;
	bytes = image_order_pieces(&geometry, NULL, pieces, &layout.n_pieces);
	page = pages(bytes);
	scratch = pages(CODEC_SCRATCH_BYTES);
	assert_int_equal(image_order_pieces(&geometry, page, pieces, &layout.n_pieces), bytes);
	assert_int_equal(image_shape(&geometry, codec, codec, &shape, NULL), 0);
	assert_int_equal(bytes, shape.logical_bytes);
	image = pages(shape.image_bytes);
	expected = pages(shape.image_bytes);
	for (uint64_t i = 0; i < bytes; i += 2) {
		/* of either sign, 2^-4 to 2^4 */
		const uint32_t r = (uint32_t)rand(),
			       code = (r & 0x8000) | (123u + r % 8) << 7 | (r >> 16 & 127);

		page[i] = (uint8_t)code;
		page[i + 1] = (uint8_t)(code >> 8);
	}
	assert_int_equal(encode(codec, codec, image), 0);
	/* the page has the image's values from here on */
	assert_int_equal(codec_ref.decode_start(&run, &layout, 0, image), 0);
	assert_int_equal(steps(&codec_ref, &run), 0);
}

static void done(void)
{
	free(page);
	free(image);
	free(expected);
	free(scratch);
}

static struct recode *run(uint32_t codec, int *ret_status)
{
	const struct image_header *header = (const void *)image;
	struct image_shape other;
	struct recode *r;

	assert_true(recode_takes(header, &geometry, &shape, codec, &other));
	r = recode_begin(codec_kernels(NULL), &geometry, &shape, image, codec);
	assert_non_null(r);
	assert_memory_equal(&r->shape, &other, sizeof(other));
	do
		*ret_status = recode_step(r, 4096);
	while (*ret_status == CODEC_MORE);
	return r;
}

static void becomes(enum image_codec from, uint32_t codec)
{
	const struct image_codecs codecs = image_codecs(codec);
	struct recode *r;
	int status;

	make(from);
	assert_int_equal(encode(codecs.k, codecs.v, expected), 0);
	r = run(codec, &status);
	assert_int_equal(status, 0);
	assert_memory_equal(r->made, expected, 128 + r->shape.scale_bytes);
	assert_memory_equal(r->made + r->shape.payload_offset, expected + r->shape.payload_offset,
			    r->shape.payload_bytes);
	recode_end(r);
	done();
}

TEST_DO(int8_becomes_q4, becomes(CODEC_INT8, CODECS_Q4));
TEST_DO(int8_becomes_int8v4, becomes(CODEC_INT8, CODECS_INT8V4));
TEST_DO(fp8_becomes_q4, becomes(CODEC_FP8, CODECS_Q4));

TEST(a_damaged_image_becomes_nothing)
{
	int status;

	make(CODEC_INT8);
	image[shape.image_bytes - 1] ^= 1;
	recode_end(run(CODECS_Q4, &status));
	assert_int_equal(status, -EBADMSG);
	done();
}

TEST(an_image_without_scales_is_not_taken)
{
	struct image_shape other;

	make(CODEC_INT8);
	assert_false(recode_takes(&(const struct image_header){ .codec_k = CODEC_RAW,
								.codec_v = CODEC_RAW },
				  &geometry, &shape, CODECS_Q4, &other));
	assert_false(recode_takes(&(const struct image_header){ .codec_k = CODEC_K4,
								.codec_v = CODEC_V4 },
				  &geometry, &shape, CODECS_Q4, &other));
	done();
}
