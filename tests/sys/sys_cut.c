/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_cut.c - goal: ops that a client gave up on, because the daemon was stopped, are not begun
 * when it goes on: by then their pages hold other bytes. Method: SIGSTOP; submit; close another
 * space, which cuts the connection after the client's timeout; change the pages; SIGCONT. Several
 * rounds: the order in which the daemon looks at things is chance.
 */
#include "tests/lib/lib.h"

enum { BLOCKS = 32, PAGES = BLOCKS, ROUNDS = 6, TIMEOUT_MS = 100 };

static struct {
	struct daemon d;
	struct engine e, witness;
	struct kvtier_key keys[BLOCKS];
	uint32_t pages[BLOCKS];
} w;

typedef int submit_fn(struct kvtier_space *space, const struct kvtier_key *keys,
		      const uint32_t *pages, size_t n, const struct kvtier_op *options,
		      uint64_t *ret_op);

/* Another connection of the same pages, with a short patience. */
static struct kvtier_client *impatient(struct kvtier_space *ret_spaces[2])
{
	const struct kvtier_region r = { .size = sizeof(r),
					 .memory = KVTIER_MEMFD,
					 .fd = w.e.fd,
					 .length = w.e.pages * w.e.page_bytes };
	struct kvtier_segment segments[64];
	const size_t n = engine_segments(&w.e.geometry, segments, 64);
	struct kvtier_client *client;

	INSIST(client_dial(w.d.socket, NULL, TIMEOUT_MS, &client));
	for (int i = 0; i < 2; i++)
		INSIST(kvtier_space_open(client, &w.e.geometry, &r, 1, segments, n,
					 &ret_spaces[i]));
	return client;
}

/* Submits to a stopped daemon, is cut, puts 0xa5 into the pages, lets it go on; returns when it
 * serves again. */
static void give_up(submit_fn *submit)
{
	const struct kvtier_op patient = { .size = sizeof(patient), .timeout_ms = 60000 };
	struct kvtier_result result = { .size = sizeof(result) };
	struct kvtier_space *spaces[2];
	struct kvtier_client *client = impatient(spaces);
	uint64_t op;

	nap_ms(5); /* it sleeps */
	daemon_signal(&w.d, SIGSTOP);
	assert_int_equal(submit(spaces[0], w.keys, w.pages, BLOCKS, &patient, &op), 0);
	kvtier_space_close(spaces[1]);
	assert_int_equal(kvtier_wait(client, op, 0, &result), 0);
	assert_int_equal(result.status, -ECONNRESET);
	for (uint32_t i = 0; i < BLOCKS; i++)
		page_poison(&w.e, i);
	daemon_signal(&w.d, SIGCONT);
	daemon_stat_becomes(&w.d, "ops.outstanding", 0, PATIENT_MS);
	daemon_stat_becomes(&w.d, "clients", 2, PATIENT_MS);
	kvtier_close(client);
}

TEST(loads_do_not_begin)
{
	assert_int_equal(chain_store(&w.e, w.keys, 0, BLOCKS), 0);
	for (int round = 0; round < ROUNDS; round++) {
		give_up(kvtier_load);
		for (uint32_t i = 0; i < BLOCKS; i++)
			assert_true(page_is_poison(&w.e, i));
	}
}

TEST(stores_do_not_begin)
{
	for (int round = 0; round < ROUNDS; round++) {
		for (uint32_t i = 0; i < BLOCKS; i++)
			page_fill(&w.e, i, &w.keys[i], 0);
		give_up(kvtier_store);
		assert_int_equal(chain_load(&w.witness, w.keys, 0, BLOCKS), 0);
	}
}

FIXTURE(begin)
{
	daemon_start(&w.d, HOST("16M", "256K"));
	engine_open(&w.e, w.d.socket, "engine", &tiny_raw, PAGES);
	engine_open(&w.witness, w.d.socket, "witness", &tiny_raw, PAGES);
	chain_keys(&w.e, 1, BLOCKS, w.keys);
	pages_from(0, w.pages, BLOCKS);
	return 0;
}

FIXTURE(end)
{
	engine_close(&w.witness);
	engine_close(&w.e);
	daemon_remove(&w.d);
	return 0;
}

TEST_EACH(begin, end);
