/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.h - says which keys are present, in a sealed memfd that clients read without a system call.
 *
 * client/abi/wire.h and client/lib/base/map.c have the layout and the rules of reading. The core
 * thread alone writes. A shared entry has a fingerprint, a mask of places and a generation, and no
 * more; for each entry the daemon also keeps a private block number. index_find() compares the 64
 * bits that an entry has of a fingerprint, and its caller (block.c) compares the full key.
 *
 * A fingerprint is a keyed hash (client/abi/fingerprint.h). So a client cannot aim at the buckets
 * of a space that it has not opened, but it can aim at those of its own spaces. Fingerprints that
 * crowd one pair of buckets are refused, in bounded time, and harm no other block.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/abi/fingerprint.h"
#include "client/abi/wire.h"

struct index;

/* Reserves memory for max_entries, which is touched as it is used. Makes the memfd, and seals it
 * with SHRINK|GROW|SEAL|FUTURE_WRITE. */
int index_open(uint64_t max_entries, struct index **ret);
void index_close(struct index *index);
int index_fd(const struct index *index);         /* for clients; it stays the index's */
uint64_t index_bytes(const struct index *index); /* of the memfd */
/* main.c writes heartbeat_ns and asleep there. */
struct wire_index *index_head(struct index *index);

/* So many entries more are likely to come: the table grows ahead of them, so that an insert finds
 * room at once. */
void index_expect(struct index *index, uint64_t entries);
/* Asks for the cache lines that a call with this fingerprint will wait for. */
void index_soon(const struct index *index, const struct print *print);
/* Writes up to max blocks with this fingerprint to ret, practically 0 or 1. Returns how many. */
uint32_t index_find(const struct index *index, const struct print *print, uint32_t *ret,
		    uint32_t max);

/* No other entry has this block. places: wire_places(), not 0. The low bits of generation are kept.
 * -ENOSPC: there are max_entries. -EXFULL: there is room, but no way to it from the two buckets of
 * the fingerprint. The caller then drops this block and evicts no other for it, since that would
 * help by chance alone. */
int index_insert(struct index *index, const struct print *print, uint32_t block, uint32_t places,
		 uint32_t generation);
/* The entry of this block must be there. */
void index_update(struct index *index, const struct print *print, uint32_t block, uint32_t places,
		  uint32_t generation);
void index_remove(struct index *index, const struct print *print, uint32_t block);
uint64_t index_entries(const struct index *index);
uint64_t index_crowded(const struct index *index); /* how often -EXFULL was the answer */
uint64_t index_memory(const struct index *index);  /* bytes in use, table and side array */
