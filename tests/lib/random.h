/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random.h - random numbers for tests: splitmix64, from $SEED or the clock, and the seed printed.
 */
#ifndef KVTIER_TESTS_RANDOM_H
#define KVTIER_TESTS_RANDOM_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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
static inline struct random random_seeded(const char *test)
{
	const char *given = getenv("SEED");
	struct timespec t;
	uint64_t seed;

	(void)clock_gettime(CLOCK_REALTIME, &t);
	seed = given ? strtoull(given, NULL, 0) :
		       (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
	printf("%s: SEED=%" PRIu64 "\n", test, seed);
	return (struct random){ .state = seed };
}

/* A 32-byte key that depends on `number` alone, as random as a SHA-256. */
static inline void random_key(uint64_t number, uint8_t ret[32])
{
	struct random random = { .state = number * 0xd1342543de82ef95u + 1 };

	for (int i = 0; i < 4; i++) {
		const uint64_t word = random_next(&random);

		memcpy(ret + 8 * i, &word, 8);
	}
}

#endif
