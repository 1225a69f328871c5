/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tally.h - the table of blocks' (block.h) facts about each space: its blocks, and the host slots
 * they hold. Core thread only; nothing is allocated after tally_open().
 *
 * Accounts: which host slots are held, by space, so that victims can be taken from one and not from
 * another. Each account has an eviction order a slab class. A space has an account as long as it
 * has host copies. When all are in use, further spaces share the first, which is nobody's.
 */
#ifndef KVTIER_TALLY_H
#define KVTIER_TALLY_H

#include <stdbool.h>
#include <stdint.h>

#include "client/fingerprint.h"
#include "hint_policy.h"

enum {
	TALLY_ACCOUNTS = 128,
	TALLY_SHARED = 0 /* the account of spaces without one */,
	TALLY_NO_SPACE = 0xffffffff,
	TALLY_MIXED = 0xffff, /* the tenant of the shared account */
};

struct tally;

int tally_open(struct tally **ret); /* 0, -ENOMEM */
void tally_close(struct tally *t);  /* NULL is fine */

/* From now on the number, which no block carries, is that of a space of this tenant with this index
 * key, and in usual standing. tenant: < TALLY_MIXED. */
void tally_space_is(struct tally *t, uint32_t space, const uint8_t index_key[16], uint32_t tenant);
const struct fingerprint_key *tally_index_key(const struct tally *t, uint32_t space);

/* A block is there; is not there any more, though its number is held; its number is free. */
void tally_enter(struct tally *t, uint32_t space, uint32_t variant);
void tally_vanish(struct tally *t, uint32_t space, uint32_t variant);
void tally_release(struct tally *t, uint32_t space);
uint32_t tally_count(const struct tally *t, uint32_t space, uint32_t variant);
uint32_t tally_blocks(const struct tally *t, uint32_t space); /* of both variants */
/* and blocks that were condemned and are pinned */
uint32_t tally_held(const struct tally *t, uint32_t space);

uint32_t tally_tenant(const struct tally *t, uint32_t space);
/* The space's state by hints (hint_policy.h), and the number of spaces whose state is not the usual
 * one. */
void tally_set_standing(struct tally *t, uint32_t space, enum hint_standing standing);
enum hint_standing tally_standing(const struct tally *t, uint32_t space);
uint32_t tally_unusual(const struct tally *t);

/* All blocks of a space are to go, or no more; and how many such there are. */
void tally_doom(struct tally *t, uint32_t space, bool doomed);
bool tally_is_doomed(const struct tally *t, uint32_t space);
uint32_t tally_doomed(const struct tally *t);

/* A host copy came, went, moved to a slot of another class. */
void tally_host_put(struct tally *t, uint32_t space, uint32_t class);
void tally_host_gone(struct tally *t, uint32_t space, uint32_t class);
void tally_host_move(struct tally *t, uint32_t space, uint32_t from, uint32_t to);

/* accounts in use are below; not all of these are */
uint32_t tally_accounts(const struct tally *t);
/* TALLY_SHARED: none of its own */
uint32_t tally_account_of(const struct tally *t, uint32_t space);
/* TALLY_NO_SPACE: of no single one */
uint32_t tally_account_space(const struct tally *t, uint32_t account);
/* host copies */
uint32_t tally_account_slots(const struct tally *t, uint32_t account, uint32_t class);

#endif
