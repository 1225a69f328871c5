/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spot.h - one row of the table of blocks (block.c): the state of a block's number, and where its
 * copies lie, in as few bytes as possible. Core thread only.
 */
#ifndef KVTIER_SPOT_H
#define KVTIER_SPOT_H

#include <assert.h>

#include "block.h"

/* QUEUED is a live one with the caller's mark. */
enum spot_state {
	BLOCK_FREE = 0,
	BLOCK_LIVE,
	BLOCK_QUEUED,
	BLOCK_CONDEMNED,
	BLOCK_RIPE,
	BLOCK_TOMB
};

/* Packed, because every byte counts. One in five lies across two cache lines; an array for each
 * member would make it two for all. */
struct __attribute__((packed)) spot {
	uint32_t slot; /* in the host tier; BLOCK_NONE: away */
	uint32_t nvme_slot;
	uint32_t nvme_generation : 20; /* the disk is in evict.c's mark */
	uint32_t space : 15;
	uint32_t state : 3; /* enum spot_state */
	uint32_t has_nvme : 1;
	/* on one device or more: copy_table.h says where */
	uint32_t has_gpu : 1;
};
static_assert(sizeof(struct spot) == 13, "the memory budget of a block counts on it");
static_assert(TIER_MAX_SPACES <= 1 << 15, "spot.space");

/* Five more bits of a block, which evict.c has room for. */
enum { MARK_VARIANT = 1, MARK_DISK_SHIFT = 1 };

static inline void spot_set_nvme(struct spot *spot, const struct extent *where)
{
	spot->has_nvme = 1;
	spot->nvme_slot = where->slot;
	spot->nvme_generation = where->generation & 0xfffffu;
}

static inline struct extent spot_nvme(const struct spot *spot, uint8_t disk)
{
	return (struct extent){ .tier = TIER_NVME,
				.slot = spot->nvme_slot,
				.unit = disk,
				.generation = spot->nvme_generation };
}

/* 1 << enum tier_id of its copies. */

static inline uint32_t spot_tiers(const struct spot *spot)
{
	return (spot->slot != BLOCK_NONE ? 1u << TIER_HOST : 0) |
	       (spot->has_nvme ? 1u << TIER_NVME : 0) | (spot->has_gpu ? 1u << TIER_GPU : 0);
}

#endif
