/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_meet.c - where threads meet: shuffles of a warp, named barriers of a block. As strict as the
 * programming guide, stricter than a GPU: all threads of a shuffle's mask are at the same shuffle,
 * and all threads of a warp at the same barrier.
 */
#include <errno.h>
#include <stdio.h>

#include "host_block.h"
#include "host_cuda.h"

/* They can never meet: says so now, where both still stand. */
static void check_shuffle(const struct host_block *b, uint32_t self, uint32_t other)
{
	const struct host_thread *t = &b->threads[self], *o = &b->threads[other];

	if (o->site != t->site || o->mask != t->mask || o->shuffles != t->shuffles)
		host_fail(
			-EDEADLK,
			"at its shuffle %u, of line %u with mask %#x, while thread %u of its warp "
			"is at its shuffle %u, of line %u with mask %#x",
			t->shuffles, t->site, t->mask, other, o->shuffles, o->site, o->mask);
}

/* All have come: values are handed over before anybody goes on to another shuffle. */
static void exchange(struct host_block *b, uint32_t first, uint32_t mask)
{
	b->shuffling[first / HOST_WARP] &= ~mask;
	for (uint32_t left = mask; left; left &= left - 1) {
		const uint32_t thread = first + (uint32_t)__builtin_ctz(left);
		struct host_thread *t = &b->threads[thread];

		t->received = b->threads[first + t->from].value;
		if (thread == b->running)
			continue;
		check_shuffle(b, b->running, thread);
		host_resume(thread);
	}
}

uint32_t host_shuffle(uint32_t mask, uint32_t value, uint32_t from, uint32_t site)
{
	struct host_block *b = host_block;
	const uint32_t self = b->running, first = self - self % HOST_WARP;
	const uint32_t warp = self / HOST_WARP, others = mask & ~(1u << self % HOST_WARP);
	const uint32_t here = others & b->shuffling[warp], gone = others & b->ended[warp];
	struct host_thread *t = &b->threads[self];

	t->mask = mask;
	t->value = value;
	t->from = from;
	t->site = site;
	t->shuffles++;
	if (!(mask >> self % HOST_WARP & 1))
		host_fail(-EDEADLK, "at the shuffle of line %u, whose mask %#x lacks it", site,
			  mask);
	if (from >= HOST_WARP || !(mask >> from & 1))
		host_fail(-EDEADLK, "the shuffle of line %u reads lane %u, which mask %#x lacks",
			  site, from, mask);
	if (b->n - first < HOST_WARP && mask >> (b->n - first))
		host_fail(-EDEADLK, "the mask %#x of line %u has lanes that the block lacks", mask,
			  site);
	if (gone)
		host_fail(-EDEADLK,
			  "at shuffle %u of line %u, whose mask has thread %u, which has ended",
			  t->shuffles, t->site, first + (uint32_t)__builtin_ctz(gone));
	if (here) /* of one mask, each was compared with one before it, so with all */
		check_shuffle(b, self, first + (uint32_t)__builtin_ctz(here));
	if (here == others) {
		exchange(b, first, mask);
	} else {
		b->shuffling[warp] |= 1u << self % HOST_WARP;
		host_stop(HOST_AT_SHUFFLE);
	}
	return t->received;
}

/* All threads of a warp are here, or none. */
static void check_warps(const struct host_block *b, uint32_t id, const uint32_t *here, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t lane = 0; lane < HOST_WARP; lane++) {
			const uint32_t other = here[i] - here[i] % HOST_WARP + lane;

			if (other != b->running && other < b->n &&
			    (b->threads[other].state != HOST_AT_BARRIER ||
			     b->threads[other].barrier != id))
				host_fail(
					-EDEADLK,
					"barrier %u is complete without thread %u, which is of the "
					"warp of thread %u",
					id, other, here[i]);
		}
}

static void meet(struct host_block *b, uint32_t id, uint32_t n)
{
	uint32_t here[HOST_KERNEL_THREADS] = { 0 }, found = 0;

	for (uint32_t i = 0; i < b->n; i++)
		if (i == b->running ||
		    (b->threads[i].state == HOST_AT_BARRIER && b->threads[i].barrier == id))
			here[found++] = i;
	check_warps(b, id, here, n);
	host_shared_met(b, here, found);
	b->waiting[id] = 0;
	for (uint32_t i = 0; i < found; i++)
		if (here[i] != b->running)
			host_resume(here[i]);
}

void host_barrier(uint32_t id, uint32_t threads)
{
	struct host_block *b = host_block;
	struct host_thread *t = &b->threads[b->running];

	if (id >= HOST_BARRIERS || threads == 0 || threads % HOST_WARP || threads > b->n)
		host_fail(-EDEADLK,
			  "barrier %u of %u threads; must be 0 to %u, of a multiple of %u up to %u",
			  id, threads, HOST_BARRIERS - 1, HOST_WARP, b->n);
	for (uint32_t i = 0; b->waiting[id] && i < b->n; i++)
		if (b->threads[i].state == HOST_AT_BARRIER && b->threads[i].barrier == id &&
		    b->threads[i].threads != threads)
			host_fail(-EDEADLK,
				  "barrier %u of %u threads, while thread %u is at it for %u", id,
				  threads, i, b->threads[i].threads);
	t->barrier = id;
	t->threads = threads;
	if (++b->waiting[id] == threads)
		meet(b, id, threads);
	else
		host_stop(HOST_AT_BARRIER);
}

void host_describe_deadlock(const struct host_block *b, char *text, size_t n)
{
	const struct host_thread *t;
	uint32_t i = 0;

	while (i < b->n && b->threads[i].state == HOST_ENDED)
		i++;
	t = &b->threads[i];
	if (t->state == HOST_AT_BARRIER)
		(void)snprintf(
			text, n,
			"thread %u waits for ever at barrier %u, where %u of %u threads are; "
			"%u threads of the block have ended",
			i, t->barrier, b->waiting[t->barrier], t->threads, b->n_ended);
	else
		(void)snprintf(text, n,
			       "thread %u waits for ever at the shuffle of line %u, mask %#x; %u "
			       "threads of the block have ended",
			       i, t->site, t->mask, b->n_ended);
}
