/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.h - keeps the last steps of the ops under way, and of the last TRACE_ENDED ops that ended,
 * for `kvtierctl trace`; and of the TRACE_SLOW slowest ops that ended within an hour, for
 * `kvtierctl slowlog`. With log_level = debug the log has the steps, too. All memory is reserved at
 * start. Core thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "task.h"

struct op;
struct ops;
struct trace;
struct traces;

enum { TRACE_STEPS = 32, TRACE_ENDED = 64, TRACE_SLOW = 32 };
#define TRACE_SLOW_NS (3600 * 1000000000ull) /* so long a slow op is kept */

int traces_open(uint32_t max_ops, struct traces **ret); /* -ENOMEM */
void traces_close(struct traces *traces);               /* may be NULL */

/* op->trace belongs to the op from trace_begin() to trace_end(). Before trace_begin() the op's all,
 * client, mount, sqe, tick and submit_ns are set. */
void trace_begin(struct traces *traces, struct op *op);
void trace_end(struct traces *traces, struct op *op);
/* The op's block at this position begins a step; its last step has to wait; its status is final. */
void trace_step(struct op *op, uint32_t at, enum step step, enum source source);
void trace_wait(struct op *op, enum step wait);
void trace_done(struct op *op, uint32_t at, int status);

/* A row is a step, in order of time within an op. */
struct trace_row {
	uint64_t op; /* number of the op, from 1 */
	uint32_t client;
	const char *kind; /* "store", "load", "prefetch" */
	bool ended;       /* took_us, ago_s: of an op that ended */
	uint64_t took_us; /* from when the core thread read the op until it completed it */
	uint64_t ago_s;   /* since it ended */
	uint32_t space, blocks;
	pid_t pid;
	uint32_t block; /* position in the op */
	const char *step, *source, *wait;
	bool done; /* the block's status is final; step is "done" */
	int status;
	uint64_t us; /* since the op began */
};
/* True: *ret is the row at `position`. False: there is none, and *ret_end says whether the rows end
 * there. ops may be NULL. slow: of the slowest ops, the slowest first; an op that had no step has a
 * row with step "". Else of the ops that ended last and of those under way. */
bool trace_row(const struct ops *ops, bool slow, uint32_t position, struct trace_row *ret,
	       bool *ret_end);
