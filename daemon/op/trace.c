/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.c - the last steps of each op, and the slowest ops. See trace.h.
 *
 * A record passes from op to op. An op that ends gives its record to the row of ended ones, and
 * takes the oldest record of the row for the next op: no record is copied, and the records in use
 * stay few. A slow op's record is copied: that is one op of many, and a copy is 0.5 KB.
 *
 * The slowest ops stand in all->slow, the slowest first. Until floor_us and look_ns say that an op
 * may be one of them, its end costs two comparisons.
 */
#include "trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/loop.h"
#include "daemon/session/peer.h"
#include "part.h"

struct entry {
	uint32_t at, us;
	uint8_t step; /* DONE: the block's status is final */
	uint8_t source;
	uint8_t wait; /* 0: it did not */
	int16_t status;
};

struct trace {
	struct trace *next; /* free */
	uint64_t op;        /* its number */
	/* n: steps so far, of which the last TRACE_STEPS are kept */
	uint32_t client, n;
	uint32_t space, blocks, took_us;
	pid_t pid;
	uint64_t ended_ns;
	uint16_t kind;
	bool used, ended;
	struct entry entries[TRACE_STEPS];
};

struct traces {
	/* records that were ever used; ops that ended so far */
	uint32_t high, n_ended;
	struct trace *free; /* and all of the pool from `high` on, which is untouched */
	struct trace *ended[TRACE_ENDED]; /* oldest at n_ended % TRACE_ENDED */
	uint32_t n_slow, floor_us;        /* a quicker op is none of them... */
	uint64_t look_ns;                 /* ...before the first of them is an hour old */
	struct trace *slow[TRACE_SLOW];   /* the slowest first; those from n_slow on are free */
	struct trace slow_pool[TRACE_SLOW];
	struct trace pool[];
};

int traces_open(uint32_t max_ops, struct traces **ret)
{
	struct traces *all = calloc(1, sizeof(*all) + (max_ops + TRACE_ENDED) * sizeof(*all->pool));

	if (!all)
		return -ENOMEM;
	for (uint32_t i = 0; i < TRACE_SLOW; i++)
		all->slow[i] = &all->slow_pool[i];
	*ret = all;
	return 0;
}

void traces_close(struct traces *all)
{
	free(all);
}

void trace_begin(struct traces *all, struct op *op)
{
	struct trace *t = all->free;

	if (t)
		all->free = t->next;
	else
		t = &all->pool[all->high++];
	t->op = op->tick;
	t->client = op->client->id;
	t->pid = op->client->pid;
	t->space = op->mount->space->number;
	t->blocks = op->sqe.n;
	t->kind = op->sqe.op;
	t->n = 0;
	t->used = true;
	t->ended = false;
	op->trace = t;
}

static uint32_t us_since_begin(const struct op *op)
{
	const uint64_t us = (loop_now(op->all->loop) - op->submit_ns) / 1000;

	return us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

/* Forgets the ops that ended over an hour ago. */
static void forget_old(struct traces *all, uint64_t now_ns)
{
	uint32_t n = 0;

	all->look_ns = now_ns + TRACE_SLOW_NS;
	for (uint32_t i = 0; i < all->n_slow; i++) {
		struct trace *t = all->slow[i];

		if (now_ns - t->ended_ns >= TRACE_SLOW_NS)
			continue;
		if (t->ended_ns + TRACE_SLOW_NS < all->look_ns)
			all->look_ns = t->ended_ns + TRACE_SLOW_NS;
		all->slow[i] = all->slow[n];
		all->slow[n++] = t;
	}
	all->n_slow = n;
}

/* If all places are taken, the quickest of the slowest ops makes room for a slower one. */
static void keep_slow(struct traces *all, const struct trace *ended)
{
	uint32_t at;
	struct trace *t;

	forget_old(all, ended->ended_ns);
	if (all->n_slow == TRACE_SLOW && ended->took_us <= all->floor_us)
		return;
	at = all->n_slow < TRACE_SLOW ? all->n_slow++ : TRACE_SLOW - 1;
	t = all->slow[at];
	*t = *ended;
	for (; at > 0 && all->slow[at - 1]->took_us < t->took_us; at--)
		all->slow[at] = all->slow[at - 1];
	all->slow[at] = t;
	all->floor_us = all->n_slow < TRACE_SLOW ? 0 : all->slow[TRACE_SLOW - 1]->took_us;
}

void trace_end(struct traces *all, struct op *op)
{
	struct trace **place = &all->ended[all->n_ended++ % TRACE_ENDED], *oldest = *place,
		     *t = op->trace;

	t->took_us = us_since_begin(op);
	t->ended_ns = loop_now(op->all->loop);
	/* a store that is given layer by layer takes as long as its engine */
	if ((t->took_us > all->floor_us || t->ended_ns >= all->look_ns) &&
	    (op->sqe.op != WIRE_OP_STORE || op->sqe.groups == 0))
		keep_slow(all, t);
	t->ended = true;
	*place = t;
	op->trace = NULL;
	if (!oldest)
		return;
	oldest->used = false;
	oldest->next = all->free;
	all->free = oldest;
}

static void add(struct op *op, struct entry entry)
{
	struct trace *t = op->trace;

	entry.us = us_since_begin(op);
	t->entries[t->n++ % TRACE_STEPS] = entry;
}

/* A function of its own: each step of each op passes here, and the log is seldom wanted. */
static void say(const struct op *op, uint32_t at, const char *step, int status)
{
	char ended[16] = "";

	if (!step)
		(void)snprintf(ended, sizeof(ended), "done, %d", status);
	log_debug("step", "op %llu of client %u, block %u: %s", (unsigned long long)op->tick,
		  op->client->id, at, step ? step : ended);
}

void trace_step(struct op *op, uint32_t at, enum step step, enum source source)
{
	add(op, (struct entry){ .at = at, .step = (uint8_t)step, .source = (uint8_t)source });
	if (log_shows(LOG_LEVEL_DEBUG))
		say(op, at, step_rules[step].name, 0);
}

void trace_wait(struct op *op, enum step wait)
{
	struct trace *t = op->trace;

	t->entries[(t->n - 1) % TRACE_STEPS].wait = (uint8_t)wait;
}

void trace_done(struct op *op, uint32_t at, int status)
{
	add(op, (struct entry){ .at = at, .step = DONE, .status = (int16_t)status });
	if (log_shows(LOG_LEVEL_DEBUG))
		say(op, at, NULL, status);
}

/* --- rows --- */

static const char *kind_name(uint16_t kind)
{
	return kind == WIRE_OP_STORE ? "store" :
	       kind == WIRE_OP_LOAD  ? "load" :
	       kind == WIRE_OP_HINT  ? "hint" :
				       "prefetch";
}

/* Ended ops first, the oldest first; then ops under way. */
static const struct trace *record(const struct traces *all, uint32_t i)
{
	const struct trace *t;

	if (i < TRACE_ENDED)
		return all->ended[(all->n_ended + i) % TRACE_ENDED];
	t = &all->pool[i - TRACE_ENDED];
	return t->used && !t->ended ? t : NULL;
}

bool trace_row(const struct ops *ops, bool slow, uint32_t position, struct trace_row *ret,
	       bool *ret_end)
{
	const uint32_t i = position / TRACE_STEPS, kept = position % TRACE_STEPS;
	const struct traces *all = ops ? ops->traces : NULL;
	const struct entry *e;
	const struct trace *t;
	bool done;

	*ret_end = !all || i >= (slow ? all->n_slow : TRACE_ENDED + all->high);
	if (*ret_end)
		return false;
	t = slow ? all->slow[i] : record(all, i);
	if (slow && loop_now(ops->loop) - t->ended_ns >= TRACE_SLOW_NS)
		return false;
	if (!t || (kept >= t->n && (!slow || kept > 0)))
		return false;
	e = &t->entries[t->n > TRACE_STEPS ? (t->n + kept) % TRACE_STEPS : kept];
	done = e->step == DONE;
	*ret = (struct trace_row){
		.op = t->op,
		.client = t->client,
		.kind = kind_name(t->kind),
		.ended = t->ended,
		.took_us = t->took_us,
		.ago_s = (loop_now(ops->loop) - t->ended_ns) / 1000000000u,
		.space = t->space,
		.blocks = t->blocks,
		.pid = t->pid,
		.step = "",
		.source = "",
		.wait = "",
	};
	if (t->n == 0)
		return true;
	ret->block = e->at;
	ret->step = done ? "done" : step_rules[e->step].name;
	ret->source = done || t->kind == WIRE_OP_STORE ? "" : source_names[e->source];
	ret->wait = e->wait ? wait_names[e->wait] : "";
	ret->done = done;
	ret->status = e->status;
	ret->us = e->us;
	return true;
}
