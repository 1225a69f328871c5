/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_form.c - goal: no bytes make the unpacker of the coded form crash, read or write out of
 * bounds, or take longer than they are; every implementation answers alike, and what it takes for
 * whole is as long as the image. Method: the first byte chooses a geometry, and the others are a
 * form; without libFuzzer they are good forms with bits flipped, bytes at the edges, and cuts. The
 * image ends at the end of its allocation, and the form's spare bytes at that of theirs. Seed
 * printed ($SEED sets it, $FUZZ_RUNS how many, 20,000). With -DKVTIER_LIBFUZZER the same under
 * libFuzzer. Worth most with SAN=address,undefined.
 */
#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/form.h"
#include "tests/lib/random.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct {
	struct image_geometry geometry;
	enum image_codec codec;
} cases[] = {
	{ { DTYPE_BF16, 1, 2, 64, 64, 16, 0, 0, 0 }, CODEC_FP8 },
	{ { DTYPE_BF16, 1, 1, 31, 33, 5, 2, 300, 7000 }, CODEC_FP8 },
	{ { DTYPE_FP32, 1, 1, 64, 0, 16, 0, 0, 100 }, CODEC_RAW },
	{ { DTYPE_BF16, 0, 0, 0, 0, 16, 0, 0, 70000 }, CODEC_RAW },
};
enum { CASES = sizeof(cases) / sizeof(cases[0]) };

/* 0: the form is whole, and *ret the image, to be freed. */
static int unpack(const char *kernels, const struct image_shape *shape, const uint8_t *form,
		  size_t n, uint8_t **ret)
{
	const struct codec_kernels *k = codec_kernels(kernels);
	uint8_t *image = calloc(1, shape->image_bytes);
	struct form_unpack u;
	size_t used = 0;
	int r = 0;

	assert(image);
	*ret = image;
	if (!k)
		return 0;
	form_unpack_start(&u, k, shape, image);
	r = form_unpack_some(&u, form, n, &used);
	assert(used <= n && u.at <= u.end);
	return r ? r : form_unpack_whole(&u) && used == n ? 0 : -EBADMSG;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const fast[] = { "avx2", "vbmi2" };
	struct image_shape shape;
	uint8_t *form, *want, *have;
	uint32_t which;
	int r;

	if (size == 0)
		return 0;
	which = data[0] % CASES;
	if (image_shape(&cases[which].geometry, cases[which].codec, cases[which].codec, &shape,
			NULL))
		abort();
	form = calloc(1, size - 1 + FORM_SPARE);
	assert(form);
	memcpy(form, data + 1, size - 1);
	r = unpack("ref", &shape, form, size - 1, &want);
	for (uint32_t i = 0; i < sizeof(fast) / sizeof(fast[0]); i++) {
		if (codec_kernels(fast[i])) {
			assert(unpack(fast[i], &shape, form, size - 1, &have) == r);
			assert(memcmp(have, want, shape.image_bytes) == 0);
			free(have);
		}
	}
	free(want);
	free(form);
	return 0;
}

#ifndef KVTIER_LIBFUZZER

enum { ROOM = 256 << 10 };

/* A good form of codes that are skewed, and its case in front of it. Returns its bytes. */
static size_t good(struct random *random, uint8_t *to)
{
	const struct image_identity who = { .key = { 1 } };
	const uint32_t which = random_below(random, CASES);
	const enum image_codec codec = cases[which].codec;
	static _Alignas(64) uint8_t image[ROOM];
	struct image_shape shape;
	struct form_pack p;
	int r;

	if (image_shape(&cases[which].geometry, codec, codec, &shape, NULL))
		abort();
	image_header_fill((struct image_header *)(void *)image, &cases[which].geometry, codec,
			  codec, &shape, &who);
	for (uint32_t i = sizeof(struct image_header); i < shape.image_bytes; i++) {
		const uint64_t x = random_next(random);

		image[i] =
			(uint8_t)(codec == CODEC_RAW ? i % 50 : (x & 0x8f) | (x & x >> 8 & 0x70));
	}
	to[0] = (uint8_t)which;
	form_pack_start(&p, codec_kernels("ref"), &cases[which].geometry, &shape, image, to + 1);
	do
		r = form_pack_step(&p, ROOM);
	while (r == CODEC_MORE);
	return 1 + p.n;
}

static size_t mutate(struct random *random, uint8_t *form, size_t n)
{
	for (uint32_t i = random_below(random, 4); i > 0; i--) {
		uint8_t *at =
			form + random_below(random, random_below(random, 2) ? (uint32_t)n : 64);

		if (random_below(random, 2))
			*at = (uint8_t)random_next(random);
		else
			*at ^= (uint8_t)(1 << random_below(random, 8));
	}
	return random_below(random, 8) ? n : 1 + random_below(random, (uint32_t)n);
}

int main(void)
{
	const uint64_t n = env_number("FUZZ_RUNS", 20000);
	struct random random = random_seeded("fuzz_form");
	static uint8_t form[ROOM + FORM_SPARE];

	for (uint64_t i = 0; i < n; i++)
		(void)LLVMFuzzerTestOneInput(form, mutate(&random, form, good(&random, form)));
	return 0;
}
#endif
