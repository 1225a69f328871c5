/* SPDX-License-Identifier: Apache-2.0 */
/* hints.c - see hints.h. Core thread only. */
#include "hints.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "client/abi/tbl_hints.h"
#include "copies.h"
#include "gpu_cache.h"
#include "base/list.h"
#include "base/loop.h"
#include "daemon/stats/stats.h"
#include "daemon/table/evict.h"
#include "daemon/table/hint_table.h"
#include "daemon/table/space.h"
#include "tables.h"
#include "daemon/table/space_counts.h"

enum {
	SWEEP_NOTES = 4096, /* looked at in one go: some 20 us */
	SWEEP_MS = 20,      /* until the next ones */
	ROUND_MS = 1000,    /* until all are looked at again */
};

/* --- the effect of a hint; pure functions --- */

enum { PIN_PRIORITY = 100 }; /* it may take all of the share */

static bool fits(const struct hint_block *block, const struct hint_limits *limits,
		 const struct hint_kept *kept, int32_t priority)
{
	const uint64_t percent = (uint64_t)(50 + priority / 2),
		       most = limits->share_bytes / 100 * percent +
			      limits->share_bytes % 100 * percent / 100;

	return kept->tenant_bytes + block->bytes <= most &&
	       kept->all_bytes + block->bytes <= limits->all_bytes;
}

/* *ret is the ttl that is allowed. True: it was cut. */
static bool clip_ttl(uint32_t ttl_s, const struct hint_limits *limits, bool endless, uint32_t *ret)
{
	*ret = ttl_s == 0 && !endless ? limits->max_ttl_s : ttl_s;
	if (*ret <= limits->max_ttl_s)
		return false;
	*ret = limits->max_ttl_s;
	return true;
}

static void plan_keep(const struct hint *hint, const struct hint_block *block,
		      const struct hint_limits *limits, const struct hint_kept *kept,
		      struct hint_plan *ret)
{
	const bool pin = hint->action == WIRE_HINT_PIN;

	if (!block->noted || !fits(block, limits, kept, pin ? PIN_PRIORITY : hint->priority)) {
		ret->answer = WIRE_HINT_CLIPPED;
		return;
	}
	ret->change = true;
	ret->band = pin ? EVICT_HELD : EVICT_KEPT;
	ret->keep_bytes = block->bytes;
	if (clip_ttl(hint->ttl_s, limits, false, &ret->ttl_s))
		ret->answer = WIRE_HINT_CLIPPED;
	else if (pin && block->away)
		ret->answer = WIRE_HINT_DEFERRED;
}

/* A block of several sessions is back with the first one of them. */
static uint64_t earliest(uint32_t back_s, const struct hint_block *block)
{
	const uint64_t own = back_s == UINT32_MAX ? EVICT_NEVER : back_s * 1000000ull;

	return block->back_us > 0 && block->back_us < own ? block->back_us : own;
}

static void retain(const struct hint *hint, const struct hint_block *block,
		   const struct hint_limits *limits, struct hint_plan *ret)
{
	const bool clipped = clip_ttl(hint->ttl_s, limits, true, &ret->ttl_s);

	ret->change = true;
	ret->band = hint->priority < 0 && !block->away ? EVICT_FIRST : EVICT_USUAL;
	if (hint->back_s > 0) {
		ret->band = EVICT_EXPECTED;
		ret->back_us = earliest(hint->back_s, block);
	}
	if (ret->ttl_s > 0 && !block->noted)
		ret->ttl_s = 0;
	if (clipped || (hint->ttl_s > 0 && ret->ttl_s == 0))
		ret->answer = WIRE_HINT_CLIPPED;
}

/* A soft hint only raises a block that other hints are about, or says when it is used again. */
static void soften(const struct hint_block *block, struct hint_plan *ret)
{
	const bool kept = block->band == EVICT_KEPT || block->band == EVICT_HELD;

	if (ret->band == EVICT_EXPECTED) {
		ret->change = !kept;
		if (ret->ttl_s > 0 && ret->ttl_s < block->left_s)
			ret->ttl_s = block->left_s;
		return;
	}
	if (ret->band < block->band)
		ret->change = false;
	if (ret->band > block->band)
		return;
	if (block->left_s == 0)
		ret->change = false;
	else if (ret->ttl_s > 0 && ret->ttl_s < block->left_s)
		ret->ttl_s = block->left_s;
}

static void demote(const struct hint_block *block, const struct hint_limits *limits,
		   struct hint_plan *ret)
{
	if (!block->on_nvme && !limits->nvme) {
		ret->answer = WIRE_HINT_REJECTED;
		return;
	}
	ret->change = true;
	ret->band = block->away ? EVICT_USUAL : EVICT_FIRST;
	ret->write = !block->on_nvme;
	if (!block->away && (!block->on_nvme || block->in_use))
		ret->answer = WIRE_HINT_DEFERRED;
}

void hint_plan(const struct hint *hint, const struct hint_block *block,
	       const struct hint_limits *limits, const struct hint_kept *kept,
	       struct hint_plan *ret)
{
	*ret = (struct hint_plan){ .answer = WIRE_HINT_ACCEPTED, .band = EVICT_USUAL };
	switch (hint->action) {
	case WIRE_HINT_RETAIN:
		if (hint->priority > 0)
			plan_keep(hint, block, limits, kept, ret);
		else
			retain(hint, block, limits, ret);
		if (hint->soft && !hint->fresh)
			soften(block, ret);
		return;
	case WIRE_HINT_PIN:
		plan_keep(hint, block, limits, kept, ret);
		return;
	case WIRE_HINT_DEMOTE:
		demote(block, limits, ret);
		return;
	case WIRE_HINT_RELEASE:
	case WIRE_HINT_SUPERSEDED:
	case WIRE_HINT_ENDED:
		ret->change = true;
		ret->age = true;
		return;
	case WIRE_HINT_PREFETCH:
		break;
	}
	ret->answer = WIRE_HINT_REJECTED;
}

bool hint_standing(enum wire_hint_action action, enum hint_standing *ret)
{
	switch (action) {
	case WIRE_HINT_RETAIN:
		*ret = HINT_USUAL;
		return true;
	case WIRE_HINT_DEMOTE:
		*ret = HINT_DEMOTED;
		return true;
	case WIRE_HINT_RELEASE:
	case WIRE_HINT_SUPERSEDED:
	case WIRE_HINT_ENDED:
		*ret = HINT_RETIRED;
		return true;
	case WIRE_HINT_PIN:
	case WIRE_HINT_PREFETCH:
		break;
	}
	return false;
}

/* --- ends --- */

struct hints {
	struct tables *tables;
	struct loop *loop;
	uint32_t max_ttl_s;
	struct hint_table *table;
	struct loop_timer sweep;
	uint32_t cursor;
	bool sweeping; /* the timer is set */
};

static uint32_t now_s(const struct hints *h)
{
	return (uint32_t)(loop_now(h->loop) / 1000000000u);
}

static void expire(void *arg, struct note *note)
{
	struct hints *h = arg;
	struct tables *tables = h->tables;

	evict_set_band(blocks_order(tables->blocks), note->block, EVICT_USUAL);
	if (blocks_tick(tables->blocks, note->block) <= note->tick)
		copies_age(tables, note->block);
	stats_add(&tables->stats->v.hints_expired_blocks_total, 1);
	hint_table_keep(h->table, note, 0);
	note->until_s = 0;
	hint_table_settle(h->table, note);
}

static void sweep_in(struct hints *h, uint32_t ms)
{
	h->sweeping = true;
	loop_timer_set(h->loop, &h->sweep, loop_now(h->loop) + ms * 1000000ull);
}

static void sweep(struct loop_timer *timer)
{
	struct hints *h = container_of(timer, struct hints, sweep);
	const bool more = hint_table_sweep(h->table, &h->cursor, SWEEP_NOTES, now_s(h), expire, h);

	h->sweeping = false;
	if (!more)
		h->cursor = 0;
	if (h->tables->quota->used[QUOTA_hint_rows] > 0)
		sweep_in(h, more ? SWEEP_MS : ROUND_MS);
}

/* --- one block --- */

static uint16_t tenant_of(const struct hints *h, uint32_t block)
{
	const struct blocks *blocks = h->tables->blocks;

	return (uint16_t)counts_tenant(blocks_counts(blocks), blocks_space(blocks, block));
}

/* The us until a session other than the hint's is expected to use the block, or 0. */
static uint64_t back_of_others(const struct hints *h, uint32_t block, const struct note *note,
			       const struct hint *hint)
{
	const uint64_t back = evict_expected(blocks_order(h->tables->blocks), block);

	if (back <= h->tables->tick || !note || note->session == HINT_TABLE_NONE ||
	    hint->session == 0 ||
	    note->session == hint_table_session(h->table, note->tenant, hint->session))
		return 0;
	return back - h->tables->tick;
}

static void look(const struct hints *h, uint32_t block, const struct hint *hint,
		 struct hint_block *ret)
{
	const struct tables *tables = h->tables;
	const struct note *note = hint_table_find(h->table, block);
	const uint32_t now = now_s(h);

	*ret = (struct hint_block){
		.away = blocks_host_slot(tables->blocks, block) == BLOCK_NONE,
		.on_nvme = blocks_nvme(tables->blocks, block, NULL),
		.in_use = blocks_pins(tables->blocks, block) > 0,
		.noted = note || hint_table_have_room(h->table, tenant_of(h, block)),
		.band = evict_band(blocks_order(tables->blocks), block),
		.left_s = !note || note->until_s == 0 ? 0 :
			  note->until_s > now         ? note->until_s - now :
							1,
		.back_us = hint->back_s > 0 ? back_of_others(h, block, note, hint) : 0,
		.bytes = copies_image_bytes(tables, block),
	};
}

static struct hint_limits limits_of(const struct hints *h, uint32_t block)
{
	const struct tables *tables = h->tables;

	return (struct hint_limits){
		.share_bytes = tables->quota->guarantee[QUOTA_kept_bytes],
		.all_bytes = quota_guaranteed(tables->quota->all[QUOTA_kept_bytes], 75, 1),
		.max_ttl_s = h->max_ttl_s,
		.nvme = extents_durable(tables, blocks_key(tables->blocks, block)),
	};
}

static struct hint_kept kept_of(const struct hints *h, uint32_t block)
{
	const struct note *note = hint_table_find(h->table, block);
	const uint32_t own = note ? note->kept_bytes : 0;
	const struct quota *quota = h->tables->quota;

	return (struct hint_kept){
		.tenant_bytes = quota->tenant[tenant_of(h, block)].used[QUOTA_kept_bytes] - own,
		.all_bytes = quota->used[QUOTA_kept_bytes] - own,
	};
}

static void expect(struct tables *tables, uint32_t block, uint64_t back_us)
{
	const uint64_t left = EVICT_NEVER - tables->tick;

	evict_expect(blocks_order(tables->blocks), block,
		     back_us < left ? tables->tick + back_us : EVICT_NEVER);
	if (tables->gpu_cache)
		gpu_cache_expected(tables->gpu_cache, block);
	if (tables->foresee)
		tables->expect(tables->foresee, block,
			       evict_expected(blocks_order(tables->blocks), block));
}

static void execute(struct hints *h, uint32_t block, const struct hint_plan *plan)
{
	struct tables *tables = h->tables;
	const bool noted = plan->keep_bytes > 0 || plan->ttl_s > 0;
	struct note *note = noted ? hint_table_make(h->table, block, tenant_of(h, block)) :
				    hint_table_find(h->table, block);

	assert(note || !noted); /* the plan has asked for room */
	if (plan->band == EVICT_EXPECTED)
		expect(tables, block, plan->back_us);
	else
		evict_set_band(blocks_order(tables->blocks), block, plan->band);
	if (plan->age)
		copies_age(tables, block);
	if (!note)
		return;
	hint_table_keep(h->table, note, plan->keep_bytes);
	note->until_s = plan->ttl_s > 0 ? now_s(h) + plan->ttl_s : 0;
	note->tick = blocks_tick(tables->blocks, block);
	if (!h->sweeping)
		sweep_in(h, ROUND_MS);
}

/* The block joins the session that the hint names. False: its tenant has too many notes or
 * sessions. */
static bool join(struct hints *h, uint32_t block, const struct hint *hint)
{
	struct note *note = hint_table_make(h->table, block, tenant_of(h, block));
	bool joined;

	if (!note)
		return false;
	joined = hint_table_join(h->table, note, hint->session, hint->turn);
	hint_table_settle(h->table, note);
	return joined;
}

static void leave(struct hints *h, uint32_t block)
{
	struct note *note = hint_table_find(h->table, block);

	if (!note)
		return;
	hint_table_leave(h->table, note);
	hint_table_settle(h->table, note);
}

enum wire_hint_answer hints_block(struct hints *h, uint32_t block, const struct hint *hint,
				  bool *ret_write)
{
	const struct hint_limits limits = limits_of(h, block);
	const struct hint_kept kept = kept_of(h, block);
	struct hint_block state;
	struct hint_plan plan;
	struct note *note;

	look(h, block, hint, &state);
	hint_plan(hint, &state, &limits, &kept, &plan);
	if (plan.change)
		execute(h, block, &plan);
	else if (plan.answer == WIRE_HINT_CLIPPED)
		quota_refused(h->tables->quota, QUOTA_kept_bytes, tenant_of(h, block));
	*ret_write = plan.write;
	if (hint->action == WIRE_HINT_ENDED)
		leave(h, block);
	else if (hint->session > 0 && !join(h, block, hint))
		plan.answer = WIRE_HINT_CLIPPED;
	note = hint_table_find(h->table, block);
	if (note)
		hint_table_settle(h->table, note);
	return plan.answer;
}

/* --- sessions --- */

uint32_t hints_session_blocks(const struct hints *h, const struct space *space, uint64_t session)
{
	const uint32_t number =
		hint_table_session(h->table, (uint16_t)space->tenant_number, session);

	return number == HINT_TABLE_NONE ? 0 : hint_table_session_blocks(h->table, number);
}

uint32_t hints_session_next(struct hints *h, const struct space *space, const struct hint *hint)
{
	const uint32_t number =
		hint_table_session(h->table, (uint16_t)space->tenant_number, hint->session);
	const struct note *note;

	if (number == HINT_TABLE_NONE)
		return BLOCK_NONE;
	note = hint_table_next(h->table, number);
	return note->turn < hint->turn ? BLOCK_NONE : note->block;
}

/* --- revisions --- */

enum wire_hint_answer hints_revision(struct hints *h, const uint8_t revision[32],
				     enum wire_hint_action action)
{
	const struct tables *tables = h->tables;
	enum hint_standing standing;
	struct space *space = space_of_revision(tables->spaces, revision, NULL);

	if (!space)
		return WIRE_HINT_MISSING;
	if (!hint_standing(action, &standing))
		return WIRE_HINT_REJECTED;
	for (; space; space = space_of_revision(tables->spaces, revision, space))
		counts_set_standing(blocks_counts(tables->blocks), space->number, standing);
	return WIRE_HINT_ACCEPTED;
}

/* --- numbers --- */

void hints_count(struct hints *h, enum wire_hint_answer answer)
{
	struct stats_values *v = &h->tables->stats->v;
#define COUNTER(name, number, prose) [number] = &v->hints_##name##_blocks_total,
	uint64_t *const counters[WIRE_HINT_ANSWERS] = { HINT_ANSWERS(COUNTER) };

	assert((int)answer < WIRE_HINT_ANSWERS);
	stats_add(counters[answer], 1);
}

void hints_gauges(const struct hints *h)
{
	struct stats_values *v = &h->tables->stats->v;

	stats_set(&v->hints_kept_bytes, h->tables->quota->used[QUOTA_kept_bytes]);
	stats_set(&v->hints_noted_blocks, h->tables->quota->used[QUOTA_hint_rows]);
	stats_set(&v->hints_sessions, h->tables->quota->used[QUOTA_sessions]);
	stats_set(&v->hints_lowered_spaces, counts_unusual(blocks_counts(h->tables->blocks)));
}

uint64_t hints_kept_bytes(const struct hints *h, const struct space *space)
{
	return h->tables->quota->tenant[space->tenant_number].used[QUOTA_kept_bytes];
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

int hints_open(struct tables *tables, struct loop *loop, uint32_t max_blocks, uint32_t max_ttl_s,
	       struct hints **ret)
{
	struct hints *h = calloc(1, sizeof(*h));

	if (!h)
		return -ENOMEM;
	h->tables = tables;
	h->loop = loop;
	h->max_ttl_s = max_ttl_s;
	h->sweep.fire = sweep;
	if (hint_table_open(max_blocks, tables->quota, &h->table)) {
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
	hint_table_close(h->table);
	free(h);
}

struct hint_table *hints_table(const struct hints *h)
{
	return h->table;
}
