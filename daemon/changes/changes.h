/* SPDX-License-Identifier: Apache-2.0 */
/*
 * changes.h - which blocks came, moved between tiers or left, in their order, for programs that
 * follow what this node has (`kvtierctl events`). Core thread only.
 *
 * Changes have numbers, from 0 on, and the last CHANGES_KEPT of them are kept. A follower asks for
 * the changes behind the last one that it has seen. If they are not kept any more, the follower
 * begins anew: it remembers changes_next(), looks at all blocks, and asks for what changed since.
 * No change is kept before the first follower came, so blocks pay nothing until then.
 */
#pragma once

#include <stdint.h>

enum { CHANGES_KEPT = 1 << 16 /* 2.5 MiB, touched as used */ };

struct change {
	uint8_t key[32];
	uint32_t space; /* its number, which another space may have later */
	uint32_t tiers; /* that have a copy from now on, 1 << enum tier_id; 0: the block has left */
};

/* Zeroed: no follower came yet. */
struct changes {
	struct change *ring;
	uint64_t next;     /* the number of the next change */
	uint64_t instance; /* random: numbers of another one are other changes */
};

/* A follower came: keeps changes from now on, if they were not kept before. -ENOMEM, -EIO */
int changes_begin(struct changes *changes);
void changes_end(struct changes *changes);

/* changes may be NULL. */
void changes_add(struct changes *changes, const uint8_t key[32], uint32_t space, uint32_t tiers);
/* The change with this number, until the next changes_add(). NULL: it is not kept any more, or not
 * there yet. */
const struct change *changes_at(const struct changes *changes, uint64_t number);
