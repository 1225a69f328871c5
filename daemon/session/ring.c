/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.c - one connection's shared memory, seen from the daemon.
 *
 * Invariants
 *   R1 every shared word that the client writes is read exactly once per use, into private memory.
 *   R2 the daemon's own indices are in struct ring; the shared copies are written, never read back.
 *   R3 an index from the client that is further than the ring is long ends this connection alone.
 *   R4 an iteration wakes at most WAKE_MAX threads of a ring, and no wake-up is lost: after each
 *      news comes a FUTEX_WAKE that either leaves no thread asleep or may wake WAKE_MAX.
 *      - A thread that has read news before they move does not sleep, since FUTEX_WAIT compares.
 *        All other threads sleep already when that FUTEX_WAKE comes.
 *      - tell() wakes as many as the iteration has left. If fewer woke than that, no sleeper is
 *        left.
 *      - If all of it was used, and it was less than WAKE_MAX, more are owed: the next
 *        ring_iteration() wakes WAKE_MAX. The connection's poller calls it, and after a timer, a
 *        descriptor or a poller that worked the loop asks all pollers before it sleeps (loop.c,
 *        L2).
 */
#include "ring.h"
#include "base/vault.h"
#include "kernels/image.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* This many ops of a client can be outstanding, and a thread of an honest client waits for one of
 * them. To wake 12,000 threads would cost the core a second; a client with more threads waits
 * longer. */
enum { WAKE_MAX = 256 };

/* Makes and maps a sealed memfd of `bytes`. A writable map has to exist before FUTURE_WRITE forbids
 * further ones. */
static int make_memfd(const char *name, uint64_t bytes, int extra_seals, int prot, int *ret_fd,
		      void **ret_map)
{
	const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *map = MAP_FAILED;
	int error;

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)bytes) == 0)
		map = mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);
	if (map != MAP_FAILED)
		vault_hide(map, bytes); /* keys and requests of engines are theirs */
	if (map != MAP_FAILED &&
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | extra_seals) == 0) {
		*ret_fd = fd;
		*ret_map = map;
		return 0;
	}
	error = -errno;
	if (map != MAP_FAILED)
		(void)munmap(map, bytes);
	(void)close(fd);
	return error;
}

int ring_open(struct ring *ring, uint32_t entries, uint32_t arena_blocks)
{
	void *map;
	int r;

	*ring = (struct ring){
		.submit_fd = -1,
		.complete_fd = -1,
		.entries = entries,
		.arena_blocks = arena_blocks,
		.submit_bytes = wire_submit_bytes(entries, arena_blocks),
		.complete_bytes = wire_complete_bytes(entries, arena_blocks),
	};
	r = make_memfd("kvtier-submit", ring->submit_bytes, 0, PROT_READ, &ring->submit_fd, &map);
	if (r == 0) {
		ring->submit = map;
		r = make_memfd("kvtier-complete", ring->complete_bytes, F_SEAL_FUTURE_WRITE,
			       PROT_READ | PROT_WRITE, &ring->complete_fd, &map);
	}
	if (r) {
		ring_close(ring);
		return r;
	}
	ring->complete = map;
	ring->complete->magic = WIRE_MAGIC;
	return 0;
}

void ring_close_fds(struct ring *ring)
{
	if (ring->submit_fd >= 0)
		(void)close(ring->submit_fd);
	if (ring->complete_fd >= 0)
		(void)close(ring->complete_fd);
	ring->submit_fd = ring->complete_fd = -1;
}

void ring_close(struct ring *ring)
{
	ring_close_fds(ring);
	if (ring->submit)
		(void)munmap((void *)(uintptr_t)ring->submit, ring->submit_bytes);
	if (ring->complete)
		(void)munmap(ring->complete, ring->complete_bytes);
	ring->submit = NULL;
	ring->complete = NULL;
}

static const void *submit_at(const struct ring *ring, uint64_t offset)
{
	return (const char *)ring->submit + offset;
}

/* Copies n bytes (a multiple of 4) that a client may be writing, and reads each word once. */
static void copy_once(void *ret, const void *shared, size_t n)
{
	const uint32_t *from = shared;
	uint32_t *to = ret;

	for (size_t i = 0; i < n / 4; i++)
		to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

int ring_peek(struct ring *ring, struct wire_sqe *ret)
{
	/* SEQ_CST: ordered after the store of index->asleep, see main.c on_sleep(). */
	const uint32_t tail = __atomic_load_n(&ring->submit->sq_tail, __ATOMIC_SEQ_CST);

	if (tail == ring->sq_head)
		return 0;
	if (tail - ring->sq_head > ring->entries)
		return -EPROTO;
	__builtin_prefetch(&ring->submit->cq_head); /* ring_room() */
	copy_once(ret,
		  submit_at(ring,
			    WIRE_RING_OFFSET +
				    (uint64_t)(ring->sq_head & (ring->entries - 1)) * sizeof(*ret)),
		  sizeof(*ret));
	return 1;
}

void ring_advance(struct ring *ring)
{
	ring->sq_head++;
	/* SEQ_CST: a client that has given up and still sees the old head knows that this entry's
	 * jobs see given_up. */
	__atomic_store_n(&ring->complete->sq_head, ring->sq_head, __ATOMIC_SEQ_CST);
}

int ring_room(const struct ring *ring, uint32_t outstanding, uint32_t *ret)
{
	const uint32_t untaken =
		ring->cq_tail - __atomic_load_n(&ring->submit->cq_head, __ATOMIC_ACQUIRE);

	if (untaken > ring->entries)
		return -EPROTO;
	*ret = untaken + outstanding >= ring->entries ? 0 : ring->entries - untaken - outstanding;
	return 0;
}

void ring_key(const struct ring *ring, uint32_t slot, uint8_t ret[WIRE_KEY_BYTES])
{
	uint32_t words[WIRE_KEY_BYTES / 4];

	assert(slot < ring->arena_blocks);
	copy_once(words,
		  submit_at(ring,
			    wire_keys_offset(ring->entries) + (uint64_t)slot * WIRE_KEY_BYTES),
		  sizeof(words));
	memcpy(ret, words, sizeof(words));
}

static struct wire_cqe *next_cqe(const struct ring *ring)
{
	return (struct wire_cqe *)(void *)((char *)ring->complete + WIRE_RING_OFFSET) +
	       (ring->cq_tail & (ring->entries - 1));
}

static int32_t *status_at(const struct ring *ring, uint32_t slot)
{
	assert(slot < ring->arena_blocks);
	return (int32_t *)(void *)((char *)ring->complete + wire_status_offset(ring->entries)) +
	       slot;
}

/* Not cq_tail: the client may be spinning on it. */
FETCHES_TO_WRITE void ring_prefetch(const struct ring *ring, uint32_t slot)
{
	assert(slot < ring->arena_blocks);
	__builtin_prefetch(
		submit_at(ring, wire_keys_offset(ring->entries) + (uint64_t)slot * WIRE_KEY_BYTES));
	__builtin_prefetch(submit_at(ring, wire_pages_offset(ring->entries, ring->arena_blocks) +
						   (uint64_t)slot * 4));
	__builtin_prefetch(status_at(ring, slot), 1);
	__builtin_prefetch(next_cqe(ring), 1);
}

uint32_t ring_page(const struct ring *ring, uint32_t slot)
{
	uint32_t page;

	assert(slot < ring->arena_blocks);
	copy_once(&page,
		  submit_at(ring, wire_pages_offset(ring->entries, ring->arena_blocks) +
					  (uint64_t)slot * 4),
		  sizeof(page));
	return page;
}

const uint32_t *ring_given_up_word(const struct ring *ring)
{
	return &ring->submit->given_up;
}

bool ring_given_up(const struct ring *ring)
{
	return __atomic_load_n(ring_given_up_word(ring), __ATOMIC_SEQ_CST) != 0;
}

void ring_set_status(struct ring *ring, uint32_t slot, int32_t status)
{
	__atomic_store_n(status_at(ring, slot), status, __ATOMIC_RELAXED);
}

int32_t ring_status(const struct ring *ring, uint32_t slot)
{
	return __atomic_load_n(status_at(ring, slot), __ATOMIC_RELAXED);
}

/* Wakes at most `room` sleepers. True: that many woke, and more may be asleep. */
static bool wake(struct ring *ring, uint32_t room)
{
	const long n = room == 0 ? 0 :
				   syscall(SYS_futex, &ring->complete->news, FUTEX_WAKE, room, NULL,
					   NULL, 0);

	if (n > 0)
		ring->woken += (uint32_t)n;
	return n >= (long)room;
}

void ring_iteration(struct ring *ring)
{
	ring->woken = 0;
	if (ring->owed)
		(void)wake(ring, WAKE_MAX);
	ring->owed = false;
}

static void tell(struct ring *ring)
{
	const uint32_t room = WAKE_MAX - ring->woken;

	ring->news++;
	/* SEQ_CST, both: either we see the sleeper, or it sees news move before it sleeps. */
	__atomic_store_n(&ring->complete->news, ring->news, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&ring->submit->sleepers, __ATOMIC_SEQ_CST) && wake(ring, room))
		ring->owed |= room < WAKE_MAX;
}

void ring_set_layers(struct ring *ring, uint32_t first, uint32_t groups)
{
	assert(first < ring->arena_blocks);
	__atomic_store_n((uint32_t *)(void *)((char *)ring->complete +
					      wire_layers_offset(ring->entries,
								 ring->arena_blocks)) +
				 first,
			 groups, __ATOMIC_RELEASE);
	if (groups > 0) /* 0 comes before a completion, which is news enough */
		tell(ring);
}

bool ring_complete(struct ring *ring, const struct wire_cqe *cqe)
{
	memcpy(next_cqe(ring), cqe, sizeof(*cqe));
	ring->cq_tail++;
	/* The full fence is that of news, in the same cache line: a thread that sleeps or asks for
	 * a WAKE looks at news first. */
	__atomic_store_n(&ring->complete->cq_tail, ring->cq_tail, __ATOMIC_RELEASE);
	tell(ring);
	return __atomic_load_n(&ring->submit->want_wake, __ATOMIC_SEQ_CST) != 0;
}

/* How much of a counter's growth is at most `most`. */
static uint64_t growth(const uint64_t *counter, uint64_t *last, uint64_t most)
{
	uint64_t grown = __atomic_load_n(counter, __ATOMIC_ACQUIRE) - *last;

	if (grown >> 40) /* backwards, or more than anybody could ask */
		return 0;
	if (grown > most)
		grown = most;
	*last += grown;
	return grown;
}

void ring_sample_lookups(struct ring *ring, uint32_t at, struct wire_lookups *ret)
{
	const struct wire_lookups *now = &ring->submit->lookups[at];
	struct wire_lookups *last = &ring->lookups[at];
	uint64_t rest;

	/* first what is counted last: the other counters have it, too */
	ret->blocks = growth(&now->blocks, &last->blocks, (1ull << 40) - 1);
	rest = ret->hits = growth(&now->hits, &last->hits, ret->blocks);
	rest -= ret->gpu_hits = growth(&now->gpu_hits, &last->gpu_hits, rest);
	rest -= ret->nvme_hits = growth(&now->nvme_hits, &last->nvme_hits, rest);
	ret->redis_hits = growth(&now->redis_hits, &last->redis_hits, rest);
	ret->tokens = growth(&now->tokens, &last->tokens, ret->blocks * IMAGE_MAX_TOKENS);
	ret->hit_tokens = growth(&now->hit_tokens, &last->hit_tokens, ret->tokens);
	ret->calls = growth(&now->calls, &last->calls, (1ull << 40) - 1);
}
