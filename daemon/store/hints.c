/* SPDX-License-Identifier: Apache-2.0 */
/* hints.c - see hints.h. Core thread only. */
#include "hints.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "client/tbl_hints.h"
#include "copies.h"
#include "daemon/base/container_of.h"
#include "daemon/base/loop.h"
#include "daemon/stats/stats.h"
#include "evict.h"
#include "extents.h"
#include "notes.h"
#include "space.h"
#include "store.h"
#include "tally.h"

static_assert((int)SPACES_TENANTS == (int)NOTES_TENANTS, "each has its sum");

enum {
	SWEEP_NOTES = 4096, /* looked at in one go: some 20 us */
	SWEEP_MS = 20,      /* until the next ones */
	ROUND_MS = 1000,    /* until all are looked at again */
};

struct hints {
	struct store *store;
	struct loop *loop;
	struct hints_conf conf;
	struct notes *notes;
	struct loop_timer sweep;
	uint32_t cursor;
	bool sweeping; /* the timer is set */
};

static uint32_t now_s(const struct hints *h)
{
	return (uint32_t)(loop_now(h->loop) / 1000000000u);
}

/* --- ends --- */

static void expire(void *arg, struct note *note)
{
	struct hints *h = arg;
	struct store *store = h->store;

	evict_set_band(blocks_order(store->blocks), note->block, EVICT_USUAL);
	copies_age(store, note->block);
	stats_add(&store->stats->v.hints_expired_blocks_total, 1);
	notes_keep(h->notes, note, 0);
	note->until_s = 0;
	notes_settle(h->notes, note);
}

static void sweep_in(struct hints *h, uint32_t ms)
{
	h->sweeping = true;
	loop_timer_set(h->loop, &h->sweep, loop_now(h->loop) + ms * 1000000ull);
}

static void sweep(struct loop_timer *timer)
{
	struct hints *h = container_of(timer, struct hints, sweep);
	const bool more = notes_sweep(h->notes, &h->cursor, SWEEP_NOTES, now_s(h), expire, h);

	h->sweeping = false;
	if (!more)
		h->cursor = 0;
	if (notes_count(h->notes) > 0)
		sweep_in(h, more ? SWEEP_MS : ROUND_MS);
}

/* --- one block --- */

static uint16_t tenant_of(const struct hints *h, uint32_t block)
{
	const struct blocks *blocks = h->store->blocks;

	return (uint16_t)tally_tenant(blocks_tally(blocks), blocks_space(blocks, block));
}

static void look(const struct hints *h, uint32_t block, struct hint_block *ret)
{
	const struct store *store = h->store;
	const struct note *note = notes_find(h->notes, block);
	const uint32_t now = now_s(h);

	*ret = (struct hint_block){
		.away = blocks_host_slot(store->blocks, block) == BLOCK_NONE,
		.on_nvme = blocks_nvme(store->blocks, block, NULL),
		.in_use = blocks_pins(store->blocks, block) > 0,
		.noted = note || notes_have_room(h->notes, tenant_of(h, block)),
		.band = evict_band(blocks_order(store->blocks), block),
		.left_s = !note || note->until_s == 0 ? 0 :
			  note->until_s > now         ? note->until_s - now :
							1,
		.bytes = copies_image_bytes(store, block),
	};
}

static struct hint_limits limits_of(const struct hints *h, uint32_t block)
{
	const struct store *store = h->store;
	const uint64_t capacity = store_host(store)->capacity_bytes;

	return (struct hint_limits){
		.share_bytes = capacity / 100 * h->conf.share_percent,
		.all_bytes = capacity / 4 * 3,
		.max_ttl_s = h->conf.max_ttl_s,
		.nvme = extents_durable(store, blocks_key(store->blocks, block)),
	};
}

static struct hint_kept kept_of(const struct hints *h, uint32_t block)
{
	const struct note *note = notes_find(h->notes, block);
	const uint32_t own = note ? note->kept_bytes : 0;

	return (struct hint_kept){
		.tenant_bytes = notes_kept_bytes(h->notes, tenant_of(h, block)) - own,
		.all_bytes = notes_all_kept_bytes(h->notes) - own,
	};
}

static void execute(struct hints *h, uint32_t block, const struct hint_plan *plan)
{
	struct store *store = h->store;
	const bool noted = plan->keep_bytes > 0 || plan->ttl_s > 0;
	struct note *note = noted ? notes_make(h->notes, block, tenant_of(h, block)) :
				    notes_find(h->notes, block);

	assert(note || !noted); /* the plan has asked for room */
	evict_set_band(blocks_order(store->blocks), block, plan->band);
	if (plan->age)
		copies_age(store, block);
	if (!note)
		return;
	notes_keep(h->notes, note, plan->keep_bytes);
	note->until_s = plan->ttl_s > 0 ? now_s(h) + plan->ttl_s : 0;
	if (!h->sweeping)
		sweep_in(h, ROUND_MS);
}

/* The block joins the session that the hint names. False: its tenant has too many notes or
 * sessions. */
static bool join(struct hints *h, uint32_t block, const struct hint *hint)
{
	struct note *note = notes_make(h->notes, block, tenant_of(h, block));
	bool joined;

	if (!note)
		return false;
	joined = notes_join(h->notes, note, hint->session, hint->turn);
	notes_settle(h->notes, note);
	return joined;
}

static void leave(struct hints *h, uint32_t block)
{
	struct note *note = notes_find(h->notes, block);

	if (!note)
		return;
	notes_leave(h->notes, note);
	notes_settle(h->notes, note);
}

enum wire_hint_answer hints_block(struct hints *h, uint32_t block, const struct hint *hint,
				  bool *ret_write)
{
	const struct hint_limits limits = limits_of(h, block);
	const struct hint_kept kept = kept_of(h, block);
	struct hint_block state;
	struct hint_plan plan;
	struct note *note;

	look(h, block, &state);
	hint_plan(hint, &state, &limits, &kept, &plan);
	if (plan.change)
		execute(h, block, &plan);
	*ret_write = plan.write;
	if (hint->action == WIRE_HINT_ENDED)
		leave(h, block);
	else if (hint->session > 0 && !join(h, block, hint))
		plan.answer = WIRE_HINT_CLIPPED;
	note = notes_find(h->notes, block);
	if (note)
		notes_settle(h->notes, note);
	return plan.answer;
}

/* --- sessions --- */

uint32_t hints_session_blocks(const struct hints *h, const struct space *space, uint64_t session)
{
	const uint32_t number = notes_session(h->notes, (uint16_t)space->share, session);

	return number == NOTES_NONE ? 0 : notes_session_blocks(h->notes, number);
}

uint32_t hints_session_next(struct hints *h, const struct space *space, const struct hint *hint)
{
	const uint32_t number = notes_session(h->notes, (uint16_t)space->share, hint->session);
	const struct note *note;

	if (number == NOTES_NONE)
		return BLOCK_NONE;
	note = notes_next(h->notes, number);
	return note->turn < hint->turn ? BLOCK_NONE : note->block;
}

/* --- revisions --- */

enum wire_hint_answer hints_revision(struct hints *h, const uint8_t revision[32],
				     enum wire_hint_action action)
{
	const struct store *store = h->store;
	enum hint_standing standing;
	struct space *space = space_of_revision(store->spaces, revision, NULL);

	if (!space)
		return WIRE_HINT_MISSING;
	if (!hint_standing(action, &standing))
		return WIRE_HINT_REJECTED;
	for (; space; space = space_of_revision(store->spaces, revision, space))
		tally_set_standing(blocks_tally(store->blocks), space->number, standing);
	return WIRE_HINT_ACCEPTED;
}

/* --- numbers --- */

void hints_count(struct hints *h, enum wire_hint_action action, enum wire_hint_answer answer,
		 uint64_t blocks)
{
#define COUNTERS(name, number, prose)                                              \
	[number] = { offsetof(struct stats_values, hints_##name##_accepted_total), \
		     offsetof(struct stats_values, hints_##name##_clipped_total),  \
		     offsetof(struct stats_values, hints_##name##_deferred_total), \
		     offsetof(struct stats_values, hints_##name##_rejected_total), \
		     offsetof(struct stats_values, hints_##name##_missing_total) },
	static const size_t at[WIRE_HINT_ENDED + 1][WIRE_HINT_ANSWERS] = { HINT_ACTIONS(COUNTERS) };
	struct stats_values *v = &h->store->stats->v;

	assert((int)action > 0 && (int)action <= WIRE_HINT_ENDED &&
	       (int)answer < WIRE_HINT_ANSWERS);
	stats_add((void *)((uint8_t *)v + at[action][answer]), blocks);
}

void hints_gauges(const struct hints *h)
{
	struct stats_values *v = &h->store->stats->v;

	stats_set(&v->hints_kept_bytes, notes_all_kept_bytes(h->notes));
	stats_set(&v->hints_noted_blocks, notes_count(h->notes));
	stats_set(&v->hints_sessions, notes_sessions(h->notes));
	stats_set(&v->hints_lowered_spaces, tally_unusual(blocks_tally(h->store->blocks)));
}

uint64_t hints_kept_bytes(const struct hints *h, const struct space *space)
{
	return notes_kept_bytes(h->notes, (uint16_t)space->share);
}

enum wire_hint_action hint_action_named(const char *name)
{
#define NAMED(action, number, prose)    \
	if (strcmp(name, #action) == 0) \
		return (enum wire_hint_action)number;
	HINT_ACTIONS(NAMED)
	return 0;
}

const char *hint_action_name(enum wire_hint_action action)
{
#define NAME(name, number, prose) [number] = #name,
	static const char *const names[WIRE_HINT_ENDED + 1] = { HINT_ACTIONS(NAME) };

	return (int)action <= WIRE_HINT_ENDED ? names[action] : NULL;
}

/* --- life --- */

int hints_open(struct store *store, struct loop *loop, const struct hints_conf *conf,
	       struct hints **ret)
{
	struct hints *h = calloc(1, sizeof(*h));

	if (!h)
		return -ENOMEM;
	h->store = store;
	h->loop = loop;
	h->conf = *conf;
	h->sweep.fire = sweep;
	if (notes_open(conf->max_blocks, &h->notes)) {
		free(h);
		return -ENOMEM;
	}
	*ret = h;
	return 0;
}

void hints_close(struct hints *h)
{
	if (!h)
		return;
	loop_timer_unset(h->loop, &h->sweep);
	notes_close(h->notes);
	free(h);
}

struct notes *hints_notes(const struct hints *h)
{
	return h->notes;
}
