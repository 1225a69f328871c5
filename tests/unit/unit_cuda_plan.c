/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: the plan of a layout says for every tile where it lies in page and image.
 * Method: layouts by name and random ones (SEED). A raw image made tile by tile, at the places that
 * the plan gives, equals ref.c's. With any two codecs each tile begins where the tile before ended,
 * and the last ends where image_shape() says. Division by multiplication is held against division.
 */

#include "kernels/cuda/plan.h"
#include "kernels/cuda/tile.h"
#include "tests/lib/lib_pages.h"
#include "tests/lib/test.h"

enum { ROUNDS = 2000, ARENA = 8 << 20 };

static struct cuda_piece table[PAGES_MAX_PIECES];

TILE_FN uint32_t piece_first(const struct cuda_plan *plan, uint32_t piece)
{
	assert_true(piece < plan->n_pieces);
	return table[piece].first_tile;
}

TEST(quotients_are_exact)
{
	struct random random = random_seeded("unit_cuda_plan");
	struct page_layout layout = { .geometry = { .dtype = DTYPE_INT8, .typed_segments = 1 } };

	for (uint32_t i = 0; i < ROUNDS; i++) {
		struct page_piece piece = { .kind = KIND_TYPED };
		struct cuda_plan plan;

		layout.n_pieces = 1;
		layout.pieces = &piece;
		layout.geometry.block_tokens = 1;
		layout.geometry.typed_values =
			i < 1000 ? 1024 * i + 1 : 1 + random_below(&random, 250 << 20);
		piece.length = layout.geometry.typed_values;
		assert_int_equal(cuda_plan_make(&layout, false, &plan, table), 0);
		for (uint32_t n = 0; n < 100; n++) {
			const uint32_t d = plan.typed.divisor,
				       any = random_below(&random, 1u << 31), edge = any / d * d;

			assert_int_equal(tile_quotient(&plan.typed, any), any / d);
			assert_int_equal(tile_quotient(&plan.typed, edge), edge / d);
			assert_int_equal(tile_quotient(&plan.typed, edge + d - 1 < 1u << 31 ?
									    edge + d - 1 :
									    edge),
					 edge / d);
			assert_int_equal(tile_quotient(&plan.typed, 0x7fffffff), 0x7fffffff / d);
		}
	}
}

static void raw_image_by_tiles(const struct pages *p, const struct cuda_plan *plan, uint64_t page,
			       uint8_t *image)
{
	struct image_shape shape;

	assert_int_equal(image_shape(&p->layout.geometry, CODEC_RAW, CODEC_RAW, &shape, NULL), 0);
	for (uint32_t i = 0; i < plan->n_tiles; i++) {
		const struct tile u =
			tile_of(plan, &table[tile_piece(plan, i)], CODEC_RAW, CODEC_RAW, page, i);
		const uint8_t *from = (const uint8_t *)(uintptr_t)u.address;

		assert_int_equal(u.codec, CODEC_RAW);
		assert_true(u.row_bytes > 0 && u.rows > 0);
		for (uint32_t r = 0; r < u.rows; r++)
			memcpy(image + shape.payload_offset + u.payload + r * u.row_bytes,
			       from + r * u.stride, u.row_bytes);
	}
}

static uint32_t scales_in(const struct tile *u, bool plane)
{
	if (u->codec == CODEC_V4)
		return u->rows * ((u->row_bytes + 63) / 64);
	if (u->codec == CODEC_INT8 || u->codec == CODEC_K4)
		return u->row_bytes / 2 * (u->codec == CODEC_K4 ? 3 : 1);
	return u->codec == CODEC_RAW ? 0 :
	       plane                 ? (u->rows + IMAGE_GROUP_TOKENS - 1) / IMAGE_GROUP_TOKENS :
				       1;
}

static void tiles_follow_each_other(const struct pages *p, const struct cuda_plan *plan,
				    uint32_t codec_k, uint32_t codec_v)
{
	struct image_shape shape;
	uint32_t scale = 0, payload = 0, at_scale, at_payload;

	if (image_shape(&p->layout.geometry, codec_k, codec_v, &shape, NULL)) {
		assert_true(image_codec_channels(codec_k)); /* without planes */
		return;
	}
	for (uint32_t i = 0; i < plan->n_tiles; i++) {
		const struct tile u =
			tile_of(plan, &table[tile_piece(plan, i)], codec_k, codec_v, 0, i);

		cuda_plan_at(plan, table, codec_k, codec_v, i, &at_scale, &at_payload);
		assert_int_equal(at_payload, payload);
		assert_int_equal(u.payload, payload);
		assert_int_equal(at_scale, scale);
		scale += scales_in(&u, tile_piece(plan, i) < plan->n_planes);
		payload += u.codec == CODEC_K4 || u.codec == CODEC_V4 ?
				   u.rows * ((u.row_bytes / 2 + 1) / 2) :
				   u.rows * u.row_bytes / (u.codec == CODEC_RAW ? 1 : 2);
	}
	cuda_plan_at(plan, table, codec_k, codec_v, plan->n_tiles, &at_scale, &at_payload);
	assert_int_equal(scale, shape.scale_bytes);
	assert_int_equal(at_scale, shape.scale_bytes);
	assert_int_equal(payload, shape.payload_bytes);
	assert_int_equal(at_payload, shape.payload_bytes);
}

static void check(struct pages *p, uint64_t page)
{
	static const enum image_codec codecs[2][4] = {
		{ CODEC_RAW, CODEC_FP8, CODEC_INT8, CODEC_K4 },
		{ CODEC_RAW, CODEC_FP8, CODEC_INT8, CODEC_V4 },
	};
	static const struct image_identity identity;
	struct image_shape shape;
	struct cuda_plan plan;
	uint8_t *ref, *mine;

	if (image_element_bytes(p->layout.geometry.dtype) == 2)
		for (uint32_t c = 0; c < 16; c++) {
			assert_int_equal(cuda_plan_make(&p->layout, false, &plan, table), 0);
			tiles_follow_each_other(p, &plan, codecs[0][c % 4], codecs[1][c / 4]);
		}
	assert_int_equal(cuda_plan_make(&p->layout, false, &plan, table), 0);
	assert_int_equal(image_shape(&p->layout.geometry, CODEC_RAW, CODEC_RAW, &shape, NULL), 0);
	ref = aligned_alloc(4096, (shape.image_bytes + 4095) / 4096 * 4096);
	mine = malloc(shape.image_bytes);
	assert_int_equal(codec_encode(&codec_ref, &p->layout, page, CODEC_RAW, CODEC_RAW, &identity,
				      ref, NULL),
			 0);
	raw_image_by_tiles(p, &plan, page, mine);
	assert_memory_equal(mine + shape.payload_offset, ref + shape.payload_offset,
			    shape.payload_bytes);
	free(ref);
	free(mine);
}

static uint8_t *arena(struct random *random)
{
	uint8_t *p = aligned_alloc(4096, ARENA);

	for (size_t i = 0; i < ARENA; i += 8) {
		const uint64_t x = random_next(random);

		memcpy(p + i, &x, 8);
	}
	return p;
}

TEST(every_named_layout)
{
	static const uint32_t dtypes[] = { DTYPE_BF16, DTYPE_FP16, DTYPE_FP32, DTYPE_INT8 };
	struct random random = { .state = 1 };
	uint8_t *memory = arena(&random);
	struct pages p;

	for (uint32_t i = 0; i < pages_named_n; i++)
		for (uint32_t d = 0; d < 4; d++) {
			pages_make(&p, &pages_named[i], dtypes[d], (uintptr_t)memory, 3, 0);
			assert_true(p.bytes <= ARENA);
			check(&p, i % 3);
		}
	free(memory);
}

TEST(random_layouts)
{
	struct random random = random_seeded("unit_cuda_plan");
	uint8_t *memory = arena(&random);
	struct pages p;

	for (uint32_t i = 0; i < ROUNDS / 4; i++) {
		do
			pages_random(&p, &random, DTYPE_BF16 + i % 6, (uintptr_t)memory);
		while (p.bytes > ARENA);
		check(&p, random_below(&random, (uint32_t)p.n_pages));
	}
	free(memory);
}

TEST(wrong_pieces_are_refused)
{
	struct cuda_plan plan;
	struct pages p;

	pages_make(&p, &pages_named[0], DTYPE_BF16, 4096, 1, 0);
	assert_int_equal(cuda_plan_make(&p.layout, false, &plan, table), 0);
	p.pieces[1].kind = KIND_K;
	assert_int_equal(cuda_plan_make(&p.layout, false, &plan, table), -EINVAL);
	p.pieces[1].kind = KIND_V;
	p.layout.n_pieces--;
	assert_int_equal(cuda_plan_make(&p.layout, false, &plan, table), -EINVAL);
	p.layout.n_pieces++;
	p.layout.geometry.opaque_bytes = 1;
	assert_int_equal(cuda_plan_make(&p.layout, false, &plan, table), -EINVAL);
	p.layout.geometry.opaque_bytes = 0;
	p.layout.geometry.block_tokens = 0;
	assert_int_equal(cuda_plan_make(&p.layout, false, &plan, table), -EINVAL);
}

/* Packs lie one after the other, each as long as its steps, and all are as many bytes as the shape
 * has without far parts. */
TEST(tiles_of_lossless_spaces_are_packs)
{
	struct random random = random_seeded("unit_cuda_plan");
	uint32_t looked_at = 0;

	for (uint32_t i = 0; i < ROUNDS / 4; i++) {
		uint32_t at = 0, scale, payload;
		struct image_shape shape;
		struct cuda_plan plan;
		struct pages p;

		pages_random(&p, &random, DTYPE_BF16 + i % 2, 4096);
		if (image_shape(&p.layout.geometry, CODEC_LOSSLESS, CODEC_LOSSLESS, &shape, NULL))
			continue;
		assert_int_equal(cuda_plan_make(&p.layout, true, &plan, table),
				 cuda_plan_takes_packs(&p.layout.geometry) ? 0 : -EINVAL);
		if (!cuda_plan_takes_packs(&p.layout.geometry))
			continue;
		for (uint32_t t = 0; t <= plan.n_tiles; t++) {
			struct tile u = { 0 };

			cuda_plan_at(&plan, table, CODEC_LOSSLESS, CODEC_LOSSLESS, t, &scale,
				     &payload);
			assert_int_equal(payload, at);
			assert_int_equal(scale, (t < plan.packs ? t : plan.packs) * 3);
			if (t < plan.n_tiles)
				u = tile_of_packs(&plan, &table[tile_piece(&plan, t)],
						  CODEC_LOSSLESS, 0, t);
			assert_int_equal(u.codec == CODEC_LOSSLESS, t < plan.packs);
			at += t < plan.packs ? image_pack_bytes(p.layout.geometry.dtype,
								u.rows * u.row_bytes / 2, 0) :
					       u.rows * u.row_bytes;
		}
		assert_int_equal(scale, shape.scale_bytes);
		looked_at++;
	}
	assert_true(looked_at > 100);
}

TEST(head_dims_that_have_packs_of_other_tokens_are_refused)
{
	struct image_geometry g = { .head_dim_k = 512, .head_dim_v = 1024, .block_tokens = 64 };

	assert_false(cuda_plan_takes_packs(&g));
	g.block_tokens = 40; /* both have all of them */
	assert_true(cuda_plan_takes_packs(&g));
	g.block_tokens = 64;
	g.head_dim_v = 640;
	assert_true(cuda_plan_takes_packs(&g));
	g.head_dim_v = 641;
	g.head_dim_k = 0;
	assert_true(cuda_plan_takes_packs(&g));
}

TEST(tasks_are_numbered)
{
	struct cuda_tasks tasks = {
		.n = 3,
		.task = { { .n_tiles = 5 }, { .n_tiles = 0 }, { .n_tiles = 7 } },
	};

	assert_int_equal(cuda_tasks_number(&tasks), 12);
	assert_int_equal(tasks.n_tiles, 12);
	assert_int_equal(tasks.task[1].start, 5);
	assert_int_equal(tasks.task[2].start, 5);
	tasks.task[1].n_tiles = 0x7ffffff8;
	assert_int_equal(cuda_tasks_number(&tasks), 0);
	tasks.n = 0;
	assert_int_equal(cuda_tasks_number(&tasks), 0);
}
