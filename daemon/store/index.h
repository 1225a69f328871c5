/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.h - which keys are present, in a sealed memfd that clients read without a syscall.
 *
 * Layout and reading rules: client/wire.h, client/lib/map.c. Writer: the core thread, alone. Beside
 * the shared table the daemon keeps a private block number per entry. A shared entry holds a
 * fingerprint, a mask of places and a generation, and no more. Finding compares the 64 bits that an
 * entry has of a fingerprint; the caller (block.c) compares the full key.
 *
 * A fingerprint is a keyed hash (client/fingerprint.h). So a client cannot aim at the buckets of a
 * space that it has not opened; at the buckets of its own spaces it can. Fingerprints that crowd
 * one pair of buckets fail to enter, in bounded time, and harm no other block.
 */
#ifndef KVTIER_INDEX_H
#define KVTIER_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "client/fingerprint.h"
#include "client/wire.h"

struct index;

/* Reserves (sparsely) for max_entries. Makes and seals the memfd: SHRINK|GROW|SEAL|FUTURE_WRITE. */
int index_open(uint64_t max_entries, struct index **ret);
void index_close(struct index *index);
int index_fd(const struct index *index);         /* to send to clients; stays the index's */
uint64_t index_bytes(const struct index *index); /* of the memfd */
/* heartbeat_ns and asleep are the loop's to write */
struct wire_index *index_head(struct index *index);

/* Up to max candidates (same fingerprint; practically 0 or 1) into ret; returns how many. */
uint32_t index_find(const struct index *index, const struct print *print, uint32_t *ret,
		    uint32_t max);

/* block: unique among the entries. places: wire_places(), not 0. generation: its low bits are kept.
 * -ENOSPC: max_entries reached. -EXFULL: room, but none found by displacement from its two buckets:
 * the caller drops this block, and evicts nobody for it, since that would help by chance alone. */
int index_insert(struct index *index, const struct print *print, uint32_t block, uint32_t places,
		 uint32_t generation);
/* The entry of this block must be there. */
void index_update(struct index *index, const struct print *print, uint32_t block, uint32_t places,
		  uint32_t generation);
void index_remove(struct index *index, const struct print *print, uint32_t block);
uint64_t index_entries(const struct index *index);
uint64_t index_crowded(const struct index *index); /* how often -EXFULL was the answer */
uint64_t index_memory(const struct index *index);  /* bytes in use, table and side array */

#endif
