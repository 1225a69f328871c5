/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: a lost daemon ends every op and nothing else: the client comes back by itself with its
 * spaces, whichever threads are in it. Method: a fake daemon (fake_engine.h) that hangs up.
 */

#include "tests/lib/fake_engine.h"
#include "tests/lib/test.h"

TEST_FAKES(lost_daemon_ends_every_op, lost_daemon_ends_shared_ops, lost_daemon_ends_staged_ops)
{
	struct kvtier_result result = { .size = sizeof(result) };
	struct kvtier_key keys[5];
	const uint32_t pages[5] = { 0, 1, 2, 3, 4 };
	int32_t blocks[5];
	uint64_t ops[3];

	fake_keys(&sole, 1, 5, keys);
	sole.peer.hold = true;
	for (int i = 0; i < 3; i++)
		assert_int_equal(kvtier_store(sole.space, keys, pages, 5, NULL, &ops[i]), 0);
	sole.peer.hang_up = true;
	result.blocks = blocks;
	result.blocks_max = 5;
	for (int i = 0; i < 3; i++) {
		assert_int_equal(kvtier_wait(sole.client, ops[i], 60000, &result), 0);
		assert_int_equal(result.status, -ECONNRESET);
		for (int k = 0; k < 5; k++)
			assert_int_equal(blocks[k], -ECONNRESET);
	}
}

TEST_FAKES(comes_back_with_its_spaces, reconnects_shared, reconnects_staged)
{
	struct kvtier_key after;

	fake_store_again(&sole);
	sole.peer.salt = 9; /* as if the state directory had been lost */
	sole.peer.hang_up = true;
	while (sole.peer.connections < 2) {
		assert_int_equal(kvtier_poll(sole.client, NULL, 0), 0);
		(void)usleep(1000);
	}
	fake_store_again(&sole);
	fake_keys(&sole, 1, 1, &after);
	assert_memory_not_equal(&sole.key, &after, sizeof(after));
	assert_int_equal(sole.peer.connections, 2);
}

/* As if the daemon had been upgraded, and the upgrade taken back. */
TEST_FAKES(daemon_of_another_version, another_version_shared, another_version_staged)
{
	static const uint32_t versions[] = { WIRE_VERSION_MAX, WIRE_VERSION_MIN, WIRE_VERSION_MAX };
	struct kvtier_result result = { .size = sizeof(result) };
	uint32_t connections = sole.peer.connections;
	uint64_t op;

	for (size_t i = 0; i < 3; i++) {
		sole.peer.version = versions[i];
		sole.peer.hang_up = true;
		while (sole.peer.connections == connections) {
			assert_int_equal(kvtier_poll(sole.client, NULL, 0), 0);
			(void)usleep(1000);
		}
		connections = sole.peer.connections;
		fake_fill(&sole, 0, 0x5a);
		fake_store_again(&sole);
		fake_keys(&sole, 77, 1, &sole.key);
		fake_fill(&sole, 1, 0);
		assert_int_equal(kvtier_load(sole.space, &sole.key, &(uint32_t){ 1 }, 1, NULL, &op),
				 0);
		assert_int_equal(kvtier_wait(sole.client, op, PATIENT_MS, &result), 0);
		assert_int_equal(result.ok, 1);
		fake_page_is(&sole, 1, 0x5a);
	}
}

static void *hammer(void *arg)
{
	struct engine *e = arg;
	struct kvtier_result result = { .size = sizeof(result) };
	struct kvtier_hit hit = { .size = sizeof(hit) };
	struct kvtier_key key;
	uint64_t op;

	fake_keys(e, 5, 1, &key);
	for (int i = 0; i < 300; i++) {
		int rc = kvtier_load(e->space, &key, &(uint32_t){ 3 }, 1, NULL, &op);

		assert(rc == 0 || rc == -ENOTCONN || rc == -EAGAIN);
		rc = kvtier_lookup(e->space, &key, 1, &hit);
		assert(!rc);
		if (rc == 0 && i % 3 && !kvtier_wait(e->client, op, 60000, &result))
			assert(result.status == 0 || result.status == -ENOENT ||
			       result.status == -ECONNRESET);
		else
			(void)kvtier_poll(e->client, &result, 1);
	}
	return NULL;
}

/* Threads that submit, wait, poll and look up while the daemon comes and goes. For sanitizers,
 * above all. */
TEST_FAKE(threads_share_a_client, true)
{
	pthread_t threads[4];

	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, hammer, &sole), 0);
	for (int i = 0; i < 5; i++) {
		(void)usleep(20000);
		sole.peer.hang_up = true;
	}
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
}
