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
/* A staged op waits for an engine's stream. The stream wakes nobody, so ops_turn() has to look. */
bool ops_wait_for_stream(const struct kvtier_client *c);
/* Unlocks ring, then does the work that needs it unlocked: rings the daemon's bell, cuts off a
 * liar. Control not held. */
void ops_unlock(struct kvtier_client *c);
/* Waits until op `id` is done (0; its result is taken if `take`), gone (-ENOENT), or until limit_ns
 * (-ETIMEDOUT). No lock held. */
int op_await(struct kvtier_client *c, uint64_t id, uint64_t limit_ns, bool take,
	     struct kvtier_result *ret);

#endif
