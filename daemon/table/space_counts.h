/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space_counts.h - counts, for the table of blocks (block.h), the blocks of each space and the host
 * slots that they hold. Core thread only; only counts_open() allocates memory.
 *
 * An account says how many host slots a space holds, so that victims can be taken from one space
 * and not from another. Each account has an eviction order for each slab class. A space has an
 * account as long as it has host copies. When all accounts are in use, the further spaces of a
 * tenant have one account together.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/abi/fingerprint.h"
#include "daemon/quota/quota.h"

/* The state of a space by hints (move/hints.h). */
enum hint_standing {
	HINT_USUAL,
	HINT_DEMOTED, /* its blocks are the first to leave memory */
	HINT_RETIRED, /* its blocks are the first to leave memory and NVMe */
};

enum {
	COUNTS_ACCOUNTS = 128, /* the last ones are shared, one for each tenant */
	COUNTS_NO_ACCOUNT = COUNTS_ACCOUNTS,
	COUNTS_NO_SPACE = 0xffffffff,
};

struct space_counts;

/* Blocks are counted in quota, by tenant. It stays the caller's, and may be NULL. 0, -ENOMEM */
int counts_open(struct quota *quota, struct space_counts **ret);
void counts_close(struct space_counts *t); /* may be NULL */

const struct quota *counts_quota(const struct space_counts *t);

/* The number, which no block carries, is a space's from now on, of this tenant, with this index key
 * and in usual standing. tenant < QUOTA_TENANTS */
void counts_space_is(struct space_counts *t, uint32_t space, const uint8_t index_key[16],
		     uint32_t tenant);
const struct fingerprint_key *counts_index_key(const struct space_counts *t, uint32_t space);

/* counts_enter(): a block is there. counts_vanish(): it is not there any more, but its number is
 * held. counts_release(): its number is free. */
void counts_enter(struct space_counts *t, uint32_t space, uint32_t variant);
void counts_vanish(struct space_counts *t, uint32_t space, uint32_t variant);
void counts_release(struct space_counts *t, uint32_t space);
uint32_t counts_variant(const struct space_counts *t, uint32_t space, uint32_t variant);
uint32_t counts_blocks(const struct space_counts *t, uint32_t space); /* of both variants */
/* The blocks of both variants, and the blocks that were condemned and are pinned. */
uint32_t counts_held(const struct space_counts *t, uint32_t space);

uint32_t counts_tenant(const struct space_counts *t, uint32_t space);
/* The space's standing by hints, and the number of spaces whose standing is not the usual one. */
void counts_set_standing(struct space_counts *t, uint32_t space, enum hint_standing standing);
enum hint_standing counts_standing(const struct space_counts *t, uint32_t space);
uint32_t counts_unusual(const struct space_counts *t);

/* A space is doomed if all its blocks are to be dropped. counts_doomed() has the number of such
 * blocks. */
void counts_doom(struct space_counts *t, uint32_t space, bool doomed);
bool counts_is_doomed(const struct space_counts *t, uint32_t space);
uint32_t counts_doomed(const struct space_counts *t);

/* A host copy has come, is gone, or has moved to a slot of another class. */
void counts_host_put(struct space_counts *t, uint32_t space, uint32_t class);
void counts_host_gone(struct space_counts *t, uint32_t space, uint32_t class);
void counts_host_move(struct space_counts *t, uint32_t space, uint32_t from, uint32_t to);

/* The bytes of host memory that other spaces do not take from a space (quota_may_take()); the same
 * fraction of all block numbers is guaranteed to it. 0 for a space whose standing is not the usual
 * one. */
void counts_guarantee(struct space_counts *t, uint32_t space, uint64_t more_bytes);
void counts_guarantee_anew(struct space_counts *t); /* all are 0 */
uint64_t counts_guaranteed(const struct space_counts *t, uint32_t space);

/* All accounts in use are below this number; some below it may not be in use. */
uint32_t counts_accounts(const struct space_counts *t);
/* COUNTS_NO_ACCOUNT: it has no host copies */
uint32_t counts_account_of(const struct space_counts *t, uint32_t space);
/* COUNTS_NO_SPACE: several spaces have it together. */
uint32_t counts_account_space(const struct space_counts *t, uint32_t account);
uint32_t counts_account_tenant(const struct space_counts *t, uint32_t account);
/* The priority of its tenant. Blocks of tenants with a lower one are evicted first. */
uint32_t counts_priority(const struct space_counts *t, uint32_t space);
uint32_t counts_account_priority(const struct space_counts *t, uint32_t account);
/* host copies */
uint32_t counts_account_slots(const struct space_counts *t, uint32_t account, uint32_t class);
