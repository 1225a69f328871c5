/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_trial.c - goal: no file in the place of one that `kvtierctl dump` wrote, and no image with a
 * right checksum, makes trial.c or a decoder crash, or read or write out of bounds. Method: the
 * first byte chooses a geometry, two codecs, and how much is true. The other bytes are scales and
 * payload of an image, which is sealed and fed twice, in pieces; or else they are the file. So
 * every codec decodes any bytes, and its values are encoded by all. Without libFuzzer the bytes are
 * random. Seed printed ($SEED sets it, $FUZZ_RUNS how many, 300). With -DKVTIER_LIBFUZZER the same
 * under libFuzzer. Worth most with SAN=address,undefined.
 */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/trial.h"
#include "tests/lib/random.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct image_geometry geometries[] = {
	{ DTYPE_BF16, 1, 2, 64, 64, 16, 0, 0, 0 },
	{ DTYPE_FP16, 1, 1, 31, 33, 67, 2, 300, 700 },
};
static const struct image_codecs codecs[] = {
	{ CODEC_K4, CODEC_V4 },   { CODEC_INT8, CODEC_V4 },           { CODEC_INT8, CODEC_INT8 },
	{ CODEC_FP8, CODEC_FP8 }, { CODEC_LOSSLESS, CODEC_LOSSLESS }, { CODEC_RAW, CODEC_RAW },
};
enum { GEOMETRIES = 2, CODECS = 6, WHOLE = 7, PIECE = 777 };

/* What the file says is shown as kvtierctl does; whatever it is. */
static int feed(struct trial *trial, const uint8_t *bytes, size_t n)
{
	int r = 0;

	for (size_t at = 0; at < n && !r; at += PIECE)
		r = trial_feed(trial, bytes + at, n - at < PIECE ? n - at : PIECE);
	return r;
}

static struct trial *begin(void)
{
	struct trial *trial = trial_new(codec_kernels(NULL), UINT32_MAX);

	assert(trial);
	return trial;
}

static void as_file(const uint8_t *bytes, size_t n)
{
	struct trial *trial = begin();

	(void)feed(trial, bytes, n);
	(void)trial_whole(trial);
	trial_free(trial);
}

static void as_image(const struct image_geometry *g, struct image_codecs codec,
		     const uint8_t *bytes, size_t n)
{
	const struct image_identity who = { .key = { 1 } };
	struct image_shape shape;
	struct trial *trial;
	uint8_t *image;
	size_t head;

	if (image_shape(g, codec.k, codec.v, &shape, NULL))
		abort();
	image = calloc(1, shape.image_bytes);
	assert(image);
	image_header_fill((struct image_header *)(void *)image, g, codec.k, codec.v, &shape, &who);
	head = n < shape.scale_bytes ? n : shape.scale_bytes;
	memcpy(image + sizeof(struct image_header), bytes, head);
	memcpy(image + shape.payload_offset, bytes + head,
	       n - head < shape.payload_bytes ? n - head : shape.payload_bytes);
	image_seal((struct image_header *)(void *)image, image_checksum(image, &shape));
	trial = begin();
	if (!feed(trial, image, shape.image_bytes) && !feed(trial, image, shape.image_bytes)) {
		struct trial_result result;

		assert(trial_whole(trial));
		for (uint32_t i = 0; i < 32; i++)
			(void)trial_result(trial, i, &result);
	} else {
		assert(codec.k == CODEC_LOSSLESS); /* its packs lie; all others take any bytes */
	}
	trial_free(trial);
	free(image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint32_t way = size ? data[0] : 0, which = way / GEOMETRIES % WHOLE;

	if (size == 0)
		return 0;
	if (which == CODECS)
		as_file(data + 1, size - 1);
	else
		as_image(&geometries[way % GEOMETRIES], codecs[which], data + 1, size - 1);
	return 0;
}

#ifndef KVTIER_LIBFUZZER

int main(void)
{
	const uint64_t n = env_number("FUZZ_RUNS", 300);
	struct random random = random_seeded("fuzz_trial");
	static uint8_t data[12000];

	for (uint64_t i = 0; i < n; i++) {
		for (size_t at = 0; at < sizeof(data); at++)
			data[at] = (uint8_t)random_next(&random);
		(void)LLVMFuzzerTestOneInput(data, 1 + random_below(&random, sizeof(data) - 1));
	}
	return 0;
}
#endif
