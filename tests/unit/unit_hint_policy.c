/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_hint_policy.c - goal: a hint changes a block as HINTS.md says, and the bounds hold for all
 * hints. Method: single plans; then random hints, whose plans are executed on a model of a tenant's
 * blocks.
 */

#include "daemon/move/hints.h"
#include "tests/lib/test.h"

static const struct hint_limits limits = {
	.share_bytes = 1000, .all_bytes = 3000, .max_ttl_s = 100, .nvme = true
};

static struct hint_plan plan(struct hint hint, struct hint_block block, uint64_t tenant_bytes)
{
	const struct hint_kept kept = { .tenant_bytes = tenant_bytes, .all_bytes = tenant_bytes };
	struct hint_plan ret;

	block.bytes = block.bytes > 0 ? block.bytes : 10;
	hint_plan(&hint, &block, &limits, &kept, &ret);
	return ret;
}

static const struct hint_block in_memory = { .noted = true, .band = EVICT_USUAL }, away = {
	.noted = true, .band = EVICT_USUAL, .away = true, .on_nvme = true
};

TEST(a_retain_is_a_band_by_its_sign)
{
	struct hint_plan p =
		plan((struct hint){ .action = WIRE_HINT_RETAIN, .priority = 1 }, in_memory, 0);

	assert_int_equal(p.answer, WIRE_HINT_ACCEPTED);
	assert_int_equal(p.band, EVICT_KEPT);
	assert_int_equal(p.keep_bytes, 10);
	assert_int_equal(p.ttl_s, 100); /* nothing is kept without an end */
	p = plan((struct hint){ .action = WIRE_HINT_RETAIN, .priority = -1, .ttl_s = 7 }, in_memory,
		 0);
	assert_int_equal(p.band, EVICT_FIRST);
	assert_int_equal(p.keep_bytes, 0);
	assert_int_equal(p.ttl_s, 7);
	p = plan((struct hint){ .action = WIRE_HINT_RETAIN }, in_memory, 0);
	assert_true(p.change && p.band == EVICT_USUAL && p.ttl_s == 0 && !p.age);
	p = plan((struct hint){ .action = WIRE_HINT_RETAIN, .priority = -1 }, away, 0);
	assert_int_equal(p.band, EVICT_USUAL); /* it has left memory */
}

TEST(the_share_is_by_priority_and_never_more)
{
	for (int priority = 1; priority <= 100; priority++) {
		const struct hint h = { .action = WIRE_HINT_RETAIN, .priority = priority };
		const uint64_t most = 10 * (uint64_t)(50 + priority / 2);

		assert_int_equal(plan(h, in_memory, most - 10).answer, WIRE_HINT_ACCEPTED);
		assert_int_equal(plan(h, in_memory, most - 9).answer, WIRE_HINT_CLIPPED);
		assert_false(plan(h, in_memory, most - 9).change);
	}
	assert_true(plan((struct hint){ .action = WIRE_HINT_PIN }, in_memory, 990).change);
	assert_false(plan((struct hint){ .action = WIRE_HINT_PIN }, in_memory, 991).change);
}

TEST(all_tenants_have_a_bound_together)
{
	const struct hint h = { .action = WIRE_HINT_PIN };
	const struct hint_block block = { .noted = true, .bytes = 10 };
	struct hint_plan p;

	hint_plan(&h, &block, &limits, &(struct hint_kept){ .all_bytes = 2990 }, &p);
	assert_int_equal(p.answer, WIRE_HINT_ACCEPTED);
	hint_plan(&h, &block, &limits, &(struct hint_kept){ .all_bytes = 2991 }, &p);
	assert_int_equal(p.answer, WIRE_HINT_CLIPPED);
	assert_false(p.change);
}

TEST(a_pin_is_deferred_clipped_or_done)
{
	struct hint_block full = in_memory;
	struct hint_plan p = plan((struct hint){ .action = WIRE_HINT_PIN, .ttl_s = 5 }, away, 0);

	assert_int_equal(p.answer, WIRE_HINT_DEFERRED);
	assert_int_equal(p.band, EVICT_HELD);
	assert_int_equal(p.ttl_s, 5);
	p = plan((struct hint){ .action = WIRE_HINT_PIN, .ttl_s = 101 }, in_memory, 0);
	assert_int_equal(p.answer, WIRE_HINT_CLIPPED);
	assert_true(p.change && p.band == EVICT_HELD && p.ttl_s == 100);
	full.noted = false;
	p = plan((struct hint){ .action = WIRE_HINT_PIN, .ttl_s = 5 }, full, 0);
	assert_true(p.answer == WIRE_HINT_CLIPPED && !p.change);
	p = plan((struct hint){ .action = WIRE_HINT_RETAIN, .ttl_s = 5 }, full, 0);
	assert_true(p.answer == WIRE_HINT_CLIPPED && p.ttl_s == 0);
}

TEST(a_demotion_needs_somewhere_to_go)
{
	const struct hint h = { .action = WIRE_HINT_DEMOTE };
	struct hint_block block = in_memory;
	struct hint_limits none = limits;
	struct hint_plan p = plan(h, block, 0);

	assert_true(p.answer == WIRE_HINT_DEFERRED && p.write && p.band == EVICT_FIRST);
	block.on_nvme = true;
	p = plan(h, block, 0);
	assert_true(p.answer == WIRE_HINT_ACCEPTED && !p.write && p.band == EVICT_FIRST && !p.age);
	block.in_use = true;
	assert_int_equal(plan(h, block, 0).answer, WIRE_HINT_DEFERRED);
	p = plan(h, away, 0);
	assert_true(p.answer == WIRE_HINT_ACCEPTED && p.band == EVICT_USUAL);
	none.nvme = false;
	hint_plan(&h, &in_memory, &none, &(struct hint_kept){ 0 }, &p);
	assert_true(p.answer == WIRE_HINT_REJECTED && !p.change);
}

TEST(what_ends_is_never_used)
{
	static const enum wire_hint_action actions[] = { WIRE_HINT_RELEASE, WIRE_HINT_SUPERSEDED,
							 WIRE_HINT_ENDED };

	for (int i = 0; i < 3; i++) {
		const struct hint_plan p =
			plan((struct hint){ .action = actions[i] }, in_memory, 0);

		assert_true(p.answer == WIRE_HINT_ACCEPTED && p.change && p.age);
		assert_true(p.band == EVICT_USUAL && p.keep_bytes == 0 && p.ttl_s == 0);
	}
}

TEST(the_fields_of_an_op_take_nothing_back)
{
	struct hint soft = { .action = WIRE_HINT_RETAIN, .priority = -5, .ttl_s = 5, .soft = true };
	struct hint_block held = { .noted = true, .band = EVICT_HELD, .left_s = 50 },
			  ends = { .noted = true, .band = EVICT_USUAL, .left_s = 50 };

	assert_false(plan(soft, held, 0).change);
	assert_false(plan(soft, in_memory, 0).change);
	soft.priority = 0;
	assert_false(plan(soft, in_memory, 0).change);
	assert_int_equal(plan(soft, ends, 0).ttl_s, 50);
	soft.ttl_s = 70;
	assert_int_equal(plan(soft, ends, 0).ttl_s, 70);
	soft.priority = 5;
	assert_true(plan(soft, in_memory, 0).change && plan(soft, in_memory, 0).band == EVICT_KEPT);
	soft.priority = -5;
	soft.fresh = true;
	assert_true(plan(soft, in_memory, 0).change &&
		    plan(soft, in_memory, 0).band == EVICT_FIRST);
}

TEST(a_revision_is_lowered_or_raised)
{
	enum hint_standing s;

	assert_true(hint_standing(WIRE_HINT_SUPERSEDED, &s) && s == HINT_RETIRED);
	assert_true(hint_standing(WIRE_HINT_ENDED, &s) && s == HINT_RETIRED);
	assert_true(hint_standing(WIRE_HINT_RELEASE, &s) && s == HINT_RETIRED);
	assert_true(hint_standing(WIRE_HINT_DEMOTE, &s) && s == HINT_DEMOTED);
	assert_true(hint_standing(WIRE_HINT_RETAIN, &s) && s == HINT_USUAL);
	assert_false(hint_standing(WIRE_HINT_PIN, &s) || hint_standing(WIRE_HINT_PREFETCH, &s));
}

/* A thousand blocks of a tenant, hinted at in any order. */
TEST(whatever_is_asked_the_bounds_hold)
{
	enum { BLOCKS = 1000, STEPS = 200000 };
	static struct hint_block block[BLOCKS];
	static uint32_t keeps[BLOCKS];
	struct random r = random_seeded("whatever_is_asked_the_bounds_hold");
	uint64_t kept = 0;

	for (uint32_t i = 0; i < BLOCKS; i++)
		block[i] = (struct hint_block){ .noted = true,
						.band = EVICT_USUAL,
						.bytes = 1 + random_below(&r, 30) };
	for (uint32_t i = 0; i < STEPS; i++) {
		const uint32_t at = random_below(&r, BLOCKS);
		const struct hint h = { .action = 1 + random_below(&r, WIRE_HINT_ENDED),
					.priority = (int32_t)random_below(&r, 201) - 100,
					.ttl_s = random_below(&r, 200),
					.soft = random_below(&r, 2),
					.fresh = random_below(&r, 2) };
		const struct hint_kept others = { kept - keeps[at], kept - keeps[at] };
		struct hint_plan p;

		block[at].away = random_below(&r, 4) == 0;
		block[at].on_nvme = block[at].away || random_below(&r, 2);
		block[at].left_s = random_below(&r, 100);
		hint_plan(&h, &block[at], &limits, &others, &p);
		assert_true(p.ttl_s <= limits.max_ttl_s);
		if (!p.change)
			continue;
		assert_true((p.keep_bytes > 0) == (p.band >= EVICT_KEPT));
		assert_true(p.keep_bytes == 0 || p.ttl_s > 0);
		kept += (uint64_t)p.keep_bytes - keeps[at];
		keeps[at] = p.keep_bytes;
		block[at].band = p.band;
		assert_true(kept <= limits.share_bytes);
	}
}
