/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_layout.c - goal: every layout of pages that engines use can be said, comes out in canonical
 * order, and has exactly the pages that fit; a layout that does not fit or add up is refused.
 * Method: small geometries, sizes worked out by hand.
 */

#include "daemon/session/mount.h"
#include "tests/lib/test.h"

enum { REGION = 1 << 20, MAX_SEGMENTS = 16 };

/* 2 layers, 2 heads x 8, 4 tokens, BF16: a plane has 4 * 2 * 8 * 2 = 128 bytes. */
static const struct image_geometry small = {
	.dtype = DTYPE_BF16,
	.layers = 2,
	.kv_heads = 2,
	.head_dim_k = 8,
	.head_dim_v = 8,
	.block_tokens = 4,
};

static uint8_t memory[2][REGION];
static uint8_t *const bases[2] = { memory[0], memory[1] };
static char text[232];

/* The last that was built. */
static struct {
	struct page_layout layout;
	uint64_t pages;
} b;

static int build(const struct image_geometry *g, const struct wire_segment *segments, uint32_t n,
		 uint64_t length)
{
	const uint64_t lengths[2] = { length, length };

	layout_free(&b.layout);
	b.layout = (struct page_layout){ 0 };
	b.pages = 12345;
	text[0] = 0;
	return layout_build(segments, n, bases, lengths, 2, g, &b.layout, &b.pages, text,
			    sizeof(text));
}

/* The small geometry so: there are that many pages. */
static void fits(const struct wire_segment segments[4], uint64_t length, uint64_t pages)
{
	assert_int_equal(build(&small, segments, 4, length), 0);
	assert_int_equal(b.pages, pages);
}

/* Token-major planes one after another: layer 0 K, V, layer 1 K, V. */
static void token_major(struct wire_segment *ret)
{
	for (uint32_t i = 0; i < 4; i++)
		ret[i] = (struct wire_segment){
			.layer = i / 2,
			.kind = i % 2 ? KIND_V : KIND_K,
			.offset = i * 128,
			.page_stride = 512,
			.head_stride = 16,
			.token_stride = 32,
		};
}

static struct wire_segment s[4]; /* token-major at first */

FIXTURE_DO(begin, token_major(s));

FIXTURE_DO(end, layout_free(&b.layout));

TEST_EACH(begin, end);

TEST(pieces_in_canonical_order_whatever_was_given)
{
	static const uint32_t order[4] = { 3, 0, 2, 1 };
	struct wire_segment shuffled[4];

	for (uint32_t i = 0; i < 4; i++)
		shuffled[order[i]] = s[i];
	assert_int_equal(build(&small, shuffled, 4, 512), 0);
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(b.layout.pieces[i].layer, i / 2);
		assert_int_equal(b.layout.pieces[i].kind, i % 2 ? KIND_V : KIND_K);
		assert_ptr_equal(b.layout.pieces[i].base, memory[0] + i * 128);
	}
}

TEST(pages_are_those_that_fit_wholly)
{
	static const uint64_t cases[][2] = {
		/* region length, pages */
		{ 512, 1 }, { 1023, 1 }, { 1024, 2 }, { 512 * 100, 100 }, { 512 * 100 - 1, 99 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		fits(s, cases[i][0], cases[i][1]);
}

TEST(not_even_one_page)
{
	assert_int_equal(build(&small, s, 4, 511), -EINVAL);
	assert_non_null(strstr(text, "segments[3].offset 384"));
	assert_int_equal(b.pages, 12345); /* untouched */
}

/* Per-layer tensors [K|V][page][token][head][dim], as vLLM's: the region's halves, K and V
 * apart. */
TEST(planes_of_all_pages_together)
{
	for (uint32_t i = 0; i < 4; i++) {
		s[i].offset = i * 128 * 10;
		s[i].page_stride = 128;
	}
	fits(s, 4 * 128 * 10, 10);
}

/* Head-major pages [page][head][token][dim]. */
TEST(heads_before_tokens)
{
	for (uint32_t i = 0; i < 4; i++) {
		s[i].head_stride = 64;
		s[i].token_stride = 16;
	}
	fits(s, 512, 1);
}

/* K and V of a token side by side: overlapping spans, disjoint bytes. */
TEST(k_and_v_interleaved)
{
	for (uint32_t i = 0; i < 4; i++)
		s[i] = (struct wire_segment){
			.layer = i / 2,
			.kind = i % 2 ? KIND_V : KIND_K,
			.offset = i / 2 * 256 + i % 2 * 32,
			.page_stride = 512,
			.head_stride = 16,
			.token_stride = 64,
		};
	fits(s, 512, 1);
}

TEST(several_regions)
{
	s[2].region = s[3].region = 1;
	assert_int_equal(build(&small, s, 4, 512), 0);
	assert_ptr_equal(b.layout.pieces[2].base, memory[1] + 256);
}

/* Typed and opaque as llama.cpp's: rows with a header, values in an order only the engine knows. */
TEST(typed_and_opaque)
{
	const struct image_geometry g = {
		.dtype = DTYPE_FP16,
		.layers = 1,
		.kv_heads = 1,
		.block_tokens = 4,
		.typed_segments = 2,
		.typed_values = 100,
		.opaque_bytes = 12 + 4 * 3,
	};
	const struct wire_segment given[] = {
		{ .kind = KIND_OPAQUE, .offset = 1, .page_stride = 1000, .length = 12 },
		{ .kind = KIND_TYPED, .offset = 20, .page_stride = 1000, .length = 100 },
		{ .kind = KIND_OPAQUE,
		  .offset = 701,
		  .page_stride = 1000,
		  .length = 3,
		  .token_stride = 7 },
		{ .kind = KIND_TYPED, .offset = 300, .page_stride = 1000, .length = 100 },
	};

	assert_int_equal(build(&g, given, 4, 10000), 0);
	assert_int_equal(b.pages, 10);
	assert_ptr_equal(b.layout.pieces[0].base, memory[0] + 20);
	assert_ptr_equal(b.layout.pieces[1].base, memory[0] + 300);
	assert_ptr_equal(b.layout.pieces[2].base, memory[0] + 1);
	assert_int_equal(build(&g, given, 3, 10000), -EINVAL);
	assert_non_null(strstr(text, "1 of 2 typed"));
}

TEST(no_segments_no_pages)
{
	assert_int_equal(build(&small, NULL, 0, 512), 0);
	assert_int_equal(b.pages, 0);
}

TEST(missing_plane)
{
	assert_int_equal(build(&small, s, 3, 512), -EINVAL);
	assert_non_null(strstr(text, "3 of 4 k and v"));
}

/* Strides and offsets around every power of two: never a page that reaches past the region. */
TEST(no_sum_wraps)
{
	for (int field = 0; field < 4; field++)
		for (int bit = 1; bit < 64; bit++)
			for (int minus = 0; minus < 2; minus++) {
				uint64_t *const fields[] = { &s[3].offset, &s[3].page_stride,
							     &s[3].head_stride,
							     &s[3].token_stride };
				uint64_t last;
				int r;

				token_major(s);
				*fields[field] = (1ull << bit) - (minus ? 2 : 0);
				r = build(&small, s, 4, REGION);
				if (r) {
					assert_int_equal(r, -EINVAL);
					continue;
				}
				assert_true(b.pages > 0);
				last = s[3].offset + (b.pages - 1) * s[3].page_stride +
				       3 * s[3].token_stride + s[3].head_stride + 16;
				assert_true(last <= REGION && s[3].offset <= REGION);
			}
}
