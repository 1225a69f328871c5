/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=8 */
/*
 * Goal: under any workload, placement keeps its invariants: no slot owned twice, accounts exact, a
 * child never outlives its parent, nothing pinned or being written is touched, bytes follow their
 * block; a block with an NVMe copy is demoted, not dropped; an image is refused only when brute
 * force agrees that nothing would help; a late class gets room; copying stays bounded. A block that
 * is being moved is read right, whenever: its bytes are looked at between any two events. Method:
 * random stores, commits, aborts, touches, pins and condemnations over a small host tier and the
 * real table of blocks, checked after each event against a naive account of our own. The workers
 * that copy end their jobs in any order between other events, and sometimes fail. SEED and STEPS
 * from the environment.
 */

#include "daemon/move/mover.h"
#include "tests/lib/lib_mover.h"
#include "tiers/slabs.h"

enum { UNIT = 4096, SLAB_BYTES = SLAB, SLABS = 24, MAX_SLOTS = SLABS * SLAB_BYTES / UNIT };
enum { MAX_BLOCKS = WORLD_BLOCKS, MAX_WRITING = 12, MAX_PINS = 24 };

/* Our account of one block, by number. */
struct account {
	bool live, nvme;
	struct extent where;
	uint32_t bytes, parent, children, pins, name;
};

struct writing {
	struct extent where;
	uint32_t bytes, parent; /* parent is pinned meanwhile */
};

static struct {
	struct random random;
	struct world w;
	uint64_t waited;
	uint64_t used_bytes, allocated_bytes, refused, index_full;
	uint32_t names, n_live, n_writing, n_pins;
	struct account accounts[MAX_BLOCKS];
	struct writing writing[MAX_WRITING];
	uint32_t pinned[MAX_PINS];
} s;

static uint32_t rnd(uint32_t below)
{
	return random_below(&s.random, below);
}

static uint32_t steps(void)
{
	return (uint32_t)env_number("STEPS", 1000000);
}

FIXTURE(sim_open)
{
	memset(&s, 0, sizeof(s));
	s.random = random_seeded("sim_place");
	s.w = world_open(SLABS);
	return 0;
}

FIXTURE_DO(sim_close, world_close(&s.w));

TEST_EACH(sim_open, sim_close);

/* First and last word of an image name its block. */
static void write_name(const struct extent *where, uint32_t bytes, uint32_t name)
{
	uint8_t *at = tier_address(s.w.host, where);

	memcpy(at, &name, sizeof(name));
	memcpy(at + bytes - sizeof(name), &name, sizeof(name));
}

static void assert_name(const struct account *a)
{
	const uint8_t *at = tier_address(s.w.host, &a->where);

	assert_non_null(at);
	assert_memory_equal(at, &a->name, sizeof(a->name));
	assert_memory_equal(at + a->bytes - sizeof(a->name), &a->name, sizeof(a->name));
}

/* A block is gone from the table: take it out of our account, and its parent's. */
static void account_remove(uint32_t block)
{
	struct account *a = &s.accounts[block];

	a->live = false;
	s.n_live--;
	if (a->parent != BLOCK_NONE)
		s.accounts[a->parent].children--;
}

static void orphan_children(uint32_t block)
{
	for (uint32_t i = 0; i < MAX_BLOCKS; i++)
		if (s.accounts[i].live && s.accounts[i].parent == block)
			s.accounts[i].parent = BLOCK_NONE;
	s.accounts[block].children = 0;
}

static bool has_changed(const struct mover_counts *before)
{
	world_count_moves(&s.w);
	return memcmp(before, &s.w.mover.counts, sizeof(*before)) != 0;
}

/* After mover_find_room, or the end of a copy: which blocks went or moved, and was that allowed? */
static void settle(const struct mover_counts *before)
{
	uint64_t evicted = 0, moved = 0, demoted = 0;
	uint8_t key[32];

	for (uint32_t b = 0; b < MAX_BLOCKS; b++) {
		struct account *a = &s.accounts[b];

		if (!a->live || tier_address(s.w.host, &a->where))
			continue;
		assert_int_equal(a->pins, 0);
		random_key(a->name, key);
		if (blocks_find(s.w.blocks, key, 0) == b &&
		    blocks_host_slot(s.w.blocks, b) != BLOCK_NONE) {
			assert_int_equal(tier_extent(s.w.host, blocks_host_slot(s.w.blocks, b),
						     &a->where),
					 0);
			assert_int_equal(slabs_owner(tier_slabs(s.w.host), &a->where), b);
			assert_name(a);
			moved++;
			continue;
		}
		/* our account is of slots: a block that is away goes for good, with children or
		 * not */
		if (a->nvme) {
			assert_int_equal(blocks_host_slot(s.w.blocks, b), BLOCK_NONE);
			orphan_children(b);
			blocks_condemn(s.w.blocks, b);
			demoted++;
		}
		account_remove(b);
		evicted++;
	}
	for (uint32_t b = 0; b < MAX_BLOCKS; b++)
		if (s.accounts[b].live && s.accounts[b].parent != BLOCK_NONE)
			assert_true(s.accounts[s.accounts[b].parent].live); /* leaf-first */
	assert_int_equal(evicted, s.w.mover.counts.evicted_blocks - before->evicted_blocks);
	assert_int_equal(demoted, s.w.mover.counts.demoted_blocks - before->demoted_blocks);
	assert_true(moved <= s.w.mover.counts.moved_blocks - before->moved_blocks);
	assert_true(world_copier.most_bytes <= EMPTIER_JOB_BYTES &&
		    world_copier.most_jobs <= EMPTIER_JOBS);
	s.used_bytes -= s.w.mover.counts.evicted_bytes - before->evicted_bytes;
}

/* A slab's blocks that cannot move. */
static bool slab_is_stuck(uint32_t slab)
{
	for (uint32_t b = 0; b < MAX_BLOCKS; b++)
		if (s.accounts[b].live && s.accounts[b].where.slot >> 16 == slab &&
		    s.accounts[b].pins)
			return true;
	for (uint32_t i = 0; i < s.n_writing; i++)
		if (s.writing[i].where.slot >> 16 == slab)
			return true;
	return false;
}

/* Brute force: was the refusal right? No free room, no leaf and no block on NVMe of the class, no
 * slab of any other class that could be emptied by evicting leaves of its class and moving the
 * rest. */
static void assert_nothing_helps(uint32_t bytes)
{
	const int wanted = slabs_class_of(tier_slabs(s.w.host), bytes);
	bool has_leaf[TIER_MAX_CLASSES] = { false }, can_demote[TIER_MAX_CLASSES] = { false };
	uint8_t class_of[SLABS];
	struct tier_class_view view;

	assert_int_equal(slabs_free_slabs(tier_slabs(s.w.host)), 0);
	memset(class_of, 0xff, sizeof(class_of));
	for (uint32_t b = 0; b < MAX_BLOCKS; b++) {
		const struct account *a = &s.accounts[b];

		if (!a->live)
			continue;
		has_leaf[a->where.class] |= a->children == 0 && a->pins == 0;
		can_demote[a->where.class] |= a->nvme && a->pins == 0;
		class_of[a->where.slot >> 16] = a->where.class;
	}
	if (wanted >= 0) {
		slabs_class_view(tier_slabs(s.w.host), (uint32_t)wanted, &view);
		assert_int_equal(view.free_slots, 0);
		assert_false(has_leaf[wanted] || can_demote[wanted]);
	}
	for (uint32_t slab = 0; slab < SLABS; slab++) {
		if (class_of[slab] == 0xff || class_of[slab] == wanted || slab_is_stuck(slab))
			continue;
		slabs_class_view(tier_slabs(s.w.host), class_of[slab], &view);
		assert_false(has_leaf[class_of[slab]] || view.free_slots >= view.slots_per_slab);
	}
}

/* Nothing is being moved: then only slots that we know are in use. */
static bool at_rest(void)
{
	while (!emptier_busy(s.w.mover.emptier) && emptier_poll(s.w.mover.emptier))
		; /* until the slot is owed no more */
	return !emptier_busy(s.w.mover.emptier);
}

static void check_counts(void)
{
	if (!at_rest()) {
		assert_true(s.used_bytes <= s.w.host->used_bytes &&
			    s.n_live + s.n_writing <= s.w.host->extents);
		return;
	}
	assert_int_equal(s.used_bytes, s.w.host->used_bytes);
	assert_int_equal(s.n_live + s.n_writing, s.w.host->extents);
}

/* Everything, slowly: slots, bytes, owners. */
static void check_all(void)
{
	static bool taken[SLABS * SLAB_BYTES / UNIT];
	uint64_t used = 0;
	uint32_t n = 0;

	memset(taken, 0, sizeof(taken));
	for (uint32_t i = 0; i < MAX_BLOCKS + s.n_writing; i++) {
		const bool block = i < MAX_BLOCKS;
		const struct extent *w =
			block ? &s.accounts[i].where : &s.writing[i - MAX_BLOCKS].where;
		uint32_t bytes;

		if (block && !s.accounts[i].live)
			continue;
		bytes = tier_extent_bytes(s.w.host, w);
		assert_true(bytes > 0);
		for (uint32_t at = 0; at < bytes; at += UNIT) {
			bool *unit = &taken[((w->slot >> 16) * SLAB_BYTES +
					     (w->slot & 0xffff) * bytes + at) /
					    UNIT];

			assert_false(*unit);
			*unit = true;
		}
		used += bytes;
		n++;
		if (block)
			assert_name(&s.accounts[i]);
	}
	assert_int_equal(used, s.used_bytes);
	assert_int_equal(n, s.n_live + s.n_writing);
	check_counts();
}

/* A random live block, or BLOCK_NONE after a few tries. */
static uint32_t any_block(void)
{
	for (int i = 0; i < 8; i++) {
		const uint32_t b = rnd(MAX_SLOTS);

		if (s.accounts[b].live)
			return b;
	}
	return BLOCK_NONE;
}

static void pin(uint32_t block)
{
	blocks_pin(s.w.blocks, block);
	s.accounts[block].pins++;
}

static void unpin(uint32_t block)
{
	blocks_unpin(s.w.blocks, block);
	s.accounts[block].pins--;
}

/* A job of the workers ends. */
static void copy_ends(void)
{
	const struct mover_counts before = s.w.mover.counts;

	copier_end(&world_copier, rnd(world_copier.n), rnd(50) ? 0 : -ECANCELED);
	world_count_moves(&s.w);
	settle(&before);
}

static void iterate(void)
{
	const struct mover_counts before = s.w.mover.counts;

	(void)emptier_poll(s.w.mover.emptier);
	if (has_changed(&before))
		settle(&before);
}

static int make_room(uint32_t bytes, struct extent *ret)
{
	const struct mover_counts before = s.w.mover.counts;
	int err;

	mover_iteration(&s.w.mover);
	err = world_try(&s.w, bytes, true, ret);
	if (has_changed(&before))
		settle(&before);
	assert_true(err != -EAGAIN || (emptier_busy(s.w.mover.emptier) && world_copier.n > 0));
	return err;
}

/* 0 and a slot being written, or the refusal, checked. patient: it waits for slabs that are being
 * emptied. */
static int begin(uint32_t bytes, uint32_t parent, bool patient)
{
	struct writing *w = &s.writing[s.n_writing];
	int err;

	s.w.tick++;
	if (parent != BLOCK_NONE)
		pin(parent);
	err = make_room(bytes, &w->where);
	while (err == -EAGAIN && patient) {
		copy_ends();
		err = make_room(bytes, &w->where);
	}
	s.waited += err == -EAGAIN;
	if (err && err != -EAGAIN) {
		assert_int_equal(err, -ENOSPC);
		assert_nothing_helps(bytes);
		s.refused++;
	}
	if (err) {
		if (parent != BLOCK_NONE)
			unpin(parent);
		return err;
	}
	w->bytes = bytes;
	w->parent = parent;
	s.n_writing++;
	s.used_bytes += tier_extent_bytes(s.w.host, &w->where);
	s.allocated_bytes += tier_extent_bytes(s.w.host, &w->where);
	return 0;
}

/* A write ends: committed, or given up. */
static void end(uint32_t i, bool commit)
{
	const struct writing w = s.writing[i];
	uint8_t key[32];
	uint32_t block;
	int err = 0;

	s.writing[i] = s.writing[--s.n_writing];
	if (w.parent != BLOCK_NONE)
		unpin(w.parent);
	random_key(s.names, key);
	if (commit) {
		write_name(&w.where, w.bytes, s.names);
		err = blocks_commit(s.w.blocks, key, 0, w.parent, 0, &w.where, &block);
		if (err)
			/* the index found no place: allowed, and rare */
			assert_int_equal(err, -ENOSPC);
		s.index_full += err != 0;
	}
	if (err || !commit) {
		s.used_bytes -= tier_extent_bytes(s.w.host, &w.where);
		tier_free(s.w.host, &w.where);
		return;
	}
	tier_set_owner(s.w.host, &w.where, block);
	blocks_touch(s.w.blocks, block, s.w.tick);
	assert_true(block < MAX_BLOCKS && !s.accounts[block].live);
	s.accounts[block] = (struct account){ .live = true,
					      .where = w.where,
					      .bytes = w.bytes,
					      .parent = w.parent,
					      .name = s.names++,
					      .nvme = rnd(2) };
	if (s.accounts[block].nvme)
		blocks_set_nvme(s.w.blocks, block,
				&(struct extent){ .tier = TIER_NVME, .slot = block });
	if (w.parent != BLOCK_NONE)
		s.accounts[w.parent].children++;
	s.n_live++;
}

static void touch_chain(uint32_t block)
{
	s.w.tick++;
	for (; block != BLOCK_NONE; block = s.accounts[block].parent) {
		blocks_touch(s.w.blocks, block, s.w.tick);
		assert_name(&s.accounts[block]);
	}
}

/* Unpinned ones only: a pinned one would keep its slot for a while, which our account does not
 * follow. */
static void condemn(uint32_t block)
{
	struct account *a = &s.accounts[block];
	uint32_t slot;

	if (a->pins)
		return;
	orphan_children(block);
	s.used_bytes -= tier_extent_bytes(s.w.host, &a->where);
	account_remove(block);
	blocks_condemn(s.w.blocks, block);
	while (blocks_condemned(s.w.blocks, &slot)) {
		assert_int_equal(slot, a->where.slot);
		tier_free(s.w.host, &a->where);
	}
}

/* Five models at a time, of which the popular one changes now and then. */
static uint32_t any_size(uint32_t step)
{
	static const uint32_t units[] = { 1, 2, 3, 5, 9, 16, 4, 7 };
	const uint32_t era = step / 20000;
	const uint32_t pick = rnd(4) ? era : era + 1 + rnd(4);

	return units[pick % 8] * UNIT - rnd(2) * 100;
}

static void random_step(uint32_t step)
{
	const uint32_t what = rnd(100), block = any_block();

	iterate();
	if (world_copier.n && rnd(8) == 0)
		copy_ends();
	if (what < 45 && s.n_writing < MAX_WRITING) {
		(void)begin(any_size(step), rnd(2) ? block : BLOCK_NONE, rnd(2));
	} else if (what < 85 && s.n_writing) {
		end(rnd(s.n_writing), rnd(20) > 0);
	} else if (what < 90 && block != BLOCK_NONE && s.n_pins < MAX_PINS) {
		pin(block);
		s.pinned[s.n_pins++] = block;
	} else if (what < 95 && s.n_pins) {
		const uint32_t i = rnd(s.n_pins);

		unpin(s.pinned[i]);
		s.pinned[i] = s.pinned[--s.n_pins];
	} else if (what < 99 && block != BLOCK_NONE) {
		touch_chain(block);
	} else if (block != BLOCK_NONE && rnd(10) == 0) {
		condemn(block);
	}
}

TEST(any_workload)
{
	const uint32_t n = steps();

	for (uint32_t i = 0; i < n; i++) {
		random_step(i);
		if (i % 8 == 0)
			check_counts();
		if (i % 64 == 0)
			check_all();
	}
	printf("%" PRIu64 " evicted, %" PRIu64 " of them demoted, %" PRIu64 " moved, %" PRIu64
	       " refused, %" PRIu64 " by the index, %" PRIu64
	       " had to wait, copied/allocated %.3f\n",
	       s.w.mover.counts.evicted_blocks, s.w.mover.counts.demoted_blocks,
	       s.w.mover.counts.moved_blocks, s.refused, s.index_full, s.waited,
	       (double)s.w.mover.counts.moved_bytes / (double)(s.allocated_bytes + 1));
	assert_true(s.w.mover.counts.moved_bytes <= s.allocated_bytes);
}

/* Refusals are the rule here: nearly everything is pinned. */
TEST(pinned_to_the_brim)
{
	const uint32_t n = steps() / 30;

	for (uint32_t i = 0; i < n; i++) {
		const uint32_t block = any_block(), size = any_size(i * 40);

		if (rnd(4) && block != BLOCK_NONE)
			(s.accounts[block].pins && rnd(100) < 45 ? unpin : pin)(block);
		else if (!begin(size, BLOCK_NONE, true))
			end(s.n_writing - 1, true);
		check_counts();
	}
	check_all();
	printf("%" PRIu64 " refused, %" PRIu64 " moved\n", s.refused,
	       s.w.mover.counts.moved_blocks);
}

static uint32_t slabs_of(uint32_t bytes)
{
	const int class = slabs_class_of(tier_slabs(s.w.host), bytes);
	struct tier_class_view view;

	if (class < 0)
		return 0;
	slabs_class_view(tier_slabs(s.w.host), (uint32_t) class, &view);
	return view.slabs;
}

static void store(uint32_t bytes)
{
	assert_int_equal(begin(bytes, BLOCK_NONE, true), 0);
	end(0, true);
}

/* A full cache of one model; then only another one is used. */
TEST(a_late_class_takes_over)
{
	for (uint32_t i = 0; i < 3 * SLABS * 16; i++)
		store(1 * UNIT);
	for (uint32_t i = 0; i < 40 * SLABS; i++)
		store(5 * UNIT);
	printf("slabs of the late class: %u of %d\n", slabs_of(5 * UNIT), SLABS);
	assert_true(slabs_of(5 * UNIT) > SLABS / 2);
	check_all();
}

/* Two models, stored in turn by bytes alike: neither starves, and slabs do not go to and fro. */
TEST(two_classes_settle)
{
	uint64_t moved;

	for (uint32_t i = 0; i < 20000; i++)
		store(i % 6 ? 1 * UNIT : 5 * UNIT);
	moved = s.w.mover.counts.moved_bytes;
	s.allocated_bytes = 0;
	for (uint32_t i = 0; i < 20000; i++)
		store(i % 6 ? 1 * UNIT : 5 * UNIT);
	printf("slabs %u and %u, copied/allocated once settled %.4f\n", slabs_of(UNIT),
	       slabs_of(5 * UNIT),
	       (double)(s.w.mover.counts.moved_bytes - moved) / (double)s.allocated_bytes);
	assert_true(slabs_of(1 * UNIT) >= SLABS / 5 && slabs_of(5 * UNIT) >= SLABS / 5);
	assert_true((s.w.mover.counts.moved_bytes - moved) * 20 <= s.allocated_bytes);
}
