/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fingerprint.h - the fingerprint of a key in the index: SipHash-2-4 with 128 bits of output, of the key's 32 bytes,
 * under the index key of its space (wire.h). Library and daemon both compute it.
 *
 * A hash with a key, because keys are the clients' to choose: who does not know the index key of a space cannot make
 * keys that meet the buckets of its blocks. The length is fixed, so this is straight-line code. libcrypto has SipHash
 * as well, behind objects and calls that cost more than the hash; libsodium would be one more library in every engine.
 */
#ifndef KVTIER_FINGERPRINT_H
#define KVTIER_FINGERPRINT_H

#include <stdint.h>
#include <string.h>

/* An index key as two words, little endian. */
struct fingerprint_key {
	uint64_t k[2];
};

/* A fingerprint as two words: the first is its hash for one candidate bucket, the second for the other. */
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

static inline void fingerprint_rounds(uint64_t v[4], int n)
{
	while (n-- > 0) {
		v[0] += v[1];
		v[2] += v[3];
		v[1] = fingerprint_rotl(v[1], 13) ^ v[0];
		v[3] = fingerprint_rotl(v[3], 16) ^ v[2];
		v[0] = fingerprint_rotl(v[0], 32);
		v[2] += v[1];
		v[0] += v[3];
		v[1] = fingerprint_rotl(v[1], 17) ^ v[2];
		v[3] = fingerprint_rotl(v[3], 21) ^ v[0];
		v[2] = fingerprint_rotl(v[2], 32);
	}
}

static inline struct print fingerprint(const struct fingerprint_key *key, const uint8_t bytes[32])
{
	uint64_t v[4] = { 0x736f6d6570736575u ^ key->k[0], 0x646f72616e646f6du ^ key->k[1] ^ 0xee,
			  0x6c7967656e657261u ^ key->k[0], 0x7465646279746573u ^ key->k[1] };
	uint64_t m[5] = { 0, 0, 0, 0, 32ull << 56 };	/* the last word: the length in its top byte */
	struct print ret;

	memcpy(m, bytes, 32);
	for (int i = 0; i < 5; i++) {
		v[3] ^= m[i];
		fingerprint_rounds(v, 2);
		v[0] ^= m[i];
	}
	v[2] ^= 0xee;
	fingerprint_rounds(v, 4);
	ret.half[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
	v[1] ^= 0xdd;
	fingerprint_rounds(v, 4);
	ret.half[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
	return ret;
}

#endif
