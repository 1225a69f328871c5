/* SPDX-License-Identifier: Apache-2.0 */
/*
 * x86_lossless.h - packs of lossless values, both ways, with the loops of vbmi2_lossless.h around
 * the arithmetic of avx512_lossless.h, or with those here around that of avx2_lossless.h. Only for
 * x86_codec.h; read kernels/lossless.h first.
 *
 * The loops have no branch that depends on values, but for those that are rare. A pack whose rows
 * are not whole steps is gathered in scratch first, and decoded there.
 */
#pragma once

enum {
	PACK_STEPS = IMAGE_PACK_VALUES / LOSSLESS_STEP,
	/* Scratch begins with the writer's bytes and a pack. Further on are the pack's values, if
	 * its rows are not whole steps, then the exponents of values beyond, and the far bits. */
	PACK_GATHER_AT = 256 << 10,
	PACK_BEYOND_AT = 384 << 10,
	PACK_PLANES_AT = 448 << 10,
	PACK_PLANE_BYTES = IMAGE_PACK_VALUES / 8 + LINE,
	AHEAD_BYTES = 8 << 10, /* of packs, which lie one after the other, ahead of decode */
	PACK_MOST_SAMPLES = 2 * LOSSLESS_SAMPLES,
};
static_assert(FLUSH_BYTES +
				      PACK_STEPS * (LOSSLESS_LOW_BYTES + LOSSLESS_HIGH_BYTES +
						    LOSSLESS_NEAR_BYTES + LOSSLESS_FAR_BYTES +
						    LOSSLESS_STEP) +
				      LINE <=
			      PACK_GATHER_AT &&
		      PACK_GATHER_AT + 2 * IMAGE_PACK_VALUES <= PACK_BEYOND_AT &&
		      PACK_BEYOND_AT + IMAGE_PACK_VALUES + LINE <= PACK_PLANES_AT &&
		      PACK_PLANES_AT + 3 * PACK_PLANE_BYTES <= CODEC_SCRATCH_BYTES - POWERS_BYTES,
	      "scratch");

/* Where in a step of values is the one of each place: 2 * lossless_value_at(). */
#define PACK_OFFSETS8(at) \
	at, (at) + 2, (at) + 4, (at) + 6, (at) + 8, (at) + 10, (at) + 12, (at) + 14
static const uint8_t pack_offsets[LOSSLESS_STEP] = {
	PACK_OFFSETS8(0),  PACK_OFFSETS8(64), PACK_OFFSETS8(16), PACK_OFFSETS8(80),
	PACK_OFFSETS8(32), PACK_OFFSETS8(96), PACK_OFFSETS8(48), PACK_OFFSETS8(112),
};

static uint32_t pack_values(const struct page_tile *u)
{
	return u->rows * (u->row_bytes / 2);
}

static bool pack_is_steps(const struct page_tile *u)
{
	return u->row_bytes % (2 * LOSSLESS_STEP) == 0;
}

/* The same values in one row of whole steps. */
static struct page_tile pack_gather(const struct page_tile *u, uint8_t *scratch)
{
	uint8_t *const to = scratch + PACK_GATHER_AT;
	uint32_t n = 0;
	uint16_t last;

	for (uint32_t r = 0; r < u->rows; r++, n += u->row_bytes)
		memcpy(to + n, u->base + r * u->stride, u->row_bytes);
	memcpy(&last, to + n - 2, sizeof(last));
	for (; n % (2 * LOSSLESS_STEP); n += 2)
		memcpy(to + n, &last, sizeof(last));
	return (struct page_tile){ .base = to, .rows = 1, .row_bytes = n };
}

MATH_FN uint32_t samples_at_least(const struct math_line *samples, uint32_t n, uint32_t least)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += math_at_least(samples[i], least);
	return sum;
}

/* The base of a pack of whole steps. */
MATH_FN uint8_t pack_base_as(bool is_fp16, const struct page_tile *u)
{
	const uint32_t a_row = u->row_bytes / (2 * LOSSLESS_STEP), steps = u->rows * a_row,
		       stride = lossless_stride(steps);
	struct math_line samples[PACK_MOST_SAMPLES];
	uint32_t least[LOSSLESS_WINDOWS + 2], n = 0, top = 0;

	for (uint32_t s = 0; s < steps; s += stride)
		samples[n++] = math_take(is_fp16, u->base + s / a_row * u->stride +
							  (size_t)(s % a_row) * 2 * LOSSLESS_STEP)
				       .exponents;
	for (uint32_t bit = 128; bit; bit >>= 1)
		if (samples_at_least(samples, n, top | bit) >= lossless_enough(n * LOSSLESS_STEP))
			top |= bit;
	for (uint32_t i = 0; i < LOSSLESS_WINDOWS + 2; i++)
		least[i] = samples_at_least(samples, n, top > i ? top - i : 0);
	return lossless_base(top, least);
}

static uint64_t word_at(const uint8_t *p)
{
	uint64_t x;

	memcpy(&x, p, sizeof(x));
	return x;
}

#ifdef X86_VBMI2
#include "vbmi2_lossless.h"
#else

/* The far bits of a pack, on their way: a plane for each of the three. */
struct far_planes {
	uint8_t *to;      /* the first in scratch; the others PACK_PLANE_BYTES further on */
	uint64_t last[3]; /* the bits that do not fill a byte yet */
	uint32_t bits;    /* how many of them */
	uint32_t bytes;   /* that are full, of each plane */
};

/* Adds n bits to each plane, n <= 56; the bits after them are 0. */
MATH_FN void far_put_few(struct far_planes *f, const uint64_t bits[3], uint32_t n)
{
	const uint32_t now = f->bits + n;

#pragma GCC unroll 3
	for (int i = 0; i < 3; i++) {
		const uint64_t all = f->last[i] | bits[i] << f->bits;

		memcpy(f->to + i * PACK_PLANE_BYTES + f->bytes, &all, sizeof(all));
		f->last[i] = all >> (now & 56);
	}
	f->bytes += now >> 3;
	f->bits = now & 7;
}

/* The same for up to 64 bits: more than 56 are rare. */
MATH_FN void far_put(struct far_planes *f, const uint64_t bits[3], uint32_t n)
{
	if (__builtin_expect(n > 56, 0)) {
		const uint64_t low[3] = { (uint32_t)bits[0], (uint32_t)bits[1], (uint32_t)bits[2] };
		const uint64_t high[3] = { bits[0] >> 32, bits[1] >> 32, bits[2] >> 32 };

		far_put_few(f, low, 32);
		far_put_few(f, high, n - 32);
		return;
	}
	far_put_few(f, bits, n);
}

/* The planes' words in turn. Returns what is behind them. */
static uint8_t *far_end(const struct far_planes *f, uint8_t *to)
{
	const uint32_t words = (8 * f->bytes + f->bits + 63) / 64;
	const uint64_t none = 0;

	for (int i = 0; i < 3; i++) {
		uint8_t *const end = f->to + i * PACK_PLANE_BYTES + f->bytes;

		memcpy(end, &f->last[i], sizeof(f->last[i]));
		memcpy(end + 8, &none, sizeof(none));
	}
	for (uint32_t w = 0; w < words; w++)
		for (int i = 0; i < 3; i++, to += 8)
			memcpy(to, f->to + i * PACK_PLANE_BYTES + 8 * w, 8);
	return to;
}

/* The exponent of the value at the first of these places, or of any value if there is none. */
MATH_FN uint8_t exponent_at(bool is_fp16, const uint8_t *step, uint64_t places)
{
	const uint32_t place = (uint32_t)__builtin_ctzll(places | 1ull << 63);
	uint16_t v;

	memcpy(&v, step + pack_offsets[place], sizeof(v));
	return (uint8_t)lossless_exponent(is_fp16, v);
}

/* The exponents at these places. Two are written always: more are rare. */
MATH_FN uint8_t *beyond_put(bool is_fp16, uint8_t *to, const uint8_t *step, uint64_t places)
{
	const uint64_t second = places & (places - 1);
	uint64_t left = second & (second - 1);

	to[0] = exponent_at(is_fp16, step, places);
	to[1] = exponent_at(is_fp16, step, second);
	to += (places != 0) + (second != 0);
	for (; __builtin_expect(left != 0, 0); left &= left - 1)
		*to++ = exponent_at(is_fp16, step, left);
	return to;
}

/* A pack of whole steps to dst. Returns the bytes of its far part. */
MATH_FN uint32_t pack_encode_as(bool is_fp16, const struct page_tile *in, uint8_t base,
				struct far far, uint8_t *dst, uint8_t *scratch)
{
	const struct page_tile u = *in;
	const uint32_t steps = u.rows * (u.row_bytes / (2 * LOSSLESS_STEP));
	uint8_t *low = dst, *high = low + (size_t)steps * LOSSLESS_LOW_BYTES,
		*near = high + (is_fp16 ? (size_t)steps * LOSSLESS_HIGH_BYTES : 0),
		*const from = near + (size_t)steps * LOSSLESS_NEAR_BYTES;
	struct far_planes f = { .to = scratch + PACK_PLANES_AT };
	uint8_t *const beyond = scratch + PACK_BEYOND_AT, *last = beyond, *end;

	for (uint32_t r = 0; r < u.rows; r++) {
		const uint8_t *row = u.base + r * u.stride, *far_row = far.base + r * far.stride;

		for (uint32_t i = 0; i < u.row_bytes; i += 2 * LOSSLESS_STEP) {
			const struct math_parts x = math_take(is_fp16, row + i);
			uint64_t bits[5], other, three[3];

			prefetch_values(far, far_row + i);
			math_bits(x.exponents, base, bits);
			other = bits[0] & bits[1];
#pragma GCC unroll 3
			for (int b = 0; b < 3; b++)
				three[b] = _pext_u64(bits[2 + b], other);
			math_store(low, x.low);
			low += LOSSLESS_LOW_BYTES;
			if (is_fp16) {
				memcpy(high, x.high, sizeof(x.high));
				high += sizeof(x.high);
			}
			/* not both at once: that would wait for the stores of `bits` */
			memcpy(near, &bits[0], 8);
			memcpy(near + 8, &bits[1], 8);
			near += LOSSLESS_NEAR_BYTES;
			far_put(&f, three, (uint32_t)_mm_popcnt_u64(other));
			last = beyond_put(is_fp16, last, row + i, bits[2] & bits[3] & bits[4]);
		}
	}
	end = far_end(&f, from);
	memcpy(end, beyond, (size_t)(last - beyond));
	return (uint32_t)(end - from + (last - beyond));
}

/* The bits of three words from bit `at` on, and of the next three words behind them. The next three
 * may lie after the pack: hence IMAGE_PACK_SPARE. */
MATH_FN void far_get(const uint8_t *far, uint32_t at, uint64_t ret[3])
{
#pragma GCC unroll 3
	for (int i = 0; i < 3; i++)
		ret[i] = word_at(far + 8 * i) >> at | word_at(far + LOSSLESS_FAR_BYTES + 8 * i)
							      << 1 << (63 - at);
}

MATH_FN void pack_decode_as(bool is_fp16, bool lines, const struct page_tile *in, uint8_t base,
			    uint32_t words, const uint8_t *src, uint8_t *scratch)
{
	const struct page_tile u = *in;
	const uint32_t steps = u.rows * (u.row_bytes / (2 * LOSSLESS_STEP));
	const uint8_t *low = src, *high = low + (size_t)steps * LOSSLESS_LOW_BYTES,
		      *near = high + (is_fp16 ? (size_t)steps * LOSSLESS_HIGH_BYTES : 0),
		      *far = near + (size_t)steps * LOSSLESS_NEAR_BYTES, *beyond = far + words;
	const uint8_t *ahead = src + AHEAD_BYTES;
	uint32_t at = 0;

	(void)scratch;
	for (uint32_t r = 0; r < u.rows; r++) {
		uint8_t *const row = u.base + r * u.stride;

		for (uint32_t i = 0; i < u.row_bytes; i += 2 * LOSSLESS_STEP) {
			const uint64_t first = word_at(near), second = word_at(near + 8),
				       other = first & second;
			uint64_t bits[5] = { first, second }, three[3];
			struct math_parts x;

			_mm_prefetch((const char *)ahead, _MM_HINT_T1);
			_mm_prefetch((const char *)(ahead + LINE), _MM_HINT_T1);
			ahead += is_fp16 ? 112 : 96; /* about the bytes of a step */
			far_get(far, at, three);
			at += (uint32_t)_mm_popcnt_u64(other);
			far += (at >> 6) * LOSSLESS_FAR_BYTES;
			at &= 63;
#pragma GCC unroll 3
			for (int b = 0; b < 3; b++)
				bits[2 + b] = _pdep_u64(three[b], other);
			beyond = math_exponents(base, bits, beyond, &x.exponents);
			x.low = math_load(low);
			if (is_fp16)
				memcpy(x.high, high, sizeof(x.high));
			math_give(is_fp16, &x, row + i, lines);
			low += LOSSLESS_LOW_BYTES;
			high += LOSSLESS_HIGH_BYTES;
			near += LOSSLESS_NEAR_BYTES;
		}
	}
}

#endif

/* A pack to dst, and its scales. Returns its bytes. */
static uint32_t encode_pack(const struct page_tile *u, bool is_fp16, struct far far,
			    uint8_t *scales, uint8_t *dst, uint8_t *scratch)
{
	const uint32_t values = pack_values(u), dtype = is_fp16 ? DTYPE_FP16 : DTYPE_BF16;
	struct page_tile whole = *u;
	uint32_t bytes, n;

	if (!pack_is_steps(u)) {
		whole = pack_gather(u, scratch);
		far = (struct far){ whole.base, 0, false };
	}
	scales[0] = BY_TYPE(pack_base_as, is_fp16, &whole);
	n = BY_TYPE(pack_encode_as, is_fp16, &whole, scales[0], far, dst, scratch);
	scales[1] = (uint8_t)n;
	scales[2] = (uint8_t)(n >> 8);
	bytes = image_pack_bytes(dtype, values, n);
	n += image_pack_bytes(dtype, values, 0); /* whole words: nothing is rounded up */
	memset(dst + n, 0, bytes - n);
	return bytes;
}

/* ---- decode ---- */

/* Whether the far part of a pack has as many bytes as the bits say. *ret: how many of them are of
 * words. */
static bool pack_holds(const uint8_t *near, uint32_t steps, uint32_t bytes, uint32_t *ret)
{
	const uint8_t *const far = near + (size_t)steps * LOSSLESS_NEAR_BYTES;
	uint64_t values = 0, beyond = 0;

	for (uint32_t i = 0; i < steps; i++)
		values += (uint64_t)_mm_popcnt_u64(word_at(near + LOSSLESS_NEAR_BYTES * i) &
						   word_at(near + LOSSLESS_NEAR_BYTES * i + 8));
	*ret = (uint32_t)((values + 63) / 64 * LOSSLESS_FAR_BYTES);
	if (*ret > bytes)
		return false;
	for (uint32_t i = 0; i < *ret; i += LOSSLESS_FAR_BYTES, values -= 64) {
		const uint64_t all =
			word_at(far + i) & word_at(far + i + 8) & word_at(far + i + 16);

		beyond += (uint64_t)_mm_popcnt_u64(values < 64 ? _bzhi_u64(all, (uint32_t)values) :
								 all);
	}
	return *ret + beyond == bytes;
}

/* A pack at src, which has at most so many bytes. Returns how many it has, or 0: it lies. */
static uint32_t decode_pack(const struct page_tile *u, bool is_fp16, const uint8_t *scales,
			    const uint8_t *src, size_t most, uint8_t *scratch)
{
	const uint32_t values = pack_values(u), far = image_pack_far(scales),
		       dtype = is_fp16 ? DTYPE_FP16 : DTYPE_BF16,
		       steps = (values + LOSSLESS_STEP - 1) / LOSSLESS_STEP,
		       bytes = image_pack_bytes(dtype, values, far);
	const uint8_t *near =
		src + (size_t)steps * (lossless_step_bytes(is_fp16) - LOSSLESS_NEAR_BYTES);
	const bool whole = pack_is_steps(u), lines = whole && tile_is_lines(u);
	const struct page_tile gathered = { .base = scratch + PACK_GATHER_AT,
					    .rows = 1,
					    .row_bytes = steps * 2 * LOSSLESS_STEP };
	const struct page_tile *to = whole ? u : &gathered;
	uint32_t words;

	if (bytes > most || !pack_holds(near, steps, far, &words))
		return 0;
	BY_TYPE_AND_LINES(pack_decode_as, is_fp16, lines, to, scales[0], words, src, scratch);
	for (uint32_t r = 0; r < u->rows && !whole; r++)
		memcpy(u->base + r * u->stride, gathered.base + (size_t)r * u->row_bytes,
		       u->row_bytes);
	return bytes;
}
