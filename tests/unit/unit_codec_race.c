/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: a page that changes while it is encoded gives a wrong value at worst: never a crash, never
 * an image whose checksum is not of its own bytes. Method: a thread keeps scribbling over the page,
 * Infs and NaNs among it, while every kernel encodes it some hundred times. The race is the
 * subject, so the program skips itself under the thread sanitizer.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/kernels.h"

enum { TOKENS = 16, HEADS = 4, DIM = 64, VALUES = TOKENS * HEADS * DIM, ROUNDS = 300 };

struct scribbler {
	volatile uint16_t *page;
	atomic_int stop;
};

static void *scribble(void *arg)
{
	struct scribbler *s = arg;
	uint32_t x = 1;

	while (!atomic_load_explicit(&s->stop, memory_order_relaxed)) {
		x = x * 1664525u + 1013904223u;
		s->page[(x >> 8) % VALUES] = x & 0x400000 ? (uint16_t)(x >> 16) : 0x3f80;
		if ((x & 0xff0000) == 0) /* calm down: else every encode would meet an Inf */
			for (int i = 0; i < VALUES; i++)
				s->page[i] = (uint16_t)(0x3f00 + (i & 127));
	}
	return NULL;
}

static void encode_under_scribbling(const struct codec_kernels *k, enum image_codec codec)
{
	struct scribbler s = { .page = calloc(VALUES, sizeof(uint16_t)) };
	const struct page_piece piece = {
		.base = (uint8_t *)(uintptr_t)s.page,
		.page_stride = 2 * VALUES,
		.head_stride = 2 * DIM,
		.token_stride = 2 * DIM * HEADS,
		.kind = KIND_K,
	};
	const struct page_layout layout = {
		.geometry = { .dtype = DTYPE_BF16,
			      .layers = 1,
			      .kv_heads = HEADS,
			      .head_dim_k = DIM,
			      .block_tokens = TOKENS },
		.n_pieces = 1,
		.pieces = &piece,
	};
	const struct image_identity who = { { 0 }, { 0 } };
	uint8_t *image = aligned_alloc(4096, 64 << 10),
		*scratch = aligned_alloc(64, CODEC_SCRATCH_BYTES);
	struct image_shape shape;
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, scribble, &s), 0);
	for (int i = 0; i < ROUNDS; i++) {
		const int r = codec_encode(k, &layout, 0, codec, codec, &who, image, scratch);

		assert_true(r == 0 || (r == -ERANGE && codec == CODEC_FP8));
		if (r)
			continue;
		assert_int_equal(image_header_check((void *)image, &layout.geometry, &who, &shape),
				 0);
		assert_true(((struct image_header *)(void *)image)->checksum ==
			    image_checksum(image, &shape));
	}
	atomic_store(&s.stop, 1);
	assert_int_equal(pthread_join(thread, NULL), 0);
	free((void *)(uintptr_t)s.page);
	free(image);
	free(scratch);
}

static void fp8_of_a_changing_page(void **state)
{
	static const char *const names[] = { "ref", "avx2", "avx512" };

	(void)state;
	for (int i = 0; i < 3; i++)
		if (codec_kernels(names[i]))
			encode_under_scribbling(codec_kernels(names[i]), CODEC_FP8);
}

static void raw_of_a_changing_page(void **state)
{
	static const char *const names[] = { "ref", "avx2", "avx512" };

	(void)state;
	for (int i = 0; i < 3; i++)
		if (codec_kernels(names[i]))
			encode_under_scribbling(codec_kernels(names[i]), CODEC_RAW);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fp8_of_a_changing_page),
		cmocka_unit_test(raw_of_a_changing_page),
	};

#ifndef __has_feature
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
	puts("the race is this test's subject: not under ThreadSanitizer");
	return 77;
#endif
	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
