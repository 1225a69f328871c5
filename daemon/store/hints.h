/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hints.h - hints are executed: on a block, on the blocks of a session, on the spaces of a revision
 * (HINTS.md). hint_policy.h decides the effect on a block; this file changes tables, and ends hints
 * that have reached their ttl. Core thread only; nothing here blocks, allocates or fails.
 *
 * Cost: a block is some hundred nanoseconds; a revision is one for each of its spaces, however many
 * blocks they have. Ends are looked for 4,096 notes at a time, so a ttl ends a second late, or
 * where there are very many notes some seconds.
 */
#ifndef KVTIER_HINTS_H
#define KVTIER_HINTS_H

#include <stdbool.h>
#include <stdint.h>

#include "hint_policy.h"

struct hints;
struct loop;
struct notes;
struct space;
struct store;

struct hints_conf {
	uint32_t max_blocks, share_percent, max_ttl_s; /* as in [hints] */
};

/* -ENOMEM. The store and the loop stay the caller's; they are asked from the first hint on. */
int hints_open(struct store *store, struct loop *loop, const struct hints_conf *conf,
	       struct hints **ret);
void hints_close(struct hints *hints);                /* NULL is fine */
struct notes *hints_notes(const struct hints *hints); /* for blocks_conf */

/* A block that is present. *ret_write: it is to be queued for NVMe. */
enum wire_hint_answer hints_block(struct hints *hints, uint32_t block, const struct hint *hint,
				  bool *ret_write);

/* A tenant's session (by a space of that tenant): how many blocks it has; its next block, which
 * goes to the end. BLOCK_NONE: it has none, or the next block joined it before hint->turn. */
uint32_t hints_session_blocks(const struct hints *hints, const struct space *space,
			      uint64_t session);
uint32_t hints_session_next(struct hints *hints, const struct space *space,
			    const struct hint *hint);
/* All spaces of a revision (space.h). */
enum wire_hint_answer hints_revision(struct hints *hints, const uint8_t revision[32],
				     enum wire_hint_action action);

/* A hint's blocks were answered so; for the counters. */
void hints_count(struct hints *hints, enum wire_hint_action action, enum wire_hint_answer answer,
		 uint64_t blocks);
/* The gauges of hints. */
void hints_gauges(const struct hints *hints);
uint64_t hints_kept_bytes(const struct hints *hints, const struct space *space); /* its tenant's */

/* By name, as in tbl_hints.h. 0: none is called so; NULL: no such number. */
enum wire_hint_action hint_action_named(const char *name);
const char *hint_action_name(enum wire_hint_action action);

#endif
