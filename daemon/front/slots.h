/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slots.h - who may have one of the connections: a share per user, and of that for each process as
 * many as are left for the user's other processes; the last one for root; and connections that have
 * not said HELLO yet are the first to go, the oldest first. Pure: a look at the list, no side
 * effects. Core thread.
 */
#ifndef KVTIER_SLOTS_H
#define KVTIER_SLOTS_H

#include "conn.h"

/* [socket] max_clients with which the last is kept for root, and processes have shares. */
enum { SLOTS_RESERVE_FROM = 4 };

struct slots_rule {
	uint32_t max, per_uid;
	uid_t own; /* the daemon's user, which is as good as root */
};

enum slots_answer {
	SLOTS_FREE,
	SLOTS_DROP, /* *ret_victim, which is half-open, goes first */
	SLOTS_NONE, /* why */
};

uint32_t slots_per_uid(uint32_t max_clients, uint32_t configured); /* 0: three quarters */
/* peer: its process; NULL: a process without connections. */
enum slots_answer slots_ask(const struct slots_rule *rule, struct conn *conns, uid_t uid,
			    const struct peer *peer, struct conn **ret_victim, char *why, size_t n);

/* The user that has most of them. */
struct slots_hog {
	uid_t uid;
	pid_t pid; /* its process with the most */
	uint32_t of_uid, of_pid, all;
};

struct slots_owner {
	uid_t uid;
	pid_t pid;
};

/* owners: room for all connections. */
void slots_find_hog(const struct conn *conns, struct slots_owner *owners, struct slots_hog *ret);

#endif
