/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.c - the table of blocks: chain, and where the copies lie. Keys and numbers are numbers.c's,
 * recency is evict.c's, fingerprints are index.c's, counts by space are tally.c's, copies beside
 * host memory and NVMe are copy_table.c's. Core thread only.
 *
 * A block is a number into parallel arrays: 32 bytes of key, 13 of its spot (spot.h), 20 in
 * evict.c, and 19.1 in the index: 84.1 in all. States of a number:
 *
 *	  ┌─────────────────────────── blocks_drop ───────────────────────────┐
 *	  v                                                                   │
 *	free ── blocks_commit, blocks_commit_away ──> live ───────────────────┘
 *	  ^                         ┌───────────────────┘ blocks_condemn
 *	  │                         v
 *	  │                     condemned ── last unpin ──> ripe ── blocks_condemned ──> tomb
 *	  │                         └────── last unpin of one that has no slot ───────────^│
 *	  └────────────────────────────── no children (any more) ──────────────────────────┘
 *
 * A live number has copies as block.h draws it: "away" is a live one without a host slot, and
 * exactly then evict.c has it as away. The tiers that its index entry names are the tiers of these
 * copies.
 *
 * Four things change together when the host copy comes or goes: the slot, the tiers that the index
 * entry names (with a new generation), whether evict.c has the block in its chain or as away, and
 * the space's account (tally.h). An NVMe copy, and the first and last one beside these, change the
 * entry alone, also under pins.
 *
 * A tomb holds nothing but its number: its children still name it as their parent, so no other
 * block may get the number before the last child went. There are never more tombs than children.
 */
#include "block.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "client/fingerprint.h"
#include "daemon/base/reserve.h"
#include "copy_table.h"
#include "evict.h"
#include "index.h"
#include "notes.h"
#include "numbers.h"
#include "spot.h"
#include "tally.h"

static_assert((int)BLOCK_NONE == (int)EVICT_NONE && (int)BLOCK_NONE == (int)NUMBERS_NONE,
	      "the same numbers");

struct blocks {
	struct index *index;
	struct evict *evict;
	struct tally *tally;
	struct numbers numbers;
	struct spot *spot;
	uint32_t max_blocks;
	struct copy_table *beside;   /* blocks_conf */
	struct notes *notes;         /* blocks_conf */
	uint32_t count;              /* live */
	uint32_t copies[TIER_COUNT]; /* live ones with such a copy */
	uint32_t ripe;               /* a list of numbers */
	uint32_t commits;            /* generation of the next index entry */
	uint64_t tick;               /* the latest access of any block */
};

static bool is_live(const struct blocks *blocks, uint32_t block)
{
	return block < blocks->numbers.used && (blocks->spot[block].state == BLOCK_LIVE ||
						blocks->spot[block].state == BLOCK_QUEUED);
}

/* Live, or condemned and still pinned: its holder may go on asking. */
static bool is_held(const struct blocks *blocks, uint32_t block)
{
	return is_live(blocks, block) ||
	       (block < blocks->numbers.used && blocks->spot[block].state == BLOCK_CONDEMNED);
}

static bool is_away(const struct blocks *blocks, uint32_t block)
{
	return blocks->spot[block].slot == BLOCK_NONE;
}

/* A block's fingerprint in the index. */
static struct print print_of(const struct blocks *blocks, const uint8_t key[32], uint32_t space)
{
	return fingerprint(tally_index_key(blocks->tally, space), key);
}

static uint32_t account_of(void *arg, uint32_t block)
{
	return blocks_account(arg, block);
}

int blocks_open(const struct blocks_conf *conf, struct index *index, struct blocks **ret)
{
	struct evict_groups groups = { .n = TALLY_ACCOUNTS, .of = account_of };
	struct blocks *blocks;
	uint64_t seed;
	int r;

	if (!conf->max_blocks || conf->max_blocks >= BLOCK_NONE || conf->classes > TIER_MAX_CLASSES)
		return -EINVAL;
	if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
		return -EIO;
	blocks = calloc(1, sizeof(*blocks));
	if (!blocks)
		return -ENOMEM;
	blocks->index = index;
	blocks->max_blocks = conf->max_blocks;
	blocks->beside = conf->beside;
	blocks->notes = conf->notes;
	blocks->ripe = BLOCK_NONE;
	groups.arg = blocks;
	blocks->spot = reserve((uint64_t)conf->max_blocks * sizeof(struct spot));
	r = blocks->spot ? numbers_open(&blocks->numbers, conf->max_blocks) : -ENOMEM;
	if (r == 0)
		r = tally_open(&blocks->tally);
	if (r == 0)
		r = evict_open_groups(conf->max_blocks, TIER_MAX_CLASSES, &groups, seed,
				      &blocks->evict);
	if (r < 0)
		goto fail;
	*ret = blocks;
	return 0;
fail:
	blocks_close(blocks);
	return r;
}

void blocks_close(struct blocks *blocks)
{
	if (!blocks)
		return;
	evict_close(blocks->evict);
	tally_close(blocks->tally);
	unreserve(blocks->spot, (uint64_t)blocks->max_blocks * sizeof(struct spot));
	numbers_close(&blocks->numbers);
	free(blocks);
}

/* --- numbers --- */

static void number_free(struct blocks *blocks, uint32_t block)
{
	blocks->spot[block].state = BLOCK_FREE;
	numbers_give_back(&blocks->numbers, block);
}

/* A number (or BLOCK_NONE) lost a child: if it was a tomb for that child's sake, it is free. */
static void tomb_settle(struct blocks *blocks, uint32_t block)
{
	if (block == BLOCK_NONE || blocks->spot[block].state != BLOCK_TOMB)
		return;
	if (evict_children(blocks->evict, block))
		return;
	(void)evict_remove(blocks->evict, block);
	number_free(blocks, block);
}

static void condemned_settle(struct blocks *blocks, uint32_t block)
{
	struct spot *spot = &blocks->spot[block];

	if (spot->state != BLOCK_CONDEMNED || evict_pins(blocks->evict, block))
		return;
	tally_release(blocks->tally, spot->space);
	if (is_away(blocks, block)) { /* nothing to return */
		spot->state = BLOCK_TOMB;
		tomb_settle(blocks, block);
		return;
	}
	spot->state = BLOCK_RIPE;
	numbers_push(&blocks->numbers, &blocks->ripe, block);
}

/* --- fields and counts alone; chain and index are the caller's to follow --- */

static void nvme_put(struct blocks *blocks, uint32_t block, const struct extent *where)
{
	assert(where->tier == TIER_NVME && where->unit < 1 << 4 && where->generation < 1 << 20);
	blocks->copies[TIER_NVME] += !blocks->spot[block].has_nvme;
	spot_set_nvme(&blocks->spot[block], where);
	const uint32_t variant = evict_mark(blocks->evict, block) & MARK_VARIANT;

	evict_set_mark(blocks->evict, block, variant | (uint32_t)where->unit << MARK_DISK_SHIFT);
}

static void nvme_clear(struct blocks *blocks, uint32_t block)
{
	blocks->copies[TIER_NVME] -= blocks->spot[block].has_nvme;
	blocks->spot[block].has_nvme = 0;
}

/* The block goes. */
static void beside_clear(struct blocks *blocks, uint32_t block)
{
	struct spot *spot = &blocks->spot[block];

	if (!spot->has_gpu)
		return;
	copy_table_forget(blocks->beside, block);
	blocks->copies[TIER_GPU]--;
	spot->has_gpu = 0;
}

static void host_put(struct blocks *blocks, uint32_t block, const struct extent *host)
{
	assert(host->tier == TIER_HOST && host->slot != BLOCK_NONE &&
	       host->class < TIER_MAX_CLASSES);
	tally_host_put(blocks->tally, blocks->spot[block].space, host->class);
	blocks->spot[block].slot = host->slot;
	blocks->copies[TIER_HOST]++;
}

/* After evict.c was told, which had it in this class. */
static void host_gone(struct blocks *blocks, uint32_t block, uint32_t class)
{
	blocks->copies[TIER_HOST]--;
	tally_host_gone(blocks->tally, blocks->spot[block].space, class);
}

/* --- blocks --- */

uint32_t blocks_find(const struct blocks *blocks, const uint8_t key[32], uint32_t space)
{
	uint32_t found[2 * WIRE_BUCKET_ENTRIES]; /* no fingerprint can be there more often */
	const struct print print = print_of(blocks, key, space);
	const uint32_t n = index_find(blocks->index, &print, found, 2 * WIRE_BUCKET_ENTRIES);

	for (uint32_t i = 0; i < n; i++)
		if (blocks->spot[found[i]].space == space &&
		    memcmp(numbers_key(&blocks->numbers, found[i]), key, 32) == 0)
			return found[i];
	return BLOCK_NONE;
}

/* The parent if it is here, of the same space, with a host copy; or BLOCK_NONE. */
static uint32_t linkable(const struct blocks *blocks, uint32_t parent, uint32_t space)
{
	if (parent == BLOCK_NONE || !is_live(blocks, parent) || is_away(blocks, parent))
		return BLOCK_NONE;
	return blocks->spot[parent].space == space ? parent : BLOCK_NONE;
}

/* The part that both commits share: a number with name, space and a place in the index, but in no
 * chain yet. It is the caller's to settle copies and chain before anything else is called. */
static int enter(struct blocks *blocks, const uint8_t key[32], uint32_t space, uint32_t variant,
		 enum tier_id tier, uint32_t *ret)
{
	const struct print print = print_of(blocks, key, space);
	uint32_t block;
	int r;

	assert(space < TIER_MAX_SPACES && variant <= 1);
	if (blocks_find(blocks, key, space) != BLOCK_NONE)
		return -EEXIST;
	block = numbers_take(&blocks->numbers);
	if (block == BLOCK_NONE)
		return -ENOSPC;
	r = index_insert(blocks->index, &print, block, 1u << tier, ++blocks->commits);
	if (r < 0) {
		number_free(blocks, block);
		return r;
	}
	memcpy(numbers_key(&blocks->numbers, block), key, 32);
	blocks->spot[block] =
		(struct spot){ .slot = BLOCK_NONE, .space = space & 0x7fffu, .state = BLOCK_LIVE };
	tally_enter(blocks->tally, space, variant);
	blocks->count++;
	*ret = block;
	return 0;
}

int blocks_commit(struct blocks *blocks, const uint8_t key[32], uint32_t space, uint32_t parent,
		  uint32_t variant, const struct extent *host, uint32_t *ret)
{
	/* first: its number may be the next taken */
	const uint32_t above = linkable(blocks, parent, space);
	uint32_t block;
	const int r = enter(blocks, key, space, variant, TIER_HOST, &block);

	if (r < 0)
		return r;
	host_put(blocks, block, host);
	evict_add(blocks->evict, block, above, host->class, blocks->tick);
	evict_set_mark(blocks->evict, block, variant);
	*ret = block;
	return 0;
}

int blocks_commit_away(struct blocks *blocks, const uint8_t key[32], uint32_t space,
		       uint32_t variant, const struct extent *nvme, uint64_t tick, uint32_t *ret)
{
	uint32_t block;
	const int r = enter(blocks, key, space, variant, TIER_NVME, &block);

	if (r < 0)
		return r;
	evict_add_away(blocks->evict, block, tick);
	evict_set_mark(blocks->evict, block, variant);
	nvme_put(blocks, block, nvme);
	if (tick > blocks->tick)
		blocks->tick = tick;
	*ret = block;
	return 0;
}

void blocks_touch(struct blocks *blocks, uint32_t block, uint64_t tick)
{
	assert(is_held(blocks, block));
	if (tick > blocks->tick)
		blocks->tick = tick;
	evict_touch(blocks->evict, block, tick);
}

void blocks_pin(struct blocks *blocks, uint32_t block)
{
	assert(is_held(blocks, block));
	evict_pin(blocks->evict, block);
}

void blocks_unpin(struct blocks *blocks, uint32_t block)
{
	assert(is_held(blocks, block));
	evict_unpin(blocks->evict, block);
	condemned_settle(blocks, block);
}

uint32_t blocks_pins(const struct blocks *blocks, uint32_t block)
{
	assert(is_held(blocks, block));
	return evict_pins(blocks->evict, block);
}

uint32_t blocks_parent(const struct blocks *blocks, uint32_t block)
{
	assert(is_held(blocks, block));
	const uint32_t parent = evict_parent(blocks->evict, block);

	return is_live(blocks, parent) ? parent : BLOCK_NONE;
}

bool blocks_live(const struct blocks *blocks, uint32_t block)
{
	return is_live(blocks, block);
}

bool blocks_leaf(const struct blocks *blocks, uint32_t block)
{
	assert(is_held(blocks, block));
	return evict_children(blocks->evict, block) == 0;
}

bool blocks_evictable(const struct blocks *blocks, uint32_t block)
{
	return is_live(blocks, block) && evict_pins(blocks->evict, block) == 0 &&
	       evict_children(blocks->evict, block) == 0;
}

uint64_t blocks_tick(const struct blocks *blocks, uint32_t block)
{
	assert(is_held(blocks, block));
	return evict_tick(blocks->evict, block);
}

uint32_t blocks_space(const struct blocks *blocks, uint32_t block)
{
	assert(is_held(blocks, block));
	return blocks->spot[block].space;
}

uint32_t blocks_variant(const struct blocks *blocks, uint32_t block)
{
	assert(is_held(blocks, block));
	return evict_mark(blocks->evict, block) & MARK_VARIANT;
}

const uint8_t *blocks_key(const struct blocks *blocks, uint32_t block)
{
	assert(is_held(blocks, block));
	return numbers_key(&blocks->numbers, block);
}

/* For drop and condemn: nobody finds the block any more. Its slot stays, for its holders. */
static void vanish(struct blocks *blocks, uint32_t block)
{
	struct spot *spot = &blocks->spot[block];
	const struct print print =
		print_of(blocks, numbers_key(&blocks->numbers, block), spot->space);

	index_remove(blocks->index, &print, block);
	tally_vanish(blocks->tally, spot->space, blocks_variant(blocks, block));
	blocks->count--;
	nvme_clear(blocks, block);
	beside_clear(blocks, block);
	notes_forget(blocks->notes, block);
}

uint32_t blocks_drop(struct blocks *blocks, uint32_t block)
{
	assert(blocks_evictable(blocks, block));
	const uint32_t slot = blocks->spot[block].slot, class = evict_class(blocks->evict, block);
	uint32_t parent;

	vanish(blocks, block);
	tally_release(blocks->tally, blocks->spot[block].space);
	parent = evict_remove(blocks->evict, block);
	if (slot != BLOCK_NONE)
		host_gone(blocks, block, class);
	tomb_settle(blocks, parent);
	number_free(blocks, block);
	return slot;
}

void blocks_condemn(struct blocks *blocks, uint32_t block)
{
	assert(is_live(blocks, block));
	vanish(blocks, block);
	blocks->spot[block].state = BLOCK_CONDEMNED;
	const uint32_t class = evict_class(blocks->evict, block),
		       parent = evict_hide(blocks->evict, block);

	if (!is_away(blocks, block))
		host_gone(blocks, block, class);
	tomb_settle(blocks, parent);
	condemned_settle(blocks, block);
}

bool blocks_condemned(struct blocks *blocks, uint32_t *ret_slot)
{
	const uint32_t block = numbers_pop(&blocks->numbers, &blocks->ripe);

	if (block == BLOCK_NONE)
		return false;
	*ret_slot = blocks->spot[block].slot;
	blocks->spot[block].state = BLOCK_TOMB;
	tomb_settle(blocks, block);
	return true;
}

/* --- copies --- */

/* After a copy came or went. */
static void publish(struct blocks *blocks, uint32_t block)
{
	const struct spot *spot = &blocks->spot[block];
	const struct print print =
		print_of(blocks, numbers_key(&blocks->numbers, block), spot->space);

	const uint64_t units = spot->has_gpu ? copy_table_units(blocks->beside, block) : 0;

	index_update(blocks->index, &print, block, wire_places(spot_tiers(spot), units),
		     ++blocks->commits);
}

uint32_t blocks_host_slot(const struct blocks *blocks, uint32_t block)
{
	assert(is_held(blocks, block));
	return blocks->spot[block].slot;
}

bool blocks_nvme(const struct blocks *blocks, uint32_t block, struct extent *ret)
{
	const struct spot *spot = &blocks->spot[block];

	assert(is_held(blocks, block));
	if (spot->has_nvme && ret) {
		const uint32_t disk = evict_mark(blocks->evict, block) >> MARK_DISK_SHIFT;

		*ret = spot_nvme(spot, (uint8_t)disk);
	}
	return spot->has_nvme;
}

void blocks_set_nvme(struct blocks *blocks, uint32_t block, const struct extent *where)
{
	assert(is_live(blocks, block) && (where || !is_away(blocks, block)));
	const uint32_t before = spot_tiers(&blocks->spot[block]);

	if (where)
		nvme_put(blocks, block, where);
	else
		nvme_clear(blocks, block);
	if (spot_tiers(&blocks->spot[block]) != before)
		publish(blocks, block);
}

/* Nothing that a reader of the index can see changes. */
void blocks_move(struct blocks *blocks, uint32_t block, const struct extent *to)
{
	assert(is_live(blocks, block) && !is_away(blocks, block) &&
	       evict_pins(blocks->evict, block) == 0);
	assert(to->tier == TIER_HOST && to->slot != BLOCK_NONE);

	blocks->spot[block].slot = to->slot;
	tally_host_move(blocks->tally, blocks->spot[block].space, evict_class(blocks->evict, block),
			to->class);
	evict_move(blocks->evict, block, to->class);
}

uint32_t blocks_demote(struct blocks *blocks, uint32_t block)
{
	assert(is_live(blocks, block) && !is_away(blocks, block) && blocks->spot[block].has_nvme);
	const uint32_t slot = blocks->spot[block].slot, class = evict_class(blocks->evict, block);
	uint32_t parent;

	blocks->spot[block].slot = BLOCK_NONE;
	publish(blocks, block);
	parent = evict_leave(blocks->evict, block);
	host_gone(blocks, block, class);
	tomb_settle(blocks, parent);
	return slot;
}

void blocks_promote(struct blocks *blocks, uint32_t block, uint32_t parent,
		    const struct extent *host)
{
	assert(is_live(blocks, block) && is_away(blocks, block));
	/* Before it has a slot: a block that is named as its own parent is away, hence none. A
	 * block that kept children could be named below one of them, by clients that make keys up:
	 * a cycle would never be evicted. */
	const bool alone = !evict_children(blocks->evict, block);
	const uint32_t space = blocks->spot[block].space;
	const uint32_t above = alone ? linkable(blocks, parent, space) : BLOCK_NONE;

	host_put(blocks, block, host);
	evict_return(blocks->evict, block, above, host->class);
	publish(blocks, block);
}

void blocks_look_beside(struct blocks *blocks, uint32_t block)
{
	assert(is_live(blocks, block));
	const bool any = copy_table_units(blocks->beside, block) != 0;
	struct spot *spot = &blocks->spot[block];

	blocks->copies[TIER_GPU] += (uint32_t)any - spot->has_gpu;
	spot->has_gpu = any;
	publish(blocks, block);
}

struct copy_table *blocks_beside(const struct blocks *blocks)
{
	return blocks->beside;
}

bool blocks_queued(const struct blocks *blocks, uint32_t block)
{
	return block < blocks->numbers.used && blocks->spot[block].state == BLOCK_QUEUED;
}

void blocks_set_queued(struct blocks *blocks, uint32_t block, bool queued)
{
	assert(is_live(blocks, block));
	blocks->spot[block].state = queued ? BLOCK_QUEUED : BLOCK_LIVE;
}

/* --- victims --- */

uint32_t blocks_account(const struct blocks *blocks, uint32_t block)
{
	return tally_account_of(blocks->tally, blocks->spot[block].space);
}

struct evict *blocks_order(const struct blocks *blocks)
{
	return blocks->evict;
}

uint32_t blocks_used(const struct blocks *blocks)
{
	return blocks->numbers.used;
}

uint32_t blocks_count(const struct blocks *blocks)
{
	return blocks->count;
}

uint32_t blocks_copies(const struct blocks *blocks, enum tier_id tier)
{
	return blocks->copies[tier];
}

struct tally *blocks_tally(const struct blocks *blocks)
{
	return blocks->tally;
}

uint64_t blocks_memory(const struct blocks *blocks)
{
	const uint64_t spot_bytes = NUMBERS_BYTES + sizeof(struct spot);

	return sizeof(*blocks) + blocks->numbers.used * (spot_bytes + evict_block_bytes());
}
