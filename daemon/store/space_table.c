/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space_table.c - see space_table.h. Core thread only. All is reserved at the start but the spaces
 * themselves, which space.c allocates when one is opened or found.
 */
#include "space_table.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/fingerprint.h"
#include "tiers/tier.h"

enum {
	/* spaces looked at to find a victim: the least of n is among the least n-th */
	SAMPLE = 256,
	FEW_BLOCKS = 16,
	SHARES = SPACES_TENANTS, /* tenants told apart; more share the last */
	NO_SPACE = 0,            /* in chains, which hold numbers + 1 */
};
static_assert(SPACES_MAX + SPACES_MAX / 2 + 64 <= TIER_MAX_SPACES, "numbers");

#define RECYCLING_NS 60000000000ull
#define FOUND_USE    (1ull << 48) /* `used` of found spaces is below, of opened ones above */

struct tenant_share {
	uint8_t tenant[16];
	uint32_t spaces; /* in use */
};

TAILQ_HEAD(space_list, space);

struct space_table {
	uint32_t max, numbers; /* in use at most; all there are */
	uint32_t in_use, going;
	uint32_t high;                  /* numbers from here on were never used */
	uint32_t n_free, hand;          /* hand: where the next sample begins */
	uint32_t n_shares, shares_used; /* slots filled; slots with a space */
	uint64_t uses, recycled;
	uint64_t recycled_ns; /* when the last one went; 0: never */
	/* no found space up to this tick displaces any, as long as none comes or goes */
	uint64_t refused_tick;
	struct tenant_share shares[SHARES];
	struct fingerprint_key hash;
	uint32_t buckets;          /* a power of two */
	struct space **at;         /* [numbers] */
	uint32_t *free;            /* [n_free] */
	uint32_t *head;            /* [buckets]: number + 1 */
	uint32_t *revision_head;   /* likewise, of known spaces */
	struct space_list leaving; /* the going ones */
	struct spaces_blocks blocks;
};

static uint64_t clock_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int table_open(uint32_t max, const uint8_t secret[16], struct space_table **ret)
{
	struct space_table *t;

	if (max == 0 || max > SPACES_MAX)
		return -EINVAL;
	t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	TAILQ_INIT(&t->leaving);
	t->max = max;
	t->numbers = max + max / 2 + 64;
	t->hash = fingerprint_key_of(secret);
	for (t->buckets = 64; t->buckets < t->numbers; t->buckets *= 2)
		;
	t->at = calloc(t->numbers, sizeof(*t->at));
	t->free = calloc(t->numbers, sizeof(*t->free));
	t->head = calloc(t->buckets, sizeof(*t->head));
	t->revision_head = calloc(t->buckets, sizeof(*t->revision_head));
	if (!t->at || !t->free || !t->head || !t->revision_head) {
		table_close(t);
		return -ENOMEM;
	}
	*ret = t;
	return 0;
}

void table_close(struct space_table *t)
{
	if (!t)
		return;
	for (uint32_t i = 0; i < t->high; i++)
		free(t->at[i]);
	free(t->at);
	free(t->free);
	free(t->head);
	free(t->revision_head);
	free(t);
}

void table_attach(struct space_table *t, const struct spaces_blocks *blocks)
{
	assert(t->high == 0);
	t->blocks = *blocks;
}

static uint32_t held(const struct space_table *t, const struct space *space)
{
	return t->blocks.held ? t->blocks.held(t->blocks.arg, space->number) : 0;
}

/* --- by owner --- */

static uint32_t *bucket_of(const struct space_table *t, const uint8_t owner[32])
{
	return &t->head[fingerprint(&t->hash, owner).half[0] & (t->buckets - 1)];
}

struct space *table_find(const struct space_table *t, const uint8_t owner[32], const uint8_t *id)
{
	for (uint32_t n = *bucket_of(t, owner); n != NO_SPACE; n = t->at[n - 1]->chain) {
		struct space *space = t->at[n - 1];

		if (memcmp(space->owner, owner, sizeof(space->owner)) == 0 &&
		    (!id || !space->known || memcmp(space->id, id, sizeof(space->id)) == 0))
			return space;
	}
	return NULL;
}

static uint32_t *revision_bucket(const struct space_table *t, const uint8_t revision[32])
{
	return &t->revision_head[fingerprint(&t->hash, revision).half[0] & (t->buckets - 1)];
}

struct space *table_revision(const struct space_table *t, const uint8_t revision[32],
			     const struct space *before)
{
	uint32_t n = before ? before->revision_chain : *revision_bucket(t, revision);

	for (; n != NO_SPACE; n = t->at[n - 1]->revision_chain)
		if (memcmp(t->at[n - 1]->revision, revision, 32) == 0)
			return t->at[n - 1];
	return NULL;
}

static void enchain(struct space_table *t, struct space *space)
{
	uint32_t *head = bucket_of(t, space->owner);

	space->chain = *head;
	*head = space->number + 1;
	if (!space->known)
		return;
	head = revision_bucket(t, space->revision);
	space->revision_chain = *head;
	*head = space->number + 1;
}

static void unchain(struct space_table *t, const struct space *space)
{
	uint32_t *at = bucket_of(t, space->owner);

	while (*at != space->number + 1)
		at = &t->at[*at - 1]->chain;
	*at = space->chain;
	if (!space->known)
		return;
	at = revision_bucket(t, space->revision);
	while (*at != space->number + 1)
		at = &t->at[*at - 1]->revision_chain;
	*at = space->revision_chain;
}

/* --- shares --- */

static uint32_t share_of(struct space_table *t, const uint8_t owner[32])
{
	for (uint32_t i = 0; i < t->n_shares; i++)
		if (memcmp(t->shares[i].tenant, owner, sizeof(t->shares[i].tenant)) == 0)
			return i;
	if (t->n_shares == SHARES)
		return SHARES - 1;
	memcpy(t->shares[t->n_shares].tenant, owner, sizeof(t->shares[0].tenant));
	return t->n_shares++;
}

static void count_in(struct space_table *t, struct space *space)
{
	space->share = share_of(t, space->owner);
	t->shares_used += t->shares[space->share].spaces++ == 0;
	t->in_use++;
	t->refused_tick = 0;
}

static void count_out(struct space_table *t, const struct space *space)
{
	t->shares_used -= --t->shares[space->share].spaces == 0;
	t->in_use--;
	t->refused_tick = 0;
}

/* --- going --- */

static void number_free(struct space_table *t, struct space *space)
{
	unchain(t, space);
	t->at[space->number] = NULL;
	t->free[t->n_free++] = space->number;
	free(space);
}

static void go(struct space_table *t, struct space *space)
{
	count_out(t, space);
	t->recycled++;
	t->recycled_ns = clock_ns();
	if (held(t, space) == 0) {
		number_free(t, space);
		return;
	}
	space->going = true;
	t->going++;
	TAILQ_INSERT_TAIL(&t->leaving, space, leaving);
	t->blocks.doom(t->blocks.arg, space->number, true);
}

void table_sweep(struct space_table *t)
{
	struct space *space = TAILQ_FIRST(&t->leaving);

	while (space) {
		struct space *next = TAILQ_NEXT(space, leaving);

		if (held(t, space) == 0) {
			TAILQ_REMOVE(&t->leaving, space, leaving);
			t->going--;
			number_free(t, space);
		}
		space = next;
	}
}

/* The order in which spaces go, as a number: smaller goes first (T3). */
static uint32_t worth(const struct space_table *t, const struct space *space)
{
	const uint32_t blocks = held(t, space);
	const bool over = (uint64_t)t->shares[space->share].spaces * t->shares_used > t->max;

	return (over ? 0u : 3u) + (blocks == 0 ? 0u : blocks <= FEW_BLOCKS ? 1u : 2u);
}

/* The space that goes; NULL: none of the sample may. found: it goes for the sake of this found
 * space only (T4). */
static struct space *victim(struct space_table *t, const struct space *found)
{
	struct space *best = NULL;
	uint32_t best_worth = 0, seen = 0;

	for (uint32_t i = 0; i < t->high && seen < SAMPLE; i++) {
		struct space *space = t->at[t->hand];

		t->hand = t->hand + 1 < t->high ? t->hand + 1 : 0;
		if (!space || space->opened || space->going)
			continue;
		seen++;
		if (found && (space->used >= FOUND_USE || space->used >= found->used))
			continue;
		const uint32_t w = worth(t, space);

		if (!best || w < best_worth || (w == best_worth && space->used < best->used)) {
			best = space;
			best_worth = w;
		}
	}
	return best;
}

static int make_room(struct space_table *t, const struct space *found)
{
	struct space *space;

	if (t->in_use < t->max)
		return 0;
	if (found && found->used <= t->refused_tick)
		return -ENOSPC;
	space = victim(t, found);
	if (!space && found) {
		t->recycled_ns = clock_ns(); /* the found space itself goes */
		t->refused_tick = found->used;
	}
	if (!space)
		return -ENOSPC;
	go(t, space);
	return 0;
}

static int number_take(struct space_table *t, uint32_t *ret)
{
	if (t->n_free == 0 && t->high == t->numbers)
		table_sweep(t);
	if (t->n_free > 0)
		*ret = t->free[--t->n_free];
	else if (t->high < t->numbers)
		*ret = t->high++;
	else
		return -EAGAIN;
	return 0;
}

int table_put(struct space_table *t, struct space *space, bool found)
{
	int r;

	/* First: else a space would go for nothing. */
	if (t->n_free == 0 && t->high == t->numbers && t->going > 0)
		table_sweep(t);
	if (t->n_free == 0 && t->high == t->numbers)
		return -EAGAIN;
	r = make_room(t, found ? space : NULL);
	if (r == 0)
		r = number_take(t, &space->number);
	if (r)
		return r;
	t->at[space->number] = space;
	enchain(t, space);
	count_in(t, space);
	if (t->blocks.is)
		t->blocks.is(t->blocks.arg, space->number, space->index_key, space->share);
	return 0;
}

void table_replace(struct space_table *t, struct space *old, struct space *space)
{
	assert(!old->going && old->opened == 0);
	unchain(t, old);
	space->number = old->number;
	space->share = old->share;
	t->at[space->number] = space;
	enchain(t, space);
	free(old);
}

int table_keep(struct space_table *t, struct space *space)
{
	const int r = make_room(t, NULL);

	assert(space->going);
	if (r)
		return r;
	TAILQ_REMOVE(&t->leaving, space, leaving);
	t->going--;
	space->going = false;
	count_in(t, space);
	t->blocks.doom(t->blocks.arg, space->number, false);
	return 0;
}

void table_released(struct space_table *t, struct space *space)
{
	if (held(t, space) == 0) {
		count_out(t, space);
		number_free(t, space);
		return;
	}
	space->used = FOUND_USE + ++t->uses;
	space->idle_ns = clock_ns();
}

struct space *table_at(const struct space_table *t, uint32_t number)
{
	return number < t->high ? t->at[number] : NULL;
}

uint32_t table_numbers(const struct space_table *t)
{
	return t->high;
}

void table_count(const struct space_table *t, struct spaces_count *ret)
{
	const bool lately = t->recycled_ns && clock_ns() - t->recycled_ns < RECYCLING_NS;

	*ret = (struct spaces_count){ .in_use = t->in_use,
				      .going = t->going,
				      .recycled = t->recycled,
				      .recycling = t->going > 0 || lately };
}
