/* SPDX-License-Identifier: Apache-2.0 */
/*
 * x86_hash.h - XXH3-64 (seed 0) of a stream, only for x86_codec.h. Bit for bit the library's:
 * unit_codec_steps.c.
 *
 * The library's function needs the bytes in memory first. Here the accumulators stay in registers
 * while a line is loaded or encoded, mixed in and stored: from hash_open() to hash_close().
 *
 * XXH3 of more than 240 bytes mixes stripes of 64 bytes into eight accumulators, and scrambles
 * these after each 16 stripes. The last 64 bytes are one more stripe, even where they were mixed
 * before. So a stripe is mixed only when a byte after it is known. XXH3 of up to 240 bytes is
 * another function, which is left to the library.
 */
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { HASH_STRIPE = 64, HASH_BLOCK = 16 /* stripes */, HASH_SHORT = 240, HASH_SECRET = 192 };

struct hash {
	_Alignas(64) uint64_t acc[8];
	uint8_t last[2 * HASH_STRIPE]; /* the stripe mixed last, then bytes not mixed yet */
	uint8_t first[HASH_SHORT];     /* of the stream, in case that is all */
	uint32_t kept;                 /* bytes not mixed: 0 .. 64 */
	uint32_t at;                   /* stripes of the block */
	uint64_t total;
};

/* A hash whose accumulators are in registers. */
struct hash_open {
	struct math_acc acc;
	const uint8_t *secret; /* of the next stripe */
};

/* XXH3's default secret. */
static const uint8_t hash_secret[HASH_SECRET] = {
	0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad,
	0x1c, 0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3,
	0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc,
	0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
	0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65,
	0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
	0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9,
	0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
	0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb,
	0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0,
	0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d,
	0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
	0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static void hash_start(struct hash *h)
{
	static const uint64_t start[8] = {
		0xc2b2ae3d,         0x9e3779b185ebca87, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9,
		0x85ebca77c2b2ae63, 0x85ebca77,         0x27d4eb2f165667c5, 0x9e3779b1,
	};

	memcpy(h->acc, start, sizeof(start));
	h->kept = h->at = 0;
	h->total = 0;
}

MATH_FN struct hash_open hash_open(const struct hash *h)
{
	return (struct hash_open){ math_acc_get(h->acc), hash_secret + 8 * h->at };
}

MATH_FN void hash_close(struct hash *h, const struct hash_open *o)
{
	math_acc_put(h->acc, o->acc);
	h->at = (uint32_t)(o->secret - hash_secret) / 8;
}

MATH_FN void hash_line(struct hash_open *o, struct math_line line)
{
	o->acc = math_acc_mix(o->acc, line, o->secret);
	o->secret += 8;
	if (o->secret == hash_secret + 8 * HASH_BLOCK) {
		o->acc = math_acc_scramble(o->acc, o->secret);
		o->secret = hash_secret;
	}
}

static void hash_stripes(struct hash *h, const uint8_t *p, size_t n)
{
	struct hash_open o = hash_open(h);

	for (; n && o.secret != hash_secret; n--, p += HASH_STRIPE)
		hash_line(&o, math_load(p));
	for (; n >= HASH_BLOCK; n -= HASH_BLOCK) {
		for (uint32_t i = 0; i < HASH_BLOCK; i++, p += HASH_STRIPE)
			o.acc = math_acc_mix(o.acc, math_load(p), hash_secret + 8 * i);
		o.acc = math_acc_scramble(o.acc, hash_secret + 8 * HASH_BLOCK);
	}
	for (; n; n--, p += HASH_STRIPE)
		hash_line(&o, math_load(p));
	hash_close(h, &o);
}

static void hash_update(struct hash *h, const uint8_t *p, size_t n)
{
	if (n == 0)
		return;
	if (h->total < HASH_SHORT) {
		const size_t left = HASH_SHORT - (size_t)h->total;

		memcpy(h->first + h->total, p, n < left ? n : left);
	}
	h->total += n;
	if (h->kept + n <= HASH_STRIPE) {
		memcpy(h->last + HASH_STRIPE + h->kept, p, n);
		h->kept += (uint32_t)n;
		return;
	}
	if (h->kept) { /* complete it: there is a byte after it */
		const size_t more = HASH_STRIPE - h->kept;

		memcpy(h->last + HASH_STRIPE + h->kept, p, more);
		hash_stripes(h, h->last + HASH_STRIPE, 1);
		memcpy(h->last, h->last + HASH_STRIPE, HASH_STRIPE);
		p += more, n -= more;
	}
	if (n > HASH_STRIPE) {
		const size_t stripes = (n - 1) / HASH_STRIPE;

		hash_stripes(h, p, stripes);
		p += stripes * HASH_STRIPE, n -= stripes * HASH_STRIPE;
		memcpy(h->last, p - HASH_STRIPE, HASH_STRIPE);
	}
	memcpy(h->last + HASH_STRIPE, p, n);
	h->kept = (uint32_t)n;
}

/* Whole lines may be mixed from now on, by hash_open(), hash_line() for each, hash_close() and
 * hash_lines(), if bytes come after them. */
static bool hash_takes_lines(struct hash *h)
{
	if (h->total < HASH_SHORT || h->kept % HASH_STRIPE)
		return false;
	if (h->kept) {
		hash_stripes(h, h->last + HASH_STRIPE, 1);
		memcpy(h->last, h->last + HASH_STRIPE, HASH_STRIPE);
		h->kept = 0;
	}
	return true;
}

/* n > 0 bytes of lines were mixed; the last of them. */
MATH_FN void hash_lines(struct hash *h, uint64_t n, struct math_line last)
{
	h->total += n;
	math_store(h->last, last);
}

static inline uint64_t hash_word(const uint8_t *p)
{
	uint64_t x;

	memcpy(&x, p, sizeof(x));
	return x;
}

static uint64_t hash_end(struct hash *h)
{
	uint64_t x = h->total * 0x9e3779b185ebca87u;

	if (h->total <= HASH_SHORT)
		return XXH3_64bits(h->first, (size_t)h->total);
	math_acc_put(h->acc, math_acc_mix(math_acc_get(h->acc), math_load(h->last + h->kept),
					  hash_secret + HASH_SECRET - HASH_STRIPE - 7));
	for (int i = 0; i < 4; i++) {
		const uint8_t *secret = hash_secret + 11 + 16 * i;
		const unsigned __int128 product =
			(unsigned __int128)(h->acc[2 * i] ^ hash_word(secret)) *
			(h->acc[2 * i + 1] ^ hash_word(secret + 8));

		x += (uint64_t)product ^ (uint64_t)(product >> 64);
	}
	x ^= x >> 37;
	x *= 0x165667919e3779f9u;
	return x ^ x >> 32;
}
