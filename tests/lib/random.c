/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "random.h"

uint64_t env_number(const char *variable, uint64_t otherwise)
{
	const char *text = getenv(variable);

	return text ? strtoull(text, NULL, 0) : otherwise;
}

struct random random_seeded(const char *test)
{
	struct random random;
	struct timespec t;

	(void)clock_gettime(CLOCK_REALTIME, &t);
	random.state = env_number("SEED", (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec);
	printf("%s: SEED=%" PRIu64 "\n", test, random.state);
	(void)fflush(stdout);
	return random;
}

void random_key(uint64_t number, uint8_t ret[32])
{
	struct random random = { .state = number * 0xd1342543de82ef95u + 1 };

	for (int i = 0; i < 4; i++) {
		const uint64_t word = random_next(&random);

		memcpy(ret + 8 * i, &word, 8);
	}
}

struct random_key random_key_of(uint64_t number)
{
	struct random_key ret;

	random_key(number, ret.bytes);
	return ret;
}
