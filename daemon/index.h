/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.h - which keys are present, in a sealed memfd that clients read without a syscall.
 *
 * Layout and reading rules: client/wire.h, client/map.c. Writer: the core thread, alone. The daemon keeps
 * beside the shared table a private block number per entry; a shared entry holds no more than a
 * fingerprint, a tier mask and a generation. Finding compares 128 bits; the caller (block.c) compares the
 * full key. Keys come from clients, so nothing here may depend on their being random: keys that crowd one pair
 * of buckets fail to enter, in bounded time, and harm nobody else.
 */
#ifndef KVTIER_INDEX_H
#define KVTIER_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "../client/wire.h"

struct index;

/* Reserves (sparsely) for max_entries. Makes and seals the memfd: SHRINK|GROW|SEAL|FUTURE_WRITE. */
int  index_open(uint64_t max_entries, struct index **ret);
void index_close(struct index *index);
int  index_fd(const struct index *index);		/* to send to clients; stays the index's */
uint64_t index_bytes(const struct index *index);	/* of the memfd */
struct wire_index *index_head(struct index *index);	/* heartbeat_ns and asleep are the loop's to write */

/* Up to max candidates (same fingerprint; practically 0 or 1) into ret; returns how many. */
uint32_t index_find(const struct index *index, const uint8_t fingerprint[16], uint32_t *ret, uint32_t max);

/* block: unique among the entries. tiers: not 0. generation: its low 24 bits are kept.
 * -ENOSPC: max_entries reached, or no room found by displacement: the caller drops the block. */
int  index_insert(struct index *index, const uint8_t fingerprint[16], uint32_t block, uint32_t tiers,
		  uint32_t generation);
/* The entry of this block must be there. */
void index_update(struct index *index, const uint8_t fingerprint[16], uint32_t block, uint32_t tiers,
		  uint32_t generation);
void index_remove(struct index *index, const uint8_t fingerprint[16], uint32_t block);
uint64_t index_entries(const struct index *index);
uint64_t index_memory(const struct index *index);	/* bytes in use, table and side array */

#endif
