/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turn.h - completions are taken off the ring, and staged ops go on. Ring lock held, but in
 * op_await().
 */
#ifndef KVTIER_LIB_TURN_H
#define KVTIER_LIB_TURN_H

#include <stdbool.h>
#include <stdint.h>

#include "client/kvtier.h"

struct kvtier_client;

/* Completions off the ring, then staged chunks. -EPROTO: the daemon lied (c->lied is set). */
int ops_turn(struct kvtier_client *c);
/* A staged op waits for an engine's stream, or for kernels of ours. They wake nobody, so ops_turn()
 * has to look. */
bool ops_wait_for_stream(const struct kvtier_client *c);
/* Unlocks ring, then does the work that needs it unlocked: rings the daemon's bell, cuts off a
 * liar. Control not held. */
void ops_unlock(struct kvtier_client *c);
/* Waits until op `id` is done (0; its result is taken if `take`), gone (-ENOENT), or until limit_ns
 * (-ETIMEDOUT). No lock held. */
int op_await(struct kvtier_client *c, uint64_t id, uint64_t limit_ns, bool take,
	     struct kvtier_result *ret);
/* Until when a call with this timeout waits: < 0: a while after the op's deadline. No lock held. */
uint64_t op_limit(struct kvtier_client *c, uint64_t id, int timeout_ms);
/* Waits until so many layer groups of a load (> 0) are in its pages (0), or until it has ended
 * without (-ENODATA); else as op_await(). -EINVAL: it has fewer. */
int op_await_groups(struct kvtier_client *c, uint64_t id, uint32_t groups, uint64_t limit_ns);

#endif
