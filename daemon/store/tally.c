/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tally.c - see tally.h. Core thread only.
 */
#include "tally.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/base/reserve.h"
#include "tiers/tier.h"

struct account {
	uint32_t space;                   /* TALLY_NO_SPACE: shared, or unused */
	uint32_t slots[TIER_MAX_CLASSES]; /* host copies, by class */
};

/* The counts behind a space's number. */
struct space_tally {
	struct fingerprint_key index_key;
	uint32_t count[2]; /* there, by variant */
	uint32_t held;     /* numbers that carry it: there, or condemned with pins */
	uint32_t doomed;   /* 1: all its blocks are to go */
	uint32_t host;     /* host copies */
	uint32_t account;  /* while there are any */
	uint16_t tenant, standing;
};

struct tally {
	uint32_t doomed;   /* blocks of doomed spaces */
	uint32_t unusual;  /* spaces in another standing than the usual one */
	uint32_t accounts; /* accounts in use have lower numbers */
	struct account account[TALLY_ACCOUNTS];
	struct space_tally *space; /* by number, TIER_MAX_SPACES; touched as used */
};

enum { SPACES_BYTES = TIER_MAX_SPACES * sizeof(struct space_tally) };

static struct space_tally *at(const struct tally *t, uint32_t space)
{
	assert(space < TIER_MAX_SPACES);
	return &t->space[space];
}

void tally_space_is(struct tally *t, uint32_t space, const uint8_t index_key[16], uint32_t tenant)
{
	assert(at(t, space)->held == 0 && tenant < TALLY_MIXED);
	tally_set_standing(t, space, HINT_USUAL);
	*at(t, space) = (struct space_tally){ .index_key = fingerprint_key_of(index_key),
					      .tenant = (uint16_t)tenant };
}

uint32_t tally_tenant(const struct tally *t, uint32_t space)
{
	return at(t, space)->tenant;
}

void tally_set_standing(struct tally *t, uint32_t space, enum hint_standing standing)
{
	struct space_tally *of = at(t, space);

	t->unusual += (uint32_t)(standing != HINT_USUAL) - (of->standing != HINT_USUAL);
	of->standing = (uint16_t)standing;
}

enum hint_standing tally_standing(const struct tally *t, uint32_t space)
{
	return (enum hint_standing)at(t, space)->standing;
}

uint32_t tally_unusual(const struct tally *t)
{
	return t->unusual;
}

const struct fingerprint_key *tally_index_key(const struct tally *t, uint32_t space)
{
	return &at(t, space)->index_key;
}

/* --- blocks --- */

void tally_enter(struct tally *t, uint32_t space, uint32_t variant)
{
	struct space_tally *of = at(t, space);

	of->count[variant]++;
	of->held++;
	t->doomed += of->doomed;
}

void tally_vanish(struct tally *t, uint32_t space, uint32_t variant)
{
	struct space_tally *of = at(t, space);

	of->count[variant]--;
	t->doomed -= of->doomed;
}

void tally_release(struct tally *t, uint32_t space)
{
	at(t, space)->held--;
}

uint32_t tally_count(const struct tally *t, uint32_t space, uint32_t variant)
{
	assert(variant <= 1);
	return at(t, space)->count[variant];
}

uint32_t tally_blocks(const struct tally *t, uint32_t space)
{
	return at(t, space)->count[0] + at(t, space)->count[1];
}

uint32_t tally_held(const struct tally *t, uint32_t space)
{
	return at(t, space)->held;
}

void tally_doom(struct tally *t, uint32_t space, bool doomed)
{
	struct space_tally *of = at(t, space);
	const uint32_t count = tally_blocks(t, space);

	t->doomed = t->doomed - of->doomed * count + doomed * count;
	of->doomed = doomed;
}

bool tally_is_doomed(const struct tally *t, uint32_t space)
{
	return at(t, space)->doomed;
}

uint32_t tally_doomed(const struct tally *t)
{
	return t->doomed;
}

/* --- accounts --- */

/* With its first host copy a space gets an account, if one is free, and keeps it until the last has
 * gone. */
static void account_open(struct tally *t, uint32_t space)
{
	uint32_t i = 1;

	while (i < TALLY_ACCOUNTS && t->account[i].space != TALLY_NO_SPACE)
		i++;
	if (i == TALLY_ACCOUNTS) {
		at(t, space)->account = TALLY_SHARED;
		return;
	}
	t->account[i].space = space;
	at(t, space)->account = i;
	if (i >= t->accounts)
		t->accounts = i + 1;
}

static void account_close(struct tally *t, uint32_t space)
{
	const uint32_t i = at(t, space)->account;

	at(t, space)->account = TALLY_SHARED;
	if (i == TALLY_SHARED)
		return;
	t->account[i].space = TALLY_NO_SPACE;
	while (t->accounts > 1 && t->account[t->accounts - 1].space == TALLY_NO_SPACE)
		t->accounts--;
}

void tally_host_put(struct tally *t, uint32_t space, uint32_t class)
{
	if (at(t, space)->host++ == 0)
		account_open(t, space);
	t->account[at(t, space)->account].slots[class]++;
}

void tally_host_gone(struct tally *t, uint32_t space, uint32_t class)
{
	struct space_tally *of = at(t, space);

	assert(of->host > 0 && t->account[of->account].slots[class] > 0);
	t->account[of->account].slots[class]--;
	if (--of->host == 0)
		account_close(t, space);
}

void tally_host_move(struct tally *t, uint32_t space, uint32_t from, uint32_t to)
{
	struct account *account = &t->account[at(t, space)->account];

	account->slots[from]--;
	account->slots[to]++;
}

uint32_t tally_accounts(const struct tally *t)
{
	return t->accounts;
}

uint32_t tally_account_of(const struct tally *t, uint32_t space)
{
	return at(t, space)->account;
}

uint32_t tally_account_space(const struct tally *t, uint32_t account)
{
	assert(account < t->accounts);
	return t->account[account].space;
}

uint32_t tally_account_slots(const struct tally *t, uint32_t account, uint32_t class)
{
	assert(account < t->accounts && class < TIER_MAX_CLASSES);
	return t->account[account].slots[class];
}

/* --- life --- */

int tally_open(struct tally **ret)
{
	struct tally *t = calloc(1, sizeof(*t));

	if (!t)
		return -ENOMEM;
	t->space = reserve(SPACES_BYTES);
	if (!t->space) {
		free(t);
		return -ENOMEM;
	}
	t->accounts = 1;
	for (uint32_t i = 0; i < TALLY_ACCOUNTS; i++)
		t->account[i].space = TALLY_NO_SPACE;
	*ret = t;
	return 0;
}

void tally_close(struct tally *t)
{
	if (!t)
		return;
	unreserve(t->space, SPACES_BYTES);
	free(t);
}
