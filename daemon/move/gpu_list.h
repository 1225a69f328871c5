/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_list.h - a copy of an image in a GPU's memory, and the order in which the copies of a unit
 * and a class of slots are evicted: a list that runs through them. gpu_cache.c has the copies, by
 * the numbers of their slots. Core thread only.
 */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "tiers/tier.h"

enum {
	COPY_NUMBERS = (1 << 26) - 1, /* at most, a unit: 256 GiB of the smallest slots */
	COPY_END = COPY_NUMBERS,      /* ends a list */
};

enum copy_state { COPY_FREE = 0, COPY_KEPT, COPY_LOOSE /* pinned, and no block's any more */ };

/* Packed, because every byte counts. */
struct __attribute__((packed)) copy {
	uint64_t next : 26; /* in the order of its class */
	uint64_t prev : 26;
	uint64_t chain : 26; /* next on its list of the hash */
	uint64_t class : 6;
	uint64_t state : 2; /* enum copy_state */
	uint64_t pins : 18; /* more than there are parts */
};
static_assert(sizeof(struct copy) == 13, "gpu_cache.h says what a copy takes");
static_assert(TIER_MAX_CLASSES <= 1 << 6, "copy.class");

struct class_order {
	uint32_t first, last; /* evicted next, and last; COPY_END: empty */
};

/* The copy becomes the first one, or the last. */
void gpu_list_add(struct class_order *order, struct copy *copies, uint32_t at, bool first);
void gpu_list_remove(struct class_order *order, struct copy *copies, uint32_t at);
