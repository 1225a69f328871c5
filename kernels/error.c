/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error.c - how far the values of an image are from those of its page: codec_error_step() of
 * kernels.h.
 *
 * The walk over the page's tiles (tiles.h) touches no memory. One of each `every` chunks of 16 rows
 * is compared. A hash chooses it, so the sample has no stride that a page may have, as from head to
 * head. Plain C is enough for a sample this small.
 */
#include <limits.h>
#include <stdbool.h>
#include <string.h>

#include "int8.h"
#include "kernels.h"
#include "q4.h"
#include "tiles.h"

/* Passing over a tile takes as long as comparing so many bytes. */
enum { TILE_COST = 4 };

struct error_run {
	struct tiles tiles;
	struct codec_error sums;
	int is_fp16;
	uint32_t n, every;    /* chunks of coded tiles so far; of so many one is compared */
	uint64_t left;        /* bytes of the page to compare yet */
	const uint8_t *scale; /* of the next tile */
	const uint8_t *codes; /* of the next tile, in the order of its rows */
	/* so many of the first chunks are of planes in fp8, and a head has so many */
	uint32_t planes, groups;
};
static_assert(sizeof(struct error_run) <= CODEC_RUN_BYTES, "codec_run");

static struct error_run *error_run_of(struct codec_run *run)
{
	return (struct error_run *)(void *)run->own;
}

/* The value of a 16-bit code; any value for Inf and NaN, which fp8 does not hold. */
static double value_of(int is_fp16, uint32_t code)
{
	const struct fp8_source source = fp8_source(is_fp16);
	int e;
	const double m = fp8_split(&source, code, &e);
	const uint64_t bits = (uint64_t)(e + 1023) << 52; /* 2^e; e is within a double's range */
	double power;

	memcpy(&power, &bits, sizeof(power));
	return code & 0x8000 ? -m * power : m * power;
}

/* What the image has for a value of the tile. */
static uint16_t decoded(const struct error_run *x, const struct page_tile *u, uint32_t row,
			uint32_t column)
{
	const uint32_t dim = u->row_bytes / 2;
	const uint8_t *codes =
		x->codes + (uint64_t)row * image_row_bytes(u->codec, DTYPE_BF16, dim);
	const uint32_t half = codes[column / 2] >> (column % 2 * 4) & Q4_MOST;
	const uint8_t *v4 = x->scale + image_scale_bytes(CODEC_V4, row, dim);

	switch (u->codec) {
	case CODEC_INT8:
		return int8_decode(x->is_fp16, (int)x->scale[column] - FP8_BIAS,
				   (int8_t)codes[column]);
	case CODEC_K4:
		return k4_decode(x->is_fp16,
				 (uint32_t)x->scale[2 * column] | (uint32_t)x->scale[2 * column + 1]
									  << 8,
				 x->scale[2 * dim + column], half);
	case CODEC_V4:
		return v4_decode(x->is_fp16, v4[column / IMAGE_V4_VALUES], half);
	default:
		return fp8_decode(x->is_fp16, (int)*x->scale - FP8_BIAS, codes[column]);
	}
}

/* What a tile would be if its plane were int8, or k4 if it is of K: k, and lo and j, of each of its
 * columns, or FP8_K_NONE and Q4_STEP_NONE where these cannot hold the column. */
struct as_int8 {
	uint32_t columns; /* 0: it is of no plane in fp8 */
	bool of_k;
	int16_t k[IMAGE_MAX_HEAD_DIM], j[IMAGE_MAX_HEAD_DIM];
	uint16_t lo[IMAGE_MAX_HEAD_DIM];
};

/* Looks at all rows that would have one scale. Rows of a tile may be joined to one (tiles.c), so
 * the geometry says how long they are. */
static void as_int8(const struct error_run *x, const struct page_tile *u, uint32_t chunk,
		    struct as_int8 *ret)
{
	const struct page_layout *layout = x->tiles.layout;
	const struct image_geometry *g = &layout->geometry;
	const uint32_t token = chunk % x->groups * IMAGE_GROUP_TOKENS;
	const uint32_t first = token / IMAGE_CHANNEL_TOKENS * IMAGE_CHANNEL_TOKENS;
	const uint32_t rows = g->block_tokens - first < IMAGE_CHANNEL_TOKENS ?
				      g->block_tokens - first :
				      IMAGE_CHANNEL_TOKENS;
	const struct page_piece *p;
	const uint8_t *top;

	ret->columns = 0;
	if (chunk >= x->planes)
		return;
	p = &layout->pieces[chunk / (x->groups * g->kv_heads)];
	top = u->base - (token - first) * p->token_stride;
	ret->of_k = p->kind == KIND_K;
	ret->columns = ret->of_k ? g->head_dim_k : g->head_dim_v;
	for (uint32_t i = 0; i < ret->columns; i++) {
		int least = INT_MAX, most = INT_MIN;
		uint32_t amax = 0;

		for (uint32_t row = 0; row < rows; row++) {
			const uint8_t *from = top + row * p->token_stride + 2ull * i;
			const uint32_t code = from[0] | (uint32_t)from[1] << 8;
			const int rank = q4_rank(code);

			amax = (code & 0x7fff) > amax ? code & 0x7fff : amax;
			least = rank < least ? rank : least;
			most = rank > most ? rank : most;
		}
		ret->k[i] = (int16_t)int8_exponent(x->is_fp16, amax);
		ret->lo[i] =
			(uint16_t)k4_least(x->is_fp16, (uint32_t)q4_rank((uint32_t)least) & 0xffff);
		ret->j[i] = (int16_t)k4_step(x->is_fp16, ret->lo[i],
					     (uint32_t)q4_rank((uint32_t)most) & 0xffff);
	}
}

/* The value that int8 would make of the column's; `otherwise`, where it makes none. */
static double int8_of(const struct error_run *x, const struct as_int8 *int8, uint32_t column,
		      uint32_t source, double otherwise)
{
	const int k = int8->columns ? int8->k[column % int8->columns] : FP8_K_NONE;

	return k == FP8_K_NONE ?
		       otherwise :
		       value_of(x->is_fp16,
				int8_decode(x->is_fp16, k, int8_encode(x->is_fp16, k, source)));
}

/* The same of k4. */
static double k4_of(const struct error_run *x, const struct as_int8 *k4, uint32_t column,
		    uint32_t source, double otherwise)
{
	const uint32_t i = column % k4->columns;
	const int j = k4->j[i];

	if (j == Q4_STEP_NONE)
		return otherwise;
	return value_of(x->is_fp16, k4_decode(x->is_fp16, k4->lo[i], j,
					      k4_encode(x->is_fp16, k4->lo[i], j, source)));
}

/* Compares rows [first, end) of a tile, at most as many bytes as are left. Returns how many. */
static uint64_t compare(struct error_run *x, const struct page_tile *u, uint32_t first,
			uint32_t end, const struct as_int8 *int8)
{
	uint64_t done = 0;

	for (uint32_t row = first; row < end && done < x->left; row++)
		for (uint32_t at = 0; at < u->row_bytes && done < x->left; at += 2, done += 2) {
			const uint8_t *from = u->base + row * u->stride + at;
			const uint32_t source = (uint32_t)from[0] | (uint32_t)from[1] << 8;
			const double was = value_of(x->is_fp16, source),
				     is = value_of(x->is_fp16, decoded(x, u, row, at / 2));
			const double other = int8_of(x, int8, at / 2, source, is);

			x->sums.squares += was * was;
			x->sums.errors += (was - is) * (was - is);
			x->sums.int8_errors += (was - other) * (was - other);
			if (int8->columns && int8->of_k) {
				const double four = k4_of(x, int8, at / 2, source, is);

				x->sums.k_errors += (was - is) * (was - is);
				x->sums.k4_errors += (was - four) * (was - four);
			}
		}
	x->left -= done;
	return done;
}

static enum image_codec of_groups(uint8_t codec)
{
	return image_codec_scales(codec) ? CODEC_FP8 : (enum image_codec)codec;
}

/* One of how many chunks is compared, if all that are compared together shall have `sample` bytes.
 * At least one is. If the image were fp8, it would have a scale for each chunk. */
static uint32_t one_of(const struct image_geometry *geometry, const struct image_header *header,
		       uint32_t sample)
{
	struct image_shape shape;
	uint64_t n;

	if (image_shape(geometry, of_groups(header->codec_k), of_groups(header->codec_v), &shape,
			NULL))
		return 1;
	n = (uint64_t)shape.scale_bytes * sample / (2ull * shape.payload_bytes);
	return n > 0 && n < shape.scale_bytes ? (uint32_t)(shape.scale_bytes / n) :
	       n > 0                          ? 1 :
						shape.scale_bytes;
}

static bool is_chosen(uint32_t n, uint32_t every)
{
	return (n / every * 2654435769u >> 8) % every == n % every;
}

void codec_error_start(struct codec_run *run, const struct page_layout *layout, uint64_t page,
		       const uint8_t *image, uint32_t sample)
{
	struct error_run *x = error_run_of(run);
	struct image_header header;
	struct image_shape shape;

	memcpy(&header, image, sizeof(header));
	*x = (struct error_run){ .is_fp16 = layout->geometry.dtype == DTYPE_FP16 };
	if (image_shape(&layout->geometry, header.codec_k, header.codec_v, &shape, NULL) ||
	    shape.scale_bytes == 0 || header.codec_k == CODEC_LOSSLESS)
		return; /* no byte is left to compare */
	x->left = sample;
	x->groups = shape.groups;
	if (header.codec_k == CODEC_FP8 && header.codec_v == CODEC_FP8)
		x->planes = page_layer_piece(layout, layout->geometry.layers) *
			    layout->geometry.kv_heads * shape.groups;
	x->every = one_of(&layout->geometry, &header, sample);
	x->scale = image + sizeof(struct image_header);
	x->codes = image + shape.payload_offset;
	tiles_start(&x->tiles, layout, page, header.codec_k, header.codec_v, &shape, true);
}

/* The next tile's part in the sample, in bytes. */
static uint64_t look_at(struct error_run *x, const struct page_tile *u)
{
	const uint64_t bytes = (uint64_t)u->rows * u->row_bytes;
	struct as_int8 int8;
	uint64_t done = 0;

	if (u->codec == CODEC_RAW) {
		x->codes += bytes;
		return 0;
	}
	for (uint32_t row = 0; row < u->rows; row += IMAGE_GROUP_TOKENS) {
		const uint32_t chunk = x->n++;
		const uint32_t end =
			u->rows - row < IMAGE_GROUP_TOKENS ? u->rows : row + IMAGE_GROUP_TOKENS;

		if (!is_chosen(chunk, x->every))
			continue;
		as_int8(x, u, chunk, &int8);
		done += compare(x, u, row, end, &int8);
	}
	x->codes += (uint64_t)u->rows * image_row_bytes(u->codec, DTYPE_BF16, u->row_bytes / 2);
	/* a joined tile of fp8 has one scale, too */
	x->scale +=
		u->codec == CODEC_FP8 ? 1 : image_scale_bytes(u->codec, u->rows, u->row_bytes / 2);
	return done;
}

int codec_error_step(struct codec_run *run, uint32_t budget, struct codec_error *ret)
{
	struct error_run *x = error_run_of(run);
	struct page_tile u;
	uint64_t cost = 0;

	while (x->left > 0 && tiles_next(&x->tiles, &u)) {
		cost += TILE_COST + look_at(x, &u);
		if (x->left > 0 && cost >= budget)
			return CODEC_MORE;
	}
	*ret = x->sums;
	return 0;
}
