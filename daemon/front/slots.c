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

/* The oldest half-open connection, of this process and user if they are given; NULL: none. */
static struct conn *oldest(struct conn *conns, const struct peer *peer, const uid_t *uid)
{
	for (struct conn *c = conns; c; c = c->next)
		if (c->state == CONN_GREETING && (!peer || c->client.peer == peer) &&
		    (!uid || c->uid == *uid))
			return c;
	return NULL;
}

enum slots_answer slots_ask(const struct slots_rule *rule, struct conn *conns, uid_t uid,
			    const struct peer *peer, struct conn **ret_victim, char *why, size_t n)
{
	const bool root = uid == 0 || uid == rule->own, shared = rule->max >= SLOTS_RESERVE_FROM;
	uint32_t all = 0, of_uid = 0;

	for (const struct conn *c = conns; c; c = c->next) {
		all++;
		of_uid += c->uid == uid;
	}
	if (of_uid >= rule->per_uid && rule->per_uid < rule->max) {
		*ret_victim = oldest(conns, NULL, &uid);
		snprintf(why, n,
			 "user %u has %u connections, as many as [socket] max_clients_per_uid "
			 "allows one user of the %u: close some, or raise it",
			 (unsigned)uid, of_uid, rule->max);
	} else if (shared && peer && peer->n_clients + of_uid >= rule->per_uid) {
		*ret_victim = oldest(conns, peer, NULL);
		snprintf(why, n,
			 "this process has %u connections, and %u of the %u that a user may have "
			 "are left for others: use one client for all threads, or raise [socket] "
			 "max_clients_per_uid",
			 peer->n_clients, rule->per_uid - of_uid, rule->per_uid);
	} else if (all >= rule->max) {
		*ret_victim = oldest(conns, NULL, NULL);
		snprintf(why, n,
			 "%u clients are connected, as many as [socket] max_clients allows: close "
			 "some, or raise it",
			 rule->max);
	} else if (!root && all + 1 == rule->max && shared) {
		*ret_victim = oldest(conns, NULL, NULL);
		snprintf(why, n,
			 "%u clients are connected, and the last of [socket] max_clients = %u is "
			 "kept for root: close some, or raise it",
			 all, rule->max);
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
