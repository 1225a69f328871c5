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

static void ours_one(struct evict *evict, uint8_t *here, uint32_t *room, const uint32_t *ids,
		     size_t n, uint64_t tick)
{
	size_t done = 0;

	for (; done < n; done++) {
		const uint32_t id = ids[done];
		uint32_t victim = EVICT_NONE;

		if (!here[id] && *room == 0) {
			victim = evict_victim(evict, 0, 0, EVICT_USUAL);
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
	while (done > 0)
		evict_unpin(evict, ids[--done]);
}

int replay_ours(const struct requests *r, uint32_t room, const struct replay_told *told,
		uint64_t *ret)
{
	uint8_t *here = calloc(r->unique, 1);
	struct evict *evict = NULL;
	uint64_t hits = 0;
	size_t first = 0;

	if (!here || evict_open(r->unique, 1, NULL, 1, &evict)) {
		free(here);
		return -ENOMEM;
	}
	for (size_t i = 0; i < r->n_requests; first = r->ends[i++]) {
		const size_t n = r->ends[i] - first;

		hits += found(here, r->ids + first, n);
		ours_one(evict, here, &room, r->ids + first, n, i + 1);
		tell(told, i);
	}
	evict_close(evict);
	free(here);
	*ret = hits;
	return 0;
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
