/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error.c - how far the values of an image are from those of its page: codec_error() of kernels.h.
 *
 * The walk over the page's units (walk.h) touches no memory. Of each `every` units one is compared.
 * A hash chooses that unit, so the sample has no stride that a page may have, as from head to head.
 * Plain C is enough for a sample this small.
 */
#include <stdbool.h>
#include <string.h>

#include "fp8.h"
#include "kernels.h"
#include "walk.h"

/* A unit's image: its scale, and its codes in the order of its rows. */
struct coded {
	int k;
	const uint8_t *codes;
};

/* The value of a 16-bit code; of Inf and NaN anything: fp8 holds none. */
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

/* Looks at `most` (even) bytes of the unit at most. Returns at how many. */
static uint64_t compare(const struct walk_unit *u, const struct coded *coded, int is_fp16,
			uint64_t most, struct codec_error *ret)
{
	const uint8_t *code = coded->codes;
	uint64_t done = 0;

	for (uint32_t row = 0; row < u->rows && done < most; row++)
		for (uint32_t at = 0; at < u->row_bytes && done < most; at += 2, done += 2) {
			const uint8_t *from = u->base + row * u->stride + at;
			const double was = value_of(is_fp16,
						    (uint32_t)from[0] | (uint32_t)from[1] << 8),
				     is = value_of(is_fp16, fp8_decode(is_fp16, coded->k, *code++));

			ret->squares += was * was;
			ret->errors += (was - is) * (was - is);
		}
	return done;
}

/* Of how many units one is compared, if all that is compared is to be of `budget` bytes. At least
 * one is. */
static uint32_t one_of(const struct image_shape *shape, uint32_t budget)
{
	const uint64_t n = (uint64_t)shape->scale_bytes * budget / (2ull * shape->payload_bytes);

	return n > 0 && n < shape->scale_bytes ? (uint32_t)(shape->scale_bytes / n) :
	       n > 0                           ? 1 :
						 shape->scale_bytes;
}

static bool is_chosen(uint32_t n, uint32_t every)
{
	return (n / every * 2654435769u >> 8) % every == n % every;
}

void codec_error(const struct page_layout *layout, uint64_t page, const uint8_t *image,
		 uint32_t budget, struct codec_error *ret)
{
	const int is_fp16 = layout->geometry.dtype == DTYPE_FP16;
	const uint8_t *scale = image + sizeof(struct image_header);
	struct image_header header;
	struct image_shape shape;
	struct coded coded;
	struct walk_unit u;
	uint64_t done = 0;
	struct walk walk;
	uint32_t n = 0, every;

	*ret = (struct codec_error){ 0 };
	memcpy(&header, image, sizeof(header));
	if (image_shape(&layout->geometry, header.codec_k, header.codec_v, &shape, NULL))
		return;
	if (shape.scale_bytes == 0)
		return;
	every = one_of(&shape, budget);
	coded.codes = image + shape.payload_offset;
	walk_start(&walk, layout, page, header.codec_k, header.codec_v, &shape, true);
	while (done < budget && walk_next(&walk, &u)) {
		const uint64_t bytes = (uint64_t)u.rows * u.row_bytes;

		if (!u.fp8) {
			coded.codes += bytes;
			continue;
		}
		coded.k = *scale++ - FP8_BIAS;
		if (is_chosen(n++, every))
			done += compare(&u, &coded, is_fp16, budget - done, ret);
		coded.codes += bytes / 2;
	}
}
