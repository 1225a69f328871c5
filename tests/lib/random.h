/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random.h - random numbers for tests: splitmix64, from $SEED or the clock, and the seed printed;
 * and the other numbers that the environment may give to a test.
 */
#pragma once

#include <inttypes.h>
#include <stdint.h>

struct random {
	uint64_t state;
};

static inline uint64_t random_next(struct random *random)
{
	uint64_t x = random->state += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static inline uint32_t random_below(struct random *random, uint32_t n)
{
	return (uint32_t)(random_next(random) % n);
}

/* Prints the seed, so that a failure can be repeated with SEED=... */
struct random random_seeded(const char *test);
/* A 32-byte key that depends on `number` alone, as random as a SHA-256. */
void random_key(uint64_t number, uint8_t ret[32]);
/* The same as a value, for an argument: random_key_of(7).bytes. */
struct random_key {
	uint8_t bytes[32];
} random_key_of(uint64_t number);
/* The number in this variable of the environment, e.g. "STEPS", or else `otherwise`. */
uint64_t env_number(const char *variable, uint64_t otherwise);
