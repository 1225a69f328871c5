/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slots.c - see slots.h. Connections that end count until nothing is left of them.
 */
#include "slots.h"

#include <stdio.h>
#include <stdlib.h>

uint32_t slots_per_uid(uint32_t max_clients, uint32_t configured)
{
	const uint32_t share = configured ? configured : max_clients - max_clients / 4;

	return share < max_clients ? share : max_clients;
}

/* The oldest half-open connection of this user; NULL: it has none. */
static struct conn *oldest_of(struct conn *conns, uid_t uid)
{
	struct conn *c = conns;

	while (c && (c->state != CONN_GREETING || c->uid != uid))
		c = c->next;
	return c;
}

/* The oldest half-open connection of the user that has most of them; there are few. */
static struct conn *oldest_of_most(struct conn *conns)
{
	struct conn *ret = NULL;
	uint32_t most = 0;

	for (struct conn *c = conns; c; c = c->next) {
		uint32_t n = 0;

		if (c->state != CONN_GREETING)
			continue;
		/* older ones were counted from there */
		for (const struct conn *other = c; other; other = other->next)
			n += other->state == CONN_GREETING && other->uid == c->uid;
		if (n > most) {
			most = n;
			ret = c;
		}
	}
	return ret;
}

enum slots_answer slots_ask(const struct slots_rule *rule, struct conn *conns, uid_t uid,
			    struct conn **ret_victim, char *why, size_t n)
{
	const bool root = uid == 0 || uid == rule->own;
	uint32_t all = 0, of_uid = 0, half_open = 0;

	for (const struct conn *c = conns; c; c = c->next) {
		all++;
		of_uid += c->uid == uid;
		half_open += c->state == CONN_GREETING;
	}
	*ret_victim = NULL;
	if (of_uid >= rule->per_uid && rule->per_uid < rule->max) {
		*ret_victim = oldest_of(conns, uid);
		snprintf(why, n,
			 "user %u has %u connections, as many as [socket] max_clients_per_uid "
			 "allows one user of the %u",
			 (unsigned)uid, of_uid, rule->max);
	} else if (all >= rule->max) {
		*ret_victim = oldest_of_most(conns);
		snprintf(why, n, "%u clients are connected, as many as [socket] max_clients allows",
			 rule->max);
	} else if (!root && all + 1 == rule->max && rule->max >= SLOTS_RESERVE_FROM) {
		*ret_victim = oldest_of_most(conns);
		snprintf(why, n,
			 "%u clients are connected, and the last of [socket] max_clients = %u is "
			 "kept for root",
			 all, rule->max);
	} else if (half_open >= SLOTS_HALF_OPEN) {
		*ret_victim = oldest_of_most(conns);
	} else {
		return SLOTS_FREE;
	}
	return *ret_victim ? SLOTS_DROP : SLOTS_NONE;
}

static int compare(const void *a, const void *b)
{
	const struct slots_owner *x = a, *y = b;

	if (x->uid != y->uid)
		return x->uid < y->uid ? -1 : 1;
	return (x->pid > y->pid) - (x->pid < y->pid);
}

void slots_find_hog(const struct conn *conns, struct slots_owner *owners, struct slots_hog *ret)
{
	uint32_t n = 0, of_uid = 0, of_pid = 0;
	struct slots_hog at = { 0 };

	for (const struct conn *c = conns; c; c = c->next)
		owners[n++] = (struct slots_owner){ c->uid, c->client.pid };
	qsort(owners, n, sizeof(*owners), compare);
	*ret = (struct slots_hog){ .all = n };
	for (uint32_t i = 0; i < n; i++) {
		const bool same_uid = i > 0 && owners[i].uid == owners[i - 1].uid;

		of_uid = same_uid ? of_uid + 1 : 1;
		of_pid = same_uid && owners[i].pid == owners[i - 1].pid ? of_pid + 1 : 1;
		if (!same_uid)
			at = (struct slots_hog){ 0 };
		if (of_pid > at.of_pid)
			at = (struct slots_hog){ .pid = owners[i].pid, .of_pid = of_pid };
		if (of_uid >= ret->of_uid)
			*ret = (struct slots_hog){ owners[i].uid, at.pid, of_uid, at.of_pid, n };
	}
}
