/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hints.h - executes hints on a block, on the blocks of a session, and on the spaces of a revision
 * (HINTS.md). hint_plan(), a pure function, decides the effect on one block. The other functions
 * change tables, and end hints that have reached their ttl. Core thread only; no call here blocks,
 * allocates or fails.
 *
 * Cost: a hint on a block takes some hundred nanoseconds. A hint on a revision takes as long for
 * each of its spaces, however many blocks these have. 4,096 notes at a time are searched for a ttl
 * that is over, so a ttl ends up to a second late, or some seconds where there are very many notes.
 *
 *	action				band	last access	until	note
 *	retain, priority > 0		KEPT			ttl	bytes are kept
 *	retain, priority < 0		FIRST			ttl
 *	retain, 0			USUAL			ttl	(ttl 0: none)
 *	retain, 0, expected back	EXPECTED		ttl	(ttl 0: none)
 *	pin				HELD			ttl	bytes are kept
 *	demote				FIRST			-	none
 *	release, superseded, ended	USUAL	never		-	none
 *	the ttl is over			USUAL	never		-	none
 *	  and the block was used since	USUAL			-	none
 *
 * Bounds: the bytes that a tenant keeps (KEPT and HELD) are at most its share of host memory. A
 * retain of priority p may fill (50 + p / 2) % of this share, so that the last of it is left for
 * the blocks that matter most; a pin may fill all of it. All tenants together keep at most three
 * quarters of host memory. A ttl is at most max_ttl_s; a block that is kept without a ttl gets
 * max_ttl_s.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/abi/wire.h"
#include "daemon/table/evict.h"
#include "daemon/table/space_counts.h"

struct hints;
struct loop;
struct hint_table;
struct space;
struct tables;

/* --- the effect of a hint: state in, plan out; no I/O, clock, log or allocation --- */

struct hint {
	enum wire_hint_action action; /* not PREFETCH, which is no matter of policy */
	uint32_t ttl_s;
	int32_t priority;
	uint32_t back_s;  /* RETAIN of priority 0: kvtier_op.expected_back_s */
	uint64_t session; /* 0: none */
	uint32_t turn;
	/* soft: a RETAIN in the fields of an op, which takes back no other hint on the block.
	 * fresh: the block has no other hint, since the op has just stored it */
	bool soft, fresh;
};

/* A block as it is. */
struct hint_block {
	bool away;    /* it has no host copy */
	bool on_nvme; /* it has a copy there */
	bool in_use;  /* pinned by ops, or by a write that is under way */
	bool noted;   /* the block has a note, or there is room for one */
	enum evict_band band;
	uint32_t left_s; /* seconds left of its ttl; 0: it has none */
	/* the us until another session than the hint's is expected to use it; 0: none is */
	uint64_t back_us;
	uint32_t bytes;
};

struct hint_limits {
	uint64_t share_bytes; /* of a tenant */
	uint64_t all_bytes;   /* of all together */
	uint32_t max_ttl_s;
	bool nvme; /* there is an NVMe tier, and it takes writes */
};

/* The bytes that hints keep, without this block. */
struct hint_kept {
	uint64_t tenant_bytes, all_bytes;
};

struct hint_plan {
	enum wire_hint_answer answer;
	bool change; /* if not, the members below have no meaning */
	enum evict_band band;
	bool age;   /* the block counts as never used */
	bool write; /* the block is to be written to NVMe, if that takes it */
	uint32_t keep_bytes;
	uint64_t back_us; /* EXPECTED: until its return; EVICT_NEVER: it does not return */
	/* from now on; 0: without end. keep_bytes or ttl_s > 0: the block needs a note */
	uint32_t ttl_s;
};

void hint_plan(const struct hint *hint, const struct hint_block *block,
	       const struct hint_limits *limits, const struct hint_kept *kept,
	       struct hint_plan *ret);

/* The state of a revision after this action. False: the action is rejected. */
bool hint_standing(enum wire_hint_action action, enum hint_standing *ret);

/* --- hints on the store's tables --- */

/* -ENOMEM. The tables and the loop stay the caller's; they are asked from the first hint on. */
int hints_open(struct tables *tables, struct loop *loop, uint32_t max_blocks, uint32_t max_ttl_s,
	       struct hints **ret);
void hints_close(struct hints *hints);                     /* may be NULL */
struct hint_table *hints_table(const struct hints *hints); /* for blocks_conf */

/* Executes a hint on a block that is present. *ret_write: the block must be queued for NVMe. */
enum wire_hint_answer hints_block(struct hints *hints, uint32_t block, const struct hint *hint,
				  bool *ret_write);

/* A session belongs to a tenant, which any of the tenant's spaces names. hints_session_blocks()
 * says how many blocks it has. hints_session_next() returns its next block and puts it at the end;
 * BLOCK_NONE: the session has no block, or the next one joined it before hint->turn. */
uint32_t hints_session_blocks(const struct hints *hints, const struct space *space,
			      uint64_t session);
uint32_t hints_session_next(struct hints *hints, const struct space *space,
			    const struct hint *hint);
/* Executes a hint on all spaces of a revision (space.h). */
enum wire_hint_answer hints_revision(struct hints *hints, const uint8_t revision[32],
				     enum wire_hint_action action);

/* Counts an answer to a hint on a block, or on a revision. */
void hints_count(struct hints *hints, enum wire_hint_answer answer);
/* The gauges of hints. */
void hints_gauges(const struct hints *hints);
uint64_t hints_kept_bytes(const struct hints *hints, const struct space *space); /* its tenant's */

/* The names are those of tbl_hints.h. 0, NULL: no action has this name, or this number. */
enum wire_hint_action hint_action_named(const char *name);
const char *hint_action_name(enum wire_hint_action action);
