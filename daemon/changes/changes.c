/* SPDX-License-Identifier: Apache-2.0 */
/* changes.c - a ring of the last changes. Contract: changes.h. */
#include "changes.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/random.h>

#include "base/reserve.h"

int changes_begin(struct changes *changes)
{
	if (changes->ring)
		return 0;
	if (getrandom(&changes->instance, sizeof(changes->instance), 0) !=
	    sizeof(changes->instance))
		return -EIO;
	changes->ring = reserve(CHANGES_KEPT * sizeof(struct change));
	return changes->ring ? 0 : -ENOMEM;
}

void changes_end(struct changes *changes)
{
	unreserve(changes->ring, CHANGES_KEPT * sizeof(struct change));
	changes->ring = NULL;
}

void changes_add(struct changes *changes, const uint8_t key[32], uint32_t space, uint32_t tiers)
{
	struct change *change;

	if (!changes || !changes->ring)
		return;
	change = &changes->ring[changes->next++ % CHANGES_KEPT];
	memcpy(change->key, key, sizeof(change->key));
	change->space = space;
	change->tiers = tiers;
}

const struct change *changes_at(const struct changes *changes, uint64_t number)
{
	if (!changes->ring || number >= changes->next || changes->next - number > CHANGES_KEPT)
		return NULL;
	return &changes->ring[number % CHANGES_KEPT];
}
