/* SPDX-License-Identifier: Apache-2.0 */
/* replay.c - requests by the policies of eviction. Contract: replay.h. */
#include "replay.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/table/evict.h"
#include "requests.h"

static void tell(const struct replay_told *told, uint64_t requests)
{
	if (told && requests % 256 == 0)
		told->call(told->arg, requests);
}

/* The blocks of a request that are there, up to the first that is not. */
static size_t found(const uint8_t *here, const uint32_t *ids, size_t n)
{
	size_t hits = 0;

	while (hits < n && here[ids[hits]])
		hits++;
	return hits;
}

/* --- the least recent leaf --- */

static uint32_t victim_of(const struct evict *evict, uint64_t now)
{
	const uint32_t usual = evict_victim(evict, 0, 0, EVICT_USUAL),
		       expected = evict_farthest(evict, 0, 0, now);

	if (usual == EVICT_NONE || expected == EVICT_NONE)
		return usual == EVICT_NONE ? expected : usual;
	return evict_worth(evict, expected, now) < evict_worth(evict, usual, now) ? expected :
										    usual;
}

/* Returns how many of the blocks are there now. */
static size_t ours_one(struct evict *evict, uint8_t *here, uint32_t *room, const uint32_t *ids,
		       size_t n, uint64_t tick)
{
	size_t done = 0, pinned;

	for (; done < n; done++) {
		const uint32_t id = ids[done];
		uint32_t victim = EVICT_NONE;

		if (!here[id] && *room == 0) {
			victim = victim_of(evict, tick);
			if (victim == EVICT_NONE)
				break;
			(void)evict_remove(evict, victim);
			here[victim] = 0;
			(*room)++;
		}
		if (!here[id]) {
			(*room)--;
			evict_add(evict, id, done ? ids[done - 1] : EVICT_NONE, 0, tick);
			here[id] = 1;
		}
		evict_touch(evict, id, tick);
		evict_pin(evict, id);
	}
	for (pinned = done; pinned > 0;)
		evict_unpin(evict, ids[--pinned]);
	return done;
}

/* The session of a request uses these blocks next at this time, 0: never. A block whose last use
 * was another session's is back with the first of both. */
static void expect(struct evict *evict, uint32_t *session, const uint32_t *ids, size_t n,
		   const struct request_times *at)
{
	for (size_t i = 0; i < n; i++) {
		const uint64_t before = evict_expected(evict, ids[i]);
		uint64_t next = at->next ? at->next : EVICT_NEVER;

		if (session[ids[i]] != at->session && before > at->at && before < next)
			next = before;
		evict_expect(evict, ids[i], next);
		session[ids[i]] = at->session;
	}
}

int replay_ours(const struct requests *r, uint32_t room, bool expected,
		const struct replay_told *told, uint64_t *ret)
{
	uint8_t *here = calloc(r->unique, 1);
	uint32_t *session = expected ? calloc(r->unique, sizeof(*session)) : NULL;
	struct evict *evict = NULL;
	uint64_t hits = 0;
	size_t first = 0;
	const int rc =
		!here || (expected && !session) || evict_open(r->unique, 1, NULL, 1, &evict) ?
			-ENOMEM :
			0;

	for (size_t i = 0; rc == 0 && i < r->n_requests; first = r->ends[i++]) {
		const uint32_t *ids = r->ids + first;
		size_t n = r->ends[i] - first;

		hits += found(here, ids, n);
		n = ours_one(evict, here, &room, ids, n, expected ? r->times[i].at : i + 1);
		if (expected)
			expect(evict, session, ids, n, &r->times[i]);
		tell(told, i);
	}
	evict_close(evict);
	free(session);
	free(here);
	*ret = hits;
	return rc;
}

/* --- the least recent block: a ring of links through its head, whose number is r->unique --- */

struct lru {
	uint32_t *next, *previous;
	uint32_t head;
};

static void unlink_block(struct lru *lru, uint32_t id)
{
	lru->next[lru->previous[id]] = lru->next[id];
	lru->previous[lru->next[id]] = lru->previous[id];
}

static void link_newest(struct lru *lru, uint32_t id)
{
	lru->previous[id] = lru->head;
	lru->next[id] = lru->next[lru->head];
	lru->previous[lru->next[id]] = id;
	lru->next[lru->head] = id;
}

static void lru_one(struct lru *lru, uint8_t *here, uint32_t *room, uint32_t id)
{
	if (here[id]) {
		unlink_block(lru, id);
	} else if (*room > 0) {
		(*room)--;
	} else {
		const uint32_t victim = lru->previous[lru->head];

		if (victim == lru->head) /* no room at all */
			return;
		unlink_block(lru, victim);
		here[victim] = 0;
	}
	here[id] = 1;
	link_newest(lru, id);
}

int replay_lru(const struct requests *r, uint32_t room, const struct replay_told *told,
	       uint64_t *ret)
{
	const size_t n = (size_t)r->unique + 1;
	struct lru lru = { .next = calloc(n, sizeof(uint32_t)),
			   .previous = calloc(n, sizeof(uint32_t)),
			   .head = r->unique };
	uint8_t *here = calloc(n, 1);
	const bool fine = lru.next && lru.previous && here;
	uint64_t hits = 0;
	size_t first = 0;

	if (fine)
		lru.next[lru.head] = lru.previous[lru.head] = lru.head;
	for (size_t i = 0; fine && i < r->n_requests; first = r->ends[i++]) {
		hits += found(here, r->ids + first, r->ends[i] - first);
		for (size_t k = first; k < r->ends[i]; k++)
			lru_one(&lru, here, &room, r->ids[k]);
		tell(told, i);
	}
	free(lru.next);
	free(lru.previous);
	free(here);
	*ret = hits;
	return fine ? 0 : -ENOMEM;
}
