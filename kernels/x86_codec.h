/* SPDX-License-Identifier: Apache-2.0 */
/*
 * x86_codec.h - encode and decode for x86-64, around the arithmetic of avx2_math.h or
 * avx512_math.h: one of them was included before. Everything is static: avx2.c and avx512.c each
 * compile their own copy. The result equals ref.c's, bit for bit.
 *
 * Memory bounds the speed. Encode reads 2 bytes and writes 1 per value, decode the reverse. So each
 * moves three quarters of a copy's bytes, and the arithmetic must hide behind that traffic.
 * x86_encode.h and x86_decode.h, which this file includes, say how.
 *
 * Safety: pages may change while they are read. No address and no loop bound depends on a page's
 * values. The checksum is made from the same register or scratch that goes into the image. Loads
 * never pass the end of a row. Any thread.
 */
#ifndef KVTIER_X86_CODEC_H
#define KVTIER_X86_CODEC_H

#include <errno.h>
#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "kernels.h"
#include "walk.h"
#include "x86_hash.h"

enum {
	LINE = 64,
	STEP = 64, /* values per step of encode: a line of codes */
	DECODE_STEP = 32,
	TOGETHER = 4,          /* steps that are encoded before the first of them leaves */
	FLUSH_BYTES = 8 << 10, /* stays in L1 between the codec, the checksum and the copy */
	WALK_AHEAD = 7,        /* units between prefetch and use */
	NEAR_ROWS = 8,         /* of a verbatim unit, between prefetch into L1 and use */
	ZEN4_L1_BYTES = 32 << 10,
	ZEN4_AHEAD_BYTES = 64 << 10, /* its WALK_AHEAD_BYTES */
	/* units between amax and codes: k is known when its unit's turn comes */
	AMAX_AHEAD = 2,
	PREFETCH_BYTES = 2048, /* of payload, ahead of decode */
};

/* Whole lines past the cache; the ragged ends through it. Unfenced. */
static void stream(uint8_t *dst, const uint8_t *src, size_t n)
{
	const size_t head = (0 - (uintptr_t)dst) & (LINE - 1);

	if (n < head + LINE) {
		memcpy(dst, src, n);
		return;
	}
	memcpy(dst, src, head);
	dst += head, src += head, n -= head;
	for (; n >= LINE; n -= LINE, dst += LINE, src += LINE) {
		const __m256i a = _mm256_loadu_si256((const void *)src);
		const __m256i b = _mm256_loadu_si256((const void *)(src + 32));

		_mm256_stream_si256((void *)dst, a);
		_mm256_stream_si256((void *)(dst + 32), b);
	}
	memcpy(dst, src, n);
}

static void x86_copy(void *dst, const void *src, size_t n)
{
	stream(dst, src, n);
	_mm_sfence();
}

#include "x86_decode.h"
#include "x86_encode.h"

/* ---- verify ---- */

struct verify_run {
	struct hash hash;
	const uint8_t *payload, *scales;
	uint32_t payload_bytes, scale_bytes; /* that are left; 0: done */
	uint64_t expected;
};

static void verify_start(struct verify_run *v, const uint8_t *image,
			 const struct image_shape *shape, uint64_t checksum)
{
	hash_start(&v->hash);
	v->payload = image + shape->payload_offset;
	v->payload_bytes = shape->payload_bytes;
	v->scales = image + sizeof(struct image_header);
	v->scale_bytes = shape->scale_bytes;
	v->expected = checksum;
}

/* Up to the budget of *left bytes at *p. */
static void verify_some(struct verify_run *v, const uint8_t **p, uint32_t *left, uint32_t budget)
{
	const uint32_t n = *left < budget ? *left : budget;

	hash_update(&v->hash, *p, n);
	*p += n;
	*left -= n;
}

static int verify_step(struct verify_run *v, uint32_t budget)
{
	if (v->payload_bytes) {
		verify_some(v, &v->payload, &v->payload_bytes, budget);
		if (v->payload_bytes || v->scale_bytes > budget)
			return CODEC_MORE;
	}
	verify_some(v, &v->scales, &v->scale_bytes, budget);
	if (v->scale_bytes)
		return CODEC_MORE;
	return hash_end(&v->hash) == v->expected ? 0 : -EBADMSG;
}

/* ---- runs ---- */

struct x86_run {
	union {
		struct encode_run encode;
		struct decode_run decode;
		struct verify_run verify;
	};
	enum { RUN_ENCODE = 1, RUN_DECODE, RUN_VERIFY } kind;
};
static_assert(sizeof(struct x86_run) <= CODEC_RUN_BYTES, "codec_run");

static struct x86_run *x86_run_of(struct codec_run *run)
{
	return (struct x86_run *)(void *)run->own;
}

static int x86_encode_start(struct codec_run *run, const struct page_layout *layout, uint64_t page,
			    enum image_codec codec_k, enum image_codec codec_v,
			    const struct image_identity *identity, uint8_t *image)
{
	struct x86_run *x = x86_run_of(run);

	x->kind = RUN_ENCODE;
	return encode_start(&x->encode, layout, page, codec_k, codec_v, identity, image);
}

static int x86_decode_start(struct codec_run *run, const struct page_layout *layout, uint64_t page,
			    const uint8_t *image)
{
	struct x86_run *x = x86_run_of(run);

	x->kind = RUN_DECODE;
	return decode_start(&x->decode, layout, page, image);
}

static void x86_decode_layers(struct codec_run *run, uint32_t first, uint32_t end)
{
	decode_layers(&x86_run_of(run)->decode, first, end);
}

static void x86_verify_start(struct codec_run *run, const uint8_t *image,
			     const struct image_shape *shape, uint64_t checksum)
{
	struct x86_run *x = x86_run_of(run);

	x->kind = RUN_VERIFY;
	verify_start(&x->verify, image, shape, checksum);
}

static void x86_fence(void)
{
	_mm_sfence(); /* non-temporal stores are ordered with nothing else before this */
}

static int x86_step(struct codec_run *run, uint32_t budget, uint8_t *scratch)
{
	struct x86_run *x = x86_run_of(run);
	const int r = x->kind == RUN_ENCODE ? encode_step(&x->encode, budget, scratch) :
		      x->kind == RUN_DECODE ? decode_step(&x->decode, budget) :
					      verify_step(&x->verify, budget);

	if (r != CODEC_MORE)
		x86_fence();
	return r;
}

/* ---- runs, for tests ---- */

static void x86_encode_run(uint32_t dtype, int k, const uint16_t *src, uint8_t *dst, size_t n)
{
	uint8_t out[2 * STEP];

	for (size_t i = 0; i < n; i += STEP) {
		const uint32_t now = n - i < STEP ? (uint32_t)(n - i) : STEP;
		const struct walk_unit u = { .base = (uint8_t *)(uintptr_t)(src + i),
					     .rows = 1,
					     .row_bytes = 2 * now };
		const struct far far = { u.base, u.stride, false };

		if (dtype == DTYPE_FP16)
			(void)encode_as(true, k, &u, &u, far, out);
		else
			(void)encode_as(false, k, &u, &u, far, out);
		memcpy(dst + i, out, now);
	}
}

static void x86_decode_run(uint32_t dtype, int k, const uint8_t *src, uint16_t *dst, size_t n)
{
	const bool is_fp16 = dtype == DTYPE_FP16;
	const struct walk_unit u = { .base = (uint8_t *)dst,
				     .rows = 1,
				     .row_bytes = (uint32_t)(2 * n) };

	decode_unit(&u, is_fp16, k, src);
	_mm_sfence();
}

#endif
