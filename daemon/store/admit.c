/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admit.c - second-miss admission. Core thread only.
 *
 * The ghost table has buckets of WAYS fingerprints, the latest refused block first. A full bucket
 * forgets its oldest, so nothing is ever swept or grows. Keys are hashes. A client that crafts keys
 * to crowd a bucket makes the daemon forget the other blocks of that bucket, which costs a later
 * write of each and nothing else.
 */
#include "admit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { WAYS = 16, BUCKETS = ADMIT_REMEMBERED / WAYS };

struct admit {
	uint32_t bucket[BUCKETS][WAYS]; /* 0: empty */
};

int admit_open(struct admit **ret)
{
	struct admit *admit = calloc(1, sizeof(*admit));

	if (!admit)
		return -ENOMEM;
	*ret = admit;
	return 0;
}

void admit_close(struct admit *admit)
{
	free(admit);
}

/* Whether the key was there; it is now, as the latest of its bucket. */
static bool remember(struct admit *admit, const uint8_t key[32])
{
	uint32_t word[2], at = 0;

	memcpy(word, key, sizeof(word));
	uint32_t *const bucket = admit->bucket[word[0] % BUCKETS];
	const uint32_t fingerprint = word[1] ? word[1] : 1;

	while (at < WAYS - 1 && bucket[at] != fingerprint)
		at++;
	const bool found = bucket[at] == fingerprint;
	memmove(bucket + 1, bucket, at * sizeof(*bucket)); /* over it, or over the oldest */
	bucket[0] = fingerprint;
	return found;
}

bool admit_ask(struct admit *admit, const uint8_t key[32], uint32_t budget_percent,
	       bool parent_there)
{
	if (parent_there && budget_percent >= ADMIT_PLENTY_PERCENT)
		return true;
	return remember(admit, key) && parent_there;
}
