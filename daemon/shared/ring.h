/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.h - the daemon's end of one connection's shared memory: submission ring in, completion ring
 * out. Layout and sleeping rules: client/wire.h. Opened and closed by a helper (front/intake.c);
 * all else on the core thread only.
 */
#ifndef KVTIER_RING_H
#define KVTIER_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "client/wire.h"

struct ring {
	int submit_fd, complete_fd; /* -1: none; closed once they were sent */
	/* the completion ring is as long as the submission ring */
	uint32_t entries, arena_blocks;
	uint64_t submit_bytes, complete_bytes;
	const struct wire_submit *submit; /* mapped read-only: the client's to write */
	struct wire_complete *complete;
	/* our truth; the shared copies are for the client */
	uint32_t sq_head, cq_tail, news;
	uint32_t woken;                      /* sleepers, in this turn */
	bool owed;                           /* sleepers are to be woken in the next turn */
	uint64_t lookup_blocks, lookup_hits; /* as last sampled */
};

/* Makes, seals and maps both memfds. 0 or -errno. ring_close() copes with half-open. */
int ring_open(struct ring *ring, uint32_t entries, uint32_t arena_blocks);
void ring_close(struct ring *ring);
void ring_close_fds(struct ring *ring);

/* Copies the next entry out. 1: *ret is one; 0: none; -EPROTO: the client's tail is impossible. The
 * entry stays the ring's until ring_advance(). */
int ring_peek(struct ring *ring, struct wire_sqe *ret);
void ring_advance(struct ring *ring);

/* An entry was taken, and slot is its op's first: lines of the shared memory that the op reads and
 * writes come to this CPU while it is made. */
void ring_prefetch(const struct ring *ring, uint32_t slot);

/* Entries free for completions, given how many ops will still need one. -EPROTO: the client's head
 * is impossible. */
int ring_room(const struct ring *ring, uint32_t outstanding, uint32_t *ret);

/* One key or page of an op, read once; slot < arena_blocks. */
void ring_key(const struct ring *ring, uint32_t slot, uint8_t ret[WIRE_KEY_BYTES]);
uint32_t ring_page(const struct ring *ring, uint32_t slot);

/* The client took its pages back: begin nothing more, commit no store. Its word may be read by any
 * thread. */
bool ring_given_up(const struct ring *ring);
const uint32_t *ring_given_up_word(const struct ring *ring);

void ring_set_status(struct ring *ring, uint32_t slot, int32_t status);
/* as set; nobody else can write it */
int32_t ring_status(const struct ring *ring, uint32_t slot);

/* wire.h: so many layer groups of the load at this slot are in its pages. 0 but while it runs. */
void ring_set_layers(struct ring *ring, uint32_t first, uint32_t groups);

/* A turn begins: wakes sleepers that the turn before had no room for. */
void ring_turn(struct ring *ring);

/* Publishes a completion and wakes futex sleepers, some of them in the next turn if they are many.
 * True: the client also asked for a WAKE packet. */
bool ring_complete(struct ring *ring, const struct wire_cqe *cqe);

/* Growth of the client's lookup counters since the last call. Whatever it writes there, they do not
 * go back, grow by less than 2^40 a call, and have no more hits than blocks. */
void ring_sample_lookups(struct ring *ring, uint64_t *ret_blocks, uint64_t *ret_hits);

#endif
