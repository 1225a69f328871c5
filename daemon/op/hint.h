/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hint.h - ops that are hints, and the hints in the fields of other ops (HINTS.md). A hint goes
 * block by block, in turn with other ops: so a flood of them delays others as a flood of small
 * loads does. Core thread only.
 */
#ifndef KVTIER_OP_HINT_H
#define KVTIER_OP_HINT_H

#include <stdbool.h>
#include <stdint.h>

#include "client/wire.h"
#include "daemon/store/hint_policy.h"
#include "step.h"

struct op;
struct part;
struct store;
struct walker;

/* Of an op. */
struct op_hint {
	bool fields;   /* of a store, load or prefetch: it has some */
	uint8_t scope; /* of a hint: enum wire_hint_scope; else 0 */
	struct hint hint;
	uint32_t answers[WIRE_HINT_ANSWERS];
};

/* Of a new op, whose entry is checked. A hint that prefetches becomes a prefetch. */
void hint_begin(struct op *op);
/* Blocks that it is about, at least 1. */
uint32_t hint_blocks(const struct op *op);
/* Its flights are enough to fill the room that there is for them: it is to wait as a load is. */
bool hint_may_bring(const struct op *op);
enum step hint_apply(struct walker *w); /* for step.c */

/* The answer to the client about a block of a hint, whose part has this status. Counts the
 * answer. */
int hint_status(struct op *op, int status);
/* Likewise of a hint without keys, as a whole. */
int hint_status_of_all(const struct op *op);
/* A part of an op with such fields came out well. */
void hint_fields(const struct part *part);

/* A hint on one block of these tables, from whomever. The block is present. */
enum wire_hint_answer hint_on_block(struct store *store, uint32_t block, const struct hint *hint);

#endif
