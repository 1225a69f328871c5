/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space_counts.c - see space_counts.h. Core thread only.
 */
#include "space_counts.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/reserve.h"
#include "tiers/tier.h"

enum { SHARED = COUNTS_ACCOUNTS - QUOTA_TENANTS }; /* the first account that spaces share */

struct account {
	uint32_t space;                   /* COUNTS_NO_SPACE: shared, or unused */
	uint32_t spaces, tenant;          /* 0: unused; all spaces are this tenant's */
	uint32_t slots[TIER_MAX_CLASSES]; /* host copies, by class */
};

/* The counts behind a space's number. */
struct counts {
	struct fingerprint_key index_key;
	uint32_t count[2]; /* there, by variant */
	uint32_t held;     /* numbers that carry it: there, or condemned with pins */
	uint32_t doomed;   /* 1: all its blocks are to be dropped */
	uint32_t host;     /* host copies */
	uint32_t account;  /* 1 + its number, while there are any */
	uint16_t tenant, standing;
	uint32_t round;      /* in which guaranteed was given */
	uint64_t guaranteed; /* host bytes */
};

struct space_counts {
	struct quota *quota;
	uint32_t round;       /* of guarantees */
	struct quota nowhere; /* where no other is given */
	uint32_t doomed;      /* blocks of doomed spaces */
	uint32_t unusual;     /* spaces in another standing than the usual one */
	uint32_t accounts;    /* accounts in use have lower numbers */
	struct account account[COUNTS_ACCOUNTS];
	struct counts *space; /* by number, TIER_MAX_SPACES; touched as used */
};

enum { SPACES_BYTES = TIER_MAX_SPACES * sizeof(struct counts) };

static struct counts *at(const struct space_counts *t, uint32_t space)
{
	assert(space < TIER_MAX_SPACES);
	return &t->space[space];
}

const struct quota *counts_quota(const struct space_counts *t)
{
	return t->quota;
}

void counts_space_is(struct space_counts *t, uint32_t space, const uint8_t index_key[16],
		     uint32_t tenant)
{
	assert(at(t, space)->held == 0 && tenant < QUOTA_TENANTS);
	counts_set_standing(t, space, HINT_USUAL);
	*at(t, space) = (struct counts){ .index_key = fingerprint_key_of(index_key),
					 .tenant = (uint16_t)tenant };
}

uint32_t counts_tenant(const struct space_counts *t, uint32_t space)
{
	return at(t, space)->tenant;
}

void counts_set_standing(struct space_counts *t, uint32_t space, enum hint_standing standing)
{
	struct counts *of = at(t, space);

	t->unusual += (uint32_t)(standing != HINT_USUAL) - (of->standing != HINT_USUAL);
	of->standing = (uint16_t)standing;
}

enum hint_standing counts_standing(const struct space_counts *t, uint32_t space)
{
	return (enum hint_standing)at(t, space)->standing;
}

uint32_t counts_unusual(const struct space_counts *t)
{
	return t->unusual;
}

const struct fingerprint_key *counts_index_key(const struct space_counts *t, uint32_t space)
{
	return &at(t, space)->index_key;
}

/* --- blocks --- */

void counts_enter(struct space_counts *t, uint32_t space, uint32_t variant)
{
	struct counts *of = at(t, space);

	of->count[variant]++;
	of->held++;
	quota_take(t->quota, QUOTA_blocks, of->tenant, 1);
	t->doomed += of->doomed;
}

void counts_vanish(struct space_counts *t, uint32_t space, uint32_t variant)
{
	struct counts *of = at(t, space);

	of->count[variant]--;
	t->doomed -= of->doomed;
}

void counts_release(struct space_counts *t, uint32_t space)
{
	at(t, space)->held--;
	quota_give(t->quota, QUOTA_blocks, at(t, space)->tenant, 1);
}

uint32_t counts_variant(const struct space_counts *t, uint32_t space, uint32_t variant)
{
	assert(variant <= 1);
	return at(t, space)->count[variant];
}

uint32_t counts_blocks(const struct space_counts *t, uint32_t space)
{
	return at(t, space)->count[0] + at(t, space)->count[1];
}

uint32_t counts_held(const struct space_counts *t, uint32_t space)
{
	return at(t, space)->held;
}

void counts_doom(struct space_counts *t, uint32_t space, bool doomed)
{
	struct counts *of = at(t, space);
	const uint32_t count = counts_blocks(t, space);

	assert(of->doomed != doomed);
	t->doomed = t->doomed - of->doomed * count + doomed * count;
	of->doomed = doomed;
}

bool counts_is_doomed(const struct space_counts *t, uint32_t space)
{
	return at(t, space)->doomed;
}

uint32_t counts_doomed(const struct space_counts *t)
{
	return t->doomed;
}

void counts_guarantee(struct space_counts *t, uint32_t space, uint64_t more_bytes)
{
	struct counts *of = at(t, space);

	of->guaranteed = (of->round == t->round ? of->guaranteed : 0) + more_bytes;
	of->round = t->round;
}

void counts_guarantee_anew(struct space_counts *t)
{
	t->round++;
}

uint64_t counts_guaranteed(const struct space_counts *t, uint32_t space)
{
	const struct counts *of = at(t, space);

	return of->round == t->round && of->standing == HINT_USUAL ? of->guaranteed : 0;
}

/* --- accounts --- */

/* With its first host copy a space gets an account, if one is free, and keeps it until the last has
 * gone. */
static void account_open(struct space_counts *t, uint32_t space)
{
	struct counts *of = at(t, space);
	uint32_t i = 0;

	while (i < SHARED && t->account[i].spaces > 0)
		i++;
	if (i == SHARED)
		i += of->tenant;
	else
		t->account[i].space = space;
	t->account[i].tenant = of->tenant;
	t->account[i].spaces++;
	of->account = i + 1;
	if (i >= t->accounts)
		t->accounts = i + 1;
}

static void account_close(struct space_counts *t, uint32_t space)
{
	struct account *account = &t->account[at(t, space)->account - 1];

	at(t, space)->account = 0;
	if (--account->spaces > 0)
		return;
	account->space = COUNTS_NO_SPACE;
	while (t->accounts > 0 && t->account[t->accounts - 1].spaces == 0)
		t->accounts--;
}

void counts_host_put(struct space_counts *t, uint32_t space, uint32_t class)
{
	if (at(t, space)->host++ == 0)
		account_open(t, space);
	t->account[at(t, space)->account - 1].slots[class]++;
}

void counts_host_gone(struct space_counts *t, uint32_t space, uint32_t class)
{
	struct counts *of = at(t, space);

	assert(of->host > 0 && t->account[of->account - 1].slots[class] > 0);
	t->account[of->account - 1].slots[class]--;
	if (--of->host == 0)
		account_close(t, space);
}

void counts_host_move(struct space_counts *t, uint32_t space, uint32_t from, uint32_t to)
{
	struct account *account = &t->account[at(t, space)->account - 1];

	account->slots[from]--;
	account->slots[to]++;
}

uint32_t counts_accounts(const struct space_counts *t)
{
	return t->accounts;
}

uint32_t counts_account_of(const struct space_counts *t, uint32_t space)
{
	const uint32_t account = at(t, space)->account;

	return account > 0 ? account - 1 : COUNTS_NO_ACCOUNT;
}

uint32_t counts_account_space(const struct space_counts *t, uint32_t account)
{
	assert(account < t->accounts);
	return t->account[account].space;
}

uint32_t counts_account_tenant(const struct space_counts *t, uint32_t account)
{
	return t->account[account].tenant;
}

uint32_t counts_priority(const struct space_counts *t, uint32_t space)
{
	return t->quota->tenant[at(t, space)->tenant].priority;
}

uint32_t counts_account_priority(const struct space_counts *t, uint32_t account)
{
	return t->quota->tenant[t->account[account].tenant].priority;
}

uint32_t counts_account_slots(const struct space_counts *t, uint32_t account, uint32_t class)
{
	assert(account < t->accounts && class < TIER_MAX_CLASSES);
	return t->account[account].slots[class];
}

/* --- life --- */

int counts_open(struct quota *quota, struct space_counts **ret)
{
	struct space_counts *t = calloc(1, sizeof(*t));

	if (!t)
		return -ENOMEM;
	t->space = reserve(SPACES_BYTES);
	if (!t->space) {
		free(t);
		return -ENOMEM;
	}
	t->round = 1;
	t->quota = quota ? quota : &t->nowhere;
	for (uint32_t i = 0; i < COUNTS_ACCOUNTS; i++)
		t->account[i].space = COUNTS_NO_SPACE;
	*ret = t;
	return 0;
}

void counts_close(struct space_counts *t)
{
	if (!t)
		return;
	unreserve(t->space, SPACES_BYTES);
	free(t);
}
