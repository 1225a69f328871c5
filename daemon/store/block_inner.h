/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block_inner.h - the table of blocks, for block.c (names, numbers, chain) and block_copies.c (where the image lies)
 * and nobody else. Core thread only.
 */
#ifndef KVTIER_BLOCK_INNER_H
#define KVTIER_BLOCK_INNER_H

#include <assert.h>

#include "client/fingerprint.h"
#include "block.h"
#include "evict.h"

static_assert((int)BLOCK_NONE == (int)EVICT_NONE, "the same numbers");

enum block_state { BLOCK_FREE = 0, BLOCK_LIVE, BLOCK_CONDEMNED, BLOCK_RIPE, BLOCK_TOMB };

/* The key, or for a number on the free or the ripe list the next one on it. */
union name {
	uint8_t  key[32];
	uint32_t next;
};

/* Packed, because every byte counts. One in five lies across two cache lines; an array for each member would make
 * it two for all. */
struct __attribute__((packed)) place {
	uint32_t slot;			/* in the host tier; BLOCK_NONE: away */
	uint32_t nvme_slot;
	uint32_t nvme_generation : 20;	/* the disk is in evict.c's mark */
	uint32_t space : 15;
	uint32_t state : 3;		/* enum block_state */
	uint32_t queued : 1;
	uint32_t has_nvme : 1;
};
static_assert(sizeof(struct place) == 13, "the memory budget of a block counts on it");
static_assert(TIER_MAX_SPACES <= 1 << 15, "place.space");

/* Five more bits of a block, which evict.c has room for. */
enum { MARK_VARIANT = 1, MARK_DISK_SHIFT = 1 };

/*
 * Who holds which host slots, by space, so that victims can be taken from one and not from another: each account has an
 * eviction order per slab class. A space has one as long as it has host copies. When all are in use, further spaces
 * share the first, which is nobody's.
 */
enum { ACCOUNT_SHARED = 0 };

struct account {
	uint32_t space;			/* BLOCK_NONE: shared, or unused */
	uint32_t slots[TIER_MAX_CLASSES];	/* host copies, by class */
};

/* What a space's number stands for. */
struct space_blocks {
	struct fingerprint_key index_key;
	uint32_t count[2];		/* live, by variant */
	uint32_t held;			/* numbers that carry it: live, or condemned with pins */
	uint32_t doomed;		/* all its blocks are to go: blocks_walk_doomed() */
	uint32_t host;			/* host copies */
	uint32_t account;		/* while there are any */
};

struct blocks {
	struct index *index;
	struct evict *evict;
	union name *name;
	struct place *place;
	uint32_t max_blocks;
	uint32_t used;			/* numbers >= used were never given out */
	uint32_t count;			/* live */
	uint32_t host_count, nvme_count;	/* of those, with such a copy */
	uint32_t sample_hand;		/* where blocks_sample_away() goes on */
	uint32_t free, ripe;		/* lists; BLOCK_NONE: empty */
	uint32_t commits;		/* generation of the next index entry */
	uint64_t crowded;		/* blocks that found no room in their neighbourhood */
	uint64_t tick;			/* the latest access of any block */
	uint32_t doomed;		/* live blocks of doomed spaces */
	uint32_t accounts;		/* those in use are below */
	struct account account[BLOCK_ACCOUNTS];
	struct space_blocks *space;	/* by number, TIER_MAX_SPACES */
};

static inline bool block_live(const struct blocks *blocks, uint32_t block)
{
	return block < blocks->used && blocks->place[block].state == BLOCK_LIVE;
}

/* Live, or condemned and still pinned: its holder may go on asking. */
static inline bool block_held(const struct blocks *blocks, uint32_t block)
{
	return block_live(blocks, block) ||
	       (block < blocks->used && blocks->place[block].state == BLOCK_CONDEMNED);
}

static inline bool block_away(const struct blocks *blocks, uint32_t block)
{
	return blocks->place[block].slot == BLOCK_NONE;
}

/* A block's fingerprint in the index. */
static inline struct print block_print(const struct blocks *blocks, const uint8_t key[32], uint32_t space)
{
	return fingerprint(&blocks->space[space].index_key, key);
}

/* block.c: the parent that a block of this space can be linked under (present, of the same space, with a host copy),
 * or BLOCK_NONE. */
uint32_t block_linkable(const struct blocks *blocks, uint32_t parent, uint32_t space);
/* block.c: a number (BLOCK_NONE is fine) that lost a child: if it was a tomb for that child's sake, it is free. */
void block_tomb_settle(struct blocks *blocks, uint32_t block);

/* block_copies.c: fields and counts alone; chain and index are the caller's to follow. */
void block_host_put(struct blocks *blocks, uint32_t block, const struct extent *host);
/* After evict.c was told, which had it in this class. */
void block_host_gone(struct blocks *blocks, uint32_t block, uint32_t class);
void block_nvme_put(struct blocks *blocks, uint32_t block, const struct extent *where);
void block_nvme_clear(struct blocks *blocks, uint32_t block);	/* there need not be one */

#endif
