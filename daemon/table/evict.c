/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evict.c - evicts leaves first, the least recent one of them (evict.h). Core thread only. States
 * of a block:
 *
 *	          evict_add
 *	              v    first child, pin, hide
 *	  ┌──────> candidate ─────────────────────> held
 *	  │         ^ │ │                             │ last child gone, last unpin
 *	  └─────────┼─┼─┼─────────────────────────────┘ (a hidden one stays held)
 *	            │ │ │     evict_leave             │ evict_leave, with children alone
 *	            │ │ └────────────────────> away <─┴─ evict_add_away
 *	            │ │                        │  │
 *	            └─┼── evict_return ────────┘  │     (to held, if it is pinned or has children)
 *	              v                           │
 *	            gone <──── evict_remove ──────┘
 *
 * The candidates of each class, band and group are in a treap that is ordered by (tick, number). A
 * treap is a search tree that is also a heap, here by a hash of the number. So it is O(log n) deep
 * for any input, and stores no word for balance. A candidate has no children and no pins, so the
 * two words that count these for other blocks are its links. A block takes exactly 20 bytes.
 *
 * A block that was expected back has a second node, its *return*, whose tick is that of the return.
 * While the block is a candidate and expected, its return is in a treap of returns. The number of a
 * return is max_blocks more than its block's.
 */
#include "evict.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/reserve.h"

enum {
	CLASSES_MAX = 64,
	RETURNS = EVICT_BANDS, /* the trees of returns, beside those of bands */
	TREES,
};

/* A return is GONE once its block was accessed, and else EXPECTED. */
enum node_state {
	NODE_GONE = 0,
	NODE_CANDIDATE,
	NODE_HELD,
	NODE_HIDDEN,
	NODE_AWAY,
	NODE_EXPECTED,
};

struct node {
	uint32_t tick_low;
	uint16_t tick_high;
	uint8_t class : 6;
	uint8_t band : 2;  /* enum evict_band, without EXPECTED */
	uint8_t state : 3; /* enum node_state */
	uint8_t mark : 5;  /* the caller's */
	uint32_t parent;   /* AWAY: the caller's */
	union {
		uint32_t children; /* HELD, HIDDEN, AWAY */
		uint32_t left;     /* CANDIDATE: less recent ones */
	};
	union {
		uint32_t pins;
		uint32_t right;
	};
};
static_assert(sizeof(struct node) == 20, "the memory budget of a block counts on it");

struct tree {
	uint32_t root;
	uint32_t first; /* so that asking for a victim is one look */
};

struct evict {
	uint32_t max_blocks, classes;
	uint64_t seed;
	struct node *node;
	struct evict_groups groups;
	uint32_t banded;   /* blocks of other bands than the usual one */
	bool expects;      /* a block was ever expected, so there are returns */
	struct tree *tree; /* [band, RETURNS][group][class] */
};

int evict_open(uint32_t max_blocks, uint32_t classes, const struct evict_groups *groups,
	       uint64_t seed, struct evict **ret)
{
	const struct evict_groups one = { .n = 1 };
	struct evict *evict;
	void *base;

	groups = groups ? groups : &one;
	if (max_blocks == 0 || max_blocks >= EVICT_NONE / 2 || classes == 0 ||
	    classes > CLASSES_MAX)
		return -EINVAL;
	evict = calloc(1, sizeof(*evict));
	if (!evict)
		return -ENOMEM;
	evict->tree = malloc((size_t)TREES * groups->n * classes * sizeof(*evict->tree));
	base = reserve(2 * (uint64_t)max_blocks * sizeof(struct node));
	if (!base || !evict->tree) {
		unreserve(base, 2 * (uint64_t)max_blocks * sizeof(struct node));
		free(evict->tree);
		free(evict);
		return -ENOMEM;
	}
	evict->max_blocks = max_blocks;
	evict->classes = classes;
	evict->seed = seed;
	evict->node = base;
	evict->groups = *groups;
	for (uint32_t i = 0; i < TREES * groups->n * classes; i++)
		evict->tree[i] = (struct tree){ EVICT_NONE, EVICT_NONE };
	*ret = evict;
	return 0;
}

void evict_close(struct evict *evict)
{
	if (!evict)
		return;
	unreserve(evict->node, 2 * (uint64_t)evict->max_blocks * sizeof(struct node));
	free(evict->tree);
	free(evict);
}

static struct tree *tree_at(const struct evict *evict, uint32_t group, uint32_t class, int band)
{
	assert(group < evict->groups.n && class < evict->classes && band < TREES);
	return &evict->tree[((uint32_t)band * evict->groups.n + group) * evict->classes + class];
}

static struct node *return_of(const struct evict *evict, uint32_t block)
{
	return &evict->node[evict->max_blocks + block];
}

static bool is_expected(const struct evict *evict, uint32_t block)
{
	return evict->expects && return_of(evict, block)->state == NODE_EXPECTED;
}

/* Where a candidate, or its return, stands. */
static struct tree *tree_of(const struct evict *evict, uint32_t number)
{
	const bool is_return = number >= evict->max_blocks;
	const uint32_t block = is_return ? number - evict->max_blocks : number;
	const struct node *node = &evict->node[block];
	const uint32_t group = evict->groups.of ? evict->groups.of(evict->groups.arg, block) : 0;

	return tree_at(evict, group, node->class,
		       is_return ? (int)RETURNS : (int)evict_band(evict, block));
}

static struct node *node_of(const struct evict *evict, uint32_t block)
{
	assert(block < evict->max_blocks && evict->node[block].state != NODE_GONE);
	return &evict->node[block];
}

static uint64_t tick_of(const struct node *node)
{
	return (uint64_t)node->tick_high << 32 | node->tick_low;
}

static void tick_set(struct node *node, uint64_t tick)
{
	assert(tick >> 48 == 0);
	node->tick_low = (uint32_t)tick;
	node->tick_high = (uint16_t)(tick >> 32);
}

/* The treap's order and its heap order. */
static bool before(const struct evict *evict, uint32_t a, uint32_t b)
{
	const uint64_t tick_a = tick_of(&evict->node[a]), tick_b = tick_of(&evict->node[b]);

	return tick_a != tick_b ? tick_a < tick_b : a < b;
}

static uint64_t weight(const struct evict *evict, uint32_t block)
{
	uint64_t x = (block ^ evict->seed) * 0x9e3779b97f4a7c15u; /* splitmix64's finaliser */

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static void tree_insert(struct evict *evict, uint32_t block)
{
	struct node *const node = evict->node, *const new = &node[block];
	const uint64_t w = weight(evict, block);
	struct tree *const tree = tree_of(evict, block);
	uint32_t *at = &tree->root, *less = &new->left, *more = &new->right, rest;

	while (*at != EVICT_NONE && weight(evict, *at) >= w)
		at = before(evict, block, *at) ? &node[*at].left : &node[*at].right;
	/* The tree that hangs here is divided: less recent nodes go left below the new node, more
	 * recent ones right. */
	rest = *at;
	*at = block;
	while (rest != EVICT_NONE) {
		if (before(evict, rest, block)) {
			*less = rest;
			less = &node[rest].right;
			rest = *less;
		} else {
			*more = rest;
			more = &node[rest].left;
			rest = *more;
		}
	}
	*less = *more = EVICT_NONE;
	if (tree->first == EVICT_NONE || before(evict, block, tree->first))
		tree->first = block;
}

static uint32_t tree_first(const struct evict *evict, const struct tree *tree)
{
	uint32_t ret = tree->root;

	while (ret != EVICT_NONE && evict->node[ret].left != EVICT_NONE)
		ret = evict->node[ret].left;
	return ret;
}

static void tree_remove(struct evict *evict, uint32_t block)
{
	struct node *const node = evict->node, *const old = &node[block];
	struct tree *const tree = tree_of(evict, block);
	uint32_t *at = &tree->root, left = old->left, right = old->right;

	while (*at != block) {
		assert(*at != EVICT_NONE);
		at = before(evict, block, *at) ? &node[*at].left : &node[*at].right;
	}
	while (left != EVICT_NONE && right != EVICT_NONE) {
		if (weight(evict, left) >= weight(evict, right)) {
			*at = left;
			at = &node[left].right;
			left = *at;
		} else {
			*at = right;
			at = &node[right].left;
			right = *at;
		}
	}
	*at = left != EVICT_NONE ? left : right;
	if (tree->first == block)
		tree->first = tree_first(evict, tree);
}

static void list(struct evict *evict, uint32_t block)
{
	tree_insert(evict, block);
	if (is_expected(evict, block))
		tree_insert(evict, evict->max_blocks + block);
}

static void unlist(struct evict *evict, uint32_t block)
{
	tree_remove(evict, block);
	if (is_expected(evict, block))
		tree_remove(evict, evict->max_blocks + block);
}

/* Candidate -> held, with both counts at 0. */
static void hold(struct evict *evict, uint32_t block)
{
	struct node *node = node_of(evict, block);

	if (node->state != NODE_CANDIDATE)
		return;
	unlist(evict, block);
	node->state = NODE_HELD;
	node->children = node->pins = 0;
}

/* Held -> candidate, when no child and no pin holds it any more. */
static void settle(struct evict *evict, uint32_t block)
{
	struct node *node = node_of(evict, block);

	if (node->state != NODE_HELD || node->children || node->pins)
		return;
	node->state = NODE_CANDIDATE;
	list(evict, block);
}

static uint32_t leave_parent(struct evict *evict, uint32_t block)
{
	const uint32_t parent = evict->node[block].parent;

	evict->node[block].parent = EVICT_NONE;
	if (parent & EVICT_REMEMBERED)
		return parent;
	assert(evict_children(evict, parent) > 0);
	node_of(evict, parent)->children--;
	settle(evict, parent);
	return parent;
}

void evict_add_away(struct evict *evict, uint32_t block, uint64_t tick)
{
	struct node *node;

	assert(block < evict->max_blocks && evict->node[block].state == NODE_GONE);
	node = &evict->node[block];
	node->state = NODE_AWAY;
	node->class = node->mark = 0;
	node->band = EVICT_USUAL;
	node->parent = EVICT_NONE;
	node->children = node->pins = 0;
	tick_set(node, tick);
}

void evict_return(struct evict *evict, uint32_t block, uint32_t parent, uint32_t class)
{
	struct node *node = node_of(evict, block);

	assert(evict_word(evict, block) == EVICT_NONE && class < evict->classes);
	node->state = NODE_HELD;
	node->class = class & 0x3fu;
	node->parent = parent;
	if (!(parent & EVICT_REMEMBERED)) {
		assert(parent != block && node->children == 0 &&
		       node_of(evict, parent)->state != NODE_AWAY);
		hold(evict, parent);
		node_of(evict, parent)->children++;
	}
	settle(evict, block);
}

uint32_t evict_word(const struct evict *evict, uint32_t block)
{
	assert(node_of(evict, block)->state == NODE_AWAY);
	return evict->node[block].parent;
}

void evict_set_word(struct evict *evict, uint32_t block, uint32_t word)
{
	assert(node_of(evict, block)->state == NODE_AWAY);
	evict->node[block].parent = word;
}

void evict_add(struct evict *evict, uint32_t block, uint32_t parent, uint32_t class, uint64_t tick)
{
	evict_add_away(evict, block, tick);
	evict_return(evict, block, parent, class);
}

/* Not a candidate, which stands in the tree of its band. */
static void band_put(struct evict *evict, uint32_t block, enum evict_band band)
{
	struct node *node = &evict->node[block];

	evict->banded +=
		(uint32_t)(band != EVICT_USUAL) - (evict_band(evict, block) != EVICT_USUAL);
	node->band = band == EVICT_EXPECTED ? EVICT_USUAL : (uint8_t)band & 3u;
	if (band == EVICT_EXPECTED || is_expected(evict, block))
		return_of(evict, block)->state = band == EVICT_EXPECTED ? NODE_EXPECTED : NODE_GONE;
}

/* The number's next block is not expected. */
static void forget_return(struct evict *evict, uint32_t block)
{
	if (evict->expects && tick_of(return_of(evict, block)) > 0)
		tick_set(return_of(evict, block), 0);
}

uint32_t evict_leave(struct evict *evict, uint32_t block)
{
	assert(evict_pins(evict, block) == 0);
	hold(evict, block);
	assert(evict->node[block].state == NODE_HELD);
	evict->node[block].state = NODE_AWAY;
	if (evict->node[block].band == EVICT_FIRST)
		band_put(evict, block, EVICT_USUAL);
	return leave_parent(evict, block);
}

uint32_t evict_remove(struct evict *evict, uint32_t block)
{
	assert(evict_children(evict, block) == 0 && evict_pins(evict, block) == 0);
	hold(evict, block);
	const uint32_t parent = leave_parent(evict, block);
	evict->node[block].state = NODE_GONE;
	band_put(evict, block, EVICT_USUAL);
	forget_return(evict, block);
	return parent;
}

uint32_t evict_hide(struct evict *evict, uint32_t block)
{
	hold(evict, block);
	evict->node[block].state = NODE_HIDDEN;
	band_put(evict, block, EVICT_USUAL);
	return leave_parent(evict, block);
}

void evict_touch(struct evict *evict, uint32_t block, uint64_t tick)
{
	struct node *node = node_of(evict, block);
	const bool listed = node->state == NODE_CANDIDATE;

	if (tick <= tick_of(node))
		return;
	if (listed)
		unlist(evict, block);
	tick_set(node, tick);
	if (node->band == EVICT_FIRST || is_expected(evict, block))
		band_put(evict, block, EVICT_USUAL);
	if (listed)
		list(evict, block);
}

void evict_age(struct evict *evict, uint32_t block)
{
	struct node *node = node_of(evict, block);
	const bool listed = node->state == NODE_CANDIDATE;

	if (listed)
		unlist(evict, block);
	tick_set(node, 0);
	if (listed)
		list(evict, block);
}

void evict_set_band(struct evict *evict, uint32_t block, enum evict_band band)
{
	struct node *node = node_of(evict, block);
	const bool listed = node->state == NODE_CANDIDATE;

	assert(band < EVICT_EXPECTED);
	if (evict_band(evict, block) == band)
		return;
	if (listed)
		unlist(evict, block);
	band_put(evict, block, band);
	if (listed)
		list(evict, block);
}

enum evict_band evict_band(const struct evict *evict, uint32_t block)
{
	return is_expected(evict, block) ? EVICT_EXPECTED :
					   (enum evict_band)evict->node[block].band;
}

void evict_expect(struct evict *evict, uint32_t block, uint64_t back)
{
	const bool listed = node_of(evict, block)->state == NODE_CANDIDATE;

	assert(back > 0 && back <= EVICT_NEVER && node_of(evict, block)->state != NODE_HIDDEN);
	if (listed)
		unlist(evict, block);
	evict->expects = true;
	tick_set(return_of(evict, block), back);
	band_put(evict, block, EVICT_EXPECTED);
	if (listed)
		list(evict, block);
}

uint64_t evict_expected(const struct evict *evict, uint32_t block)
{
	return evict->expects ? tick_of(return_of(evict, block)) : 0;
}

uint64_t evict_worth(const struct evict *evict, uint32_t block, uint64_t now)
{
	const uint64_t tick = evict_tick(evict, block), back = evict_expected(evict, block),
		       age = now > tick ? now - tick : 0;
	uint64_t away = age;

	switch (evict_band(evict, block)) {
	case EVICT_FIRST:
		return 0;
	case EVICT_HELD:
		return EVICT_NEVER;
	case EVICT_KEPT:
		away = age / 4;
		break;
	case EVICT_EXPECTED:
		away = back >= now ? back - now : 2 * age;
		break;
	case EVICT_USUAL:
	case EVICT_BANDS:
		return tick;
	}
	return away < now ? now - away : 0;
}

uint32_t evict_farthest(const struct evict *evict, uint32_t group, uint32_t class, uint64_t now)
{
	const struct tree *tree = tree_at(evict, group, class, RETURNS);
	uint32_t late = tree->first, far = tree->root;

	if (far == EVICT_NONE)
		return EVICT_NONE;
	while (evict->node[far].right != EVICT_NONE)
		far = evict->node[far].right;
	late -= evict->max_blocks;
	far -= evict->max_blocks;
	return evict_worth(evict, late, now) < evict_worth(evict, far, now) ? late : far;
}

uint32_t evict_banded(const struct evict *evict)
{
	return evict->banded;
}

void evict_pin(struct evict *evict, uint32_t block)
{
	hold(evict, block);
	assert(evict->node[block].pins < UINT32_MAX);
	evict->node[block].pins++;
}

void evict_unpin(struct evict *evict, uint32_t block)
{
	assert(evict_pins(evict, block) > 0);
	evict->node[block].pins--;
	settle(evict, block);
}

void evict_move(struct evict *evict, uint32_t block, uint32_t class)
{
	struct node *node = node_of(evict, block);
	const bool listed = node->state == NODE_CANDIDATE;

	assert(class < evict->classes && node->state != NODE_AWAY);
	if (class == node->class)
		return;
	if (listed)
		unlist(evict, block);
	node->class = class & 0x3fu;
	if (listed)
		list(evict, block);
}

uint32_t evict_victim(const struct evict *evict, uint32_t group, uint32_t class,
		      enum evict_band band)
{
	return tree_at(evict, group, class, (int)band)->first;
}

uint64_t evict_tick(const struct evict *evict, uint32_t block)
{
	return tick_of(node_of(evict, block));
}

uint32_t evict_mark(const struct evict *evict, uint32_t block)
{
	return node_of(evict, block)->mark;
}

void evict_set_mark(struct evict *evict, uint32_t block, uint32_t mark)
{
	assert(mark < 1 << 5);
	node_of(evict, block)->mark = mark & 0x1fu;
}

uint32_t evict_class(const struct evict *evict, uint32_t block)
{
	return node_of(evict, block)->class;
}

uint32_t evict_pins(const struct evict *evict, uint32_t block)
{
	const struct node *node = node_of(evict, block);

	return node->state == NODE_CANDIDATE ? 0 : node->pins;
}

uint32_t evict_children(const struct evict *evict, uint32_t block)
{
	const struct node *node = node_of(evict, block);

	return node->state == NODE_CANDIDATE ? 0 : node->children;
}

uint32_t evict_parent(const struct evict *evict, uint32_t block)
{
	const struct node *node = node_of(evict, block);

	return node->state == NODE_AWAY ? EVICT_NONE : node->parent;
}
