/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay.h - requests by the policies of eviction: how many of their blocks would have been found,
 * with room for so many blocks. The blocks of a request in front of the first absent one count as
 * found; then all that are absent are stored. No I/O, no clock; one thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct requests;

/* told: called now and then with the requests that were done; may be NULL. */
struct replay_told {
	void (*call)(void *arg, uint64_t requests);
	void *arg;
};

/* Blocks found as kvtierd evicts: the least recent leaf first (table/evict.h). Blocks of the
 * request that is served are never evicted. expected: each request says when its session's next one
 * comes (kvtier_op.expected_back_s); only of timed_sessions. -ENOMEM */
int replay_ours(const struct requests *r, uint32_t room, bool expected,
		const struct replay_told *told, uint64_t *ret);
/* The same if the least recent block is evicted, wherever it stands in its chain. -ENOMEM */
int replay_lru(const struct requests *r, uint32_t room, const struct replay_told *told,
	       uint64_t *ret);
