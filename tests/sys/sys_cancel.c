/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_cancel.c - goal: an op that is ended early (cancel, deadline, space closed) gives every block
 * a status, and afterwards no page of it is touched. Method: large loads from a daemon with one
 * slow worker, ended as they run; pages are poisoned before, compared, poisoned again and looked at
 * later.
 */
#include "tests/lib/lib.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 128, TRIES = 10 };

static const char config[] = "[host]\nbytes = 48M\nslab_bytes = 2M\nhuge_pages = no\n"
			     "[device]\nworkers = 1\nkernels = ref\n";

struct world {
	struct served s;
	struct kvtier_key keys[BLOCKS];
	uint32_t pages[BLOCKS];
	int32_t blocks[BLOCKS];
	uint32_t done, ended; /* blocks, over all tries */
};

static void poison_all(struct world *w)
{
	for (uint32_t i = 0; i < BLOCKS; i++)
		page_poison(&w->s.e, w->pages[i]);
}

static uint64_t start_load(struct world *w, uint32_t timeout_ms)
{
	const struct kvtier_op_options o = { .size = sizeof(o), .timeout_ms = timeout_ms };
	uint64_t op;

	poison_all(w);
	assert_int_equal(kvtier_load(w->s.e.space, w->keys, w->pages, BLOCKS, &o, &op), 0);
	return op;
}

/* Takes the result. A block with status 0 is right. Any other has the status `rest`, and its page
 * has a part of the block or nothing, never another byte. */
static void take(struct world *w, uint64_t op, int32_t rest)
{
	struct kvtier_result result = { .size = sizeof(result),
					.blocks = w->blocks,
					.blocks_max = BLOCKS };
	uint32_t ok = 0;

	assert_int_equal(kvtier_wait(w->s.e.client, op, -1, &result), 0);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		if (w->blocks[i] != 0)
			assert_int_equal(w->blocks[i], rest);
		assert_true(w->blocks[i] == 0 ? page_is(&w->s.e, w->pages[i], &w->keys[i], 0) :
						page_is_part(&w->s.e, w->pages[i], &w->keys[i], 0));
		ok += w->blocks[i] == 0;
	}
	assert_int_equal(result.ok, ok);
	assert_int_equal(result.status, ok == BLOCKS ? 0 : rest);
	w->done += ok;
	w->ended += BLOCKS - ok;
}

static void assert_untouched_from_now_on(struct world *w)
{
	poison_all(w);
	nap_ms(20);
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert_true(page_is_poison(&w->s.e, w->pages[i]));
}

TEST(canceled_load_leaves_its_pages)
{
	struct world *w = *state;

	for (int i = 0; i < TRIES; i++) {
		const uint64_t op = start_load(w, 0);

		(void)usleep((useconds_t)i * 500);
		assert_int_equal(kvtier_cancel(w->s.e.client, op, 20000), 0);
		take(w, op, -ECANCELED);
		assert_untouched_from_now_on(w);
	}
	assert_true(w->ended > 0); /* some were caught in the midst */
	daemon_stat_becomes(&w->s.d, "leases", 0, PATIENT_MS);
}

TEST(load_past_its_deadline_leaves_its_pages)
{
	struct world *w = *state;

	for (int i = 0; i < TRIES; i++) {
		const uint64_t op = start_load(w, 1);

		take(w, op, -ETIMEDOUT);
		assert_untouched_from_now_on(w);
	}
	assert_true(w->ended > 0);
	assert_true(daemon_stat(&w->s.d, "ops.timed_out_total") > 0);
}

TEST(canceled_store_keeps_a_prefix)
{
	struct world *w = *state;
	char out[256];

	for (int i = 0; i < TRIES; i++) {
		struct kvtier_result result = { .size = sizeof(result),
						.blocks = w->blocks,
						.blocks_max = BLOCKS };
		uint64_t op;

		assert_int_equal(daemon_ctl(&w->s.d, "evict --all", out, sizeof(out)), 0);
		for (uint32_t k = 0; k < BLOCKS; k++)
			page_fill(&w->s.e, w->pages[k], &w->keys[k], 0);
		assert_int_equal(kvtier_store(w->s.e.space, w->keys, w->pages, BLOCKS, NULL, &op),
				 0);
		(void)usleep((useconds_t)i * 1000);
		assert_int_equal(kvtier_cancel(w->s.e.client, op, 20000), 0);
		poison_all(w); /* the pages are ours again: kept bytes were read before */
		assert_int_equal(kvtier_wait(w->s.e.client, op, 0, &result), 0);
		assert_int_equal(result.prefix, result.ok); /* the chain has no hole */
		assert_int_equal(engine_lookup(&w->s.e, w->keys, BLOCKS), result.prefix);
		assert_int_equal(chain_load(&w->s.e, w->keys, 0, BLOCKS), result.prefix);
		w->ended += BLOCKS - result.ok;
	}
	assert_true(w->ended > 0);
}

TEST(cancel_of_what_is_done_or_unknown)
{
	struct world *w = *state;
	const uint64_t op = start_load(w, 0);

	while (kvtier_wait(w->s.e.client, op, 20000, NULL) == -ETIMEDOUT)
		;
	assert_int_equal(kvtier_cancel(w->s.e.client, op, 100), -ENOENT);
	assert_int_equal(kvtier_cancel(w->s.e.client, op + 77, 100), -ENOENT);
}

TEST(closing_a_space_ends_its_ops)
{
	struct world *w = *state;
	struct kvtier_segment segments[16];
	const size_t n = engine_segments(&w->s.e.geometry, segments, 16);
	const struct kvtier_region region = {
		.size = sizeof(region),
		.memory = KVTIER_MEMFD,
		.fd = w->s.e.fd,
		.length = w->s.e.page_bytes * w->s.e.pages,
	};

	for (int i = 0; i < TRIES; i++) {
		uint64_t op = 0;

		poison_all(w);
		for (int k = 0; k < 3; k++)
			assert_int_equal(kvtier_load(w->s.e.space, w->keys, w->pages, BLOCKS, NULL,
						     &op),
					 0);
		(void)usleep((useconds_t)i * 300);
		kvtier_space_close(w->s.e.space);
		assert_untouched_from_now_on(w);
		daemon_maps_become(&w->s.d, "memfd:engine", 0, PATIENT_MS);
		assert_int_equal(kvtier_wait(w->s.e.client, op, 0, NULL), -ENOENT);
		assert_int_equal(kvtier_space_open(w->s.e.client, &w->s.e.geometry, &region, 1,
						   segments, n, &w->s.e.space),
				 0);
	}
	daemon_stat_becomes(&w->s.d, "leases", 0, PATIENT_MS);
	assert_int_equal(daemon_stat(&w->s.d, "protocol_errors_total"), 0);
}

FIXTURE(begin)
{
	static struct world w;
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);

	w.done = w.ended = 0;
	served_begin(&w.s, config, &g, BLOCKS);
	chain_keys(&w.s.e, 1, BLOCKS, w.keys);
	pages_from(0, w.pages, BLOCKS);
	assert_int_equal(chain_store(&w.s.e, w.keys, 0, BLOCKS), 0);
	*state = &w;
	return 0;
}

TEST_EACH(begin, served_end);
