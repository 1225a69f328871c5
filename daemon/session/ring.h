/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.h - the daemon's end of one connection's shared memory, with a submission ring that it reads
 * and a completion ring that it writes. client/abi/wire.h has the layout and the rules of sleeping.
 * A helper (conn/intake.c) opens and closes a ring; all other calls are for the core thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/abi/wire.h"

/*
 * FETCHES_TO_WRITE: the function fetches cache lines which a client had last, to write them.
 *
 * For x86-64 compilers take __builtin_prefetch(p, 1) for a fetch to read, unless they are told that
 * the processor has PREFETCHW. Then the store that follows waits once more, until the client's copy
 * is gone. Processors without it do nothing there.
 */
#if defined(__x86_64__)
#define FETCHES_TO_WRITE __attribute__((target("prfchw")))
#else
#define FETCHES_TO_WRITE
#endif

struct ring {
	int submit_fd, complete_fd; /* -1: closed, once they were sent */
	/* the completion ring is as long as the submission ring */
	uint32_t entries, arena_blocks;
	uint64_t submit_bytes, complete_bytes;
	const struct wire_submit *submit; /* mapped read-only: the client's to write */
	struct wire_complete *complete;
	/* the indices that the daemon goes by; the shared copies are for the client */
	uint32_t sq_head, cq_tail, news;
	uint32_t woken; /* sleepers woken in this iteration */
	bool owed;      /* more sleepers are to be woken in the next one */
	struct wire_lookups lookups[WIRE_MAX_SPACES]; /* as last sampled */
};

/* Makes, seals and maps both memfds. 0 or -errno. ring_close() also closes a ring that is half
 * open. */
int ring_open(struct ring *ring, uint32_t entries, uint32_t arena_blocks);
void ring_close(struct ring *ring);
void ring_close_fds(struct ring *ring);

/* Copies the next entry out. 1: *ret has it; 0: the ring is empty; -EPROTO: the client's tail is
 * impossible. The entry stays in the ring until ring_advance(). */
int ring_peek(struct ring *ring, struct wire_sqe *ret);
void ring_advance(struct ring *ring);

/* Call it when an entry was taken whose op begins at this slot. The cache lines of shared memory
 * that the op reads and writes come to this CPU while the op is made. */
void ring_prefetch(const struct ring *ring, uint32_t slot);

/* *ret: how many completions there is room for, besides those of the ops that are outstanding.
 * -EPROTO: the client's head is impossible. */
int ring_room(const struct ring *ring, uint32_t outstanding, uint32_t *ret);

/* Reads one key or page of an op, once. slot < arena_blocks */
void ring_key(const struct ring *ring, uint32_t slot, uint8_t ret[WIRE_KEY_BYTES]);
uint32_t ring_page(const struct ring *ring, uint32_t slot);

/* Whether the client has taken its pages back. Then no block is begun and no store committed. Any
 * thread may read the word. */
bool ring_given_up(const struct ring *ring);
const uint32_t *ring_given_up_word(const struct ring *ring);

void ring_set_status(struct ring *ring, uint32_t slot, int32_t status);
/* The status as it was set; clients cannot write it. */
int32_t ring_status(const struct ring *ring, uint32_t slot);

/* So many layer groups of the load at this slot are in its pages (wire.h). It is 0 unless the load
 * runs. */
void ring_set_layers(struct ring *ring, uint32_t first, uint32_t groups);

/* An iteration of the loop begins: wakes the sleepers that the one before could not wake. */
void ring_iteration(struct ring *ring);

/* Publishes a completion and wakes futex sleepers; if they are many, some in the next iteration.
 * True: the client has also asked for a WAKE packet. */
bool ring_complete(struct ring *ring, const struct wire_cqe *cqe);

/* How much the client's lookup counters at wire_lookups_at() have grown since the last call.
 * Whatever the client writes there, the blocks are below 2^40, there are no more hits than blocks,
 * and no more hits of single tiers than hits; tokens and calls are so bounded, too. Growth beyond a
 * bound waits for the next call. */
void ring_sample_lookups(struct ring *ring, uint32_t at, struct wire_lookups *ret);
