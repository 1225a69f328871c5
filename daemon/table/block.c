/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.c - the table of blocks: their chains, and where their copies lie. evict.c has the recency
 * of blocks, index.c their fingerprints, and space_counts.c their counts by space. The keeper of
 * copies on GPUs (blocks_gpu) knows where these are. Core thread only.
 *
 * A block is a number into parallel arrays. It takes 32 bytes of key, 13 of its row, 4 for its
 * heirs, 20 in evict.c and 18.9 in the index, which is 87.9 in all. States of a number:
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
 * Four things change together when a host copy comes or is dropped: the slot, the tiers that the
 * index entry names (with a new generation), whether evict.c has the block in its chain or as away,
 * and the space's account (space_counts.h). An NVMe copy, and the first and the last copy on a GPU,
 * change only the index entry, and may come and go under pins.
 *
 * A tomb is a number alone: its children still name it as their parent, so no other
 * block may get the number before the last child went. There are never more tombs than children.
 *
 * Heirs are the blocks that went away as children of a block. Each block has a list of its heirs,
 * whose links lie where an away block has no slot and no parent. The number of a block that was
 * dropped is LOST, which is a tomb on a list, until its heirs are dropped, too (blocks_lost()).
 */
#include "block.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "client/abi/fingerprint.h"
#include "base/reserve.h"
#include "daemon/changes/changes.h"
#include "evict.h"
#include "daemon/index/index.h"
#include "hint_table.h"
#include "space_counts.h"

static_assert((int)BLOCK_NONE == (int)EVICT_NONE, "the same numbers");

/* QUEUED is LIVE with the caller's mark. */
enum row_state {
	BLOCK_FREE = 0,
	BLOCK_LIVE,
	BLOCK_QUEUED,
	BLOCK_AWAY,
	BLOCK_CONDEMNED,
	BLOCK_RIPE,
	BLOCK_TOMB,
	BLOCK_LOST
};

/* A row of the table: the state of a block's number, and where its copies lie. It is packed,
 * because every byte counts. One row in five lies across two cache lines; an array for each member
 * would take two lines for every block. */
struct __attribute__((packed)) row {
	/* in the host tier; BLOCK_NONE: it has none. AWAY: the heir before it, or HEIR_OF */
	uint32_t slot;
	uint32_t nvme_slot;
	uint32_t nvme_generation : 20; /* the disk is in evict.c's mark */
	uint32_t space : 15;
	uint32_t state : 3; /* enum row_state */
	uint32_t has_nvme : 1;
	uint32_t has_gpu : 1; /* on one GPU or more: blocks_gpu says where */
};
static_assert(sizeof(struct row) == 13, "the memory budget of a block counts on it");
static_assert(TIER_MAX_SPACES <= 1 << 15, "row.space");

/* With the parent's number: the block is the first of its heirs. */
#define HEIR_OF (1u << 31)

/* A block has five more bits, in evict.c, which has room for them. */
enum { MARK_VARIANT = 1, MARK_DISK_SHIFT = 1 };

static void row_set_nvme(struct row *row, const struct extent *where)
{
	row->has_nvme = 1;
	row->nvme_slot = where->slot;
	row->nvme_generation = where->generation & 0xfffffu;
}

static struct extent row_nvme(const struct row *row, uint8_t disk)
{
	return (struct extent){ .tier = TIER_NVME,
				.slot = row->nvme_slot,
				.unit = disk,
				.generation = row->nvme_generation };
}

/* --- numbers: which are given out, and the key that each stands for --- */

enum { KEY_BYTES = 32 /* memory of each number that was given out */ };

/* A number's key, or the next number, if this one stands on a list. */
union numbers_name {
	uint8_t key[KEY_BYTES];
	uint32_t next;
};
static_assert(sizeof(union numbers_name) == KEY_BYTES, "the memory budget of a block counts on it");

struct numbers {
	union numbers_name *name;
	uint32_t max, used; /* numbers >= used were never given out */
	uint32_t free;      /* a list */
};

static int numbers_open(struct numbers *n, uint32_t max)
{
	union numbers_name *base = reserve((uint64_t)max * sizeof(*base));

	if (!base)
		return -ENOMEM;
	*n = (struct numbers){ .name = base, .max = max, .free = BLOCK_NONE };
	return 0;
}

static void numbers_close(struct numbers *n)
{
	unreserve(n->name, (uint64_t)n->max * sizeof(union numbers_name));
	n->name = NULL;
}

/* Puts a number on a list, whose links lie in the memory of keys that are not needed any more.
 * *list is the head, BLOCK_NONE if the list is empty. */
static void numbers_push(struct numbers *n, uint32_t *list, uint32_t number)
{
	assert(number < n->used);
	n->name[number].next = *list;
	*list = number;
}

static uint32_t numbers_pop(struct numbers *n, uint32_t *list)
{
	const uint32_t number = *list;

	if (number != BLOCK_NONE)
		*list = n->name[number].next;
	return number;
}

/* Takes a number that came back, or the lowest that was never given out. BLOCK_NONE: all are in
 * use. */
static uint32_t numbers_take(struct numbers *n)
{
	const uint32_t number = numbers_pop(n, &n->free);

	if (number != BLOCK_NONE)
		return number;
	return n->used < n->max ? n->used++ : BLOCK_NONE;
}

/* The 32 bytes of the key, until the number is free or on a list. */
static uint8_t *numbers_key(const struct numbers *n, uint32_t number)
{
	return n->name[number].key;
}

struct blocks {
	struct index *index;
	struct evict *evict;
	struct space_counts *counts;
	struct numbers numbers;
	struct row *row;
	uint32_t *heir; /* the first one of each block, + 1 */
	struct blocks_conf conf;
	uint32_t count;              /* live */
	uint32_t copies[TIER_COUNT]; /* live ones with such a copy */
	uint32_t ripe, lost;         /* lists of numbers */
	uint32_t commits;            /* generation of the next index entry */
	uint64_t tick;               /* the latest access of any block */
};

static bool is_live(const struct blocks *blocks, uint32_t block)
{
	return block < blocks->numbers.used && blocks->row[block].state >= BLOCK_LIVE &&
	       blocks->row[block].state <= BLOCK_AWAY;
}

/* Whether it is live, or condemned and still pinned, so that its holder may ask about it. */
static bool is_held(const struct blocks *blocks, uint32_t block)
{
	return is_live(blocks, block) ||
	       (block < blocks->numbers.used && blocks->row[block].state == BLOCK_CONDEMNED);
}

static bool is_away(const struct blocks *blocks, uint32_t block)
{
	return blocks->row[block].state == BLOCK_AWAY || blocks->row[block].slot == BLOCK_NONE;
}

uint32_t blocks_tiers(const struct blocks *blocks, uint32_t block)
{
	const struct row *row = &blocks->row[block];

	return (is_away(blocks, block) ? 0 : 1u << TIER_HOST) |
	       (row->has_nvme ? 1u << TIER_NVME : 0) | (row->has_gpu ? 1u << TIER_GPU : 0);
}

static void note(struct blocks *blocks, uint32_t block, uint32_t tiers)
{
	changes_add(blocks->conf.changes, numbers_key(&blocks->numbers, block),
		    blocks->row[block].space, tiers);
}

/* A block's fingerprint in the index. */
static struct print print_of(const struct blocks *blocks, const uint8_t key[32], uint32_t space)
{
	return fingerprint(counts_index_key(blocks->counts, space), key);
}

static uint32_t account_of(void *arg, uint32_t block)
{
	return blocks_account(arg, block);
}

int blocks_open(const struct blocks_conf *conf, struct index *index, struct blocks **ret)
{
	struct evict_groups groups = { .n = COUNTS_ACCOUNTS, .of = account_of };
	struct blocks *blocks;
	uint64_t seed;
	int r;

	if (!conf->max_blocks || conf->max_blocks >= BLOCK_NONE)
		return -EINVAL;
	if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
		return -EIO;
	blocks = calloc(1, sizeof(*blocks));
	if (!blocks)
		return -ENOMEM;
	blocks->index = index;
	blocks->conf = *conf;
	blocks->ripe = blocks->lost = BLOCK_NONE;
	groups.arg = blocks;
	blocks->row = reserve((uint64_t)conf->max_blocks * sizeof(struct row));
	blocks->heir = reserve((uint64_t)conf->max_blocks * sizeof(*blocks->heir));
	r = blocks->row && blocks->heir ? numbers_open(&blocks->numbers, conf->max_blocks) :
					  -ENOMEM;
	if (r == 0)
		r = counts_open(conf->quota, &blocks->counts);
	if (r == 0)
		r = evict_open(conf->max_blocks, TIER_MAX_CLASSES, &groups, seed, &blocks->evict);
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
	counts_close(blocks->counts);
	unreserve(blocks->row, (uint64_t)blocks->conf.max_blocks * sizeof(struct row));
	unreserve(blocks->heir, (uint64_t)blocks->conf.max_blocks * sizeof(*blocks->heir));
	numbers_close(&blocks->numbers);
	free(blocks);
}

static void number_free(struct blocks *blocks, uint32_t block)
{
	blocks->row[block].state = BLOCK_FREE;
	numbers_push(&blocks->numbers, &blocks->numbers.free, block);
}

static uint32_t first_heir(const struct blocks *blocks, uint32_t block)
{
	return blocks->heir[block] - 1; /* BLOCK_NONE: 0 - 1 */
}

/* The number has lost a child. If it was a tomb for that child's sake, it is free. A number with
 * EVICT_REMEMBERED is no parent. */
static void tomb_settle(struct blocks *blocks, uint32_t block)
{
	if (block & EVICT_REMEMBERED || blocks->row[block].state != BLOCK_TOMB)
		return;
	if (evict_children(blocks->evict, block) || first_heir(blocks, block) != BLOCK_NONE)
		return;
	(void)evict_remove(blocks->evict, block);
	number_free(blocks, block);
}

static void entomb(struct blocks *blocks, uint32_t block)
{
	blocks->row[block].state = BLOCK_TOMB;
	tomb_settle(blocks, block);
}

static void condemned_settle(struct blocks *blocks, uint32_t block)
{
	struct row *row = &blocks->row[block];

	if (row->state != BLOCK_CONDEMNED || evict_pins(blocks->evict, block))
		return;
	counts_release(blocks->counts, row->space);
	if (is_away(blocks, block)) { /* there is no slot to return */
		entomb(blocks, block);
		return;
	}
	row->state = BLOCK_RIPE;
	numbers_push(&blocks->numbers, &blocks->ripe, block);
}

/* --- heirs --- */

static void heir_add(struct blocks *blocks, uint32_t block, uint32_t parent)
{
	const uint32_t next = first_heir(blocks, parent);

	blocks->row[block].slot = HEIR_OF | parent;
	evict_set_word(blocks->evict, block, next);
	if (next != BLOCK_NONE)
		blocks->row[next].slot = block;
	blocks->heir[parent] = block + 1;
}

/* The block is dropped, condemned or promoted. */
static void heir_remove(struct blocks *blocks, uint32_t block)
{
	const uint32_t before = blocks->row[block].slot;

	if (!is_away(blocks, block) || before == BLOCK_NONE)
		return;
	const uint32_t next = evict_word(blocks->evict, block);

	blocks->row[block].slot = BLOCK_NONE;
	evict_set_word(blocks->evict, block, EVICT_NONE);
	if (next != BLOCK_NONE)
		blocks->row[next].slot = before;
	if (!(before & HEIR_OF)) {
		evict_set_word(blocks->evict, before, next);
		return;
	}
	blocks->heir[before ^ HEIR_OF] = next + 1;
	tomb_settle(blocks, before ^ HEIR_OF);
}

uint32_t blocks_last_heir(const struct blocks *blocks, uint32_t block)
{
	while (first_heir(blocks, block) != BLOCK_NONE)
		block = first_heir(blocks, block);
	return block;
}

uint32_t blocks_lost(struct blocks *blocks)
{
	while (blocks->lost != BLOCK_NONE && first_heir(blocks, blocks->lost) == BLOCK_NONE)
		entomb(blocks, numbers_pop(&blocks->numbers, &blocks->lost));
	return blocks->lost == BLOCK_NONE ? BLOCK_NONE : first_heir(blocks, blocks->lost);
}

/* --- fields and counts; the caller changes chain and index --- */

static void nvme_put(struct blocks *blocks, uint32_t block, const struct extent *where)
{
	assert(where->tier == TIER_NVME && where->unit < 1 << 4 && where->generation < 1 << 20);
	blocks->copies[TIER_NVME] += !blocks->row[block].has_nvme;
	row_set_nvme(&blocks->row[block], where);
	const uint32_t variant = evict_mark(blocks->evict, block) & MARK_VARIANT;

	evict_set_mark(blocks->evict, block, variant | (uint32_t)where->unit << MARK_DISK_SHIFT);
}

static void nvme_clear(struct blocks *blocks, uint32_t block)
{
	blocks->copies[TIER_NVME] -= blocks->row[block].has_nvme;
	blocks->row[block].has_nvme = 0;
}

/* The block is dropped or condemned. */
static void gpu_clear(struct blocks *blocks, uint32_t block)
{
	struct row *row = &blocks->row[block];

	if (!row->has_gpu)
		return;
	blocks->conf.gpu->forget(blocks->conf.gpu->arg, block);
	blocks->copies[TIER_GPU]--;
	row->has_gpu = 0;
}

static void host_put(struct blocks *blocks, uint32_t block, const struct extent *host)
{
	assert(host->tier == TIER_HOST && host->slot != BLOCK_NONE &&
	       host->class < TIER_MAX_CLASSES);
	counts_host_put(blocks->counts, blocks->row[block].space, host->class);
	blocks->row[block].slot = host->slot;
	blocks->row[block].state = BLOCK_LIVE;
	blocks->copies[TIER_HOST]++;
}

/* Call it after evict.c was told; `class` is the one that it had. */
static void host_gone(struct blocks *blocks, uint32_t block, uint32_t class)
{
	blocks->copies[TIER_HOST]--;
	counts_host_gone(blocks->counts, blocks->row[block].space, class);
}

/* --- blocks --- */

static uint32_t find(const struct blocks *blocks, const struct print *print, const uint8_t key[32],
		     uint32_t space)
{
	uint32_t found[2 * WIRE_BUCKET_ENTRIES]; /* no fingerprint can be there more often */
	const uint32_t n = index_find(blocks->index, print, found, 2 * WIRE_BUCKET_ENTRIES);

	for (uint32_t i = 0; i < n; i++)
		if (blocks->row[found[i]].space == space &&
		    memcmp(numbers_key(&blocks->numbers, found[i]), key, 32) == 0)
			return found[i];
	return BLOCK_NONE;
}

uint32_t blocks_find(const struct blocks *blocks, const uint8_t key[32], uint32_t space)
{
	const struct print print = print_of(blocks, key, space);

	return find(blocks, &print, key, space);
}

void blocks_soon_key(const struct blocks *blocks, const uint8_t key[32], uint32_t space)
{
	const struct print print = print_of(blocks, key, space);

	index_soon(blocks->index, &print);
}

void blocks_expect(struct blocks *blocks, uint64_t more)
{
	index_expect(blocks->index, more);
}

void blocks_soon(const struct blocks *blocks, uint32_t block)
{
	if (blocks_live(blocks, block))
		blocks_soon_key(blocks, numbers_key(&blocks->numbers, block),
				blocks->row[block].space);
}

static bool is_kin(const struct blocks *blocks, uint32_t parent, uint32_t space)
{
	return is_live(blocks, parent) && blocks->row[parent].space == space;
}

/* The parent, if it is here, of the same space, and has a host copy; or BLOCK_NONE. */
static uint32_t linkable(const struct blocks *blocks, uint32_t parent, uint32_t space)
{
	return is_kin(blocks, parent, space) && !is_away(blocks, parent) ? parent : BLOCK_NONE;
}

/* For evict.c. */
static uint32_t link_of(uint32_t above, uint32_t parent)
{
	return above == BLOCK_NONE ? parent | EVICT_REMEMBERED : above;
}

/* What both commits have in common: gives the block a number, its key and space, and a place in the
 * index. The caller sets its copies and its chain before it calls any other function. */
static int enter(struct blocks *blocks, const uint8_t key[32], uint32_t space, uint32_t variant,
		 enum tier_id tier, uint32_t *ret)
{
	const struct print print = print_of(blocks, key, space);
	uint32_t block;
	int r;

	assert(space < TIER_MAX_SPACES && variant <= 1);
	*ret = find(blocks, &print, key, space);
	if (*ret != BLOCK_NONE)
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
	blocks->row[block] =
		(struct row){ .slot = BLOCK_NONE, .space = space & 0x7fffu, .state = BLOCK_AWAY };
	counts_enter(blocks->counts, space, variant);
	note(blocks, block, 1u << tier);
	blocks->count++;
	*ret = block;
	return 0;
}

int blocks_commit(struct blocks *blocks, const uint8_t key[32], uint32_t space, uint32_t parent,
		  uint32_t variant, const struct extent *host, uint32_t *ret)
{
	/* first: its number may be the next taken */
	const uint32_t above = linkable(blocks, parent, space);
	const bool kin = is_kin(blocks, parent, space);
	const uint64_t parent_tick = kin ? evict_tick(blocks->evict, parent) : 0;
	uint32_t block;
	const int r = enter(blocks, key, space, variant, TIER_HOST, &block);

	if (r < 0)
		return r;
	host_put(blocks, block, host);
	evict_add(blocks->evict, block, link_of(above, parent), host->class,
		  parent_tick > 0 ? parent_tick - 1 : blocks->tick);
	evict_set_mark(blocks->evict, block, variant);
	*ret = block;
	return 0;
}

int blocks_commit_away(struct blocks *blocks, const uint8_t key[32], uint32_t space,
		       uint32_t variant, const struct extent *nvme, uint64_t tick, uint32_t *ret)
{
	const int r = enter(blocks, key, space, variant, TIER_NVME, ret);

	if (r < 0)
		return r;
	evict_add_away(blocks->evict, *ret, tick);
	evict_set_mark(blocks->evict, *ret, variant);
	nvme_put(blocks, *ret, nvme);
	if (tick > blocks->tick)
		blocks->tick = tick;
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

bool blocks_unpin(struct blocks *blocks, uint32_t block)
{
	assert(is_held(blocks, block));
	evict_unpin(blocks->evict, block);
	condemned_settle(blocks, block);
	return blocks->ripe != BLOCK_NONE;
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

uint32_t blocks_before(const struct blocks *blocks, uint32_t block)
{
	enum { NEAR = 16 }; /* heirs that are walked past */
	uint32_t before = blocks_parent(blocks, block);

	if (before != BLOCK_NONE)
		return before;
	if (!is_away(blocks, block)) {
		before = evict_parent(blocks->evict, block) & ~EVICT_REMEMBERED;
	} else {
		before = blocks->row[block].slot;
		for (int i = 0; i < NEAR && !(before & HEIR_OF); i++)
			before = blocks->row[before].slot;
		before = before & HEIR_OF ? before & ~HEIR_OF : BLOCK_NONE;
	}
	/* another block may have the number of one that is remembered */
	if (!is_kin(blocks, before, blocks->row[block].space) ||
	    evict_tick(blocks->evict, before) < evict_tick(blocks->evict, block))
		return BLOCK_NONE;
	return before;
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

uint64_t blocks_latest(const struct blocks *blocks)
{
	return blocks->tick;
}

void blocks_later(struct blocks *blocks, uint64_t tick)
{
	if (tick > blocks->tick)
		blocks->tick = tick;
}

uint32_t blocks_space(const struct blocks *blocks, uint32_t block)
{
	assert(is_held(blocks, block));
	return blocks->row[block].space;
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

/* For drop and condemn: the block cannot be found any more, and is in no chain. Its slot stays, for
 * its holders. */
static void vanish(struct blocks *blocks, uint32_t block)
{
	struct row *row = &blocks->row[block];
	const bool away = is_away(blocks, block);
	const uint32_t class = evict_class(blocks->evict, block);
	const struct print print =
		print_of(blocks, numbers_key(&blocks->numbers, block), row->space);

	index_remove(blocks->index, &print, block);
	note(blocks, block, 0);
	counts_vanish(blocks->counts, row->space, blocks_variant(blocks, block));
	blocks->count--;
	nvme_clear(blocks, block);
	gpu_clear(blocks, block);
	hint_table_forget(blocks->conf.hints, block);
	heir_remove(blocks, block);
	const uint32_t parent = evict_hide(blocks->evict, block);
	if (!away)
		host_gone(blocks, block, class);
	tomb_settle(blocks, parent);
}

uint32_t blocks_drop(struct blocks *blocks, uint32_t block)
{
	assert(blocks_evictable(blocks, block));
	const uint32_t slot = blocks_host_slot(blocks, block);

	vanish(blocks, block);
	counts_release(blocks->counts, blocks->row[block].space);
	if (first_heir(blocks, block) != BLOCK_NONE) {
		blocks->row[block].state = BLOCK_LOST;
		numbers_push(&blocks->numbers, &blocks->lost, block);
	} else {
		entomb(blocks, block);
	}
	return slot;
}

void blocks_condemn(struct blocks *blocks, uint32_t block)
{
	assert(is_live(blocks, block));
	vanish(blocks, block);
	blocks->row[block].state = BLOCK_CONDEMNED;
	condemned_settle(blocks, block);
}

bool blocks_condemned(struct blocks *blocks, uint32_t *ret_slot)
{
	const uint32_t block = numbers_pop(&blocks->numbers, &blocks->ripe);

	if (block == BLOCK_NONE)
		return false;
	*ret_slot = blocks->row[block].slot;
	entomb(blocks, block);
	return true;
}

/* --- copies --- */

/* Brings the index entry up to date after a copy has come or gone. */
static void publish(struct blocks *blocks, uint32_t block)
{
	const struct row *row = &blocks->row[block];
	const struct print print =
		print_of(blocks, numbers_key(&blocks->numbers, block), row->space);

	const uint32_t tiers = blocks_tiers(blocks, block);
	const uint64_t units =
		row->has_gpu ? blocks->conf.gpu->units(blocks->conf.gpu->arg, block) : 0;

	index_update(blocks->index, &print, block, wire_places(tiers, units), ++blocks->commits);
	note(blocks, block, tiers);
}

uint32_t blocks_host_slot(const struct blocks *blocks, uint32_t block)
{
	assert(is_held(blocks, block));
	return is_away(blocks, block) ? BLOCK_NONE : blocks->row[block].slot;
}

bool blocks_nvme(const struct blocks *blocks, uint32_t block, struct extent *ret)
{
	const struct row *row = &blocks->row[block];

	assert(is_held(blocks, block));
	if (row->has_nvme && ret) {
		const uint32_t disk = evict_mark(blocks->evict, block) >> MARK_DISK_SHIFT;

		*ret = row_nvme(row, (uint8_t)disk);
	}
	return row->has_nvme;
}

void blocks_set_nvme(struct blocks *blocks, uint32_t block, const struct extent *where)
{
	assert(is_live(blocks, block) && (where || !is_away(blocks, block)));
	const uint32_t before = blocks_tiers(blocks, block);

	if (where)
		nvme_put(blocks, block, where);
	else
		nvme_clear(blocks, block);
	if (blocks_tiers(blocks, block) != before)
		publish(blocks, block);
}

/* Readers of the index see no change. */
void blocks_move(struct blocks *blocks, uint32_t block, const struct extent *to)
{
	assert(is_live(blocks, block) && !is_away(blocks, block) &&
	       evict_pins(blocks->evict, block) == 0);
	assert(to->tier == TIER_HOST && to->slot != BLOCK_NONE);

	blocks->row[block].slot = to->slot;
	counts_host_move(blocks->counts, blocks->row[block].space,
			 evict_class(blocks->evict, block), to->class);
	evict_move(blocks->evict, block, to->class);
}

uint32_t blocks_demote(struct blocks *blocks, uint32_t block)
{
	assert(is_live(blocks, block) && !is_away(blocks, block) && blocks->row[block].has_nvme);
	const uint32_t slot = blocks->row[block].slot, class = evict_class(blocks->evict, block);
	const uint32_t parent = evict_leave(blocks->evict, block),
		       above = linkable(blocks, parent & ~EVICT_REMEMBERED,
					blocks->row[block].space);

	blocks->row[block].slot = BLOCK_NONE;
	blocks->row[block].state = BLOCK_AWAY;
	publish(blocks, block);
	host_gone(blocks, block, class);
	tomb_settle(blocks, parent);
	/* another block may have the number of one that is remembered */
	if (above != BLOCK_NONE && !blocks->conf.shared &&
	    evict_tick(blocks->evict, above) > evict_tick(blocks->evict, block))
		heir_add(blocks, block, above);
	return slot;
}

void blocks_promote(struct blocks *blocks, uint32_t block, uint32_t parent,
		    const struct extent *host)
{
	assert(is_live(blocks, block) && is_away(blocks, block));
	/* Before it has a slot: a block that is named as its own parent is away, hence no parent. A
	 * block that kept children could be named below one of them, by clients that make keys up:
	 * a cycle would never be evicted. */
	const bool alone = !evict_children(blocks->evict, block);
	const uint32_t space = blocks->row[block].space;
	const uint32_t above = alone ? linkable(blocks, parent, space) : BLOCK_NONE;

	heir_remove(blocks, block);
	host_put(blocks, block, host);
	evict_return(blocks->evict, block, link_of(above, parent), host->class);
	publish(blocks, block);
}

void blocks_gpu_changed(struct blocks *blocks, uint32_t block)
{
	assert(is_live(blocks, block));
	const bool any = blocks->conf.gpu->units(blocks->conf.gpu->arg, block) != 0;
	struct row *row = &blocks->row[block];

	blocks->copies[TIER_GPU] += (uint32_t)any - row->has_gpu;
	row->has_gpu = any;
	publish(blocks, block);
}

bool blocks_queued(const struct blocks *blocks, uint32_t block)
{
	return block < blocks->numbers.used && blocks->row[block].state == BLOCK_QUEUED;
}

void blocks_set_queued(struct blocks *blocks, uint32_t block, bool queued)
{
	assert(is_live(blocks, block));
	if (!is_away(blocks, block))
		blocks->row[block].state = queued ? BLOCK_QUEUED : BLOCK_LIVE;
}

/* --- victims --- */

uint32_t blocks_account(const struct blocks *blocks, uint32_t block)
{
	return counts_account_of(blocks->counts, blocks->row[block].space);
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

struct space_counts *blocks_counts(const struct blocks *blocks)
{
	return blocks->counts;
}

/* --- all of them --- */

bool blocks_walk(struct blocks *blocks, uint32_t *cursor, uint32_t budget,
		 void (*fn)(void *arg, uint32_t block), void *arg)
{
	while (budget-- > 0 && *cursor < blocks_used(blocks)) {
		const uint32_t block = (*cursor)++;

		if (blocks_live(blocks, block))
			fn(arg, block);
	}
	return *cursor < blocks_used(blocks);
}

void blocks_walk_doomed(struct blocks *blocks, uint32_t *cursor, uint32_t numbers, uint32_t budget,
			void (*fn)(void *arg, uint32_t block), void *arg)
{
	const struct space_counts *counts = blocks_counts(blocks);

	while (numbers-- > 0 && budget > 0 && counts_doomed(counts) > 0) {
		const uint32_t block = *cursor < blocks_used(blocks) ? *cursor : 0;

		*cursor = block + 1;
		if (!blocks_live(blocks, block) ||
		    !counts_is_doomed(counts, blocks_space(blocks, block)))
			continue;
		fn(arg, block);
		budget--;
	}
}
