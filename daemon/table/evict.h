/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evict.h - says which block is evicted next: leaves first, the least recent one of them. It does
 * no I/O, reads no clock, writes no log and allocates memory only at open, so tests replay traces
 * by the million (tests/sim/sim_evict.c). block.c uses it. Core thread only.
 *
 * Blocks are numbers < max_blocks, chosen by the caller. A block can be a victim while it has no
 * children, no pins and was not hidden. The victim of a class with the least (tick, number) is
 * evicted first. A parent whose last child was removed is a candidate again, by its own last
 * access.
 *
 * A block that is *away* keeps its last access, its pins and the children it had. It has no parent
 * and no class, gets no new children, and is never a victim. In its parent's place it has a word of
 * the caller's.
 *
 * Hints (move/hints.h) divide this order into bands. The candidates of each band have an order of
 * their own, and the caller compares the first ones by their worth. A block leaves the band FIRST
 * when it is accessed or becomes away.
 *
 * A block of the band USUAL may be expected back at a tick, until it is accessed. Such candidates
 * have two orders: by their last access, as the band EXPECTED, and by the tick of their return.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { EVICT_NONE = 0xffffffff };
/* With a number: a parent that is only remembered, and does not know of it. EVICT_NONE has this
 * bit. */
#define EVICT_REMEMBERED (1u << 31)

/* How a block stands among others (evict_worth()); blocks of HELD are not evicted. */
enum evict_band { EVICT_FIRST, EVICT_USUAL, EVICT_KEPT, EVICT_HELD, EVICT_EXPECTED, EVICT_BANDS };

/* Ticks are below it. A block that is expected back then never comes back. */
#define EVICT_NEVER ((1ull << 48) - 1)

struct evict;

/* Blocks belong to groups, and each class has an order for each group. of() says to which of the n
 * groups a block belongs. This may change only while the block is away or hidden. */
struct evict_groups {
	uint32_t n;
	uint32_t (*of)(void *arg, uint32_t block);
	void *arg;
};
/* Reserves memory for max_blocks, which is touched as it is used. classes <= 64. groups may be
 * NULL: all blocks are of group 0. The seed keeps clients from shaping the search tree. */
int evict_open(uint32_t max_blocks, uint32_t classes, const struct evict_groups *groups,
	       uint64_t seed, struct evict **ret);
void evict_close(struct evict *evict); /* may be NULL */

/* A new block, not pinned. parent: EVICT_NONE, or a block that was added and is not away; it gains
 * a child. O(log n). */
void evict_add(struct evict *evict, uint32_t block, uint32_t parent, uint32_t class, uint64_t tick);
/* A new block that is away. O(1). */
void evict_add_away(struct evict *evict, uint32_t block, uint64_t tick);
/* A block without pins is away from now on. Its parent, which is returned, loses a child, unless it
 * is EVICT_REMEMBERED. O(log n). */
uint32_t evict_leave(struct evict *evict, uint32_t block);
/* A block is back from being away, pinned or not. parent is as for evict_add(), or any block that
 * is EVICT_REMEMBERED. It must not be the former if the block has children, so that there are no
 * cycles. O(log n). */
void evict_return(struct evict *evict, uint32_t block, uint32_t parent, uint32_t class);
/* The word of a block that is away. It is EVICT_NONE at first, and when the block is not away any
 * more. */
uint32_t evict_word(const struct evict *evict, uint32_t block);
void evict_set_word(struct evict *evict, uint32_t block, uint32_t word);
/* Removes a block without pins and children. Its parent, which is returned, loses a child. O(log
 * n). */
uint32_t evict_remove(struct evict *evict, uint32_t block);
/* Takes a block out of its chain for good: it is never a victim, whatever happens to its pins and
 * children. Its parent, which is returned, loses a child. The caller removes the block when its
 * pins and children are gone. O(log n). */
uint32_t evict_hide(struct evict *evict, uint32_t block);

/* The block was accessed at tick (< 2^48, which is 9 years of us). A tick older than the last one
 * is ignored. O(log n) for candidates, O(1) for others. */
void evict_touch(struct evict *evict, uint32_t block, uint64_t tick);
void evict_pin(struct evict *evict, uint32_t block); /* at most 2^32 - 1 times */
void evict_unpin(struct evict *evict, uint32_t block);
void evict_move(struct evict *evict, uint32_t block, uint32_t class); /* not away */

/* Makes the block look as if it was never accessed. O(log n). */
void evict_age(struct evict *evict, uint32_t block);

/* A new block is USUAL. Not EXPECTED; the block is not expected back any more. O(log n). */
void evict_set_band(struct evict *evict, uint32_t block, enum evict_band band);
enum evict_band evict_band(const struct evict *evict, uint32_t block);
uint32_t evict_banded(const struct evict *evict); /* blocks that are not USUAL */

/* The block, which may be away, is expected back at a tick, 1 .. EVICT_NEVER. It is EXPECTED from
 * now on. From the first call on, a block takes 20 bytes more. O(log n). */
void evict_expect(struct evict *evict, uint32_t block, uint64_t back);
/* When it was said to be back, also if it was accessed since; 0: it was never expected. */
uint64_t evict_expected(const struct evict *evict, uint32_t block);
/* The block's worth is the last access by which it stands among others. A USUAL block is thought to
 * be away for as long again as it was, so its worth is its last access. An EXPECTED block is away
 * until its return, or twice as long as it was if it is overdue; a KEPT block a quarter as long.
 * FIRST: 0. HELD: EVICT_NEVER. */
uint64_t evict_worth(const struct evict *evict, uint32_t block, uint64_t now);
/* The EXPECTED block with the least worth, or EVICT_NONE. Among those that are overdue it is the
 * one that is so for the longest time. O(log n). */
uint32_t evict_farthest(const struct evict *evict, uint32_t group, uint32_t class, uint64_t now);

/* EVICT_NONE: there is no candidate. O(1) */
uint32_t evict_victim(const struct evict *evict, uint32_t group, uint32_t class,
		      enum evict_band band);
uint64_t evict_tick(const struct evict *evict, uint32_t block); /* last access */
uint32_t evict_class(const struct evict *evict, uint32_t block);
uint32_t evict_pins(const struct evict *evict, uint32_t block);
uint32_t evict_children(const struct evict *evict, uint32_t block);
/* With EVICT_REMEMBERED, if that is how the block was given it; an away block has EVICT_NONE. */
uint32_t evict_parent(const struct evict *evict, uint32_t block);

/* Five bits for the caller, since there is room for them. They are 0 when the block is added. */
uint32_t evict_mark(const struct evict *evict, uint32_t block);
void evict_set_mark(struct evict *evict, uint32_t block, uint32_t mark);
