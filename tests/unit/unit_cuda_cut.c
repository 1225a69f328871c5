/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_cuda_cut - goal: images are laid into lanes whole where they fit, and cut into runs of tiles
 * where they do not; no byte is left out, none lies in two pieces, none outside its lane. Method:
 * random geometries, codecs and lane sizes; lanes filled as the daemon does; a map of the bytes of
 * each image.
 */

#include "daemon/cuda/lane/cuda_image.h"
#include "kernels/cuda/plan.h"
#include "tests/lib/test.h"

enum { ROUNDS = 300, MAX_PIECES = 256, MAX_SCALES = 1 << 20 };

struct picture {
	struct page_piece pieces[MAX_PIECES];
	struct cuda_piece on_gpu[MAX_PIECES];
	struct page_layout layout;
	struct cuda_plan plan;
	struct cuda_tiles tiles;
	struct image_shape shape;
	uint8_t scales
		[MAX_SCALES]; /* of a lossless image that is loaded: 0 to 2,000 bytes a pack */
};

static void add(struct picture *p, enum image_kind kind, uint32_t layer, uint64_t length)
{
	p->pieces[p->layout.n_pieces++] = (struct page_piece){
		.base = (uint8_t *)0x100000000,
		.page_stride = 1 << 20,
		.head_stride = 4096,
		.token_stride = 1 << 16,
		.length = length,
		.kind = kind,
		.layer = layer,
	};
}

static void make(struct picture *p, struct random *seed, enum image_codec codec)
{
	struct image_geometry *g = &p->layout.geometry;

	memset(p, 0, sizeof(*p));
	*g = (struct image_geometry){
		.dtype = DTYPE_BF16,
		.layers = 1 + random_below(seed, 40),
		.kv_heads = 1 + random_below(seed, 8),
		.head_dim_k = 8 * random_below(seed, 33),
		.head_dim_v = 8 + 8 * random_below(seed, 32),
		.block_tokens = 1 + random_below(seed, 64),
		.typed_segments = random_below(seed, 3),
		.typed_values = 1 + random_below(seed, 5000),
	};
	for (uint32_t layer = 0; layer < g->layers; layer++) {
		if (g->head_dim_k)
			add(p, KIND_K, layer, 0);
		add(p, KIND_V, layer, 0);
	}
	for (uint32_t i = 0; i < g->typed_segments; i++)
		add(p, KIND_TYPED, 0, g->typed_values);
	if (random_below(seed, 2)) {
		g->opaque_bytes = 1 + random_below(seed, 3000000);
		add(p, KIND_OPAQUE, 0, g->opaque_bytes);
		p->pieces[p->layout.n_pieces - 1].token_stride = 0;
	}
	p->layout.pieces = p->pieces;
	if (codec == CODEC_LOSSLESS && image_shape(g, codec, codec, &p->shape, NULL)) {
		make(p, seed, codec); /* its steps would be mostly empty */
		return;
	}
	assert_int_equal(image_shape(g, codec, codec, &p->shape, NULL), 0);
	assert_int_equal(cuda_plan_make(&p->layout, codec == CODEC_LOSSLESS, &p->plan, p->on_gpu),
			 0);
	p->tiles = (struct cuda_tiles){
		.plan = &p->plan,
		.pieces = p->on_gpu,
		.codec_k = codec,
		.codec_v = codec,
		.end = p->plan.n_tiles,
	};
	if (codec != CODEC_LOSSLESS)
		return;
	assert_true(p->shape.scale_bytes <= MAX_SCALES);
	for (uint32_t i = 0; i < p->shape.scale_bytes; i++)
		p->scales[i] = (uint8_t)random_below(seed, i % 3 == 2 ? 8 : 250);
	p->tiles.scales = p->scales;
}

/* Where images go. */
struct lanes {
	uint32_t bytes, used, n; /* of the last; n: begun */
};

static void check_cut(const struct picture *p, const struct lanes *l, const struct cuda_cut *c)
{
	assert_true(c->n_tiles > 0 && c->first_tile + c->n_tiles <= p->plan.n_tiles);
	assert_true(c->scale_at >= l->used);
	assert_true(c->payload_at >= c->scale_at + c->scale_bytes);
	assert_true(c->end == c->payload_at + c->payload_bytes && c->end <= l->bytes);
	assert_int_equal(c->payload_at % CUDA_LANE_ALIGN, c->payload % CUDA_LANE_ALIGN);
}

/* The cut's bytes without far parts. */
static uint32_t cut_fixed(const struct picture *p, const struct cuda_cut *c)
{
	uint32_t scale, first, end;

	cuda_plan_at(&p->plan, p->on_gpu, p->tiles.codec_k, p->tiles.codec_v, c->first_tile, &scale,
		     &first);
	cuda_plan_at(&p->plan, p->on_gpu, p->tiles.codec_k, p->tiles.codec_v,
		     c->first_tile + c->n_tiles, &scale, &end);
	return end - first;
}

/* Returns how many pieces it took. */
static uint32_t lay(struct picture *p, struct lanes *l)
{
	const bool packs = p->tiles.codec_k == CODEC_LOSSLESS;
	uint32_t tile = 0, scales = 0, payload = 0, pieces = 0;
	struct cuda_cut c;

	while (tile < p->plan.n_tiles) {
		if (!cuda_cut(&p->tiles, tile, l->used, l->bytes, &c)) {
			assert_true(l->used > CUDA_LANE_HEAD);
			l->used = CUDA_LANE_HEAD;
			l->n++;
			continue;
		}
		check_cut(p, l, &c);
		assert_int_equal(c.first_tile, tile);
		assert_int_equal(c.scale, scales);
		assert_int_equal(c.payload, payload);
		assert_int_equal(c.fixed, cut_fixed(p, &c));
		assert_int_equal(c.far, p->tiles.far);
		cuda_tiles_go(&p->tiles, tile, tile + c.n_tiles);
		tile += c.n_tiles;
		scales += c.scale_bytes;
		payload += c.payload_bytes;
		l->used = c.end;
		pieces++;
	}
	assert_int_equal(scales, p->shape.scale_bytes);
	if (packs)
		p->shape.payload_bytes = payload + IMAGE_PACK_SPARE;
	assert_true(!packs || image_packs_fit(&p->layout.geometry, &p->shape, p->scales));
	assert_int_equal(payload + (packs ? IMAGE_PACK_SPARE : 0), p->shape.payload_bytes);
	p->tiles.far = 0;
	return pieces;
}

TEST(every_byte_has_one_place)
{
	static const enum image_codec codecs[] = { CODEC_RAW, CODEC_FP8, CODEC_LOSSLESS };
	static struct picture p;
	struct random seed = random_seeded("unit_cuda_cut");

	for (int i = 0; i < ROUNDS; i++) {
		struct lanes l = { .bytes = CUDA_LANE_LEAST, .used = CUDA_LANE_HEAD };
		uint32_t pieces;

		l.bytes += 4096 * random_below(&seed, 1024);
		make(&p, &seed, codecs[random_below(&seed, 3)]);
		for (int k = 0; k < 5; k++) {
			pieces = lay(&p, &l);
			/* whole where it fits */
			if (CUDA_LANE_HEAD + p.shape.scale_bytes + CUDA_LANE_ALIGN +
				    p.shape.payload_bytes <=
			    l.bytes)
				assert_int_equal(pieces, 1);
		}
	}
}

/* A large image fills its lanes but the last: copies of some MiB. */
TEST(runs_are_as_long_as_lanes)
{
	static struct picture p;
	struct lanes l = { .bytes = CUDA_LANE_LEAST, .used = CUDA_LANE_HEAD };
	struct random seed = random_seeded("unit_cuda_cut");
	uint32_t pieces;

	do
		make(&p, &seed, CODEC_RAW);
	while (p.shape.payload_bytes < 8 * CUDA_LANE_LEAST);
	pieces = lay(&p, &l);
	assert_true(pieces <= p.shape.payload_bytes / (CUDA_LANE_LEAST - CUDA_PIECE_LEAST) + 1);
}

/* A range of tiles goes into lanes as an image does: no byte beside its own. */
TEST(a_range_is_cut_as_an_image)
{
	static const enum image_codec codecs[] = { CODEC_RAW, CODEC_FP8, CODEC_LOSSLESS };
	static struct picture p;
	struct random seed = random_seeded("unit_cuda_cut");

	for (int i = 0; i < ROUNDS; i++) {
		struct lanes l = { .bytes = CUDA_LANE_LEAST, .used = CUDA_LANE_HEAD };
		uint32_t tile, end = 0, scale, payload;

		l.bytes += 4096 * random_below(&seed, 1024);
		make(&p, &seed, codecs[random_below(&seed, 3)]);
		for (uint32_t first = 0; first < p.plan.n_tiles; first = end) {
			struct cuda_cut c;

			end = first + 1 + random_below(&seed, p.plan.n_tiles - first);
			p.tiles.first = tile = first;
			p.tiles.end = end;
			while (tile < end) {
				if (!cuda_cut(&p.tiles, tile, l.used, l.bytes, &c)) {
					assert_true(l.used > CUDA_LANE_HEAD);
					l.used = CUDA_LANE_HEAD;
					continue;
				}
				check_cut(&p, &l, &c);
				cuda_plan_at(&p.plan, p.on_gpu, p.tiles.codec_k, p.tiles.codec_v,
					     tile, &scale, &payload);
				assert_true(c.scale == scale);
				assert_int_equal(c.payload, payload + p.tiles.far);
				assert_int_equal(c.far, p.tiles.far);
				cuda_tiles_go(&p.tiles, tile, tile + c.n_tiles);
				tile += c.n_tiles;
				assert_true(tile <= end);
				l.used = c.end;
			}
		}
	}
}
