/* SPDX-License-Identifier: Apache-2.0 */
/*
 * x86_codec.h - encode and decode for x86-64, around the arithmetic of math/: that of avx2, or of
 * avx512, whose headers were included before. Everything is static: avx2.c and vbmi2.c each compile
 * their own copy. vbmi2.c defines X86_VBMI2, for other loops over lossless packs and nibbles. The
 * result equals ref.c's, bit for bit.
 *
 * Memory bounds the speed. Encode reads 2 bytes and writes 1 per value, decode the reverse. So each
 * moves three quarters of a copy's bytes, and the arithmetic must hide behind that traffic.
 * x86_encode.h and x86_decode.h, which this file includes, say how.
 *
 * Safety: pages may change while they are read. No address depends on a page's values, but where a
 * lossless pack ends in scratch, which has room for the longest. No loop bound does, but how many
 * values of a step are beyond, at most all. The checksum is made from the same register or scratch
 * that goes into the image. Loads never pass the end of a row. Any thread.
 */
#pragma once

#include <errno.h>
#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/tiles.h"
#include "x86_hash.h"

enum {
	LINE = 64,
	STEP = 64, /* values per step of encode: a line of codes */
	DECODE_STEP = 32,
	TOGETHER = 4,          /* steps that are encoded before the first of them leaves */
	FLUSH_BYTES = 8 << 10, /* stays in L1 between the codec, the checksum and the copy */
	TILES_AHEAD = 7,       /* tiles between prefetch and use */
	NEAR_ROWS = 8,         /* of a verbatim tile, between prefetch into L1 and use */
	ZEN4_L1_BYTES = 32 << 10,
	ZEN4_AHEAD_BYTES = 64 << 10, /* its TILES_AHEAD_BYTES */
	/* tiles between amax and codes: k is known when its tile's turn comes */
	AMAX_AHEAD = 2,
	PREFETCH_BYTES = 2048, /* of payload, ahead of decode */
	/* of int8 tiles, at the end of scratch */
	POWERS_BYTES = IMAGE_MAX_HEAD_DIM * sizeof(float),
};

static float *powers_of(uint8_t *scratch)
{
	return (float *)(void *)(scratch + CODEC_SCRATCH_BYTES - POWERS_BYTES);
}

/* A call whose first arguments the compiler knows. */
#define BY_TYPE(call, is_fp16, ...) ((is_fp16) ? call(true, __VA_ARGS__) : call(false, __VA_ARGS__))
#define BY_TYPE_AND_LINES(call, is_fp16, lines, ...)           \
	((lines) ? BY_TYPE(call, is_fp16, true, __VA_ARGS__) : \
		   BY_TYPE(call, is_fp16, false, __VA_ARGS__))

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

static inline void prefetch_payload(const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i += LINE)
		_mm_prefetch((const char *)(p + PREFETCH_BYTES + i), _MM_HINT_T1);
}

/* Memory to prefetch beside a tile, as many rows of as many bytes. */
struct far {
	const uint8_t *base;
	uint64_t stride;
	bool l2; /* not into L1: see the head of x86_encode.h */
};

MATH_FN void prefetch_line(struct far far, const uint8_t *p)
{
	if (far.l2)
		_mm_prefetch((const char *)p, _MM_HINT_T1);
	else
		_mm_prefetch((const char *)p, _MM_HINT_T0);
}

MATH_FN void prefetch_values(struct far far, const uint8_t *p)
{
	prefetch_line(far, p);
	prefetch_line(far, p + LINE);
}

static bool tile_is_lines(const struct page_tile *u)
{
	return (((uintptr_t)u->base | u->row_bytes | (u->rows > 1 ? u->stride : 0)) & (LINE - 1)) ==
	       0;
}

#include "x86_lossless.h"
#include "x86_nibbles.h"
#include "x86_q4.h"
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
	_mm_sfence(); /* no other instruction orders non-temporal stores */
}

static int x86_step(struct codec_run *run, uint32_t budget, uint8_t *scratch)
{
	struct x86_run *x = x86_run_of(run);
	const int r = x->kind == RUN_ENCODE ? encode_step(&x->encode, budget, scratch) :
		      x->kind == RUN_DECODE ? decode_step(&x->decode, budget, scratch) :
					      verify_step(&x->verify, budget);

	if (r != CODEC_MORE)
		x86_fence();
	return r;
}

const struct codec_kernels X86_KERNELS = {
	.name = X86_NAME,
	.encode_start = x86_encode_start,
	.decode_start = x86_decode_start,
	.decode_layers = x86_decode_layers,
	.verify_start = x86_verify_start,
	.step = x86_step,
	.fence = x86_fence,
	.copy = x86_copy,
	.nibbles_pack = x86_nibbles_pack,
	.nibbles_unpack = x86_nibbles_unpack,
};
