/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_hints.c - goal: each action of a hint acts on blocks as HINTS.md says, and each answer is
 * given where HINTS.md says so. Method: a real daemon whose memory holds 85 blocks, chains that
 * hints are about, and other chains that push out blocks that may go.
 */
/* make: lane=wait seconds=8 */
#include "tests/lib/lib_hint.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { LENGTH = 16, PAGES = 3 * LENGTH, SESSION = 77 };

/* A raw tiny block takes 12 KiB: 1 MiB holds at most 85 of them; the share of a tenant is 21. */
#define MEMORY "[host]\nbytes = 1M\nslab_bytes = 256K\nhuge_pages = no\n"
#define DISK   MEMORY "[nvme]\nbytes = 16M\nsegment_bytes = 1M\n"
enum { SHARE_BLOCKS = 21 };

/* --- words --- */

static struct kvtier_hint hint_on_keys(enum kvtier_hint_action action,
				       const struct kvtier_key *keys, size_t n)
{
	return (struct kvtier_hint){ .size = sizeof(struct kvtier_hint),
				     .action = action,
				     .scope = KVTIER_HINT_KEYS,
				     .keys = keys,
				     .n = n };
}

static struct kvtier_hint hint_on(enum kvtier_hint_action action, enum kvtier_hint_scope scope,
				  uint64_t session)
{
	return (struct kvtier_hint){ .size = sizeof(struct kvtier_hint),
				     .action = action,
				     .scope = scope,
				     .session = session };
}

static struct kvtier_result say(struct engine *e, const struct kvtier_hint *hint)
{
	struct kvtier_result result = { .size = sizeof(result) };
	uint64_t op;

	assert_int_equal(kvtier_hint(e->space, hint, &op), 0);
	assert_int_equal(kvtier_wait(e->client, op, -1, &result), 0);
	return result;
}

static void answered(const struct kvtier_result *result, uint32_t accepted, uint32_t clipped,
		     uint32_t deferred, uint32_t rejected, uint32_t missing)
{
	const uint32_t want[5] = { accepted, clipped, deferred, rejected, missing };

	for (int i = 0; i < 5; i++)
		if (result->answers[i] != want[i])
			fail_msg("answer %d: %u, not %u", i, result->answers[i], want[i]);
}

static struct kvtier_result said(struct engine *e, const struct kvtier_hint *hint,
				 uint32_t accepted, uint32_t clipped, uint32_t deferred,
				 uint32_t rejected, uint32_t missing)
{
	const struct kvtier_result result = say(e, hint);

	answered(&result, accepted, clipped, deferred, rejected, missing);
	return result;
}

/* --- a world --- */

struct world {
	struct served s;
	uint32_t chains; /* fresh ones that were stored */
};

static void begin(void **state, const char *config)
{
	static struct world w;
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);

	memset(&w, 0, sizeof(w));
	served_begin(&w.s, config, &g, PAGES);
	w.chains = 1000;
	*state = &w;
}

FIXTURE(in_memory)
{
	begin(state, MEMORY);
	return 0;
}

TEST_EACH(in_memory, served_end);

FIXTURE(on_disk)
{
	if (!disk_dir())
		skip();
	begin(state, DISK);
	return 0;
}

static void store(struct engine *e, uint32_t chain, struct kvtier_key *keys,
		  const struct kvtier_op_options *options)
{
	hint_store(e, chain, LENGTH, options, keys);
}

static void fresh(struct world *w, uint32_t chains)
{
	struct kvtier_key keys[LENGTH];

	while (chains-- > 0)
		store(&w->s.e, w->chains++, keys, NULL);
}

static uint32_t there(struct world *w, const struct kvtier_key *keys)
{
	return engine_lookup(&w->s.e, keys, LENGTH);
}

static uint32_t in_host(struct world *w, const struct kvtier_key *keys)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < LENGTH; i++) {
		struct kvtier_hit hit = { .size = sizeof(hit) };

		assert_int_equal(kvtier_lookup(w->s.e.space, &keys[i], 1, &hit), 0);
		n += hit.blocks == 1 && hit.tiers & KVTIER_TIER_HOST;
	}
	return n;
}

/* All that memory has is on NVMe, too: no block is spared since it is still to be written. */
static void flush(struct world *w)
{
	char out[512];

	assert_int_equal(daemon_ctl(&w->s.d, "flush", out, sizeof(out)), 0);
}

static void fresh_and_flushed(struct world *w, uint32_t chains)
{
	while (chains-- > 0) {
		fresh(w, 1);
		flush(w);
	}
}

/* --- retain, pin --- */

TEST(what_is_pinned_stays_and_loads)
{
	struct world *w = *state;
	struct kvtier_key pinned[LENGTH], other[LENGTH];
	struct kvtier_hint hint;

	store(&w->s.e, 1, pinned, NULL);
	store(&w->s.e, 2, other, NULL);
	hint = hint_on_keys(KVTIER_HINT_PIN, pinned, LENGTH);
	(void)said(&w->s.e, &hint, LENGTH, 0, 0, 0, 0);
	fresh(w, 12);
	assert_int_equal(there(w, other), 0);
	assert_int_equal(chain_load(&w->s.e, pinned, LENGTH, LENGTH), LENGTH);
	assert_int_equal(daemon_stat(&w->s.d, "hints.pin.accepted_total"), LENGTH);
	daemon_stat_becomes(&w->s.d, "hints.kept_bytes", LENGTH * 12288, PATIENT_MS);
}

TEST(what_is_over_the_share_is_clipped)
{
	struct world *w = *state;
	struct kvtier_key keys[2][LENGTH];
	struct kvtier_hint hint;
	struct kvtier_result result;

	for (uint32_t i = 0; i < 2; i++)
		store(&w->s.e, i, keys[i], NULL);
	hint = hint_on_keys(KVTIER_HINT_PIN, keys[0], 2 * LENGTH);
	result = said(&w->s.e, &hint, SHARE_BLOCKS, 2 * LENGTH - SHARE_BLOCKS, 0, 0, 0);
	assert_int_equal(result.ok, 2 * LENGTH);
	fresh(w, 12); /* all others find room, too */
	assert_int_equal(there(w, keys[0]), LENGTH);
	assert_int_equal(there(w, keys[1]), SHARE_BLOCKS - LENGTH);
	assert_int_equal(daemon_stat(&w->s.d, "store.dropped_blocks_total"), 0);
	daemon_stat_becomes(&w->s.d, "hints.kept_bytes", SHARE_BLOCKS * 12288, PATIENT_MS);
	/* released, they make room for others in the share */
	hint.action = KVTIER_HINT_RELEASE;
	(void)said(&w->s.e, &hint, SHARE_BLOCKS, 0, 0, 0, 2 * LENGTH - SHARE_BLOCKS);
	daemon_stat_becomes(&w->s.d, "hints.kept_bytes", 0, PATIENT_MS);
	fresh(w, 6);
	assert_int_equal(there(w, keys[0]), 0);
}

/* Of the share the last is for the most important. */
TEST(a_low_priority_has_less_of_the_share)
{
	struct world *w = *state;
	struct kvtier_key keys[LENGTH];
	struct kvtier_hint hint;

	store(&w->s.e, 1, keys, NULL);
	hint = hint_on_keys(KVTIER_HINT_RETAIN, keys, LENGTH);
	hint.priority = 1;
	(void)said(&w->s.e, &hint, SHARE_BLOCKS / 2, LENGTH - SHARE_BLOCKS / 2, 0, 0, 0);
	hint.priority = 100;
	(void)said(&w->s.e, &hint, LENGTH, 0, 0, 0, 0);
}

TEST(what_is_retained_goes_after_others_until_it_is_released)
{
	struct world *w = *state;
	struct kvtier_key kept[LENGTH], other[LENGTH];
	struct kvtier_hint hint;

	store(&w->s.e, 1, kept, NULL);
	hint = hint_on_keys(KVTIER_HINT_RETAIN, kept, LENGTH);
	hint.priority = 100;
	(void)said(&w->s.e, &hint, LENGTH, 0, 0, 0, 0);
	fresh(w, 12);
	assert_int_equal(there(w, kept), LENGTH);
	store(&w->s.e, 2, other, NULL);
	hint = hint_on_keys(KVTIER_HINT_RELEASE, kept, LENGTH);
	(void)said(&w->s.e, &hint, LENGTH, 0, 0, 0, 0);
	fresh(w, 2);
	assert_true(there(w, kept) < LENGTH);
	assert_int_equal(there(w, other), LENGTH);
}

TEST(what_is_used_again_is_as_any_other)
{
	struct world *w = *state;
	struct kvtier_key keys[LENGTH], older[LENGTH];
	struct kvtier_hint hint;

	store(&w->s.e, 1, older, NULL);
	store(&w->s.e, 2, keys, NULL);
	hint = hint_on_keys(KVTIER_HINT_SUPERSEDED, keys, LENGTH);
	(void)say(&w->s.e, &hint);
	assert_int_equal(chain_load(&w->s.e, keys, LENGTH, LENGTH), LENGTH);
	fresh(w, 4);
	assert_int_equal(there(w, keys), LENGTH);
	assert_true(there(w, older) < LENGTH);
}

/* A second is enough for the ttl, and the blocks go before older ones. */
TEST(what_has_reached_its_ttl_goes_first)
{
	struct world *w = *state;
	struct kvtier_key keys[LENGTH], older[LENGTH];
	struct kvtier_hint hint;

	store(&w->s.e, 1, older, NULL);
	store(&w->s.e, 2, keys, NULL);
	hint = hint_on_keys(KVTIER_HINT_PIN, keys, LENGTH);
	hint.ttl_s = 1;
	(void)said(&w->s.e, &hint, LENGTH, 0, 0, 0, 0);
	daemon_stat_becomes(&w->s.d, "hints.expired_blocks_total", LENGTH, PATIENT_MS);
	daemon_stat_becomes(&w->s.d, "hints.noted_blocks", 0, PATIENT_MS);
	fresh(w, 4);
	assert_true(there(w, keys) < LENGTH);
	assert_int_equal(there(w, older), LENGTH);
}

TEST(a_ttl_is_cut_and_a_block_may_be_missing)
{
	struct world *w = *state;
	struct kvtier_key keys[LENGTH], absent[LENGTH];
	struct kvtier_hint hint;
	struct kvtier_result result;
	int32_t blocks[LENGTH];
	uint64_t op;

	store(&w->s.e, 1, keys, NULL);
	chain_keys(&w->s.e, 2, LENGTH, absent);
	keys[3] = absent[3];
	hint = hint_on_keys(KVTIER_HINT_PIN, keys, 5);
	hint.ttl_s = 1000000000;
	assert_int_equal(kvtier_hint(w->s.e.space, &hint, &op), 0);
	result =
		(struct kvtier_result){ .size = sizeof(result), .blocks = blocks, .blocks_max = 5 };
	assert_int_equal(kvtier_wait(w->s.e.client, op, -1, &result), 0);
	answered(&result, 0, 4, 0, 0, 1);
	for (uint32_t i = 0; i < 5; i++)
		assert_int_equal(blocks[i], i == 3 ? -ENOENT : KVTIER_HINT_CLIPPED);
	assert_int_equal(result.status, -ENOENT);
}

/* --- demote, prefetch --- */

TEST_WITH(what_is_demoted_leaves_memory_first_and_stays_on_nvme, on_disk, served_end)
{
	struct world *w = *state;
	struct kvtier_key keys[LENGTH], older[LENGTH];
	struct kvtier_hint hint;

	store(&w->s.e, 1, older, NULL);
	store(&w->s.e, 2, keys, NULL);
	flush(w);
	hint = hint_on_keys(KVTIER_HINT_DEMOTE, keys, LENGTH);
	(void)said(&w->s.e, &hint, LENGTH, 0, 0, 0, 0);
	fresh_and_flushed(w, 4);
	assert_true(in_host(w, keys) < LENGTH);
	assert_int_equal(in_host(w, older), LENGTH);
	assert_int_equal(there(w, keys), LENGTH);
	assert_int_equal(chain_load(&w->s.e, keys, LENGTH, LENGTH), LENGTH);
	/* used again, it is as any other */
	fresh_and_flushed(w, 3);
	assert_int_equal(in_host(w, keys), LENGTH);
}

TEST(without_nvme_there_is_nothing_to_demote_to)
{
	struct world *w = *state;
	struct kvtier_key keys[LENGTH];
	struct kvtier_hint hint;
	struct kvtier_result result;

	store(&w->s.e, 1, keys, NULL);
	hint = hint_on_keys(KVTIER_HINT_DEMOTE, keys, LENGTH);
	result = said(&w->s.e, &hint, 0, 0, 0, LENGTH, 0);
	assert_int_equal(result.status, -EPERM);
	assert_int_equal(daemon_stat(&w->s.d, "hints.demote.rejected_total"), LENGTH);
}

static void evict_all(struct world *w)
{
	char out[512];

	assert_int_equal(daemon_ctl(&w->s.d, "evict --all", out, sizeof(out)), 0);
}

TEST_WITH(keys_and_sessions_are_brought_back_into_memory, on_disk, served_end)
{
	struct world *w = *state;
	const struct kvtier_op_options in_session = { .size = sizeof(in_session),
						      .session = SESSION,
						      .turn = 1 };
	struct kvtier_key keys[LENGTH], mine[LENGTH], absent[LENGTH];
	struct kvtier_hint hint;
	struct kvtier_result result;

	store(&w->s.e, 1, keys, NULL);
	store(&w->s.e, 2, mine, &in_session);
	chain_keys(&w->s.e, 3, LENGTH, absent);
	flush(w);
	evict_all(w);
	assert_int_equal(in_host(w, keys) + in_host(w, mine), 0);
	hint = hint_on_keys(KVTIER_HINT_PREFETCH, keys, LENGTH);
	(void)said(&w->s.e, &hint, LENGTH, 0, 0, 0, 0);
	assert_int_equal(in_host(w, keys), LENGTH);
	assert_int_equal(in_host(w, mine), 0);
	hint = hint_on(KVTIER_HINT_PREFETCH, KVTIER_HINT_SESSION, SESSION);
	result = said(&w->s.e, &hint, LENGTH, 0, 0, 0, 0);
	assert_int_equal(result.n, 1);
	assert_int_equal(result.status, 0);
	assert_int_equal(in_host(w, mine), LENGTH);
	hint = hint_on_keys(KVTIER_HINT_PREFETCH, absent, LENGTH);
	(void)said(&w->s.e, &hint, 0, 0, 0, 0, LENGTH);
	assert_int_equal(daemon_stat(&w->s.d, "hints.prefetch.accepted_total"), 2 * LENGTH);
}

TEST_WITH(a_pin_of_what_is_away_begins_when_it_comes, on_disk, served_end)
{
	struct world *w = *state;
	struct kvtier_key keys[LENGTH];
	struct kvtier_hint hint;

	store(&w->s.e, 1, keys, NULL);
	flush(w);
	evict_all(w);
	hint = hint_on_keys(KVTIER_HINT_PIN, keys, LENGTH);
	(void)said(&w->s.e, &hint, 0, 0, LENGTH, 0, 0);
	assert_int_equal(chain_load(&w->s.e, keys, LENGTH, LENGTH), LENGTH);
	fresh(w, 12);
	assert_int_equal(in_host(w, keys), LENGTH);
	evict_all(w); /* the operator does not take it either */
	assert_int_equal(in_host(w, keys), LENGTH);
}

/* --- sessions --- */

TEST(a_session_that_ended_goes_first_and_is_forgotten)
{
	struct world *w = *state;
	const struct kvtier_op_options in_session = { .size = sizeof(in_session),
						      .session = SESSION };
	struct kvtier_key keys[LENGTH], older[LENGTH];
	struct kvtier_hint hint;
	struct kvtier_result result;

	store(&w->s.e, 1, older, NULL);
	store(&w->s.e, 2, keys, &in_session);
	daemon_stat_becomes(&w->s.d, "hints.sessions", 1, PATIENT_MS);
	hint = hint_on(KVTIER_HINT_PIN, KVTIER_HINT_SESSION, SESSION);
	(void)said(&w->s.e, &hint, LENGTH, 0, 0, 0, 0);
	fresh(w, 12);
	assert_int_equal(there(w, keys), LENGTH);
	store(&w->s.e, 1, older, NULL);
	hint.action = KVTIER_HINT_ENDED;
	(void)said(&w->s.e, &hint, LENGTH, 0, 0, 0, 0);
	result = said(&w->s.e, &hint, 0, 0, 0, 0, 1);
	assert_int_equal(result.status, -ENOENT);
	daemon_stat_becomes(&w->s.d, "hints.sessions", 0, PATIENT_MS);
	daemon_stat_becomes(&w->s.d, "hints.noted_blocks", 0, PATIENT_MS);
	fresh(w, 2);
	assert_true(there(w, keys) < LENGTH);
	assert_int_equal(there(w, older), LENGTH);
}

/* The turns from one on are superseded: a conversation that went another way. */
TEST(a_turn_and_those_after_it_can_be_meant)
{
	struct world *w = *state;
	struct kvtier_op_options options = { .size = sizeof(options), .session = SESSION };
	struct kvtier_key keys[3][LENGTH];
	struct kvtier_hint hint;

	for (uint32_t i = 0; i < 3; i++) {
		options.turn = i + 1;
		store(&w->s.e, i, keys[i], &options);
	}
	options.turn = 9; /* a load in a later turn does not change when it joined */
	hint = hint_on(KVTIER_HINT_SUPERSEDED, KVTIER_HINT_SESSION, SESSION);
	hint.turn = 2;
	(void)said(&w->s.e, &hint, 2 * LENGTH, 0, 0, 0, 0);
	fresh(w, 4);
	assert_int_equal(there(w, keys[0]), LENGTH);
	assert_true(there(w, keys[1]) < LENGTH);
	assert_true(there(w, keys[2]) < LENGTH);
}

/* --- the fields of ops --- */

TEST(an_ops_fields_are_hints_that_take_nothing_back)
{
	struct world *w = *state;
	struct kvtier_op_options options = { .size = sizeof(options), .priority = 50 };
	struct kvtier_key kept[LENGTH], brief[LENGTH];
	struct kvtier_hint hint;

	store(&w->s.e, 1, kept, &options);
	daemon_stat_becomes(&w->s.d, "hints.kept_bytes", SHARE_BLOCKS * 3 / 4 * 12288, PATIENT_MS);
	assert_int_equal(daemon_stat(&w->s.d, "hints.retain.accepted_total"), SHARE_BLOCKS * 3 / 4);
	hint = hint_on_keys(KVTIER_HINT_PIN, kept, LENGTH);
	(void)say(&w->s.e, &hint);
	/* another op of these blocks says that they are worth little */
	options.priority = -1;
	options.ttl_s = 1;
	options.session = SESSION;
	store(&w->s.e, 1, kept, &options);
	store(&w->s.e, 2, brief, &options);
	daemon_stat_becomes(&w->s.d, "hints.expired_blocks_total", LENGTH, PATIENT_MS);
	daemon_stat_becomes(&w->s.d, "hints.kept_bytes", LENGTH * 12288, PATIENT_MS);
	fresh(w, 12);
	assert_int_equal(there(w, kept), LENGTH);
	assert_int_equal(there(w, brief), 0);
}

/* --- revisions --- */

TEST(a_revision_that_is_superseded_goes_first_and_comes_back_when_opened)
{
	struct world *w = *state;
	struct kvtier_geometry old = tiny_geometry(KVTIER_CODEC_RAW);
	struct kvtier_key keys[2][LENGTH], younger[LENGTH];
	struct kvtier_hint hint;
	struct kvtier_result result;
	struct engine e;

	store(&w->s.e, 1, younger, NULL);
	old.model = "m@old";
	engine_open(&e, w->s.d.socket, "old", &old, PAGES);
	for (uint32_t i = 0; i < 2; i++)
		store(&e, i, keys[i], NULL);
	hint = hint_on_keys(KVTIER_HINT_PIN, keys[0], LENGTH);
	(void)said(&e, &hint, LENGTH, 0, 0, 0, 0);
	hint = hint_on(KVTIER_HINT_PIN, KVTIER_HINT_REVISION, 0);
	result = said(&e, &hint, 0, 0, 0, 1, 0);
	assert_int_equal(result.status, -EPERM);
	hint.action = KVTIER_HINT_SUPERSEDED;
	(void)said(&e, &hint, 1, 0, 0, 0, 0);
	daemon_stat_becomes(&w->s.d, "hints.lowered_spaces", 1, PATIENT_MS);
	/* still there: reclaimed when room is needed, pinned or not, before older blocks */
	assert_int_equal(engine_lookup(&e, keys[1], LENGTH), LENGTH);
	assert_int_equal(chain_load(&e, keys[1], LENGTH, LENGTH), LENGTH);
	fresh(w, 4);
	assert_int_equal(there(w, younger), LENGTH);
	assert_true(engine_lookup(&e, keys[0], LENGTH) + engine_lookup(&e, keys[1], LENGTH) < 6);
	engine_close(&e);
	engine_open(&e, w->s.d.socket, "back", &old, PAGES);
	daemon_stat_becomes(&w->s.d, "hints.lowered_spaces", 0, PATIENT_MS);
	store(&e, 1, keys[1], NULL);
	fresh(w, 3);
	assert_int_equal(engine_lookup(&e, keys[1], LENGTH), LENGTH);
	engine_close(&e);
}

/* --- invalid hints --- */

static void refused(struct engine *e, struct kvtier_hint hint, const char *field)
{
	uint64_t op = 5;

	assert_int_equal(kvtier_hint(e->space, &hint, &op), -EINVAL);
	if (!strstr(kvtier_last_error(), field))
		fail_msg("\"%s\" does not name %s", kvtier_last_error(), field);
	assert_int_equal(op, 5);
}

TEST(what_makes_no_sense_is_refused_with_the_fields_name)
{
	struct world *w = *state;
	struct kvtier_key keys[LENGTH];
	struct kvtier_hint h;

	chain_keys(&w->s.e, 1, LENGTH, keys);
	h = hint_on_keys(8, keys, LENGTH);
	refused(&w->s.e, h, "hint.action");
	h = hint_on_keys(0, keys, LENGTH);
	refused(&w->s.e, h, "hint.action");
	h = hint_on(KVTIER_HINT_PIN, 4, 0);
	refused(&w->s.e, h, "hint.scope");
	h = hint_on(KVTIER_HINT_PIN, KVTIER_HINT_SESSION, 0);
	refused(&w->s.e, h, "hint.session");
	h = hint_on(KVTIER_HINT_PIN, KVTIER_HINT_KEYS, 0);
	refused(&w->s.e, h, "hint.keys");
	h = hint_on_keys(KVTIER_HINT_PIN, keys, 0);
	refused(&w->s.e, h, "n is 0");
	h.n = KVTIER_MAX_BLOCKS + 1;
	refused(&w->s.e, h, "n is 8193");
	h = hint_on_keys(KVTIER_HINT_RETAIN, keys, 1);
	h.priority = 101;
	refused(&w->s.e, h, "hint.priority");
	h.priority = 0;
	h.reserved = 1;
	refused(&w->s.e, h, "hint.reserved");
}
