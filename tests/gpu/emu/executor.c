/* SPDX-License-Identifier: Apache-2.0 */
/*
 * executor.c - a thread for each GPU that runs the operations in the streams of this process, late.
 *
 * E1. Of the streams whose first operation may run, the seed draws one; then it draws again. So
 *     nothing but events, waits for words, the NULL stream and synchronisation orders two streams
 *     (with queues=1, also the order in which their operations were queued).
 * E2. An operation that could run is held back for a time that the seed draws: mostly none, often
 *     some 100 us, now and then 2 ms; times `late`. An operation that a thread awaits in
 *     cuStreamSynchronize() is not held back.
 * E3. Everything queued runs in the end without further calls, unless it waits for an event that
 *     never comes, or its context breaks.
 * E4. A thread that is at an operation holds map_lock for reading: no memory goes meanwhile.
 *
 * Waits for events of other processes and for words are looked at again every half millisecond.
 *
 * Q1. A program may ask again and again whether a stream or an event is done. It is let wait in the
 *     call, until something is queued or done, but no longer than 200 us: it sees each change when
 *     it would have seen it, and leaves the processor to the threads that bring the change.
 */
#include <signal.h>
#include <time.h>

#include "emu.h"

#define POLL_NS  500000ULL
#define QUERY_NS 200000ULL

uint64_t now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

uint64_t draw(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ULL;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
	return z ^ z >> 31;
}

void changed_wait(uint64_t until_ns)
{
	const struct timespec until = { (time_t)(until_ns / 1000000000),
					(long)(until_ns % 1000000000) };

	(void)pthread_cond_timedwait(&emu.changed, &emu.lock, &until);
}

void changed(void)
{
	emu.changes++;
	pthread_cond_broadcast(&emu.changed);
}

CUresult not_ready(uint64_t handle)
{
	static _Thread_local uint64_t seen, asked; /* changes; the first handle after them */

	if (seen == emu.changes && asked == handle)
		changed_wait(now_ns() + QUERY_NS);
	else if (seen != emu.changes)
		asked = handle;
	seen = emu.changes;
	return CUDA_ERROR_NOT_READY;
}

uint64_t lateness(struct device *gpu)
{
	const uint64_t random = draw(&gpu->random), kind = random % 16;

	if (!emu.settings.late || kind < 8)
		return 0;
	return now_ns() + (random >> 8) % (kind < 15 ? 200000 : 2000000) * emu.settings.late;
}

/* S2 of stream.c: operations queued before it on the other side of the NULL stream. */
static bool legacy_orders(const struct device *gpu, const struct stream *s)
{
	const struct stream *legacy = s->object.ctx->legacy, *other;
	const uint64_t ticket = s->first->ticket;

	if (s->flags & CU_STREAM_NON_BLOCKING || !legacy)
		return false;
	if (s != legacy)
		return legacy->first && legacy->first->ticket < ticket;
	for (other = gpu->streams; other; other = other->next)
		if (other != s && other->object.ctx == s->object.ctx && other->first &&
		    !(other->flags & CU_STREAM_NON_BLOCKING) && other->first->ticket < ticket)
			return true;
	return false;
}

/* queues=1: something was queued before it in any stream of its context. */
static bool queue_orders(const struct device *gpu, const struct stream *s)
{
	const struct stream *other;

	for (other = gpu->streams; other && emu.settings.one_queue; other = other->next)
		if (other->object.ctx == s->object.ctx && other->first &&
		    other->first->ticket < s->first->ticket)
			return true;
	return false;
}

/* One of the streams whose first operation may run now; else NULL, and when to look again. */
static struct stream *choose(struct device *gpu, uint64_t now, uint64_t *ret_until)
{
	struct stream *s, *chosen = NULL;
	uint64_t n = 0;

	for (s = gpu->streams; s; s = s->next) {
		const struct context *ctx = s->object.ctx;

		if (!s->first || ctx->dead || ctx->sticky || legacy_orders(gpu, s) ||
		    queue_orders(gpu, s))
			continue;
		if (!s->waiters && s->not_before_ns > now) {
			if (s->not_before_ns < *ret_until)
				*ret_until = s->not_before_ns;
			continue;
		}
		if (!operation_ready(s->first, gpu)) {
			if (now + POLL_NS < *ret_until)
				*ret_until = now + POLL_NS;
			continue;
		}
		if (draw(&gpu->random) % ++n == 0)
			chosen = s;
	}
	return chosen;
}

static void free_late(const struct operation *op)
{
	struct range *r = range_at(op->to);

	if (r && r->base == op->to && r->freed_late)
		range_drop(r);
}

static enum step run_unlocked(struct device *gpu, struct stream *s, char *text, size_t n)
{
	const uint64_t random = draw(&gpu->random);
	enum step step;

	s->busy = true;
	pthread_rwlock_rdlock(&emu.map_lock);
	pthread_mutex_unlock(&emu.lock);
	step = operation_run(s->first, gpu, random, text, n);
	pthread_rwlock_unlock(&emu.map_lock);
	pthread_mutex_lock(&emu.lock);
	s->busy = false;
	return step;
}

static void run_one(struct device *gpu, struct stream *s)
{
	struct operation *op = s->first;
	enum step step = STEP_DONE;
	char text[512] = "";

	if (gpu->executed + 1 == emu.settings.stall_nth && !gpu->stalled_until_ns) {
		gpu->stalled_until_ns = now_ns() + emu.settings.stall_ms * 1000000ULL;
		return;
	}
	if (!op->begun)
		trace("begins", s, op);
	op->begun = true;
	if (op->kind == OPERATION_FREE)
		free_late(op);
	else if (op->kind == OPERATION_RECORD)
		event_mark(op->event, op->number);
	else if (op->kind != OPERATION_WAIT_EVENT)
		step = run_unlocked(gpu, s, text, sizeof(text));
	if (s->object.ctx->sticky) { /* it broke meanwhile */
		stream_pop(s);
		return;
	}
	if (step == STEP_BROKEN) {
		violation("%s, when it ran: %s", call_name(op->call), text);
		context_break(s->object.ctx, CUDA_ERROR_ILLEGAL_ADDRESS, text);
		return;
	}
	s->not_before_ns = lateness(gpu);
	if (step == STEP_DONE) {
		gpu->executed++;
		gpu->kernels += op->kind == OPERATION_KERNEL;
		trace("ended", s, op);
		stream_pop(s);
	}
}

static bool halted(struct device *gpu)
{
	const int faulty = emu.settings.faulty;

	if (!emu.settings.halts || (faulty >= 0 && gpu->physical != (uint32_t)faulty))
		return false;
	if (may_go()) {
		gpu->kernels = 0;
		gpu->halted = false;
	} else if (!gpu->halted && gpu->kernels + 1 >= emu.settings.halts) {
		gpu->halted = true;
		note("GPU %u is held", gpu->physical);
	}
	return gpu->halted;
}

static void *executor(void *argument)
{
	struct device *gpu = argument;

	pthread_mutex_lock(&emu.lock);
	while (!emu.exiting) {
		const uint64_t now = now_ns();
		uint64_t until = now + 1000000000;
		struct stream *s = NULL;

		if (gpu->stalled_until_ns > now)
			until = gpu->stalled_until_ns;
		else if (halted(gpu))
			until = now + POLL_NS;
		else
			s = choose(gpu, now, &until);
		if (s)
			run_one(gpu, s);
		else
			changed_wait(until);
	}
	pthread_mutex_unlock(&emu.lock);
	return NULL;
}

bool executor_start(struct device *gpu)
{
	sigset_t all, before;

	if (gpu->running)
		return true;
	/* The program's signals are for its own threads. */
	sigfillset(&all);
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	gpu->running = !pthread_create(&gpu->thread, NULL, executor, gpu);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (gpu->running)
		pthread_detach(gpu->thread);
	return gpu->running;
}

void executor_rest(const struct context *ctx)
{
	const struct stream *s = ctx->gpu->streams;

	while (s) {
		if (s->object.ctx == ctx && s->busy) {
			changed();
			changed_wait(now_ns() + 1000000);
			s = ctx->gpu->streams;
		} else {
			s = s->next;
		}
	}
}
