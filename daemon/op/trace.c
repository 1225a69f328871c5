/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.c - the last steps of each op. See trace.h.
 *
 * A record passes from op to op. An op that ends gives its record to the row of ended ones, and
 * takes the oldest record of the row for the next op: no record is copied, and the records in use
 * stay few.
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
	uint16_t kind;
	bool used, ended;
	struct entry entries[TRACE_STEPS];
};

struct traces {
	/* records that were ever used; ops that ended so far */
	uint32_t high, n_ended;
	bool debug;         /* steps are logged */
	struct trace *free; /* and all of the pool from `high` on, which is untouched */
	struct trace *ended[TRACE_ENDED]; /* oldest at n_ended % TRACE_ENDED */
	struct trace pool[];
};

int traces_open(uint32_t max_ops, struct traces **ret)
{
	struct traces *all = calloc(1, sizeof(*all) + (max_ops + TRACE_ENDED) * sizeof(*all->pool));

	if (!all)
		return -ENOMEM;
	all->debug = log_shows(LOG_LEVEL_DEBUG);
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
	t->kind = op->sqe.op;
	t->n = 0;
	t->used = true;
	t->ended = false;
	op->trace = t;
}

void trace_end(struct traces *all, struct op *op)
{
	struct trace **place = &all->ended[all->n_ended++ % TRACE_ENDED], *oldest = *place;

	op->trace->ended = true;
	*place = op->trace;
	op->trace = NULL;
	if (!oldest)
		return;
	oldest->used = false;
	oldest->next = all->free;
	all->free = oldest;
}

static uint32_t us_since_begin(const struct op *op)
{
	const uint64_t us = (loop_now(op->all->loop) - op->submit_ns) / 1000;

	return us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
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
	if (op->all->traces->debug)
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
	if (op->all->traces->debug)
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

bool trace_row(const struct ops *ops, uint32_t position, struct trace_row *ret, bool *ret_end)
{
	const uint32_t i = position / TRACE_STEPS, kept = position % TRACE_STEPS;
	const struct trace *t;
	const struct entry *e;
	bool done;

	*ret_end = !ops || i >= TRACE_ENDED + ops->traces->high;
	t = *ret_end ? NULL : record(ops->traces, i);
	if (!t || kept >= t->n)
		return false;
	e = &t->entries[t->n > TRACE_STEPS ? (t->n + kept) % TRACE_STEPS : kept];
	done = e->step == DONE;
	*ret = (struct trace_row){
		.op = t->op,
		.client = t->client,
		.kind = kind_name(t->kind),
		.ended = t->ended,
		.block = e->at,
		.step = done ? "done" : step_rules[e->step].name,
		.source = done || t->kind == WIRE_OP_STORE ? "" : source_names[e->source],
		.wait = e->wait ? wait_names[e->wait] : "",
		.done = done,
		.status = e->status,
		.us = e->us,
	};
	return true;
}
