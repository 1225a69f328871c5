/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hint.h - executes ops that are hints, and the hints in the fields of other ops (HINTS.md). A hint
 * is done block by block, in turn with other ops, so a flood of hints delays others only as a flood
 * of small loads does. Core thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/abi/wire.h"
#include "daemon/move/hints.h"
#include "task.h"

struct op;
struct part;
struct tables;
struct task;

/* An op has one. */
struct op_hint {
	bool fields;   /* a store, load or prefetch has hints in its fields */
	uint8_t scope; /* of a hint: enum wire_hint_scope; else 0 */
	struct hint hint;
	uint32_t answers[WIRE_HINT_ANSWERS];
};

/* Reads the hints of a new op, whose entry is checked. A hint that prefetches becomes a prefetch.
 */
void hint_begin(struct op *op);
/* How many blocks the hint is about, at least 1. */
uint32_t hint_blocks(const struct op *op);
/* Whether the hint can bring blocks of a session: then it must wait as a load does. */
bool hint_may_bring(const struct op *op);
enum step hint_apply(struct task *task); /* for task.c */

/* The answer to the client about a block of a hint, whose part has this status. Counts the
 * answer. */
int hint_status(struct op *op, int status);
/* The answer for a hint without keys, as a whole. */
int hint_status_of_all(const struct op *op);
/* A part of an op with hints in its fields has succeeded: executes them on its block. */
void hint_fields(const struct part *part);

/* Executes a hint on one block, which is present, whoever gave the hint. */
enum wire_hint_answer hint_on_block(struct tables *tables, uint32_t block, const struct hint *hint);
