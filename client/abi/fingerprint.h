/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fingerprint.h - the fingerprint of a key in the index. It is SipHash-2-4 with 128 bits of output
 * over the key's 32 bytes, under the index key of the space (wire.h). The library and the daemon
 * both compute it.
 *
 * The hash has a key because clients choose their keys. A client that does not know the index key
 * of a space cannot make keys that meet the buckets of that space's blocks. The length is fixed, so
 * this is straight-line code. libcrypto has SipHash too, behind objects and calls that cost more
 * than the hash; libsodium would be one more library in every engine.
 */
#pragma once

#include <stdint.h>
#include <string.h>

/* An index key as two words, little endian. */
struct fingerprint_key {
	uint64_t k[2];
};

/* A fingerprint as two words: each is the hash for one of the two candidate buckets. */
struct print {
	uint64_t half[2];
};

static inline struct fingerprint_key fingerprint_key_of(const uint8_t bytes[16])
{
	struct fingerprint_key ret;

	memcpy(ret.k, bytes, sizeof(ret.k));
	return ret;
}

static inline uint64_t fingerprint_rotl(uint64_t x, int n)
{
	return x << n | x >> (64 - n);
}

struct fingerprint_state {
	uint64_t a, b, c, d;
};

#define FINGERPRINT_INLINE __attribute__((always_inline)) static inline

FINGERPRINT_INLINE void fingerprint_round(struct fingerprint_state *v)
{
	v->a += v->b;
	v->c += v->d;
	v->b = fingerprint_rotl(v->b, 13) ^ v->a;
	v->d = fingerprint_rotl(v->d, 16) ^ v->c;
	v->a = fingerprint_rotl(v->a, 32);
	v->c += v->b;
	v->a += v->d;
	v->b = fingerprint_rotl(v->b, 17) ^ v->c;
	v->d = fingerprint_rotl(v->d, 21) ^ v->a;
	v->c = fingerprint_rotl(v->c, 32);
}

/* Does rounds for n (1 or 2) keys at once, as a single key leaves half of a CPU's adders idle. */
FINGERPRINT_INLINE void fingerprint_rounds(struct fingerprint_state v[2], int n, int rounds)
{
#pragma GCC unroll 4
	for (int i = 0; i < rounds; i++) {
		fingerprint_round(&v[0]);
		if (n > 1)
			fingerprint_round(&v[1]);
	}
}

FINGERPRINT_INLINE void fingerprints(const struct fingerprint_key *key,
				     const uint8_t *const bytes[2], int n,
				     struct print *const ret[2])
{
	struct fingerprint_state v[2] = { 0 };

#pragma GCC unroll 2
	for (int k = 0; k < n; k++)
		v[k] = (struct fingerprint_state){
			.a = 0x736f6d6570736575u ^ key->k[0],
			.b = 0x646f72616e646f6du ^ key->k[1] ^ 0xee,
			.c = 0x6c7967656e657261u ^ key->k[0],
			.d = 0x7465646279746573u ^ key->k[1],
		};
#pragma GCC unroll 5
	for (int i = 0; i < 5; i++) {
		/* the last word has the length in its top byte */
		uint64_t m[2] = { 32ull << 56, 32ull << 56 };

		for (int k = 0; k < n; k++) {
			if (i < 4)
				memcpy(&m[k], bytes[k] + 8 * i, 8);
			v[k].d ^= m[k];
		}
		fingerprint_rounds(v, n, 2);
		for (int k = 0; k < n; k++)
			v[k].a ^= m[k];
	}
#pragma GCC unroll 2
	for (int half = 0; half < 2; half++) {
		for (int k = 0; k < n; k++) {
			v[k].c ^= half ? 0 : 0xee;
			v[k].b ^= half ? 0xdd : 0;
		}
		fingerprint_rounds(v, n, 4);
		for (int k = 0; k < n; k++)
			ret[k]->half[half] = v[k].a ^ v[k].b ^ v[k].c ^ v[k].d;
	}
}

static inline struct print fingerprint(const struct fingerprint_key *key, const uint8_t bytes[32])
{
	struct print ret;

	fingerprints(key, (const uint8_t *const[2]){ bytes, bytes }, 1,
		     (struct print *const[2]){ &ret, &ret });
	return ret;
}

static inline void fingerprint_pair(const struct fingerprint_key *key, const uint8_t first[32],
				    const uint8_t second[32], struct print ret[2])
{
	fingerprints(key, (const uint8_t *const[2]){ first, second }, 2,
		     (struct print *const[2]){ &ret[0], &ret[1] });
}
