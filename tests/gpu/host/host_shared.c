/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_shared.c - accesses to shared memory, each checked for a race. Only barriers order threads.
 * A thread's time goes on by one at each barrier, and there it learns the time of all that its
 * fellows know. Two threads may touch a word, one of them writing, only if the second has learnt
 * since of the first.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host_block.h"
#include "host_cuda.h"

static struct host_word *word_of(struct host_block *b, const uint32_t *address)
{
	struct host_word *w;

	for (uint32_t i = 0; i < b->n_words; i++)
		if (b->words[i].address == address)
			return &b->words[i];
	if (b->n_words == HOST_WORDS)
		host_fail(-ENOMEM, "more than %u words of shared memory", HOST_WORDS);
	w = &b->words[b->n_words];
	*w = (struct host_word){ .address = address, .read = calloc(b->n, sizeof(*w->read)) };
	if (!w->read)
		host_fail(-ENOMEM, "no memory");
	b->n_words++;
	return w;
}

/* Does the running thread know of the work of `other` at its time `when`? */
static bool knows(const struct host_block *b, uint32_t other, uint32_t when)
{
	const struct host_clock *clock = b->threads[b->running].clock;

	return other == b->running || (clock && clock->seen[other] >= when);
}

uint32_t host_shared_load(const uint32_t *address)
{
	struct host_word *w;
	struct host_block *b;

	host_yield();
	b = host_block;
	w = word_of(b, address);
	if (!w->written)
		host_fail(-EBUSY, "reads a word of shared memory that no thread has written");
	if (!knows(b, w->writer, w->written))
		host_fail(-EBUSY,
			  "reads a word of shared memory that thread %u writes: no barrier "
			  "is between them",
			  w->writer);
	w->read[b->running] = b->threads[b->running].now;
	return *address;
}

void host_shared_store(uint32_t *address, uint32_t value)
{
	struct host_word *w;
	struct host_block *b;

	host_yield();
	b = host_block;
	w = word_of(b, address);
	if (w->written && !knows(b, w->writer, w->written))
		host_fail(-EBUSY,
			  "writes a word of shared memory that thread %u writes: no barrier "
			  "is between them",
			  w->writer);
	for (uint32_t i = 0; i < b->n; i++)
		if (w->read[i] && !knows(b, i, w->read[i]))
			host_fail(-EBUSY,
				  "writes a word of shared memory that thread %u reads: no "
				  "barrier is between them",
				  i);
	memset(w->read, 0, b->n * sizeof(*w->read));
	w->writer = b->running;
	w->written = b->threads[b->running].now;
	*address = value;
}

static void drop(struct host_clock *clock)
{
	if (clock && --clock->users == 0)
		free(clock);
}

static void learn(const struct host_block *b, struct host_clock *to, const struct host_clock *from)
{
	for (uint32_t i = 0; from && i < b->n; i++)
		if (from->seen[i] > to->seen[i])
			to->seen[i] = from->seen[i];
}

void host_shared_met(struct host_block *b, const uint32_t *threads, uint32_t n)
{
	struct host_clock *clock = calloc(1, sizeof(*clock));
	const struct host_clock *last = NULL;

	if (!clock)
		host_fail(-ENOMEM, "no memory");
	for (uint32_t i = 0; i < n; i++) {
		const struct host_clock *before = b->threads[threads[i]].clock;

		if (before != last)
			learn(b, clock, before);
		last = before;
	}
	for (uint32_t i = 0; i < n; i++) {
		struct host_thread *t = &b->threads[threads[i]];

		clock->seen[threads[i]] = t->now++;
		drop(t->clock);
		t->clock = clock;
		clock->users++;
	}
}

void host_shared_end(struct host_block *b)
{
	for (uint32_t i = 0; i < b->n_words; i++)
		free(b->words[i].read);
	b->n_words = 0;
	for (uint32_t i = 0; i < b->n; i++)
		drop(b->threads[i].clock);
}
