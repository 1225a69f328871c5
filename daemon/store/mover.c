/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mover.c - see mover.h. Core thread only.
 *
 * A slot can move (emptier.h) when its block is committed (it has an owner) and unpinned. Nobody
 * else knows its address then: the index holds no addresses, and each op finds the block's extent
 * anew. A slot that is being written to NVMe, or read into, is pinned, or has no owner yet.
 */
#include "mover.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "daemon/base/log.h"
#include "evict.h"
#include "tally.h"
#include "tiers/slabs.h"
#include "herd.h"

static_assert((uint32_t)SLABS_NO_OWNER == (uint32_t)BLOCK_NONE,
	      "a slot without owner belongs to no block");

/* Slots examined for one image, all PLACE_LOOKs together: < 1 ms. A class with so many slots in
 * sparse slabs with a pin counts as if it gave nothing. */
enum {
	LOOK_SLOTS = 65536,
	SPARSE_PART = 16,  /* of the slabs: sparse classes may hold so much */
	DEMOTE_SLABS = 64, /* walked for blocks to demote, where no leaf can go... */
	DEMOTE_SLOTS = 8,  /* ...until there are so many */
};

/* One call's search for a slot. */
struct search {
	struct tier *host;
	struct slabs *slabs;
	struct blocks *blocks;
	struct mover *mover;
	bool moving; /* a slab is being emptied, which may give room */
	uint32_t slots_to_look;
	uint32_t to_demote;
	bool spare; /* the queued ones */
	/* a queued block, or one guaranteed to its space, would have been the next victim */
	bool spared;
	const struct mover_for *whom;                 /* NULL: nothing is guaranteed */
	uint32_t bytes;                               /* asked for */
	struct place_account account[TALLY_ACCOUNTS]; /* with `whom`: by account */
	struct place_account *own;                    /* whom's, or `stranger` */
	struct place_account stranger;                /* for a space that has no account yet */
	bool inherited;                               /* a slot went to the heir... */
	bool any; /* ...which is as good: it left the host tier's blocks */
	struct place_class classes[TIER_MAX_CLASSES];
	uint32_t n_classes;
};

/* Nothing, of a space whose revision a hint has lowered. */
static uint64_t guaranteed(const struct search *m, uint32_t space)
{
	if (space == TALLY_NO_SPACE || tally_standing(blocks_tally(m->blocks), space) != HINT_USUAL)
		return 0;
	return m->whom->guaranteed[space];
}

/* The bytes that each space is charged with; evictions and moves keep them up to date. */
static void survey_accounts(struct search *m)
{
	const uint32_t n = tally_accounts(blocks_tally(m->blocks)),
		       classes = slabs_classes(m->slabs);
	struct tier_class_view view;

	assert(n <= TALLY_ACCOUNTS);
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t space = tally_account_space(blocks_tally(m->blocks), i);

		m->account[i] = (struct place_account){ .guaranteed = guaranteed(m, space) };
	}
	for (uint32_t class = 0; class < classes; class ++) {
		slabs_class_view(m->slabs, class, &view);
		for (uint32_t i = 0; i < n && view.slabs; i++)
			m->account[i].held +=
				place_charge(&view, tally_account_slots(blocks_tally(m->blocks), i,
									class));
	}
	m->stranger = (struct place_account){ .guaranteed = guaranteed(m, m->whom->space) };
	m->own = &m->stranger;
	if (tally_account_of(blocks_tally(m->blocks), m->whom->space) > 0)
		m->own = &m->account[tally_account_of(blocks_tally(m->blocks), m->whom->space)];
}

static bool may_take(void *arg, uint32_t account)
{
	const struct search *m = arg;

	return !m->whom ||
	       place_may_take(&m->account[account], m->own, m->bytes, m->whom->desperate);
}

/* The next block to go in a class, of the blocks that may be taken; BLOCK_NONE: none. */
static uint32_t next_victim(struct search *m, uint32_t class, uint64_t *ret_tick)
{
	const struct herd_filter filter = { may_take, m, &m->spared };

	return herd_victim_of(m->blocks, class, m->whom ? &filter : NULL, ret_tick);
}

/* The state of every class, looked up anew. */
static void survey(struct search *m)
{
	m->n_classes = slabs_classes(m->slabs);
	for (uint32_t i = 0; i < m->n_classes; i++) {
		struct place_class *c = &m->classes[i];

		slabs_class_view(m->slabs, i, &c->view);
		c->look = PLACE_UNSEEN;
		c->oldest_tick = PLACE_NO_TICK;
		if (next_victim(m, i, &c->oldest_tick) == BLOCK_NONE)
			c->oldest_tick = PLACE_NO_TICK;
	}
}

static bool can_move(void *arg, const struct extent *where)
{
	struct search *m = arg;
	const uint32_t owner = slabs_owner(m->slabs, where);

	if (m->slots_to_look == 0)
		return false;
	m->slots_to_look--;
	return owner != SLABS_NO_OWNER && blocks_pins(m->blocks, owner) == 0;
}

static void look(struct search *m, uint32_t class)
{
	struct place_class *c = &m->classes[class];
	uint32_t slab = SLABS_NONE;

	do
		slab = slabs_next(m->slabs, class, slab);
	while (slab != SLABS_NONE && !slabs_walk(m->slabs, slab, can_move, m));
	c->look = slab == SLABS_NONE ? PLACE_NONE : PLACE_FOUND;
	c->slab = slab;
}

/* Whether its slot can be had: nobody inherits it, or gives another for it. */
static bool evict_one(struct search *m, uint32_t victim, bool demoted)
{
	enum mover_heir heir = MOVER_NO_HEIR;
	struct extent slot;
	const int err = tier_extent(m->host, blocks_host_slot(m->blocks, victim), &slot);

	assert(!err); /* a block's slot is in use as long as it has it */
	if (m->mover->inherit)
		heir = m->mover->inherit(m->mover->heir, victim, &slot);
	m->account[blocks_account(m->blocks, victim)].held -=
		m->classes[slot.class].view.slot_bytes;
	if (demoted)
		(void)blocks_demote(m->blocks, victim);
	else
		(void)blocks_drop(m->blocks, victim);
	if (heir == MOVER_NO_HEIR)
		tier_free(m->host, &slot);
	else
		tier_set_owner(m->host, &slot, SLABS_NO_OWNER);
	m->inherited = m->inherited || heir == MOVER_TAKEN;
	return heir != MOVER_TAKEN;
}

/* Evicts up to `count` least recent leaves of a class, up to a spared one; returns how many slots
 * the evictions gave. */
static uint32_t evict(struct search *m, uint32_t class, uint32_t count)
{
	uint32_t n = 0, victim;
	uint64_t tick;

	while (n < count && (victim = next_victim(m, class, &tick)) != BLOCK_NONE) {
		const bool demoted = blocks_nvme(m->blocks, victim, NULL);

		if (m->spare && !demoted && blocks_queued(m->blocks, victim)) {
			m->spared = true;
			break;
		}
		if (evict_one(m, victim, demoted) || m->any)
			n++;
		m->mover->counts.demoted_blocks += demoted;
		m->mover->counts.evicted_blocks++;
		m->mover->counts.evicted_bytes += m->classes[class].view.slot_bytes;
	}
	return n;
}

/* A chain that is longer than the tier blocks itself: its end is in use, and all blocks before the
 * end have children. Blocks with an NVMe copy can go all the same. */
static bool demote_slot(void *arg, const struct extent *where)
{
	struct search *m = arg;
	const uint32_t block = slabs_owner(m->slabs, where);

	if (m->slots_to_look == 0 || m->to_demote == 0)
		return false;
	m->slots_to_look--;
	if (block == SLABS_NO_OWNER || !blocks_live(m->blocks, block) ||
	    blocks_pins(m->blocks, block) || !blocks_nvme(m->blocks, block, NULL) ||
	    !may_take(m, blocks_account(m->blocks, block)) ||
	    evict_band(blocks_order(m->blocks), block) == EVICT_HELD)
		return true;
	m->account[blocks_account(m->blocks, block)].held -=
		m->classes[where->class].view.slot_bytes;
	(void)blocks_demote(m->blocks, block);
	tier_free(m->host, where);
	m->to_demote--;
	m->mover->counts.demoted_blocks++;
	m->mover->counts.evicted_blocks++;
	m->mover->counts.evicted_bytes += m->classes[where->class].view.slot_bytes;
	return true;
}

/* Of one class, the sparsest slab first; a few, so that the walk pays. */
static void demote_some(struct search *m, uint32_t class)
{
	uint32_t slabs[DEMOTE_SLABS], n = 0, slab = SLABS_NONE;

	while (n < DEMOTE_SLABS && (slab = slabs_next(m->slabs, class, slab)) != SLABS_NONE)
		slabs[n++] = slab; /* freeing while asking for the next is not allowed */
	m->to_demote = DEMOTE_SLOTS;
	for (uint32_t i = 0; i < n && m->to_demote; i++)
		(void)slabs_walk(m->slabs, slabs[i], demote_slot, m);
}

static uint32_t least(uint32_t a, uint32_t b, uint32_t c)
{
	const uint32_t ab = a < b ? a : b;

	return ab < c ? ab : c;
}

/* If the last call left off for the same size, this call goes on. */
static int32_t donor_of_before(struct search *m, uint32_t bytes)
{
	const bool ours = m->mover->clearing_bytes == bytes;

	m->mover->clearing_bytes = 0;
	return ours ? m->mover->clearing_class : PLACE_NO_CLASS;
}

static void leave_off(struct search *m, int32_t donor, uint32_t bytes)
{
	m->mover->clearing_class = donor;
	m->mover->clearing_bytes = bytes;
}

static void count_cleared(struct search *m, uint32_t n)
{
	m->mover->cleared += n;
	if (m->mover->cleared == MOVER_BATCH)
		log_debug("%u blocks were evicted to clear a slab: the next turn goes on",
			  (uint32_t)MOVER_BATCH);
}

/* Executes plans until a slot can be had, nothing helps, the steps are used up, or all that helps
 * is a slab that is being emptied, by others or by the next calls. */
static void follow_plans(struct search *m, uint64_t now_tick, uint32_t bytes, uint32_t steps)
{
	const uint64_t part = m->host->capacity_bytes / slabs_slab_bytes(m->slabs) / SPARSE_PART;
	struct place_state state = { .now_tick = now_tick,
				     .sparse_max = part > 0 ? (uint32_t)part : 1,
				     .donor = donor_of_before(m, bytes),
				     .classes = m->classes };
	struct place_plan plan;
	uint32_t n, batch;
	bool of_donor;

	survey(m);
	while (steps) {
		state.steps_left = steps;
		state.n_classes = m->n_classes;
		state.free_slabs = slabs_free_slabs(m->slabs);
		state.moving = emptier_busy(m->mover->emptier);
		state.wanted = slabs_class_of(m->slabs, bytes);
		batch = MOVER_BATCH - m->mover->cleared;
		state.hurried = batch == 0;
		place_plan(&state, &plan);
		state.donor = plan.donor;
		if (plan.left)
			leave_off(m, plan.donor, bytes);
		of_donor = (int32_t)plan.class != state.wanted;
		switch (plan.action) {
		case PLACE_ALLOC:
		case PLACE_FAIL:
			return;
		case PLACE_LOOK:
			assert(m->classes[plan.class].look == PLACE_UNSEEN);
			look(m, plan.class);
			continue;
		case PLACE_EVICT:
			n = evict(m, plan.class, of_donor ? least(plan.count, steps, batch) : 1);
			/* every step frees something */
			assert(n > 0 || m->spared || m->inherited);
			if (n == 0)
				return;
			steps -= n;
			if (of_donor)
				count_cleared(m, n);
			break;
		case PLACE_MOVE:
			emptier_begin(m->mover->emptier, plan.slab, bytes);
			m->moving = true;
			if (!emptier_busy(m->mover->emptier))
				return;
			break;
		case PLACE_WAIT:
			m->moving = true;
			return;
		}
		survey(m);
	}
}

static int alloc(const struct search *m, uint32_t bytes, struct extent *ret)
{
	return tier_alloc_near(m->host, bytes, m->whom ? m->whom->near : TIER_ANY_UNIT, ret);
}

static int make_room(struct search *m, uint64_t now_tick, uint32_t bytes, uint32_t max_steps,
		     struct extent *ret)
{
	int err;

	assert(max_steps > 0);
	m->slots_to_look = LOOK_SLOTS;
	herd_free_condemned(m->blocks, m->host);
	err = emptier_take(m->mover->emptier, bytes, ret) ? 0 : alloc(m, bytes, ret);
	if (err == 0 && m->mover->clearing_bytes == bytes)
		m->mover->clearing_bytes = 0;
	if (err != -ENOSPC)
		return err;
	m->bytes = bytes;
	if (m->whom)
		survey_accounts(m);
	if (!m->spare && emptier_stuck(m->mover->emptier))
		emptier_give_up(m->mover->emptier);
	follow_plans(m, now_tick, bytes, max_steps);
	m->moving |= emptier_busy(m->mover->emptier);
	err = alloc(m, bytes, ret);
	if (err == -ENOSPC && !m->moving && slabs_class_of(m->slabs, bytes) >= 0) {
		demote_some(m, (uint32_t)slabs_class_of(m->slabs, bytes));
		err = alloc(m, bytes, ret);
	}
	if (err == -ENOSPC && !m->spare && !m->moving) {
		emptier_let_go(m->mover->emptier);
		err = alloc(m, bytes, ret);
	}
	return err == -ENOSPC && (m->spared || m->moving) ? -EAGAIN : err;
}

void mover_turn(struct mover *mover)
{
	mover->cleared = 0;
}

int mover_make_room(struct tier *host, struct blocks *blocks, uint64_t now_tick, uint32_t bytes,
		    uint32_t max_steps, struct mover *mover, struct extent *ret)
{
	struct search m = {
		.host = host, .slabs = tier_slabs(host), .blocks = blocks, .mover = mover
	};

	return make_room(&m, now_tick, bytes, max_steps, ret);
}

int mover_find_room(struct tier *host, struct blocks *blocks, uint64_t now_tick, uint32_t bytes,
		    uint32_t max_steps, struct mover *mover, struct extent *ret)
{
	struct search m = { .host = host,
			    .slabs = tier_slabs(host),
			    .blocks = blocks,
			    .mover = mover,
			    .spare = true };

	return make_room(&m, now_tick, bytes, max_steps, ret);
}

int mover_find_room_for(struct tier *host, struct blocks *blocks, uint64_t now_tick, uint32_t bytes,
			const struct mover_for *whom, struct mover *mover, struct extent *ret)
{
	struct search m = { .host = host,
			    .slabs = tier_slabs(host),
			    .blocks = blocks,
			    .mover = mover,
			    .spare = !whom->desperate,
			    .whom = whom };

	return make_room(&m, now_tick, bytes, MOVER_STEPS, ret);
}

uint64_t mover_evict_bytes(struct tier *host, struct blocks *blocks, uint64_t bytes,
			   uint32_t max_steps, struct mover *mover)
{
	struct search m = { .host = host,
			    .slabs = tier_slabs(host),
			    .blocks = blocks,
			    .mover = mover,
			    .any = true };
	uint64_t freed = 0;

	herd_free_condemned(blocks, host);
	survey(&m);
	for (uint32_t step = 0; step < max_steps && freed < bytes; step++) {
		const int32_t class = place_oldest(m.classes, m.n_classes);

		if (class < 0)
			break;
		freed +=
			evict(&m, (uint32_t) class, 1) * (uint64_t)m.classes[class].view.slot_bytes;
		survey(&m);
	}
	return freed;
}
