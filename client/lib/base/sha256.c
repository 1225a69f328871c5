/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sha256.c - see sha256.h: messages in pieces, the way that any CPU has, and which way this CPU
 * has. The names a to h, w, ch, maj and the sums are those of the standard, FIPS 180-4.
 */
#include "sha256.h"

#include <cpuid.h>
#include <stdbool.h>
#include <string.h>

const uint32_t sha256_constants[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
	0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
	0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
	0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
	0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
	0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
	0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
	0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
	0xc67178f2,
};

static uint32_t load_be32(const uint8_t *bytes)
{
	uint32_t ret;

	memcpy(&ret, bytes, sizeof(ret));
	return __builtin_bswap32(ret);
}

static void store_be32(uint8_t *bytes, uint32_t value)
{
	value = __builtin_bswap32(value);
	memcpy(bytes, &value, sizeof(value));
}

static uint32_t rotr(uint32_t x, int n)
{
	return x >> n | x << (32 - n);
}

static void hash_block(uint32_t state[8], const uint8_t *bytes)
{
	uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
	uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
	uint32_t w[64];

	for (int i = 0; i < 16; i++)
		w[i] = load_be32(bytes + 4 * i);
	for (int i = 16; i < 64; i++) {
		const uint32_t x = w[i - 15], y = w[i - 2];
		const uint32_t sigma0 = rotr(x, 7) ^ rotr(x, 18) ^ x >> 3;
		const uint32_t sigma1 = rotr(y, 17) ^ rotr(y, 19) ^ y >> 10;

		w[i] = w[i - 16] + sigma0 + w[i - 7] + sigma1;
	}
	for (int i = 0; i < 64; i++) {
		const uint32_t sum0 = rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22);
		const uint32_t sum1 = rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25);
		const uint32_t ch = (e & f) ^ (~e & g), maj = (a & b) ^ (a & c) ^ (b & c);
		const uint32_t t1 = h + sum1 + ch + sha256_constants[i] + w[i];

		h = g, g = f, f = e, e = d + t1;
		d = c, c = b, b = a, a = t1 + sum0 + maj;
	}
	state[0] += a, state[1] += b, state[2] += c, state[3] += d;
	state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

void sha256_plain(uint32_t state[8], const uint8_t *bytes, size_t n)
{
	for (; n > 0; n--, bytes += SHA256_BLOCK)
		hash_block(state, bytes);
}

static bool cpu_has_sha_ni(void)
{
	uint32_t a, b, c, d;

	/* SHA is asked of the CPU, since the builtin of older compilers does not know it. It works
	 * on the narrow registers, which every system saves. */
	return __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("sse4.1") &&
	       __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA);
}

sha256_way *sha256_best(void)
{
	return cpu_has_sha_ni() ? sha256_ni : sha256_plain;
}

void sha256_begin(struct sha256 *sha, sha256_way *way)
{
	static const uint32_t first[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
					   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };

	sha->way = way;
	sha->bytes = 0;
	memcpy(sha->state, first, sizeof(first));
}

void sha256_add(struct sha256 *sha, const void *bytes, size_t n)
{
	const size_t kept = sha->bytes % SHA256_BLOCK;
	const uint8_t *from = bytes;

	sha->bytes += n;
	if (kept + n < SHA256_BLOCK) {
		if (n > 0)
			memcpy(sha->rest + kept, from, n);
		return;
	}
	if (kept > 0) {
		memcpy(sha->rest + kept, from, SHA256_BLOCK - kept);
		sha->way(sha->state, sha->rest, 1);
		from += SHA256_BLOCK - kept;
		n -= SHA256_BLOCK - kept;
	}
	sha->way(sha->state, from, n / SHA256_BLOCK);
	memcpy(sha->rest, from + n / SHA256_BLOCK * SHA256_BLOCK, n % SHA256_BLOCK);
}

void sha256_end(struct sha256 *sha, uint8_t ret[SHA256_BYTES])
{
	static const uint8_t padding[SHA256_BLOCK] = { 0x80 };
	const uint64_t bits = sha->bytes * 8;
	uint8_t length[8];

	/* up to 8 bytes before the end of a block */
	sha256_add(sha, padding, 1 + (SHA256_BLOCK - 9 - sha->bytes) % SHA256_BLOCK);
	store_be32(length, (uint32_t)(bits >> 32));
	store_be32(length + 4, (uint32_t)bits);
	sha256_add(sha, length, sizeof(length));
	for (int i = 0; i < 8; i++)
		store_be32(ret + 4 * i, sha->state[i]);
}
