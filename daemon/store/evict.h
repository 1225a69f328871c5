/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evict.h - leaf-first LRU: which block goes next. Pure: no I/O, clock, log, or allocation after
 * open, so traces replay by the million (tests/sim/sim_evict.c). Used by block.c; core thread only.
 *
 * Blocks are numbers < max_blocks, chosen by the caller. A block can be a victim while it has no
 * children, no pins and was not hidden. Of the victims in a class the one with the least (tick,
 * number) goes first. A parent whose last child went is a candidate again, by its own last access.
 *
 * A block that is *away* keeps its last access, its pins and the children it had. It has no parent
 * and no class, gets no new children, and is never a victim.
 *
 * Hints (hint_policy.h) divide this order into bands: the candidates of each have an order of their
 * own, and the caller asks one band after the other. An access, and leaving, ends FIRST.
 */
#ifndef KVTIER_EVICT_H
#define KVTIER_EVICT_H

#include <stdbool.h>
#include <stdint.h>

enum { EVICT_NONE = 0xffffffff };

/* In the order in which they go; HELD ones do not. */
enum evict_band { EVICT_FIRST, EVICT_USUAL, EVICT_KEPT, EVICT_HELD, EVICT_BANDS };

struct evict;

/* Reserves (sparsely) for max_blocks; classes <= 64. The seed keeps clients from shaping the
 * search tree. */
int evict_open(uint32_t max_blocks, uint32_t classes, uint64_t seed, struct evict **ret);
void evict_close(struct evict *evict); /* NULL is fine */

/* Likewise, and each class has an order for each group. of() says which of n a block belongs to;
 * that may not change while the block is here, but for away and hidden ones. */
struct evict_groups {
	uint32_t n;
	uint32_t (*of)(void *arg, uint32_t block);
	void *arg;
};
int evict_open_groups(uint32_t max_blocks, uint32_t classes, const struct evict_groups *groups,
		      uint64_t seed, struct evict **ret);

/* A new block, not pinned. parent: EVICT_NONE, or a block that was added and is not away; it gains
 * a child. O(log n). */
void evict_add(struct evict *evict, uint32_t block, uint32_t parent, uint32_t class, uint64_t tick);
/* A new block that is away. O(1). */
void evict_add_away(struct evict *evict, uint32_t block, uint64_t tick);
/* A block without pins is away from now on. Its parent, which is returned, loses a child. O(log
 * n). */
uint32_t evict_leave(struct evict *evict, uint32_t block);
/* Back from being away, pinned or not; parent: as for evict_add(), and none if it has children: no
 * cycles. O(log n). */
void evict_return(struct evict *evict, uint32_t block, uint32_t parent, uint32_t class);
/* A block without pins and children goes. Its parent, which is returned, loses a child. O(log
 * n). */
uint32_t evict_remove(struct evict *evict, uint32_t block);
/* Takes a block out of its chain for good: it is never a victim, whatever happens to its pins and
 * children. Its parent, which is returned, loses a child. To be removed when pins and children are
 * gone. O(log n). */
uint32_t evict_hide(struct evict *evict, uint32_t block);

/* Accessed at tick (< 2^48: 9 years at 1 M a second); one older than before is ignored. Candidates:
 * O(log n), others: O(1). */
void evict_touch(struct evict *evict, uint32_t block, uint64_t tick);
void evict_pin(struct evict *evict, uint32_t block); /* at most 2^32 - 1 times */
void evict_unpin(struct evict *evict, uint32_t block);
void evict_move(struct evict *evict, uint32_t block, uint32_t class); /* not away */

/* As if it had never been accessed. O(log n). */
void evict_age(struct evict *evict, uint32_t block);

/* A new block is USUAL. O(log n). */
void evict_set_band(struct evict *evict, uint32_t block, enum evict_band band);
enum evict_band evict_band(const struct evict *evict, uint32_t block);
uint32_t evict_banded(const struct evict *evict); /* blocks that are not USUAL */

/* of group 0, band USUAL. EVICT_NONE: nobody. O(1) */
uint32_t evict_victim(const struct evict *evict, uint32_t class);
uint32_t evict_band_victim(const struct evict *evict, uint32_t group, uint32_t class,
			   enum evict_band band);
uint64_t evict_tick(const struct evict *evict, uint32_t block); /* last access */
uint32_t evict_class(const struct evict *evict, uint32_t block);
uint32_t evict_pins(const struct evict *evict, uint32_t block);
uint32_t evict_children(const struct evict *evict, uint32_t block);
uint32_t evict_parent(const struct evict *evict, uint32_t block); /* EVICT_NONE: none */
bool evict_is_away(const struct evict *evict, uint32_t block);
uint32_t evict_block_bytes(void); /* memory per block */

/* Five bits of the caller's, which have room here: 0 when the block is added, gone when it is
 * removed. */
uint32_t evict_mark(const struct evict *evict, uint32_t block);
void evict_set_mark(struct evict *evict, uint32_t block, uint32_t mark);

#endif
