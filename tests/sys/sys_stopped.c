/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_stopped.c - goal: a daemon that is stopped, and so neither answers nor dies, holds up no
 * engine: each call ends at its own timeout, lookups say that nothing is there, and kvtierctl names
 * the trouble. When the daemon goes on, so does all else. Method: SIGSTOP and SIGCONT; times are
 * only compared with the timeouts that the calls were given.
 */
#include "tests/lib/lib.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { BLOCKS = 16, PAGES = 3 * BLOCKS };

static const char config[] = "[host]\nbytes = 4M\nslab_bytes = 256K\nhuge_pages = no\n";

struct world {
	struct daemon d;
	struct engine e;
	struct kvtier_key keys[BLOCKS];
};

FIXTURE(set_up)
{
	static struct world w;
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);

	daemon_start(&w.d, config);
	engine_open(&w.e, w.d.socket, "engine", &g, PAGES);
	chain_keys(&w.e, 1, BLOCKS, w.keys);
	assert_int_equal(chain_store(&w.e, w.keys, 0, BLOCKS), 0);
	daemon_signal(&w.d, SIGSTOP);
	*state = &w;
	return 0;
}

FIXTURE(tear_down)
{
	struct world *w = *state;

	daemon_signal(&w->d, SIGCONT);
	if (w->e.client)
		engine_close(&w->e);
	daemon_remove(&w->d);
	return 0;
}

TEST_EACH(set_up, tear_down);

static uint64_t submit_load(struct world *w, uint32_t first)
{
	uint32_t pages[BLOCKS];
	uint64_t op;

	pages_from(first, pages, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		page_poison(&w->e, pages[i]);
	assert_int_equal(kvtier_load(w->e.space, w->keys, pages, BLOCKS, NULL, &op), 0);
	return op;
}

TEST(wait_ends_at_its_timeout_and_the_op_goes_on)
{
	struct world *w = *state;
	struct kvtier_result result = { .size = sizeof(result) };
	const uint64_t op = submit_load(w, BLOCKS);

	assert_int_equal(kvtier_wait(w->e.client, op, 0, &result), -ETIMEDOUT);
	assert_int_equal(kvtier_wait(w->e.client, op, 300, &result), -ETIMEDOUT);
	daemon_signal(&w->d, SIGCONT);
	assert_int_equal(kvtier_wait(w->e.client, op, -1, &result), 0);
	assert_int_equal(result.prefix, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert_true(page_is(&w->e, BLOCKS + i, &w->keys[i], 0));
}

TEST(wait_without_timeout_ends_after_the_deadline)
{
	struct world *w = *state;
	const struct kvtier_op_options o = { .size = sizeof(o), .timeout_ms = 200 };
	const uint32_t page = 0;
	uint64_t op;

	assert_int_equal(kvtier_load(w->e.space, w->keys, &page, 1, &o, &op), 0);
	assert_int_equal(kvtier_wait(w->e.client, op, -1, NULL), -ETIMEDOUT);
}

TEST(cancel_ends_at_its_timeout)
{
	struct world *w = *state;
	const uint64_t op = submit_load(w, BLOCKS);

	assert_int_equal(kvtier_cancel(w->e.client, op, 200), -ETIMEDOUT);
	assert_true(page_is_poison(&w->e, BLOCKS));
	daemon_signal(&w->d, SIGCONT);
	assert_int_equal(kvtier_cancel(w->e.client, op, PATIENT_MS), 0);
	assert_int_equal(kvtier_wait(w->e.client, op, 0, NULL), 0);
}

TEST(lookups_say_nothing_is_there)
{
	struct world *w = *state;

	engine_lookup_becomes(&w->e, w->keys, BLOCKS, 0);
	daemon_signal(&w->d, SIGCONT);
	engine_lookup_becomes(&w->e, w->keys, BLOCKS, BLOCKS);
}

/* A second client, whose own timeout is short. */
TEST(close_ends_at_the_clients_timeout)
{
	struct world *w = *state;
	const struct kvtier_options o = { .size = sizeof(o),
					  .socket_path = w->d.socket,
					  .timeout_ms = 500 };
	struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct kvtier_segment segments[8];
	const size_t n = engine_segments(&g, segments, 8);
	const struct kvtier_region region = {
		.size = sizeof(region),
		.memory = KVTIER_MEMFD,
		.fd = w->e.fd,
		.length = w->e.page_bytes * PAGES,
	};
	struct kvtier_client *client;
	struct kvtier_space *space;
	const uint32_t page = 2 * BLOCKS;
	uint64_t op;

	daemon_signal(&w->d, SIGCONT);
	INSIST(kvtier_connect(&o, &client));
	INSIST(kvtier_space_open(client, &g, &region, 1, segments, n, &space));
	daemon_signal(&w->d, SIGSTOP);
	page_poison(&w->e, page);
	assert_int_equal(kvtier_load(space, w->keys, &page, 1, NULL, &op), 0);
	/* returns though nobody answers: the test's own time limit says when not */
	kvtier_close(client);
	daemon_signal(&w->d, SIGCONT);
	daemon_stat_becomes(&w->d, "clients", 1, PATIENT_MS);
	daemon_stat_becomes(&w->d, "leases", 0, PATIENT_MS);
}

TEST(connecting_ends_at_its_timeout)
{
	struct world *w = *state;
	const struct kvtier_options o = { .size = sizeof(o),
					  .socket_path = w->d.socket,
					  .timeout_ms = 300 };
	struct kvtier_client *client;

	assert_int_equal(kvtier_connect(&o, &client), -ETIMEDOUT);
}

TEST(kvtierctl_says_what_is_the_matter)
{
	struct world *w = *state;
	char out[16384];

	assert_int_equal(daemon_ctl(&w->d, "stats", out, sizeof(out)), 0);
	assert_non_null(strstr(out, "STOPPED"));
	assert_int_equal(daemon_ctl(&w->d, "stats --all", out, sizeof(out)), 0);
	assert_non_null(strstr(out, "store.blocks_total"));
	assert_int_equal(daemon_ctl(&w->d, "status", out, sizeof(out)), 2);
	assert_non_null(strstr(out, "STOPPED"));
	daemon_signal(&w->d, SIGCONT);
	for (int i = 0; i < PATIENT_MS / 20 && daemon_ctl(&w->d, "status", out, sizeof(out)); i++)
		nap_ms(20); /* until its next heartbeat */
	assert_null(strstr(out, "STOPPED"));
}
