/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_block - table, index, policy and the client's reader together against a naive model. Method:
 * random commits (in host, or away as after recovery), NVMe copies that come, move and go, copies
 * on devices, touches, pins, moves, evictions, demotions, promotions, drops (with heirs) and
 * condemnations, in a table small enough to be full and to reuse its numbers all the time; after
 * each step a random key is looked up in all of them, and now and then everything is compared; at
 * the end the numbers are shown not to be lost.
 */

#include "client/lib/base/map.h"
#include "daemon/table/block.h"
#include "daemon/table/space_counts.h"
#include "daemon/policy/victim.h"
#include "tests/lib/test.h"

enum { KEYS = 400, MAX = 150, SPACES = 3, CLASSES = 4, UNITS = 3 };
enum { STEPS = 200000, NOT_HERE = 0xfffffff0 };

/* One key's block, as the model has it. */
struct entry {
	bool here;
	uint32_t block, space, parent; /* parent: key number */
	/* children: blocks that are here and name this very block */
	uint32_t pins, children;
	uint64_t tick, life, heir_of; /* heir_of: a block's life, 0: nobody's */
	uint32_t remembered;          /* the block that was named as its parent */
	bool in_host, in_nvme, lost;
	uint32_t variant;
	struct extent host, nvme; /* of host: slot and class */
	uint32_t gpu;             /* units, as bits 1 << unit */
};

struct model {
	struct index *index;
	struct blocks *blocks;
	uint64_t gpu[MAX]; /* the same by number of block, as the keeper of copies has it */
	struct map *map;
	struct random random;
	struct entry entry[KEYS];
	uint64_t parent_life[KEYS]; /* of the parent block when the child came */
	uint32_t held[MAX];         /* condemned blocks still pinned: pins by block number */
	uint32_t here, in_host, in_nvme, condemned, returned; /* condemned: with a slot */
	uint32_t lost;
	uint64_t now, lives, heirs, dropped_lost;
};

static struct extent random_host(struct model *m)
{
	return (struct extent){ .tier = TIER_HOST,
				.class = (uint8_t)random_below(&m->random, CLASSES),
				.slot = random_below(&m->random, UINT32_MAX) };
}

static struct extent random_nvme(struct model *m)
{
	return (struct extent){ .tier = TIER_NVME,
				.unit = (uint8_t)random_below(&m->random, 16),
				.slot = (uint32_t)random_next(&m->random),
				.generation = random_below(&m->random, 1 << 20) };
}

static bool parent_lives(const struct model *m, uint32_t k)
{
	const uint32_t p = m->entry[k].parent;

	return p != NOT_HERE && m->entry[p].here && m->entry[p].life == m->parent_life[k];
}

/* A parent to name, which may be anybody's, and whether it is one for a block of this space. */
static bool any_parent(struct model *m, uint32_t k, uint32_t space, uint32_t *ret_p,
		       uint32_t *ret_block)
{
	const struct entry *e;
	uint32_t p, tries = random_below(&m->random, 20);
	bool is_one;

	do { /* mostly a right one, so that there are chains */
		p = random_below(&m->random, KEYS);
		e = &m->entry[p];
		is_one = e->here && e->in_host && e->space == space && p != k;
	} while (!is_one && tries--);
	*ret_p = p;
	*ret_block = e->here ? e->block : BLOCK_NONE;
	return is_one;
}

static void link_to(struct model *m, uint32_t k, uint32_t p)
{
	m->entry[k].parent = p;
	m->entry[p].children++;
	m->parent_life[k] = m->entry[p].life;
}

static void change_nvme(struct model *m, uint32_t k)
{
	struct entry *e = &m->entry[k];
	const bool stays = !e->in_host || random_below(&m->random, 3);

	e->nvme = random_nvme(m);
	blocks_set_nvme(m->blocks, e->block, stays ? &e->nvme : NULL);
	m->in_nvme = m->in_nvme - e->in_nvme + stays;
	e->in_nvme = stays;
}

static uint64_t units_of(void *arg, uint32_t block)
{
	return ((const struct model *)arg)->gpu[block];
}

static void forget_gpu(void *arg, uint32_t block)
{
	struct model *m = arg;

	assert_true(m->gpu[block] != 0);
	m->gpu[block] = 0;
}

/* A copy comes, or goes, on some unit, whatever else is with the block. */
static void change_gpu(struct model *m, uint32_t k)
{
	struct entry *e = &m->entry[k];

	e->gpu ^= 1u << random_below(&m->random, UNITS);
	m->gpu[e->block] = e->gpu;
	blocks_gpu_changed(m->blocks, e->block);
}

static void commit(struct model *m, uint32_t k, bool away)
{
	struct entry new = { .here = true,
			     .in_host = !away,
			     .in_nvme = away,
			     .parent = NOT_HERE,
			     .remembered = BLOCK_NONE,
			     .tick = m->now,
			     .space = random_below(&m->random, SPACES),
			     .variant = random_below(&m->random, 2),
			     .host = random_host(m),
			     .nvme = random_nvme(m) };
	uint32_t p, parent;
	uint8_t key[32];
	int r;

	random_key(k, key);
	const bool chained = any_parent(m, k, new.space, &p, &parent) && !away;
	const struct entry *before = &m->entry[p];
	if (!away && before->here && before->space == new.space && before->tick > 0)
		new.tick = before->tick - 1;
	if (!away)
		new.remembered = parent;
	if (away)
		r = blocks_commit_away(m->blocks, key, new.space, new.variant, &new.nvme, new.tick,
				       &new.block);
	else
		r = blocks_commit(m->blocks, key, new.space, parent, new.variant, &new.host,
				  &new.block);
	if (r == -ENOSPC || r == -EXFULL) {
		assert_int_equal(blocks_count(m->blocks), m->here);
		return;
	}
	assert_int_equal(r, 0);
	new.life = ++m->lives;
	m->entry[k] = new;
	if (chained)
		link_to(m, k, p);
	m->here++;
	m->in_host += !away;
	m->in_nvme += away;
	if (random_below(&m->random, 2))
		change_nvme(m, k);
}

/* It is nobody's heir any more. */
static void leave(struct model *m, uint32_t k)
{
	m->lost -= m->entry[k].lost;
	m->entry[k].lost = false;
	m->entry[k].heir_of = 0;
}

static void forget(struct model *m, uint32_t k)
{
	leave(m, k);
	if (parent_lives(m, k))
		m->entry[m->entry[k].parent].children--;
	m->in_host -= m->entry[k].in_host;
	m->in_nvme -= m->entry[k].in_nvme;
	m->entry[k].here = false;
	assert_int_equal(m->gpu[m->entry[k].block], 0);
	m->here--;
}

static void drop(struct model *m, uint32_t k)
{
	const struct entry *e = &m->entry[k];

	assert_int_equal(blocks_evictable(m->blocks, e->block), !e->pins && !e->children);
	if (e->pins || e->children)
		return;
	assert_int_equal(blocks_drop(m->blocks, e->block), e->in_host ? e->host.slot : BLOCK_NONE);
	forget(m, k);
	for (uint32_t i = 0; i < KEYS; i++) {
		if (!m->entry[i].here || m->entry[i].heir_of != e->life || m->entry[i].lost)
			continue;
		m->entry[i].lost = true;
		m->lost++;
	}
}

/* The block whose heir it becomes, as a life; 0: none. */
static uint64_t heir_of(struct model *m, uint32_t k)
{
	const struct entry *e = &m->entry[k];

	for (uint32_t i = 0; i < KEYS; i++) {
		const struct entry *p = &m->entry[i];
		const bool named = e->parent != NOT_HERE ? e->parent == i && parent_lives(m, k) :
							   e->remembered == p->block;

		if (named && p->here && p->in_host && p->space == e->space && p->tick > e->tick)
			return p->life;
	}
	return 0;
}

static void demote(struct model *m, uint32_t k)
{
	struct entry *e = &m->entry[k];

	if (e->pins || !e->in_host || !e->in_nvme)
		return;
	e->heir_of = heir_of(m, k);
	m->heirs += e->heir_of != 0;
	assert_int_equal(blocks_demote(m->blocks, e->block), e->host.slot);
	if (parent_lives(m, k))
		m->entry[e->parent].children--;
	e->parent = NOT_HERE;
	e->in_host = false;
	m->in_host--;
}

static void promote(struct model *m, uint32_t k)
{
	struct entry *e = &m->entry[k];
	uint32_t p, parent;
	const bool chained = any_parent(m, k, e->space, &p, &parent) && !e->children;

	leave(m, k);
	e->remembered = parent;
	e->host = random_host(m);
	blocks_promote(m->blocks, e->block, parent, &e->host);
	e->in_host = true;
	m->in_host++;
	if (chained)
		link_to(m, k, p);
}

static void condemn(struct model *m, uint32_t k)
{
	blocks_condemn(m->blocks, m->entry[k].block);
	m->held[m->entry[k].block] = m->entry[k].pins;
	m->condemned += m->entry[k].in_host;
	forget(m, k);
}

/* Some of the blocks that are lost go. */
static void drop_lost(struct model *m, uint32_t most)
{
	uint32_t block, k;

	while (most-- > 0 && (block = blocks_lost(m->blocks)) != BLOCK_NONE) {
		for (k = 0; !m->entry[k].here || m->entry[k].block != block; k++)
			assert_true(k < KEYS);
		assert_true(m->entry[k].lost);
		m->dropped_lost++;
		(blocks_evictable(m->blocks, block) ? drop : condemn)(m, k);
	}
}

/* Lets go of the pins of one condemned block, and takes all that became free. */
static void release(struct model *m, uint32_t block)
{
	uint32_t slot;

	while (m->held[block]) {
		m->held[block]--;
		blocks_unpin(m->blocks, block);
	}
	while (blocks_condemned(m->blocks, &slot))
		m->returned++;
}

static void evict(struct model *m)
{
	const uint32_t class = random_below(&m->random, CLASSES);
	uint32_t best = NOT_HERE, k;
	uint64_t tick;
	const uint32_t victim = victim_of(m->blocks, class, NULL, &tick);

	for (k = 0; k < KEYS; k++) {
		const struct entry *e = &m->entry[k];

		if (e->here && e->in_host && !e->pins && !e->children && e->host.class == class &&
		    (best == NOT_HERE || e->tick < m->entry[best].tick ||
		     (e->tick == m->entry[best].tick && e->block < m->entry[best].block)))
			best = k;
	}
	assert_int_equal(victim, best == NOT_HERE ? BLOCK_NONE : m->entry[best].block);
	if (best == NOT_HERE)
		return;
	assert_int_equal(tick, m->entry[best].tick);
	(m->entry[best].in_nvme ? demote : drop)(m, best);
}

static void move(struct model *m, uint32_t k)
{
	if (m->entry[k].pins || !m->entry[k].in_host)
		return;
	m->entry[k].host = random_host(m);
	blocks_move(m->blocks, m->entry[k].block, &m->entry[k].host);
}

static void touch(struct model *m, uint32_t k)
{
	m->entry[k].tick = ++m->now;
	blocks_touch(m->blocks, m->entry[k].block, m->now);
}

static void step(struct model *m)
{
	const uint32_t k = random_below(&m->random, KEYS), what = random_below(&m->random, 64);
	struct entry *e = &m->entry[k];

	if (what == 0) {
		release(m, random_below(&m->random, MAX));
		drop_lost(m, random_below(&m->random, 4));
	} else if (what < 8)
		evict(m);
	else if (!e->here)
		commit(m, k, what % 4 == 0);
	else if (what < 10)
		drop(m, k);
	else if (what < 12)
		condemn(m, k);
	else if (what < 14)
		move(m, k);
	else if (what < 17)
		change_nvme(m, k);
	else if (what < 20)
		change_gpu(m, k);
	else if (what < 24)
		(e->in_host ? demote : promote)(m, k);
	else if (what < 28) {
		blocks_pin(m->blocks, e->block);
		e->pins++;
	} else if (what < 44 && e->pins) {
		blocks_unpin(m->blocks, e->block);
		e->pins--;
	} else {
		touch(m, k);
		if (parent_lives(m, k)) /* as an op does */
			touch(m, e->parent);
	}
}

static struct fingerprint_key index_key_of(uint32_t space, uint8_t bytes[32])
{
	random_key(1000000 + space, bytes);
	return fingerprint_key_of(bytes);
}

/* A client of each space sees the blocks of that space alone. */
static void compare_seen(struct model *m, uint32_t k, const struct kvtier_key *key)
{
	const struct entry *e = &m->entry[k];
	const int seen = !e->here ? 0 :
				    (e->in_host ? 1 << TIER_HOST : 0) |
					    (e->in_nvme ? 1 << TIER_NVME : 0) |
					    (e->gpu ? 1 << TIER_GPU : 0);

	for (uint32_t space = 0; space < SPACES; space++) {
		uint8_t bytes[32], tiers;
		const struct fingerprint_key index_key = index_key_of(space, bytes);

		map_probe(m->map, &index_key, key, 1, &tiers);
		assert_int_equal(tiers, e->space == space ? seen : 0);
	}
}

static void compare(struct model *m, uint32_t k)
{
	const struct entry *e = &m->entry[k];
	struct kvtier_key key;
	struct extent where;
	bool there;

	random_key(k, key.bytes);
	compare_seen(m, k, &key);
	for (uint32_t space = 0; space < SPACES; space++)
		assert_int_equal(blocks_find(m->blocks, key.bytes, space),
				 e->here && e->space == space ? e->block : BLOCK_NONE);
	if (!e->here)
		return;
	assert_int_equal(blocks_host_slot(m->blocks, e->block),
			 e->in_host ? e->host.slot : BLOCK_NONE);
	there = blocks_nvme(m->blocks, e->block, &where);
	assert_int_equal(there, e->in_nvme);
	if (there)
		assert_memory_equal(&where, &e->nvme, sizeof(where));
	assert_int_equal(m->gpu[e->block], e->gpu);
	assert_int_equal(blocks_variant(m->blocks, e->block), e->variant);
	assert_int_equal(blocks_tick(m->blocks, e->block), e->tick);
	assert_int_equal(blocks_parent(m->blocks, e->block) != BLOCK_NONE,
			 e->parent != NOT_HERE && parent_lives(m, k));
	assert_memory_equal(blocks_key(m->blocks, e->block), key.bytes, 32);
	assert_int_equal(blocks_pins(m->blocks, e->block), e->pins);
}

static void compare_all(struct model *m)
{
	uint32_t count[SPACES] = { 0 }, on_gpus = 0;

	for (uint32_t k = 0; k < KEYS; k++) {
		compare(m, k);
		if (!m->entry[k].here)
			continue;
		count[m->entry[k].space]++;
		on_gpus += m->entry[k].gpu != 0;
	}
	for (uint32_t space = 0; space < SPACES; space++)
		assert_int_equal(counts_blocks(blocks_counts(m->blocks), space), count[space]);
	assert_int_equal(blocks_count(m->blocks), m->here);
	assert_int_equal(blocks_copies(m->blocks, TIER_HOST), m->in_host);
	assert_int_equal(blocks_copies(m->blocks, TIER_NVME), m->in_nvme);
	assert_int_equal(blocks_copies(m->blocks, TIER_GPU), on_gpus);
	assert_int_equal(index_entries(m->index), m->here);
}

/* Everything goes; then the whole table must be there to use. */
static void empty_and_refill(struct model *m)
{
	for (uint32_t k = 0; k < KEYS; k++) {
		struct entry *e = &m->entry[k];

		for (; e->here && e->pins; e->pins--)
			blocks_unpin(m->blocks, e->block);
		if (e->here)
			condemn(m, k);
	}
	for (uint32_t block = 0; block < MAX; block++)
		release(m, block);
	assert_int_equal(blocks_lost(m->blocks), BLOCK_NONE);
	assert_int_equal(m->returned, m->condemned);
	assert_int_equal(m->here, 0);
	for (uint32_t k = 0; k < MAX; k++)
		commit(m, k, false);
	assert_int_equal(m->here, MAX);
}

TEST(everything_is_what_the_naive_model_is)
{
	struct model *m = calloc(1, sizeof(*m));
	const struct blocks_gpu gpu = { .arg = m, .forget = forget_gpu, .units = units_of };

	assert_non_null(m);
	m->random = random_seeded("sim_block");
	assert_int_equal(index_open(MAX, &m->index), 0);
	assert_int_equal(blocks_open(&(struct blocks_conf){ .max_blocks = MAX, .gpu = &gpu },
				     m->index, &m->blocks),
			 0);
	for (uint32_t space = 0; space < SPACES; space++) {
		uint8_t bytes[32];

		(void)index_key_of(space, bytes);
		counts_space_is(blocks_counts(m->blocks), space, bytes, 0);
	}
	assert_int_equal(map_open(index_fd(m->index), index_bytes(m->index), &m->map), 0);
	for (uint32_t i = 0; i < STEPS; i++) {
		step(m);
		compare(m, random_below(&m->random, KEYS));
		if (i % 500 == 0)
			compare_all(m);
	}
	drop_lost(m, UINT32_MAX);
	assert_int_equal(m->lost, 0);
	printf("%llu heirs, %llu were lost\n", (unsigned long long)m->heirs,
	       (unsigned long long)m->dropped_lost);
	assert_true(m->dropped_lost > 0);
	empty_and_refill(m);
	compare_all(m);
	map_close(m->map);
	blocks_close(m->blocks);
	index_close(m->index);
	free(m);
}
