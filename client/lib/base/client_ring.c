/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_ring.c - the memory that one connection shares with the daemon. What the daemon sent is
 * checked before it is mapped, and each word that the daemon writes is read once, into private
 * memory, before it is looked at.
 *
 * Each page has one writer (wire.h): the client writes `submit`, the daemon writes `complete` and
 * the index. So our own tails and heads are kept privately and are only published. Each time that
 * the other side's are read, ours bound them. What wire.h calls a full fence is a sequentially
 * consistent store here, followed by such a load. That is the same on every machine, and thread
 * sanitizers understand it, which they do not with a bare fence.
 */
#include "client_ring.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "last_error.h"
#include "lent.h"
#include "map.h"

/* ---- ranges: few at a time (one an op), so a sorted array is quicker than a list ---- */

void arena_init(struct arena *arena, uint32_t blocks)
{
	arena->blocks = blocks;
	arena->n_used = 0;
}

int arena_take(struct arena *arena, uint32_t least, uint32_t most, struct range *ret)
{
	struct range best = { 0, 0 };
	uint32_t at = 0, end = 0;

	assert(least > 0 && least <= most);
	if (arena->n_used == KVTIER_MAX_OPS)
		return -EAGAIN;
	for (uint32_t i = 0; i <= arena->n_used && best.n < most; i++) {
		const uint32_t next = i < arena->n_used ? arena->used[i].first : arena->blocks;
		const uint32_t gap = next - end < most ? next - end : most;

		if (gap > best.n) {
			best = (struct range){ end, gap };
			at = i;
		}
		if (i < arena->n_used)
			end = next + arena->used[i].n;
	}
	if (best.n < least)
		return -EAGAIN;
	memmove(&arena->used[at + 1], &arena->used[at],
		(arena->n_used - at) * sizeof(arena->used[0]));
	arena->used[at] = best;
	arena->n_used++;
	*ret = best;
	return 0;
}

void arena_give(struct arena *arena, uint32_t first)
{
	uint32_t at = 0;

	while (at < arena->n_used && arena->used[at].first != first)
		at++;
	assert(at < arena->n_used);
	arena->n_used--;
	memmove(&arena->used[at], &arena->used[at + 1],
		(arena->n_used - at) * sizeof(arena->used[0]));
}

/* ---- a connection ---- */

static bool power_of_two(uint32_t v)
{
	return v && !(v & (v - 1));
}

static int offer_check(const struct wire_hello_ok *ok)
{
	if (ok->version < WIRE_VERSION_MIN || ok->version > WIRE_VERSION_MAX)
		return error_set(
			-EPROTO,
			"the daemon chose protocol version %u, this library speaks %d to %d",
			ok->version, WIRE_VERSION_MIN, WIRE_VERSION_MAX);
	if (!power_of_two(ok->sq_entries) || ok->sq_entries < WIRE_MIN_ENTRIES ||
	    ok->sq_entries > WIRE_MAX_ENTRIES)
		return error_set(-EPROTO,
				 "HELLO_OK.sq_entries is %u, must be a power of two in %d..%d",
				 ok->sq_entries, WIRE_MIN_ENTRIES, WIRE_MAX_ENTRIES);
	if (!power_of_two(ok->cq_entries) || ok->cq_entries < WIRE_MIN_ENTRIES ||
	    ok->cq_entries > WIRE_MAX_ENTRIES)
		return error_set(-EPROTO,
				 "HELLO_OK.cq_entries is %u, must be a power of two in %d..%d",
				 ok->cq_entries, WIRE_MIN_ENTRIES, WIRE_MAX_ENTRIES);
	if (ok->arena_blocks < WIRE_MIN_ARENA || ok->arena_blocks > WIRE_MAX_ARENA)
		return error_set(-EPROTO, "HELLO_OK.arena_blocks is %u, must be in %d..%d",
				 ok->arena_blocks, WIRE_MIN_ARENA, WIRE_MAX_ARENA);
	if (ok->submit_bytes != wire_submit_bytes(ok->sq_entries, ok->arena_blocks) ||
	    ok->complete_bytes != wire_complete_bytes(ok->cq_entries, ok->arena_blocks))
		return error_set(-EPROTO,
				 "HELLO_OK: the rings' bytes do not follow from their entries");
	if (ok->index_bytes < WIRE_INDEX_OFFSET + sizeof(struct wire_bucket))
		return error_set(-EPROTO, "HELLO_OK.index_bytes is %llu, too small for an index",
				 (unsigned long long)ok->index_bytes);
	return 0;
}

/* A memory file that could shrink would turn our reads into SIGBUS. */
static int file_check(int fd, const char *name, uint64_t bytes, int seals)
{
	const int have = fcntl(fd, F_GET_SEALS);
	struct stat st;

	if (have < 0 || (have & seals) != seals)
		return error_set(-EPROTO, "the daemon's %s memory lacks seals: has %#x, needs %#x",
				 name, have < 0 ? 0u : (unsigned)have, (unsigned)seals);
	if (fstat(fd, &st) || st.st_size < 0 || (uint64_t)st.st_size != bytes)
		return error_set(-EPROTO, "the daemon's %s memory is not the %llu bytes it said",
				 name, (unsigned long long)bytes);
	return 0;
}

static int file_map(int fd, const char *name, uint64_t bytes, int protection, void **ret)
{
	void *p = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return error_set(errno == ENOMEM ? -ENOMEM : -EPROTO,
				 "cannot map the daemon's %s memory: %s", name,
				 strerrordesc_np(errno));
	*ret = p;
	return 0;
}

static int link_map(struct link *link, const int fds[3], uint64_t index_bytes)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	void *submit = NULL, *complete = NULL;
	int rc;

	rc = file_check(fds[0], "submit", link->submit_bytes, seals);
	if (!rc)
		rc = file_check(fds[1], "complete", link->complete_bytes,
				seals | F_SEAL_FUTURE_WRITE);
	if (!rc)
		rc = file_check(fds[2], "index", index_bytes, seals | F_SEAL_FUTURE_WRITE);
	if (!rc)
		rc = file_map(fds[0], "submit", link->submit_bytes, PROT_READ | PROT_WRITE,
			      &submit);
	if (rc)
		return rc;
	link->submit = submit;
	rc = file_map(fds[1], "complete", link->complete_bytes, PROT_READ, &complete);
	if (rc)
		return rc;
	link->complete = complete;
	rc = map_open(fds[2], index_bytes, &link->map);
	if (rc)
		return error_set(rc == -ENOMEM ? rc : -EPROTO,
				 "the daemon's index cannot be used: %s", strerrordesc_np(-rc));
	link->index = map_head(link->map);
	return 0;
}

int link_open(const struct wire_hello_ok *ok, const int fds[3], struct link **ret)
{
	struct link *link;
	int rc;

	rc = offer_check(ok);
	if (rc)
		return rc;
	link = calloc(1, sizeof(*link));
	if (!link)
		return error_set(-ENOMEM, "out of memory");
	link->version = ok->version;
	link->sq_entries = ok->sq_entries;
	link->cq_entries = ok->cq_entries;
	link->arena_blocks = ok->arena_blocks;
	link->submit_bytes = ok->submit_bytes;
	link->complete_bytes = ok->complete_bytes;
	rc = link_map(link, fds, ok->index_bytes);
	if (rc) {
		link_close(link);
		return rc;
	}
	uint8_t *s = (uint8_t *)link->submit;
	const uint8_t *c = (const uint8_t *)link->complete;

	link->sqes = (struct wire_sqe *)(void *)(s + WIRE_RING_OFFSET);
	link->keys = (struct kvtier_key *)(void *)(s + wire_keys_offset(link->sq_entries));
	link->pages =
		(uint32_t *)(void *)(s + wire_pages_offset(link->sq_entries, link->arena_blocks));
	link->cqes = (const struct wire_cqe *)(const void *)(c + WIRE_RING_OFFSET);
	link->statuses = (const int32_t *)(const void *)(c + wire_status_offset(link->cq_entries));
	link->layers = (const uint32_t *)(const void *)(c + wire_layers_offset(link->cq_entries,
									       link->arena_blocks));
	arena_init(&link->arena, link->arena_blocks);
	*ret = link;
	return 0;
}

void link_close(struct link *link)
{
	if (!link)
		return;
	orphan_close(link->orphan);
	map_close(link->map);
	if (link->complete)
		(void)munmap((void *)(uintptr_t)link->complete, link->complete_bytes);
	if (link->submit)
		(void)munmap(link->submit, link->submit_bytes);
	free(link);
}

int ring_push(struct link *link, const struct wire_sqe *sqe)
{
	const uint32_t used =
		link->sq_tail - __atomic_load_n(&link->complete->sq_head, __ATOMIC_ACQUIRE);

	if (used > link->sq_entries)
		return -EPROTO;
	if (used == link->sq_entries)
		return -EAGAIN;
	link->sqes[link->sq_tail & (link->sq_entries - 1)] = *sqe;
	link->sq_tail++;
	__atomic_store_n(&link->submit->sq_tail, link->sq_tail, __ATOMIC_SEQ_CST);
	return 0;
}

uint32_t ring_withdraw(struct link *link)
{
	uint32_t read;

	__atomic_store_n(&link->submit->given_up, 1, __ATOMIC_SEQ_CST);
	/* This comes after given_up was set: jobs of entries that the daemon reads from now on find
	 * it set. */
	read = __atomic_load_n(&link->complete->sq_head, __ATOMIC_SEQ_CST);
	/* If the daemon is reading at this very moment, its head gets ahead of our tail, and it
	 * cuts us off, which does no harm. */
	__atomic_store_n(&link->submit->sq_tail, read, __ATOMIC_SEQ_CST);
	return read;
}

bool ring_asleep(const struct link *link)
{
	return __atomic_load_n(&link->index->asleep, __ATOMIC_SEQ_CST) != 0;
}

uint32_t ring_news(const struct link *link)
{
	return __atomic_load_n(&link->complete->news, __ATOMIC_SEQ_CST);
}

bool ring_moved(const struct link *link, uint32_t seen)
{
	/* News move after cq_tail and with a full fence: a caller that has just set a word for the
	 * daemon sees them, and with them cq_tail, or the daemon sees the word. */
	(void)ring_news(link);
	return __atomic_load_n(&link->complete->cq_tail, __ATOMIC_ACQUIRE) != seen;
}

bool ring_passed(const struct link *link, uint32_t tail)
{
	return (int32_t)(__atomic_load_n(&link->complete->sq_head, __ATOMIC_ACQUIRE) - tail) >= 0;
}

int ring_next(struct link *link, struct wire_cqe *ret)
{
	const uint32_t ready =
		__atomic_load_n(&link->complete->cq_tail, __ATOMIC_ACQUIRE) - link->cq_head;

	if (ready > link->cq_entries)
		return -EPROTO;
	if (!ready)
		return 0;
	memcpy(ret, &link->cqes[link->cq_head & (link->cq_entries - 1)], sizeof(*ret));
	link->cq_head++;
	__atomic_store_n(&link->submit->cq_head, link->cq_head, __ATOMIC_RELEASE);
	return 1;
}

void ring_sleep(struct link *link, uint32_t seen, uint64_t ns)
{
	const struct timespec slice = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };

	(void)__atomic_fetch_add(&link->submit->sleepers, 1, __ATOMIC_SEQ_CST);
	/* FUTEX_WAIT itself looks at news again. It may also return early; the caller looks again.
	 */
	if (ring_news(link) == seen)
		(void)syscall(SYS_futex, &link->complete->news, FUTEX_WAIT, seen, &slice, NULL, 0);
	(void)__atomic_fetch_sub(&link->submit->sleepers, 1, __ATOMIC_SEQ_CST);
}
