/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_block.c - runs launches: host_kernel.h. Each thread of a block is a fiber:
 *
 *	ready ──next()──► running ──shuffle, barrier──► waiting ──all have come──► ready
 *	  ▲                  │ └──access, sometimes──► ready
 *	  └──run_block()     └──the kernel returns──► ended
 *
 * The next thread is drawn from the ready ones. When none is ready and not all have ended, the
 * waiting threads wait for ever: the launch ends with a description of one of them. After a mistake
 * the block's fibers are forgotten where they stand.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host_block.h"
#include "host_cuda.h"

enum { YIELD_ONE_OF = 32, ANY_ONE_OF = 16 }; /* accesses to global memory */

_Thread_local struct host_block *host_block;
_Thread_local struct host_ids host_ids;

uint64_t host_random(void)
{
	uint64_t x = host_block->random += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* Goes on with a ready thread, or, if there is none or a mistake was made, with the caller. */
static void next(struct host_block *b, struct fiber *from)
{
	const uint64_t random = host_random();
	uint32_t i, some;

	if (b->n_ready == 0 || b->result) {
		fiber_switch(from, &b->caller);
		return;
	}
	some = random % ANY_ONE_OF && b->n_ready > HOST_WARP ? HOST_WARP : b->n_ready;
	i = b->n_ready - 1 - (uint32_t)((random >> 32) * some >> 32);
	b->running = b->ready[i];
	b->ready[i] = b->ready[--b->n_ready];
	host_ids.thread.x = b->running;
	if (b->threads[b->running].fiber != from)
		fiber_switch(from, b->threads[b->running].fiber);
}

void host_stop(enum host_state state)
{
	struct host_block *b = host_block;
	struct host_thread *t = &b->threads[b->running];

	t->state = state;
	next(b, t->fiber);
}

void host_resume(uint32_t thread)
{
	struct host_block *b = host_block;

	b->threads[thread].state = HOST_READY;
	b->ready[b->n_ready++] = thread;
}

void host_yield(void)
{
	struct host_block *b = host_block;
	struct host_thread *t = &b->threads[b->running];

	host_resume(b->running);
	next(b, t->fiber);
}

void host_fail(int result, const char *format, ...)
{
	struct host_block *b = host_block;
	const int n = snprintf(b->text, b->text_bytes, "%s, block %u, thread %u: ", b->kernel->name,
			       host_ids.block.x, b->running);
	va_list args;

	va_start(args, format);
	if (n >= 0 && (size_t)n < b->text_bytes)
		(void)vsnprintf(b->text + n, b->text_bytes - (size_t)n, format, args);
	va_end(args);
	b->result = result;
	fiber_switch(b->threads[b->running].fiber, &b->caller);
	abort();
}

void *host_access(uint64_t address, size_t bytes, int write)
{
	const struct host_launch *l = host_block->launch;
	void *p;

	if (host_random() % YIELD_ONE_OF == 0)
		host_yield();
	if (address % bytes)
		host_fail(-EFAULT, "%zu bytes are %s at %#llx, which is no multiple of them", bytes,
			  write ? "written" : "read", (unsigned long long)address);
	p = l->access(l->arg, address, bytes, write);
	if (!p)
		host_fail(-EFAULT, "%zu bytes must not be %s at %#llx", bytes,
			  write ? "written" : "read", (unsigned long long)address);
	return p;
}

static void thread_main(void)
{
	struct host_block *b = host_block;

	b->kernel->thread(b->launch->params);
	b->n_ended++;
	b->ended[b->running / HOST_WARP] |= 1u << b->running % HOST_WARP;
	host_stop(HOST_ENDED);
	abort();
}

static void run_block(struct host_block *b)
{
	memset(b->threads, 0, b->n * sizeof(*b->threads));
	memset(b->waiting, 0, sizeof(b->waiting));
	memset(b->shuffling, 0, sizeof(b->shuffling));
	memset(b->ended, 0, sizeof(b->ended));
	b->n_ready = b->n_ended = 0;
	for (uint32_t i = 0; i < b->n; i++) {
		b->threads[i].fiber = &fibers_of_thread(b->n)[i];
		b->threads[i].now = 1;
		fiber_start(b->threads[i].fiber, thread_main);
		host_resume(i);
	}
	next(b, &b->caller);
	if (!b->result && b->n_ended < b->n) {
		char what[HOST_TEXT];

		host_describe_deadlock(b, what, sizeof(what));
		(void)snprintf(b->text, b->text_bytes, "%s, block %u: %s", b->kernel->name,
			       host_ids.block.x, what);
		b->result = -EDEADLK;
	}
	host_shared_end(b);
}

static int check_launch(const struct host_kernel *kernel, const struct host_launch *l, char *text,
			size_t n)
{
	const unsigned *g = l->grid, *b = l->block;

	if (g[0] >= 1 && g[1] == 1 && g[2] == 1 && b[0] >= 1 && b[1] == 1 && b[2] == 1 &&
	    b[0] <= kernel->max_threads && l->shared_bytes == 0)
		return 0;
	(void)snprintf(
		text, n,
		"%s: a grid of %u x %u x %u blocks of %u x %u x %u threads with %zu bytes of "
		"shared memory; must be n x 1 x 1 of up to %u x 1 x 1, with 0",
		kernel->name, g[0], g[1], g[2], b[0], b[1], b[2], l->shared_bytes,
		kernel->max_threads);
	return -EINVAL;
}

/* The blocks in an order that is as random as a multiplication with an odd number and an offset. */
static void run_blocks(struct host_block *b, unsigned n)
{
	const unsigned start = (unsigned)(host_random() % n), down = host_random() & 1;

	for (unsigned i = 0; i < n && !b->result; i++) {
		host_ids.block.x = (start + (down ? n - i : i)) % n;
		run_block(b);
	}
}

int host_kernel_run(const struct host_kernel *kernel, const struct host_launch *launch, char *text,
		    size_t n)
{
	struct host_block b = { .kernel = kernel, .launch = launch, .text = text, .text_bytes = n };
	const int r = check_launch(kernel, launch, text, n);

	if (r)
		return r;
	b.n = launch->block[0];
	b.random = launch->seed;
	b.threads = calloc(b.n, sizeof(*b.threads));
	b.ready = calloc(b.n, sizeof(*b.ready));
	if (!b.threads || !b.ready || !fibers_of_thread(b.n)) {
		(void)snprintf(text, n, "%s: no memory for %u stacks", kernel->name, b.n);
		b.result = -ENOMEM;
	} else {
		host_ids = (struct host_ids){ .grid_dim = { launch->grid[0], 1, 1 },
					      .block_dim = { b.n, 1, 1 } };
		host_block = &b;
		run_blocks(&b, launch->grid[0]);
		host_block = NULL;
	}
	free(b.threads);
	free(b.ready);
	return b.result;
}
