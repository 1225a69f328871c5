/* SPDX-License-Identifier: Apache-2.0 */
/* ring.h - the shared memory of one connection: rings, arena, index. */
#ifndef KVTIER_LIB_RING_H
#define KVTIER_LIB_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "arena.h"
#include "client/kvtier.h"
#include "client/wire.h"

struct grave;
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
	uint32_t sq_tail, cq_head; /* private copies: ours are the truth */
	uint32_t in_flight;        /* ops on the wire, <= cq_entries */
	uint32_t refs;             /* threads asleep on it */
	uint64_t serial;           /* of this connection in the client's life, from 1 */
	/* the daemon's clock is ahead of ours by so much at least, and at most */
	int64_t ahead_least_ns, ahead_most_ns;
	struct arena arena;
	struct grave *grave; /* made with the link; NULL once it is buried */
	struct link *next;   /* retired ones */
};

/* fds stay the caller's. -EPROTO with kvtier_last_error(): the daemon offers memory that is not
 * safe. */
int link_open(const struct wire_hello_ok *ok, const int fds[3], struct link **ret);
void link_close(struct link *link);                           /* NULL is fine */
int ring_push(struct link *link, const struct wire_sqe *sqe); /* -EAGAIN: full; -EPROTO */
/* The connection is given up. A daemon that was stopped may read the rings before it sees the
 * socket shut down. So entries that it has not read are withdrawn. Returns sq_head: entries from
 * there on never touch a page. */
uint32_t ring_withdraw(struct link *link);
/* after ring_push: the daemon wants a DOORBELL */
bool ring_asleep(const struct link *link);
/* 1: a private copy; 0: none; -EPROTO */
int ring_next(struct link *link, struct wire_cqe *ret);
bool ring_moved(const struct link *link, uint32_t seen);
/* the daemon took every sqe before `tail` */
bool ring_passed(const struct link *link, uint32_t tail);
/* Moves with each completion and each group of layers. */
uint32_t ring_news(const struct link *link);
/* until the news differ from `seen`, at most ns; or less */
void ring_sleep(struct link *link, uint32_t seen, uint64_t ns);

#endif
