/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_codec_sample.c - goal: codec_error_step() says how far an image's values are from the
 * page's, the same whatever the steps' budget is. Method: pages of engines' layouts, with random
 * values (seed printed; SEED=n repeats); each page's image is decoded over a copy of the page, and
 * all values of both are compared here.
 */
#include <math.h>

#include "kernels/fp8.h"
#include "tests/lib/lib_pages.h"
#include "tests/lib/test.h"

enum { SMALL = 8 << 10, ALL = 1 << 30 };

struct bed {
	struct pages pages;
	uint8_t *page, *image, *scratch;
	enum image_codec codec;
	struct codec_error whole; /* of all values, by this test's own reckoning */
};

/* Values of three octaves, of either sign: no group of them is raw. */
static void fill(uint8_t *at, uint64_t bytes, bool is_fp16, struct random *random)
{
	for (uint64_t i = 0; i < bytes; i += 2) {
		const uint32_t sign = random_below(random, 2) << 15;
		const uint16_t code = (uint16_t)(is_fp16 ? 0x3800 + random_below(random, 3 << 10) :
							   0x3f00 + random_below(random, 3 << 7));
		const uint16_t v = (uint16_t)(code | sign);

		memcpy(at + i, &v, 2);
	}
}

static void compare_all(struct bed *b, const uint8_t *before, int is_fp16)
{
	b->whole = (struct codec_error){ 0 };
	for (uint64_t i = 0; i < b->pages.bytes; i += 2) {
		const double was = codec_value(is_fp16,
					       (uint32_t)before[i] | (uint32_t)before[i + 1] << 8),
			     is = codec_value(is_fp16,
					      (uint32_t)b->page[i] | (uint32_t)b->page[i + 1] << 8);

		b->whole.squares += was * was;
		b->whole.errors += (was - is) * (was - is);
	}
}

/* The page has the values from before; the image is of it. False: the layout has bytes that are not
 * fp8's, which this test cannot tell apart. */
static bool make(struct bed *b, const struct pages_named *named, uint32_t dtype,
		 struct random *random)
{
	const struct image_identity identity = { .space_id = { 1 } };
	struct image_shape shape;
	uint8_t *before;

	pages_make(&b->pages, named, dtype, 0, 1, 0);
	if (image_shape(&b->pages.layout.geometry, b->codec, b->codec, &shape, NULL) ||
	    b->pages.layout.geometry.opaque_bytes > 0 ||
	    2ull * shape.payload_bytes != b->pages.bytes)
		return false;
	b->page = malloc(b->pages.bytes);
	b->image = aligned_alloc(4096, (shape.image_bytes + 4095u) & ~4095u);
	before = malloc(b->pages.bytes);
	for (uint32_t i = 0; i < b->pages.layout.n_pieces; i++)
		b->pages.pieces[i].base += (uintptr_t)b->page;
	fill(b->page, b->pages.bytes, dtype == DTYPE_FP16, random);
	memcpy(before, b->page, b->pages.bytes);
	assert_int_equal(codec_encode(&codec_ref, &b->pages.layout, 0, b->codec, b->codec,
				      &identity, b->image, b->scratch),
			 0);
	assert_int_equal(codec_decode(&codec_ref, &b->pages.layout, 0, b->image, b->scratch), 0);
	compare_all(b, before, dtype == DTYPE_FP16);
	memcpy(b->page, before, b->pages.bytes);
	free(before);
	return true;
}

/* All steps; *ret_steps: how many. */
static void measure(const struct bed *b, const uint8_t *image, uint32_t sample, uint32_t budget,
		    struct codec_error *ret, uint32_t *ret_steps)
{
	struct codec_run run;

	*ret_steps = 1;
	codec_error_start(&run, &b->pages.layout, 0, image, sample);
	while (codec_error_step(&run, budget, ret) == CODEC_MORE)
		++*ret_steps;
}

static double ratio(const struct codec_error *e)
{
	return sqrt(e->errors / e->squares);
}

/* Of every layout that holds only values that the codec takes. */
static void each_of(enum image_codec codec, void (*is_right)(struct bed *b))
{
	struct random random = random_seeded("unit_codec_sample");
	struct bed b = { .scratch = aligned_alloc(4096, CODEC_SCRATCH_BYTES), .codec = codec };
	uint32_t n = 0;

	for (uint32_t i = 0; i < pages_named_n; i++)
		for (uint32_t dtype = DTYPE_BF16; dtype <= DTYPE_FP16; dtype++) {
			if (!make(&b, &pages_named[i], dtype, &random))
				continue;
			is_right(&b);
			free(b.page);
			free(b.image);
			n++;
		}
	free(b.scratch);
	assert_in_range(n, 4, 100);
}

static void each(void (*is_right)(struct bed *b))
{
	each_of(CODEC_FP8, is_right);
	each_of(CODEC_INT8, is_right);
}

static void of_all(struct bed *b)
{
	struct codec_error error;
	uint32_t steps;

	measure(b, b->image, ALL, ALL, &error, &steps);
	assert_int_equal(steps, 1);
	assert_true(fabs(error.errors - b->whole.errors) <= 1e-9 * b->whole.errors);
	assert_true(fabs(error.squares - b->whole.squares) <= 1e-9 * b->whole.squares);
}

TEST_DO(with_room_for_all_it_is_exact, each(of_all));

static void of_some(struct bed *b)
{
	struct codec_error error;
	uint32_t steps;

	measure(b, b->image, SMALL, SMALL, &error, &steps);
	assert_true(error.squares > 0 && error.squares <= b->whole.squares);
	assert_true(fabs(ratio(&error) - ratio(&b->whole)) <= 0.1 * ratio(&b->whole));
}

TEST_DO(a_sample_is_close, each(of_some));

/* Each tile is a step of its own, or a few are: the sample is the same. */
static void of_steps(struct bed *b)
{
	struct codec_error whole, error;
	struct image_shape shape;
	uint32_t steps, most;

	assert_int_equal(image_shape(&b->pages.layout.geometry, b->codec, b->codec, &shape, NULL),
			 0);
	measure(b, b->image, SMALL, ALL, &whole, &steps);
	assert_int_equal(steps, 1);
	measure(b, b->image, SMALL, 1, &error, &most);
	assert_in_range(most, 1, shape.scale_bytes + 1);
	assert_memory_equal(&error, &whole, sizeof(error));
	for (uint32_t budget = 2; budget < SMALL; budget *= 3) {
		measure(b, b->image, SMALL, budget, &error, &steps);
		assert_in_range(steps, 1, most);
		assert_memory_equal(&error, &whole, sizeof(error));
	}
}

TEST_DO(steps_of_any_budget_find_the_same, each(of_steps));

static void of_exact(struct bed *b, enum image_codec codec)
{
	const struct image_identity identity = { .space_id = { 1 } };
	struct codec_error error = { 1, 1, 1, 1, 1 };
	struct image_shape shape;
	uint8_t *image;
	uint32_t steps;

	if (image_shape(&b->pages.layout.geometry, codec, codec, &shape, NULL)) {
		assert_int_equal(codec, CODEC_LOSSLESS); /* its steps would be mostly empty */
		return;
	}
	image = aligned_alloc(4096, (shape.image_bytes + 4095u) & ~4095u);
	assert_int_equal(codec_encode(&codec_ref, &b->pages.layout, 0, codec, codec, &identity,
				      image, b->scratch),
			 0);
	measure(b, image, ALL, SMALL, &error, &steps);
	assert_true(error.squares == 0 && error.errors == 0);
	free(image);
}

static void of_raw_and_lossless(struct bed *b)
{
	of_exact(b, CODEC_RAW);
	of_exact(b, CODEC_LOSSLESS);
}

TEST_DO(nothing_of_an_exact_image_is_compared, each(of_raw_and_lossless));
