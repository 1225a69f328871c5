/* SPDX-License-Identifier: Apache-2.0 */
/*
 * x86_codec.h - encode and decode for x86-64, around the arithmetic of avx2_math.h or avx512_math.h,
 * whichever was included before. Everything is static: avx2.c and avx512.c each compile their own. Bit for
 * bit what ref.c makes.
 *
 * What bounds it: memory. Encode reads 2 bytes and writes 1 per value, decode the reverse, so each moves
 * three quarters of what a copy does; the arithmetic must hide behind that. Hence
 *	encode: units in canonical order (walk.h). One loop encodes a unit from L1, takes the amax of the next
 *	        (which brings it there) and prefetches the one WALK_AHEAD further on. Codes go to scratch, and
 *	        past the cache to the image; every FLUSH_BYTES of scratch are hashed.
 *	decode: the payload is one sequential stream, prefetched; rows go out non-temporally when they are
 *	        whole cache lines, through the cache otherwise.
 *
 * Safety: pages may change while they are read. No address and no loop bound depends on a page's values. The
 * checksum is of scratch, and what scratch holds is what the image gets. Loads never pass the end of a row.
 * Any thread.
 */
#ifndef KVTIER_X86_CODEC_H
#define KVTIER_X86_CODEC_H

#include <errno.h>
#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#define XXH_INLINE_ALL /* compiled here, XXH3 is the AVX2 one */
#include <xxhash.h>

#include "kernels.h"
#include "walk.h"

enum {
	LINE = 64,
	STEP = 64, /* values per step of encode: a line of codes */
	DECODE_STEP = 32,
	FLUSH_BYTES = 8 << 10, /* stays in L1 between the codec, the checksum and the copy */
	WALK_AHEAD = 3,        /* units between prefetch and use */
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

/* ---- encode ---- */

/* An image being written: units are put together in scratch and leave it in order. */
struct writer {
	uint8_t *scratch;
	size_t fill;            /* of scratch */
	size_t sent;            /* of fill: in the image already; whole lines, or all that is there */
	uint8_t *payload, *end; /* next byte of the image, end of it */
	uint8_t *scale;
	XXH3_state_t hash;
};

/* Leaves fewer than LINE bytes behind unless `all`, so that every copy but the last is whole lines. */
static void writer_flush(struct writer *w, bool all)
{
	const size_t n = all ? w->fill : w->fill & ~(size_t)(LINE - 1), rest = w->fill - n;

	assert(n <= (size_t)(w->end - w->payload)); /* pieces that do not add up to their geometry */
	(void)XXH3_64bits_update(&w->hash, w->scratch, n);
	if (w->sent < n)
		stream(w->payload + w->sent, w->scratch + w->sent, n - w->sent);
	memcpy(w->scratch, w->scratch + n, rest < n ? rest : 0);
	w->payload += n;
	w->fill = rest;
	w->sent = 0;
}

/* n values that need not fill a step: reads them and nothing after. */
MATH_FN void amax_tail(struct math_amax *amax, const uint8_t *src, uint32_t n)
{
	for (; n; src += 2 * STEP) {
		const uint32_t now = n < STEP ? n : STEP;
		uint16_t last[STEP] = { 0 };

		memcpy(last, src, 2 * now);
		math_amax64(amax, (const uint8_t *)last);
		n -= now;
	}
}

static uint32_t unit_amax(const struct walk_unit *u)
{
	struct math_amax amax = math_amax_start();

	for (uint32_t r = 0; r < u->rows; r++)
		amax_tail(&amax, u->base + r * u->stride, u->row_bytes / 2);
	return math_amax_end(&amax);
}

/* n < STEP values; writes a whole step. */
MATH_FN void encode_tail(bool is_fp16, const struct math_encode *m, const uint8_t *src, uint8_t *dst,
			 uint32_t n)
{
	uint16_t last[STEP] = { 0 };

	memcpy(last, src, 2 * n);
	math_encode64(is_fp16, m, (const uint8_t *)last, dst, NULL);
}

/*
 * One unit's codes to dst, and up to STEP - 1 bytes of anything after them. In the same loop the amax of
 * `next` is taken and `far` prefetched, so that memory is read at an even pace under the arithmetic; all
 * three have the same rows. With `past`, a line in the image, the same bytes go there past the cache; rows
 * must then be multiples of STEP codes.
 */
MATH_FN uint32_t encode_as(bool is_fp16, int k, const struct walk_unit *u, const struct walk_unit *next,
			   const struct walk_unit *far, uint8_t *dst, uint8_t *past)
{
	const struct math_encode m = math_encode_at(is_fp16, k);
	const uint32_t n = u->row_bytes / 2;
	struct math_amax amax = math_amax_start();

	for (uint32_t r = 0; r < u->rows; r++, dst += n) {
		const uint8_t *row = u->base + r * u->stride, *next_row = next->base + r * next->stride;
		const uint8_t *far_row = far->base + r * far->stride;
		uint32_t i = 0;

		for (; i + STEP <= n; i += STEP) {
			_mm_prefetch((const char *)(far_row + 2 * i), _MM_HINT_T1);
			_mm_prefetch((const char *)(far_row + 2 * i + LINE), _MM_HINT_T1);
			math_amax64(&amax, next_row + 2 * i);
			math_encode64(is_fp16, &m, row + 2 * i, dst + i, past);
			past = past ? past + LINE : NULL;
		}
		if (i < n) {
			encode_tail(is_fp16, &m, row + 2 * i, dst + i, n - i);
			amax_tail(&amax, next_row + 2 * i, n - i);
		}
	}
	return math_amax_end(&amax);
}

/* *amax: of u; becomes that of next. */
static int encode_unit(struct writer *w, bool is_fp16, const struct walk_unit *u,
		       const struct walk_unit *next, const struct walk_unit *far, uint32_t *amax)
{
	const int k = fp8_exponent(is_fp16, *amax);
	const uint32_t codes = u->rows * u->row_bytes / 2;
	const bool direct = w->sent == w->fill && w->fill % LINE == 0 && u->row_bytes % (2 * STEP) == 0;
	uint8_t *const to = w->scratch + w->fill, *const past = w->payload + w->fill;

	if (k == FP8_K_NONE)
		return -ERANGE;
	assert(codes + w->fill <= (size_t)(w->end - w->payload)); /* pieces that exceed their geometry */
	*w->scale++ = (uint8_t)(k + FP8_BIAS);
	if (is_fp16)
		*amax = direct ? encode_as(true, k, u, next, far, to, past)
			       : encode_as(true, k, u, next, far, to, NULL);
	else
		*amax = direct ? encode_as(false, k, u, next, far, to, past)
			       : encode_as(false, k, u, next, far, to, NULL);
	w->fill += codes;
	w->sent = direct ? w->fill : w->sent;
	return 0;
}

/* Verbatim rows; `past` as for codes, for rows of whole lines. */
MATH_FN void gather_rows(const struct walk_unit *u, const struct walk_unit *far, uint8_t *dst, uint8_t *past)
{
	for (uint32_t r = 0; r < u->rows; r++, dst += u->row_bytes) {
		const uint8_t *row = u->base + r * u->stride, *far_row = far->base + r * far->stride;
		uint32_t at = 0;

		for (; at + LINE <= u->row_bytes; at += LINE) {
			const __m256i a = _mm256_loadu_si256((const void *)(row + at));
			const __m256i b = _mm256_loadu_si256((const void *)(row + at + 32));

			_mm_prefetch((const char *)(far_row + at), _MM_HINT_T1);
			_mm256_storeu_si256((void *)(dst + at), a);
			_mm256_storeu_si256((void *)(dst + at + 32), b);
			if (past) {
				_mm256_stream_si256((void *)past, a);
				_mm256_stream_si256((void *)(past + 32), b);
				past += LINE;
			}
		}
		memcpy(dst + at, row + at, u->row_bytes - at);
	}
}

static void gather_unit(struct writer *w, const struct walk_unit *u, const struct walk_unit *far)
{
	const uint32_t bytes = u->rows * u->row_bytes;
	const bool direct = w->sent == w->fill && w->fill % LINE == 0 && u->row_bytes % LINE == 0;

	assert(bytes + w->fill <= (size_t)(w->end - w->payload));
	if (direct)
		gather_rows(u, far, w->scratch + w->fill, w->payload + w->fill);
	else
		gather_rows(u, far, w->scratch + w->fill, NULL);
	w->fill += bytes;
	w->sent = direct ? w->fill : w->sent;
}

/* b, if it is there and has the rows of a; else a itself, for loops that go over both at once. */
static const struct walk_unit *alike(const struct walk_unit *a, const struct walk_unit *b)
{
	return b && a->fp8 == b->fp8 && a->rows == b->rows && a->row_bytes == b->row_bytes ? b : a;
}

static int encode_page(struct writer *w, struct walk *walk, bool is_fp16)
{
	struct walk_unit ring[WALK_AHEAD + 1]; /* the unit at `now` and up to WALK_AHEAD after it */
	uint32_t have = 0, now = 0, amax = 0;
	bool known = false; /* amax is that of the unit at `now` */
	int r = 0;

	while (have <= WALK_AHEAD && walk_next(walk, &ring[have]))
		have++;
	while (have && !r) {
		const struct walk_unit *u = &ring[now];
		const struct walk_unit *next =
			alike(u, have > 1 ? &ring[(now + 1) % (WALK_AHEAD + 1)] : NULL);
		const struct walk_unit *far =
			alike(u, have > WALK_AHEAD ? &ring[(now + WALK_AHEAD) % (WALK_AHEAD + 1)] : NULL);

		if (u->fp8) {
			amax = known ? amax : unit_amax(u);
			r = encode_unit(w, is_fp16, u, next, far, &amax);
			known = next != u;
		} else {
			gather_unit(w, u, far);
			known = false;
		}
		if (w->fill >= FLUSH_BYTES)
			writer_flush(w, false);
		have--;
		if (walk_next(walk, &ring[now]))
			have++;
		now = (now + 1) % (WALK_AHEAD + 1);
	}
	return r;
}

static int x86_encode(const struct page_layout *layout, uint64_t page, enum image_codec codec_k,
		      enum image_codec codec_v, const struct image_identity *identity, uint8_t *image,
		      uint8_t *scratch)
{
	struct image_header *header = (void *)image;
	struct image_shape shape;
	struct writer w;
	struct walk walk;
	int r;

	r = image_shape(&layout->geometry, codec_k, codec_v, &shape, NULL);
	if (r)
		return r;
	w.scratch = scratch;
	w.fill = w.sent = 0;
	w.scale = image + sizeof(*header);
	w.payload = image + shape.payload_offset;
	w.end = image + shape.image_bytes;
	XXH3_INITSTATE(&w.hash);
	(void)XXH3_64bits_reset(&w.hash);
	memset(w.scale, 0, shape.payload_offset - sizeof(*header)); /* the padding too */
	walk_start(&walk, layout, page, codec_k, codec_v, &shape);
	r = encode_page(&w, &walk, layout->geometry.dtype == DTYPE_FP16);
	if (!r) {
		writer_flush(&w, true);
		assert(w.payload == w.end);
		(void)XXH3_64bits_update(&w.hash, image + sizeof(*header), shape.scale_bytes);
		image_header_fill(header, &layout->geometry, codec_k, codec_v, &shape, identity);
		image_seal(header, XXH3_64bits_digest(&w.hash));
	}
	_mm_sfence(); /* non-temporal stores are ordered with nothing else before this */
	return r;
}

/* ---- decode ---- */

static inline void prefetch_payload(const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i += LINE)
		_mm_prefetch((const char *)(p + PREFETCH_BYTES + i), _MM_HINT_T1);
}

MATH_FN void decode_as(bool is_fp16, const struct math_decode *m, const uint8_t *src, uint8_t *dst, size_t n)
{
	uint8_t codes[DECODE_STEP] = { 0 };
	uint16_t last[DECODE_STEP];
	size_t i = 0;

	for (; i + DECODE_STEP <= n; i += DECODE_STEP)
		math_decode32(is_fp16, m, src + i, dst + 2 * i, false);
	if (i == n)
		return;
	memcpy(codes, src + i, n - i);
	math_decode32(is_fp16, m, codes, (uint8_t *)last, false);
	memcpy(dst + 2 * i, last, 2 * (n - i));
}

/* dst, and n in bytes of the page, are whole lines. */
MATH_FN void decode_lines_as(bool is_fp16, const struct math_decode *m, const uint8_t *src, uint8_t *dst,
			     size_t n)
{
	for (size_t i = 0; i < n; i += DECODE_STEP)
		math_decode32(is_fp16, m, src + i, dst + 2 * i, true);
}

static void decode_values(bool is_fp16, const struct math_decode *m, const uint8_t *src, uint8_t *dst,
			  size_t n)
{
	if (is_fp16)
		decode_as(true, m, src, dst, n);
	else
		decode_as(false, m, src, dst, n);
}

static void decode_lines(bool is_fp16, const struct math_decode *m, const uint8_t *src, uint8_t *dst,
			 size_t n)
{
	if (is_fp16)
		decode_lines_as(true, m, src, dst, n);
	else
		decode_lines_as(false, m, src, dst, n);
}

static void decode_foreign(bool is_fp16, int k, const uint8_t *src, uint8_t *dst, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const uint16_t v = fp8_decode(is_fp16, k, src[i]);

		memcpy(dst + 2 * i, &v, sizeof(v));
	}
}

static bool unit_is_lines(const struct walk_unit *u)
{
	return (((uintptr_t)u->base | u->row_bytes | (u->rows > 1 ? u->stride : 0)) & (LINE - 1)) == 0;
}

static void decode_unit(const struct walk_unit *u, bool is_fp16, int k, const uint8_t *src)
{
	const uint32_t n = u->row_bytes / 2;
	const bool legal = math_decode_takes(is_fp16, k), lines = unit_is_lines(u);
	struct math_decode m;

	if (legal)
		m = math_decode_at(is_fp16, k);
	for (uint32_t r = 0; r < u->rows; r++, src += n) {
		uint8_t *row = u->base + r * u->stride;

		prefetch_payload(src, n);
		if (!legal)
			decode_foreign(is_fp16, k, src, row, n);
		else if (lines)
			decode_lines(is_fp16, &m, src, row, n);
		else
			decode_values(is_fp16, &m, src, row, n);
	}
}

static void scatter_unit(const struct walk_unit *u, const uint8_t *src)
{
	const bool past_cache = unit_is_lines(u) || u->row_bytes >= 1024;

	for (uint32_t r = 0; r < u->rows; r++, src += u->row_bytes) {
		prefetch_payload(src, u->row_bytes);
		if (past_cache)
			stream(u->base + r * u->stride, src, u->row_bytes);
		else
			memcpy(u->base + r * u->stride, src, u->row_bytes);
	}
}

static int x86_decode(const struct page_layout *layout, uint64_t page, const uint8_t *image, uint8_t *scratch)
{
	const bool is_fp16 = layout->geometry.dtype == DTYPE_FP16;
	struct image_header header;
	struct image_shape shape;
	struct walk_unit u;
	struct walk walk;
	const uint8_t *scale = image + sizeof(header), *payload;

	(void)scratch;
	memcpy(&header, image, sizeof(header));
	if (image_shape(&layout->geometry, header.codec_k, header.codec_v, &shape, NULL))
		return -EBADMSG;
	payload = image + shape.payload_offset;
	walk_start(&walk, layout, page, header.codec_k, header.codec_v, &shape);
	while (walk_next(&walk, &u)) {
		const uint32_t bytes = u.rows * u.row_bytes / (u.fp8 ? 2 : 1);

		assert(bytes <= (size_t)(image + shape.image_bytes - payload));
		if (u.fp8)
			decode_unit(&u, is_fp16, (int)*scale++ - FP8_BIAS, payload);
		else
			scatter_unit(&u, payload);
		payload += bytes;
	}
	_mm_sfence();
	return 0;
}

static uint64_t x86_checksum(const uint8_t *image, const struct image_shape *shape)
{
	XXH3_state_t state;

	XXH3_INITSTATE(&state);
	(void)XXH3_64bits_reset(&state);
	(void)XXH3_64bits_update(&state, image + shape->payload_offset, shape->payload_bytes);
	(void)XXH3_64bits_update(&state, image + sizeof(struct image_header), shape->scale_bytes);
	return XXH3_64bits_digest(&state);
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

		if (dtype == DTYPE_FP16)
			(void)encode_as(true, k, &u, &u, &u, out, NULL);
		else
			(void)encode_as(false, k, &u, &u, &u, out, NULL);
		memcpy(dst + i, out, now);
	}
}

static void x86_decode_run(uint32_t dtype, int k, const uint8_t *src, uint16_t *dst, size_t n)
{
	const bool is_fp16 = dtype == DTYPE_FP16;
	const struct walk_unit u = { .base = (uint8_t *)dst, .rows = 1, .row_bytes = (uint32_t)(2 * n) };

	decode_unit(&u, is_fp16, k, src);
	_mm_sfence();
}

#endif
