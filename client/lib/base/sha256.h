/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sha256.h - SHA-256 (FIPS 180-4): libkvtier has its own, and so needs nothing but libc. A message
 * is added in as many pieces as it has:
 *
 *     sha256_begin(&sha, way);
 *     sha256_add(&sha, a, a_bytes);
 *     sha256_add(&sha, b, b_bytes);
 *     sha256_end(&sha, digest);
 *
 * Nothing allocates or fails. Any thread may call; a struct sha256 is for one thread at a time.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA256_BLOCK = 64 };

/* A way to hash n blocks of 64 bytes into a state. All ways give the same. */
typedef void sha256_way(uint32_t state[8], const uint8_t *bytes, size_t n);

sha256_way sha256_plain;
sha256_way sha256_ni; /* by the SHA instructions; only for a CPU that has them */

/* The fastest way on this CPU. Ask once: a virtual machine takes microseconds to say it. */
sha256_way *sha256_best(void);

struct sha256 {
	sha256_way *way;
	uint64_t bytes; /* of the message so far */
	uint32_t state[8];
	uint8_t rest[SHA256_BLOCK]; /* its first bytes % 64 are not in the state yet */
};

void sha256_begin(struct sha256 *sha, sha256_way *way);
/* `bytes` may be NULL where n is 0. */
void sha256_add(struct sha256 *sha, const void *bytes, size_t n);
/* The struct has to begin again before it is used again. */
void sha256_end(struct sha256 *sha, uint8_t ret[SHA256_BYTES]);

/* The constants of the 64 rounds, for the ways. */
extern const uint32_t sha256_constants[64];
