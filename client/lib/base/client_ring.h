/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_ring.h - the memory that one connection shares with the daemon: rings, arena and index;
 * and ranges of slots in an arena, or of staging pages. The caller holds the ring lock.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/abi/wire.h"
#include "client/kvtier.h"

/* ---- contiguous ranges of [0, blocks), first fit, given back in any order ---- */

struct range {
	uint32_t first, n;
};

struct arena {
	uint32_t blocks, n_used;
	struct range used[KVTIER_MAX_OPS]; /* by first, disjoint */
};

void arena_init(struct arena *arena, uint32_t blocks);
/* Takes the largest gap, up to `most` and at least `least` > 0. -EAGAIN: there is no such gap. */
int arena_take(struct arena *arena, uint32_t least, uint32_t most, struct range *ret);
/* Gives back the range that begins there. */
void arena_give(struct arena *arena, uint32_t first);

/* ---- a connection ---- */

struct orphan;
struct map;

struct link {
	struct wire_submit *submit;           /* read and write */
	const struct wire_complete *complete; /* read-only, as is the index */
	struct map *map;
	const struct wire_index *index;
	struct wire_sqe *sqes;
	struct kvtier_key *keys;
	uint32_t *pages;
	const struct wire_cqe *cqes;
	const int32_t *statuses;
	const uint32_t *layers;
	uint64_t submit_bytes, complete_bytes;
	uint32_t sq_entries, cq_entries, arena_blocks;
	uint32_t sq_tail, cq_head; /* private, and so the truth; the shared ones are copies */
	uint32_t in_flight;        /* ops on the wire, <= cq_entries */
	uint32_t refs;             /* threads that sleep on it */
	uint32_t version;          /* of the wire, as the daemon chose it */
	uint64_t serial;           /* the connection's number in the client's life, from 1 */
	/* how far the daemon's clock is ahead of ours, at least and at most */
	int64_t ahead_least_ns, ahead_most_ns;
	struct arena arena;
	struct orphan *orphan; /* made with the link; NULL once it was kept */
	struct link *next;     /* of the client's retired ones */
};

/* Maps the memory that came with HELLO_OK. fds remain the caller's. -EPROTO with
 * kvtier_last_error(): it is not safe. */
int link_open(const struct wire_hello_ok *ok, const int fds[3], struct link **ret);
void link_close(struct link *link); /* may be NULL */
/* Adds an entry. -EAGAIN: the ring is full. -EPROTO. */
int ring_push(struct link *link, const struct wire_sqe *sqe);
/* The connection is given up. A daemon that was stopped may read the rings before it sees that the
 * socket was shut down, so entries that it has not read are withdrawn. Returns sq_head: no entry
 * from there on ever touches a page. */
uint32_t ring_withdraw(struct link *link);
/* Whether the daemon wants a DOORBELL after ring_push(). */
bool ring_asleep(const struct link *link);
/* Takes a completion. 1: *ret is a private copy of it; 0: there is none; -EPROTO. */
int ring_next(struct link *link, struct wire_cqe *ret);
/* Whether there is a completion behind `seen`, which is a cq_head. */
bool ring_moved(const struct link *link, uint32_t seen);
/* Whether the daemon took every entry before `tail`. */
bool ring_passed(const struct link *link, uint32_t tail);
/* A word that changes with each completion and each layer group. */
uint32_t ring_news(const struct link *link);
/* Sleeps until the news differ from `seen`, for ns at most. It may return early. */
void ring_sleep(struct link *link, uint32_t seen, uint64_t ns);
