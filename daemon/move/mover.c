/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mover.c - see mover.h. Core thread only. First the emptier, which empties a slab of the host tier
 * so that another class can have it; then the search for a slot.
 *
 * A slot can move when its block is committed (it has an owner) and unpinned. No other code knows
 * its address then: the index holds no addresses, and each op finds the block's extent anew. A slot
 * that is being written to NVMe, or read into, is pinned, or has no owner yet.
 *
 * An image in a slab that is being emptied:
 *
 *  in the slab ─unpinned: leased, a slot taken─> copied ──job ended─> settling ─our lease─> moved
 *       ^                                          │ device said no      │ given up, or its
 *       └──────────────────────────────────────────┴─────────────────────┘ block went
 *
 * Invariants
 *   E1 the slab is closed (slabs.h) from emptier_begin() until it is empty or was given up, so
 *      no new image comes in.
 *   E2 a block has one slot at any time. Until it moved that is the old one, which keeps its bytes.
 *   E3 an image that is copied is leased: it is not evicted or moved. It may be condemned; then
 *      its old slot is freed as that of any condemned block, when the lease ends.
 *   E4 a part that holds a lease and waits for room here would wait for ever, so a caller that
 *      finds no other work under way gives a stuck emptying up.
 */
#include "mover.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/list.h"
#include "base/log.h"
#include "base/loop.h"
#include "daemon/device/device.h"
#include "daemon/table/evict.h"
#include "daemon/table/space_counts.h"
#include "tiers/slabs.h"
#include "daemon/policy/reuse.h"
#include "daemon/policy/victim.h"

static_assert((uint32_t)SLABS_NO_OWNER == (uint32_t)BLOCK_NONE,
	      "a slot without owner belongs to no block");

/* The slots of condemned blocks whose last pin is gone are free. */
void mover_free_condemned(struct tier *host, struct blocks *blocks)
{
	struct extent where;
	uint32_t slot;

	while (blocks_condemned(blocks, &slot)) {
		const int err = tier_extent(host, slot, &where);

		assert(!err); /* a slot is in use as long as its block has it */
		tier_free(host, &where);
	}
}

/* waiters are tried in the iteration after the slab is empty, or the next */
enum { OWED_ITERATIONS = 64 };

struct moving {
	struct extent from, to;
	uint32_t block; /* leased; BLOCK_NONE: moved, or given back */
};

struct emptier_job {
	struct device_job job;
	struct emptier *emptier;
	bool in_flight;
	uint32_t n, left; /* images; images that have not moved */
	struct device_copy copies[EMPTIER_JOB_COPIES];
	struct moving moving[EMPTIER_JOB_COPIES];
};

struct emptier {
	struct emptier_conf conf;
	struct slabs *slabs;
	struct loop_poller poller;
	bool busy, giving_up;
	uint32_t bytes;     /* of the image for whose sake */
	uint32_t cursor;    /* in the closed slab */
	uint32_t in_flight; /* jobs */
	bool owed;          /* `gift` is kept for an image of its class */
	uint32_t owed_iterations;
	struct extent gift;
	struct emptier_job jobs[EMPTIER_JOBS];
};

static void unlease(struct emptier *e, struct moving *m)
{
	const bool condemned = blocks_unpin(e->conf.blocks, m->block);

	m->block = BLOCK_NONE;
	if (condemned)
		mover_free_condemned(e->conf.host, e->conf.blocks);
}

/* It stays where it is. */
static void give_back(struct emptier *e, struct moving *m)
{
	slabs_move_end(e->slabs, &m->to);
	unlease(e, m);
}

static void move(struct emptier *e, struct moving *m)
{
	const uint32_t block = m->block;

	unlease(e, m);
	blocks_move(e->conf.blocks, block, &m->to);
	slabs_set_owner(e->slabs, &m->to, block);
	++*e->conf.moved_blocks;
	*e->conf.moved_bytes += slabs_extent_bytes(e->slabs, &m->to);
	slabs_move_end(e->slabs, &m->from);
}

/* False: others have a lease on it. */
static bool settle(struct emptier *e, struct moving *m)
{
	if (e->giving_up || !blocks_live(e->conf.blocks, m->block))
		give_back(e, m);
	else if (blocks_pins(e->conf.blocks, m->block) == 1)
		move(e, m);
	else
		return false;
	return true;
}

/* A job ended: those of its images move that can. Whether any did. */
static bool settle_job(struct emptier *e, struct emptier_job *j)
{
	const uint32_t before = j->left;

	for (uint32_t i = 0; i < j->n && j->left; i++)
		if (j->moving[i].block != BLOCK_NONE)
			j->left -= settle(e, &j->moving[i]);
	return j->left != before;
}

/* --- a job --- */

static void done(struct device_job *job)
{
	struct emptier_job *j = container_of(job, struct emptier_job, job);
	struct emptier *e = j->emptier;

	j->in_flight = false;
	e->in_flight--;
	for (uint32_t i = 0; job->status && i < j->n; i++)
		give_back(e, &j->moving[i]);
	if (job->status)
		j->left = 0;
	(void)emptier_poll(e);
}

/* Gathers images that can move now. False: the remaining images cannot, or all have moved. */
static bool gather(struct emptier *e, struct emptier_job *j)
{
	struct extent from, to;
	uint32_t bytes = 0;

	j->n = 0;
	while (j->n < EMPTIER_JOB_COPIES && bytes < EMPTIER_JOB_BYTES &&
	       slabs_closed_next(e->slabs, &e->cursor, &from)) {
		const uint32_t block = slabs_owner(e->slabs, &from);

		if (block == SLABS_NO_OWNER || blocks_pins(e->conf.blocks, block))
			continue;
		/* a slab of the class is free: emptying this one is needless now */
		if (slabs_move_begin(e->slabs, &to)) {
			e->giving_up = true;
			break;
		}
		blocks_pin(e->conf.blocks, block);
		j->moving[j->n] = (struct moving){ .from = from, .to = to, .block = block };
		j->copies[j->n] =
			(struct device_copy){ .to = tier_address(e->conf.host, &to),
					      .from = tier_address(e->conf.host, &from),
					      .bytes = slabs_extent_bytes(e->slabs, &from) };
		bytes += j->copies[j->n++].bytes;
	}
	j->left = j->n;
	return j->n > 0;
}

static bool start(struct emptier *e, struct emptier_job *j)
{
	if (!gather(e, j))
		return false;
	j->job = (struct device_job){
		.kind = DEVICE_COPY,
		.image = j->copies[0].to,
		.image_bytes = j->copies[0].bytes,
		.copies = j->copies,
		.n_copies = j->n,
		.done = done,
	};
	if (e->conf.submit(e->conf.arg, &j->job)) {
		for (uint32_t i = 0; i < j->n; i++)
			give_back(e, &j->moving[i]);
		j->left = 0;
		e->cursor = 0;
		return false;
	}
	j->in_flight = true;
	e->in_flight++;
	return true;
}

/* --- the slab --- */

static void emptier_let_go(struct emptier *e)
{
	if (e->owed)
		tier_free(e->conf.host, &e->gift);
	e->owed = false;
}

static bool jobs_left(const struct emptier *e)
{
	for (int i = 0; i < EMPTIER_JOBS; i++)
		if (e->jobs[i].left)
			return true;
	return false;
}

/* The slab is empty, or is not to be emptied any more. */
static void end(struct emptier *e)
{
	const bool empty = slabs_closed_used(e->slabs) == 0;

	assert(!jobs_left(e));
	if (!empty)
		slabs_reopen(e->slabs);
	e->busy = e->giving_up = false;
	emptier_let_go(e);
	if (empty && !tier_alloc(e->conf.host, e->bytes, &e->gift)) {
		e->owed = true;
		e->owed_iterations = 0;
	}
}

bool emptier_poll(struct emptier *e)
{
	bool worked = false;

	if (e->owed && e->owed_iterations++ == OWED_ITERATIONS)
		emptier_let_go(e);
	if (!e->busy)
		return e->owed;
	for (int i = 0; i < EMPTIER_JOBS; i++)
		worked |= e->jobs[i].left && !e->jobs[i].in_flight && settle_job(e, &e->jobs[i]);
	if (!jobs_left(e))
		e->cursor = 0; /* images that were leased before may be free now */
	for (int i = 0; i < EMPTIER_JOBS && !e->giving_up; i++)
		worked |= !e->jobs[i].left && start(e, &e->jobs[i]);
	if (!jobs_left(e) && (e->giving_up || slabs_closed_used(e->slabs) == 0)) {
		end(e);
		worked = true;
	}
	return worked;
}

static void emptier_begin(struct emptier *e, uint32_t slab, uint32_t bytes)
{
	assert(!e->busy);
	slabs_close_slab(e->slabs, slab);
	e->busy = true;
	e->giving_up = false;
	e->bytes = bytes;
	e->cursor = 0;
	(void)emptier_poll(e);
}

bool emptier_busy(const struct emptier *e)
{
	return e && e->busy;
}

static bool emptier_stuck(const struct emptier *e)
{
	return e->busy && e->in_flight == 0;
}

static void emptier_give_up(struct emptier *e)
{
	if (!e->busy)
		return;
	e->giving_up = true;
	(void)emptier_poll(e);
}

static bool emptier_take(struct emptier *e, uint32_t bytes, struct extent *ret)
{
	if (!e->owed || slabs_class_of(e->slabs, bytes) != e->gift.class)
		return false;
	e->owed = false;
	*ret = e->gift;
	return true;
}

/* --- life --- */

static bool poll(struct loop_poller *poller)
{
	return emptier_poll(container_of(poller, struct emptier, poller));
}

int emptier_open(const struct emptier_conf *conf, struct emptier **ret)
{
	struct emptier *e = calloc(1, sizeof(*e));

	if (!e)
		return -ENOMEM;
	e->conf = *conf;
	e->slabs = tier_slabs(conf->host);
	e->poller.poll = poll;
	for (int i = 0; i < EMPTIER_JOBS; i++)
		e->jobs[i].emptier = e;
	if (conf->loop)
		loop_poller_add(conf->loop, &e->poller);
	*ret = e;
	return 0;
}

void emptier_close(struct emptier *e)
{
	if (!e)
		return;
	assert(e->in_flight == 0);
	emptier_give_up(e);
	emptier_let_go(e);
	if (e->conf.loop)
		loop_poller_remove(e->conf.loop, &e->poller);
	free(e);
}

/* --- the search for a slot --- */

/* Slots examined for one image, all PLACE_LOOKs together: < 1 ms. A class with so many slots in
 * sparse slabs with a pin counts as if it had no slab to give. */
enum {
	LOOK_SLOTS = 65536,
	SPARSE_DIVISOR = 16, /* of the slabs: sparse classes may hold so much */
	DEMOTE_SLABS = 64,   /* walked for blocks to demote, where no leaf can go... */
	DEMOTE_SLOTS = 8,    /* ...until there are so many */
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
	const struct mover_for *whom; /* NULL: there are no guarantees */
	uint32_t bytes;               /* asked for */
	/* By account, by tenant and by class: the caller's arrays. Surveys fill them as far as they
	 * are needed: zeroing all 5 KB took 2 % of the core thread's time for a store. */
	struct quota_account *account, *tenant; /* with `whom` */
	struct place_class *classes;
	struct quota_account *own;     /* whom's, or `stranger` */
	struct quota_account stranger; /* for a space that has no account yet */
	struct quota_account *own_tenant;
	uint64_t now_tick;
	bool inherited; /* a slot went to the heir... */
	bool any;       /* ...which is as good: it left the host tier's blocks */
	uint32_t n_classes;
};

/* The bytes that each space is charged with; evictions and moves keep them up to date. */
static void survey_accounts(struct search *m)
{
	const struct space_counts *counts = blocks_counts(m->blocks);
	const uint32_t n = counts_accounts(counts), classes = slabs_classes(m->slabs);
	struct tier_class_view view;

	assert(n <= COUNTS_ACCOUNTS);
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t space = counts_account_space(counts, i);

		m->account[i] = (struct quota_account){
			.guaranteed =
				space == COUNTS_NO_SPACE ? 0 : counts_guaranteed(counts, space)
		};
	}
	for (uint32_t class = 0; class < classes; class ++) {
		slabs_class_view(m->slabs, class, &view);
		for (uint32_t i = 0; i < n && view.slabs; i++)
			m->account[i].held +=
				place_charge(&view, counts_account_slots(counts, i, class));
	}
	m->stranger =
		(struct quota_account){ .guaranteed = counts_guaranteed(counts, m->whom->space) };
	m->own = &m->stranger;
	if (counts_account_of(counts, m->whom->space) != COUNTS_NO_ACCOUNT)
		m->own = &m->account[counts_account_of(counts, m->whom->space)];
}

static uint32_t tenant_of(const struct search *m, uint32_t account)
{
	return counts_account_tenant(blocks_counts(m->blocks), account);
}

/* The sums of their accounts. */
static void survey_tenants(struct search *m)
{
	const struct space_counts *counts = blocks_counts(m->blocks);

	for (uint32_t i = 0; i < QUOTA_TENANTS; i++)
		m->tenant[i] = (struct quota_account){
			.guaranteed = quota_of_tenant(counts_quota(counts), QUOTA_host_bytes, i)
		};
	for (uint32_t i = 0; i < counts_accounts(counts); i++)
		m->tenant[tenant_of(m, i)].held += m->account[i].held;
	m->own_tenant = &m->tenant[counts_tenant(counts, m->whom->space)];
}

/* A slot of the account is evicted. */
static void charge_less(struct search *m, uint32_t account, uint32_t bytes)
{
	m->account[account].held -= bytes;
	m->tenant[tenant_of(m, account)].held -= bytes;
}

static bool may_take(void *arg, uint32_t account)
{
	const struct search *m = arg;

	const unsigned from =
		QUOTA_RICH | QUOTA_OWN | (m->whom && m->whom->desperate ? QUOTA_ANY : 0u);

	return !m->whom ||
	       (quota_may_take(&m->account[account], m->own, m->bytes, from) &&
		quota_may_take(&m->tenant[tenant_of(m, account)], m->own_tenant, m->bytes, from));
}

/* The next victim of a class, among the blocks that may be taken, or BLOCK_NONE. */
static uint32_t next_victim(struct search *m, uint32_t class, uint64_t *ret_tick)
{
	const struct victim_filter filter = { may_take, m, &m->spared };

	return victim_of(m->blocks, class, m->whom ? &filter : NULL, ret_tick);
}

/* The state of every class, looked up anew. While a class has a victim of a lower priority, classes
 * with victims of higher ones alone give no slab away: these blocks count as new. */
static void survey(struct search *m)
{
	uint32_t priority[TIER_MAX_CLASSES], least = UINT32_MAX;

	m->n_classes = slabs_classes(m->slabs);
	for (uint32_t i = 0; i < m->n_classes; i++) {
		struct place_class *c = &m->classes[i];

		slabs_class_view(m->slabs, i, &c->view);
		c->look = PLACE_UNSEEN;
		c->oldest_tick = PLACE_NO_TICK;
		const uint32_t block = next_victim(m, i, &c->oldest_tick);

		if (block == BLOCK_NONE)
			c->oldest_tick = PLACE_NO_TICK;
		priority[i] = block == BLOCK_NONE ? UINT32_MAX :
						    counts_priority(blocks_counts(m->blocks),
								    blocks_space(m->blocks, block));
		least = priority[i] < least ? priority[i] : least;
	}
	for (uint32_t i = 0; i < m->n_classes; i++)
		if (m->classes[i].oldest_tick != PLACE_NO_TICK && priority[i] > least)
			m->classes[i].oldest_tick = m->now_tick;
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

/* Counts a block that leaves host memory. */
static void count_evicted(struct search *m, uint32_t block, uint32_t class, bool demoted)
{
	m->mover->counts.demoted_blocks += demoted;
	m->mover->counts.evicted_blocks++;
	m->mover->counts.evicted_bytes += m->classes[class].view.slot_bytes;
	if (m->mover->reuse)
		reuse_leave(m->mover->reuse, blocks_key(m->blocks, block));
}

/* Whether its slot can be had: there is no heir, or the heir gives another slot for it. */
static bool evict_one(struct search *m, uint32_t victim, bool demoted)
{
	enum mover_heir heir = MOVER_NO_HEIR;
	struct extent slot;
	const int err = tier_extent(m->host, blocks_host_slot(m->blocks, victim), &slot);

	assert(!err); /* a block's slot is in use as long as it has it */
	if (m->mover->inherit)
		heir = m->mover->inherit(m->mover->heir, victim, &slot);
	charge_less(m, blocks_account(m->blocks, victim), m->classes[slot.class].view.slot_bytes);
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
		count_evicted(m, victim, class, demoted);
		if (evict_one(m, victim, demoted) || m->any)
			n++;
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
	charge_less(m, blocks_account(m->blocks, block), m->classes[where->class].view.slot_bytes);
	count_evicted(m, block, where->class, true);
	(void)blocks_demote(m->blocks, block);
	tier_free(m->host, where);
	m->to_demote--;
	return true;
}

/* Demotes a few blocks of one class, the sparsest slab first, so that the walk pays. */
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
		log_debug("slab_cleared",
			  "%u blocks were evicted to clear a slab: the next iteration goes on",
			  (uint32_t)MOVER_BATCH);
}

/* Executes plans until a slot can be had, no plan helps, the steps are used up, or all that helps
 * is a slab that is being emptied, by others or by the next calls. */
static void follow_plans(struct search *m)
{
	const uint32_t bytes = m->bytes;
	const uint64_t fraction =
		m->host->capacity_bytes / slabs_slab_bytes(m->slabs) / SPARSE_DIVISOR;
	struct place_state state = { .now_tick = m->now_tick,
				     .sparse_max = fraction > 0 ? (uint32_t)fraction : 1,
				     .donor = donor_of_before(m, bytes),
				     .classes = m->classes };
	struct place_plan plan;
	uint32_t n, batch, steps = MOVER_STEPS;
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
			if (n == 0 || !of_donor)
				return;
			steps -= n;
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

static int alloc(const struct search *m, struct extent *ret)
{
	return tier_alloc_near(m->host, m->bytes, m->whom->near, ret);
}

/* Where no slot is free. */
static int make_room(struct search *m, struct extent *ret)
{
	const int32_t class = slabs_class_of(m->slabs, m->bytes);
	int err;

	survey_accounts(m);
	survey_tenants(m);
	if (!m->spare && emptier_stuck(m->mover->emptier))
		emptier_give_up(m->mover->emptier);
	follow_plans(m);
	m->moving |= emptier_busy(m->mover->emptier);
	err = alloc(m, ret);
	if (err == -ENOSPC && !m->moving && class >= 0) {
		demote_some(m, (uint32_t) class);
		err = alloc(m, ret);
	}
	if (err == -ENOSPC && !m->spare && !m->moving) {
		emptier_let_go(m->mover->emptier);
		err = alloc(m, ret);
	}
	return err == -ENOSPC && (m->spared || m->moving) ? -EAGAIN : err;
}

int mover_find_room(struct tier *host, struct blocks *blocks, uint64_t now_tick, uint32_t bytes,
		    const struct mover_for *whom, struct mover *mover, struct extent *ret)
{
	struct quota_account account[COUNTS_ACCOUNTS], tenant[QUOTA_TENANTS];
	struct place_class classes[TIER_MAX_CLASSES];
	int err;

	mover_free_condemned(host, blocks);
	err = emptier_take(mover->emptier, bytes, ret) ?
		      0 :
		      tier_alloc_near(host, bytes, whom->near, ret);
	if (err == 0 && mover->clearing_bytes == bytes)
		mover->clearing_bytes = 0;
	if (err != -ENOSPC)
		return err;
	return make_room(&(struct search){ .host = host,
					   .slabs = tier_slabs(host),
					   .blocks = blocks,
					   .mover = mover,
					   .slots_to_look = LOOK_SLOTS,
					   .spare = !whom->desperate,
					   .whom = whom,
					   .account = account,
					   .tenant = tenant,
					   .classes = classes,
					   .bytes = bytes,
					   .now_tick = now_tick },
			 ret);
}

uint64_t mover_evict_bytes(struct tier *host, struct blocks *blocks, uint64_t bytes,
			   uint32_t max_steps, struct mover *mover)
{
	struct quota_account account[COUNTS_ACCOUNTS] = { 0 }, tenant[QUOTA_TENANTS] = { 0 };
	struct place_class classes[TIER_MAX_CLASSES];
	struct search m = { .host = host,
			    .slabs = tier_slabs(host),
			    .blocks = blocks,
			    .mover = mover,
			    .account = account,
			    .tenant = tenant,
			    .classes = classes,
			    .any = true,
			    .now_tick = PLACE_NO_TICK - 1 };
	uint64_t freed = 0;

	mover_free_condemned(host, blocks);
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
