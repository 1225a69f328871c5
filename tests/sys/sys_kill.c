/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=8 */
/*
 * sys_kill.c - goal: a daemon that dies in the midst of stores and loads harms no engine. Every op
 * ends with a status for each block, and no page is touched after that. A new daemon serves the
 * same engine, with the same keys. Method: kill -9 at random moments after submitting; poison after
 * completion; restart; store and load again.
 */
#include "tests/lib/lib.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 128, PAGES = 3 * BLOCKS, ROUNDS = 6, DEADLINE_MS = 20000 };

/* One worker with the slow kernels: 16 MiB take long enough to be killed in the midst. */
static const char config[] = "[host]\nbytes = 32M\nslab_bytes = 2M\nhuge_pages = no\n"
			     "[device]\nworkers = 1\nkernels = ref\n";

struct outstanding {
	uint64_t op;
	bool load;
	uint32_t first;
	const struct kvtier_key *keys;
	int32_t blocks[BLOCKS];
};

static void submit(struct engine *e, struct outstanding *o, bool load,
		   const struct kvtier_key *keys, uint32_t first)
{
	uint32_t pages[BLOCKS];

	*o = (struct outstanding){ .load = load, .first = first, .keys = keys };
	pages_from(first, pages, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		if (load)
			page_poison(e, pages[i]);
		else
			page_fill(e, pages[i], &keys[i], 0);
	}
	assert_int_equal(load ? kvtier_load(e->space, keys, pages, BLOCKS, NULL, &o->op) :
				kvtier_store(e->space, keys, pages, BLOCKS, NULL, &o->op),
			 0);
}

/* Takes the result: loaded pages are right; other pages are untouched or, while being written,
 * unfinished. */
static uint32_t take(struct engine *e, struct outstanding *o)
{
	struct kvtier_result result = { .size = sizeof(result),
					.blocks = o->blocks,
					.blocks_max = BLOCKS };
	const uint64_t before = now_ns();
	uint32_t reset = 0;

	assert_int_equal(kvtier_wait(e->client, o->op, -1, &result), 0);
	assert_true(now_ns() - before < DEADLINE_MS * 1000000ull); /* not its deadline ended it */
	assert_int_equal(result.n, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		if (o->blocks[i] != 0 && o->blocks[i] != 1 && o->blocks[i] != -ECONNRESET)
			fail_msg("block %u of a killed %s has status %d", i,
				 o->load ? "load" : "store", o->blocks[i]);
		if (o->load && o->blocks[i] == 0)
			assert_true(page_is(e, o->first + i, &o->keys[i], 0));
		reset += o->blocks[i] == -ECONNRESET;
	}
	return reset;
}

/* Until an op is answered. The first one may still go into the ring of a daemon not yet known to be
 * dead. */
static void await_space(struct engine *e, const struct kvtier_key *keys)
{
	const uint64_t until = now_ns() + 20000000000u;
	const uint32_t page = 0;
	int32_t status = -ECONNRESET;

	while (status != 0 && status != -ENOENT) {
		if ((status != -ENOTCONN && status != -ECONNRESET) || now_ns() > until)
			fail_msg("the client does not come back by itself: %d, %s", status,
				 kvtier_last_error());
		nap_ms(5);
		status = engine_load(e, keys, &page, 1, NULL);
	}
}

static void poison_all(struct engine *e)
{
	for (uint32_t i = 0; i < e->pages; i++)
		page_poison(e, i);
}

static void assert_all_poison(struct engine *e)
{
	nap_ms(30);
	for (uint32_t i = 0; i < e->pages; i++)
		assert_true(page_is_poison(e, i));
}

struct world {
	struct served s;
	struct random random;
	struct kvtier_key kept[BLOCKS], fresh[BLOCKS];
};

/* One life of the daemon: a store and a load under way, death, the next daemon. Returns blocks that
 * were cut off. */
static uint32_t die_once(struct world *w, int round)
{
	struct outstanding store, load;
	uint32_t reset;

	chain_keys(&w->s.e, 500 + (uint64_t)round, BLOCKS, w->fresh);
	submit(&w->s.e, &load, true, w->kept, 0);
	submit(&w->s.e, &store, false, w->fresh, BLOCKS);
	(void)usleep(random_below(&w->random, 20000));
	daemon_signal(&w->s.d, SIGKILL);
	reset = take(&w->s.e, &load) + take(&w->s.e, &store);
	poison_all(&w->s.e);
	assert_all_poison(&w->s.e);
	return reset;
}

/* A client of its own for each case: one that saw its daemon die often waits longer and longer to
 * reconnect. */
FIXTURE(begin)
{
	static struct world w;
	struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);

	w.random = random_seeded("sys_kill");
	served_begin(&w.s, config, &g, PAGES);
	chain_keys(&w.s.e, 1, BLOCKS, w.kept);
	*state = &w;
	return 0;
}

TEST_EACH(begin, served_end);

TEST(every_op_ends_and_the_next_daemon_serves)
{
	struct world *w = *state;
	uint32_t reset = 0;

	for (int round = 0; round < ROUNDS; round++) {
		assert_int_equal(chain_store(&w->s.e, w->kept, 2 * BLOCKS, BLOCKS), 0);
		reset += die_once(w, round);
		daemon_restart(&w->s.d);
		await_space(&w->s.e, w->kept);
		/* A new daemon's memory is empty: neither the kept nor the unfinished chain is
		 * there. */
		assert_int_equal(engine_lookup(&w->s.e, w->kept, BLOCKS), 0);
		assert_int_equal(engine_lookup(&w->s.e, w->fresh, BLOCKS), 0);
		assert_int_equal(chain_store(&w->s.e, w->fresh, 0, BLOCKS), 0);
		assert_int_equal(chain_load(&w->s.e, w->fresh, BLOCKS, BLOCKS), BLOCKS);
	}
	assert_true(reset > 0); /* some were caught in the midst */
}

TEST(keys_stay_the_same)
{
	struct world *w = *state;
	struct kvtier_key again[BLOCKS];

	daemon_signal(&w->s.d, SIGKILL);
	daemon_restart(&w->s.d);
	await_space(&w->s.e, w->kept);
	chain_keys(&w->s.e, 1, BLOCKS, again);
	assert_memory_equal(again, w->kept, sizeof(again));
}

TEST(without_a_daemon_calls_fail_at_once)
{
	struct world *w = *state;
	const uint32_t page = 0;
	uint64_t op;

	daemon_signal(&w->s.d, SIGKILL);
	for (int i = 0; i < 50; i++) {
		const int r = kvtier_store(w->s.e.space, w->kept, &page, 1, NULL, &op);

		/* the first may go into the ring of a daemon not yet known to be dead */
		if (r == 0)
			assert_int_equal(kvtier_wait(w->s.e.client, op, -1, NULL), 0);
		else
			assert_int_equal(r, -ENOTCONN);
		assert_int_equal(engine_lookup(&w->s.e, w->kept, BLOCKS), 0);
		nap_ms(1);
	}
	assert_int_equal(kvtier_store(w->s.e.space, w->kept, &page, 1, NULL, &op), -ENOTCONN);
	daemon_restart(&w->s.d);
	await_space(&w->s.e, w->kept);
}

/* SIGTERM instead: the daemon lets its workers finish, and exits 0. */
TEST(clean_stop_under_load)
{
	struct world *w = *state;
	struct outstanding store, load;

	for (int round = 0; round < 3; round++) {
		assert_int_equal(chain_store(&w->s.e, w->kept, 2 * BLOCKS, BLOCKS), 0);
		chain_keys(&w->s.e, 700 + (uint64_t)round, BLOCKS, w->fresh);
		submit(&w->s.e, &load, true, w->kept, 0);
		submit(&w->s.e, &store, false, w->fresh, BLOCKS);
		daemon_signal(&w->s.d, SIGTERM); /* asserts the exit */
		(void)take(&w->s.e, &load);
		(void)take(&w->s.e, &store);
		poison_all(&w->s.e);
		assert_all_poison(&w->s.e);
		daemon_restart(&w->s.d);
		await_space(&w->s.e, w->kept);
	}
}

TEST(staged_engines_come_back_too)
{
	struct world *w = *state;
	struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	struct engine e;

	engine_open_staged(&e, w->s.d.socket, "staged", &g, 2 * BLOCKS, 3 * engine_page_bytes(&g));
	for (int round = 0; round < 3; round++) {
		struct outstanding o;

		chain_keys(&e, 900, BLOCKS, w->fresh);
		submit(&e, &o, false, w->fresh, 0);
		(void)usleep(random_below(&w->random, 2000));
		daemon_signal(&w->s.d, SIGKILL);
		(void)take(&e, &o);
		daemon_restart(&w->s.d);
		await_space(&e, w->fresh);
		assert_int_equal(chain_store(&e, w->fresh, 0, BLOCKS), 0);
		assert_int_equal(chain_load(&e, w->fresh, BLOCKS, BLOCKS), BLOCKS);
	}
	engine_close(&e);
}
