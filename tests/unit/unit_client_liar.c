/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: the library refuses any wrong answer on the socket with an error, in time, and the engine
 * lives on. Method: a fake daemon (fake_engine.h) that lies in one way at a time.
 */
#include "client/kvtier.h"
#include "tests/lib/fake_engine.h"
#include "tests/lib/lib_refuse.h"
#include "tests/lib/test.h"

enum { SHORT_MS = 300 }; /* for ops that shall end at their deadline */

static uint32_t timeout_of(enum peer_lie lie)
{
	return lie == PEER_SILENT || lie == PEER_FULL || lie == PEER_IGNORES_SPACE ||
			       lie == PEER_IGNORES_CLOSE ?
		       SHORT_MS :
		       PATIENT_MS;
}

/* A busy machine may take longer over a connection than SHORT_MS. */
static int connect_to(const char *path, enum peer_lie lie, struct kvtier_client **ret)
{
	const struct kvtier_options o = { .size = sizeof(o),
					  .socket_path = path,
					  .timeout_ms = timeout_of(lie) };
	int r = -ETIMEDOUT;

	for (int i = 0; i < 100 && r == -ETIMEDOUT && lie != PEER_SILENT; i++)
		r = kvtier_connect(&o, ret);
	return lie == PEER_SILENT ? kvtier_connect(&o, ret) : r;
}

static void greeting(enum peer_lie lie, int error, const char *word)
{
	struct kvtier_client *client = NULL;
	struct peer peer;

	peer_start(&peer, lie);
	assert_int_equal(connect_to(peer.path, lie, &client), error);
	assert_null(client);
	if (!strstr(kvtier_last_error(), word))
		fail_msg("\"%s\" does not say %s", kvtier_last_error(), word);
	peer_stop(&peer);
}

TEST(nobody_there)
{
	struct kvtier_client *client;

	assert_int_equal(connect_to("/tmp/kvtier-nobody.sock", PEER_HONEST, &client), -ENOENT);
	assert_non_null(strstr(kvtier_last_error(), "/tmp/kvtier-nobody.sock"));
}

TEST(path_too_long)
{
	struct kvtier_client *client;
	char path[200];

	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = 0;
	assert_int_equal(connect_to(path, PEER_HONEST, &client), -ENAMETOOLONG);
}

TEST_DO(peer_says_nothing, greeting(PEER_SILENT, -ETIMEDOUT, "300 ms"));
TEST_DO(peer_hangs_up, greeting(PEER_HANGS_UP, -ECONNRESET, "connect"));
TEST_DO(greeting_is_noise, greeting(PEER_GARBAGE, -EPROTO, "no message"));
TEST_DO(greeting_is_truncated, greeting(PEER_SHORT, -EPROTO, "no message"));
TEST_DO(greeting_is_too_long, greeting(PEER_LONG, -EPROTO, "no message"));
TEST_DO(version_nobody_asked_for, greeting(PEER_VERSION, -EPROTO, "version 999"));
TEST_DO(no_place_is_free, greeting(PEER_FULL, -EBUSY, "no place is free"));
TEST_DO(refusal_is_passed_on, greeting(PEER_REFUSES, -EPROTO, "versions do not meet"));
TEST_DO(no_descriptors, greeting(PEER_NO_FDS, -EPROTO, "3 or 4 descriptors"));
TEST_DO(too_many_descriptors, greeting(PEER_MANY_FDS, -EPROTO, "no message"));
TEST_DO(memory_that_may_shrink, greeting(PEER_UNSEALED, -EPROTO, "seals"));
TEST_DO(memory_others_may_write, greeting(PEER_WRITABLE, -EPROTO, "seals"));
TEST_DO(memory_smaller_than_said, greeting(PEER_SMALL, -EPROTO, "bytes it said"));
TEST_DO(entries_no_power_of_two, greeting(PEER_ENTRIES, -EPROTO, "sq_entries"));
TEST_DO(arena_out_of_range, greeting(PEER_HUGE_ARENA, -EPROTO, "arena_blocks"));
TEST_DO(index_that_is_none, greeting(PEER_BAD_INDEX, -EPROTO, "index"));

static void *find_a_place(void *arg)
{
	struct peer *peer = arg;

	while (peer->connections < 3)
		(void)usleep(1000);
	peer->lie = PEER_HONEST;
	return NULL;
}

/* Connections of others end meanwhile. */
TEST(a_place_that_comes_later_is_taken)
{
	struct kvtier_options o = { .size = sizeof(o), .timeout_ms = PATIENT_MS };
	struct kvtier_client *client;
	struct peer peer;
	pthread_t thread;

	peer_start(&peer, PEER_FULL);
	o.socket_path = peer.path;
	assert_int_equal(pthread_create(&thread, NULL, find_a_place, &peer), 0);
	assert_int_equal(kvtier_connect(&o, &client), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	kvtier_close(client);
	peer_stop(&peer);
}

TEST(a_refusal_is_told_though_the_last_try_had_no_answer)
{
	struct kvtier_options o = { .size = sizeof(o), .timeout_ms = 10 * SHORT_MS };
	struct kvtier_client *client;
	struct peer peer;
	int r;

	peer_start(&peer, PEER_FULL_ONCE);
	o.socket_path = peer.path;
	r = kvtier_connect(&o, &client);
	peer_stop(&peer);
	assert_int_equal(r, -EBUSY);
	assert_non_null(strstr(kvtier_last_error(), "no place is free"));
}

/* A daemon that stops ends connections that it has accepted; in the socket of the service manager
 * the next connection waits for the next daemon. */
TEST(peer_that_hangs_up_is_asked_once_more)
{
	struct kvtier_options o = { .size = sizeof(o), .timeout_ms = PATIENT_MS };
	struct kvtier_client *client;
	struct peer peer;

	peer_start(&peer, PEER_HANGS_UP);
	o.socket_path = peer.path;
	assert_int_equal(kvtier_connect(&o, &client), -ECONNRESET);
	assert_true(peer.connections >= 2);
	peer_stop(&peer);
}

TEST(lies_leak_no_descriptors)
{
	const int before = descriptors_open();

	for (int lie = PEER_HANGS_UP; lie <= PEER_BAD_INDEX; lie++) {
		struct kvtier_client *client;
		struct peer peer;

		peer_start(&peer, (enum peer_lie)lie);
		assert_int_not_equal(connect_to(peer.path, (enum peer_lie)lie, &client), 0);
		peer_stop(&peer);
	}
	assert_int_equal(descriptors_open(), before);
}

static struct engine e;

static int engine_open(enum peer_lie lie)
{
	struct kvtier_region r = { .size = sizeof(r),
				   .memory = KVTIER_MEMFD,
				   .length = PAGES * PAGE_BYTES };

	memset(&e, 0, sizeof(e));
	peer_start(&e.peer, lie);
	assert_int_equal(connect_to(e.peer.path, lie, &e.client), 0);
	e.fd = r.fd = memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_true(r.fd >= 0 && !ftruncate(r.fd, PAGES * PAGE_BYTES) &&
		    !fcntl(r.fd, F_ADD_SEALS, F_SEAL_SHRINK));
	return kvtier_space_open(e.client, &fake_geometry, &r, 1, &fake_segment, 1, &e.space);
}

static void engine_close(void)
{
	kvtier_close(e.client);
	(void)close(e.fd);
	peer_stop(&e.peer);
}

/* A lie in the rings ends the connection: the op of that moment says so, and lookups are misses. */
static void ring_lie(enum peer_lie lie)
{
	const struct kvtier_key key = { { 1 } };
	struct kvtier_result result = { .size = sizeof(result) };
	struct kvtier_hit hit = { .size = sizeof(hit) };
	const uint32_t page = 0;
	uint64_t op;
	int32_t status = 5;

	assert_int_equal(engine_open(lie), 0);
	result.blocks = &status;
	result.blocks_max = 1;
	assert_int_equal(kvtier_store(e.space, &key, &page, 1, NULL, &op), 0);
	assert_int_equal(kvtier_wait(e.client, op, 60000, &result), 0);
	assert_int_equal(result.status, -ECONNRESET);
	assert_int_equal(status, -ECONNRESET);
	assert_int_equal(kvtier_lookup(e.space, &key, 1, &hit), 0);
	assert_int_equal(hit.blocks, 0);
	engine_close();
}

TEST_DO(completion_tail_far_ahead, ring_lie(PEER_TAIL));
TEST_DO(completion_of_an_op_that_is_not, ring_lie(PEER_FOREIGN_CQE));
TEST_DO(completion_with_another_n, ring_lie(PEER_WRONG_N));
TEST_DO(status_that_does_not_exist, ring_lie(PEER_WRONG_STATUS));
TEST_DO(reply_nobody_asked_for, ring_lie(PEER_UNASKED_REPLY));

TEST(second_completion_cuts_but_keeps_the_result)
{
	const struct kvtier_key key = { { 1 } };
	struct kvtier_result result = { .size = sizeof(result) };
	const uint32_t page = 0;
	uint64_t op;

	assert_int_equal(engine_open(PEER_DOUBLE_CQE), 0);
	assert_int_equal(kvtier_store(e.space, &key, &page, 1, NULL, &op), 0);
	assert_int_equal(kvtier_wait(e.client, op, 60000, &result), 0);
	assert_int_equal(result.status, 0);
	assert_int_equal(kvtier_store(e.space, &key, &page, 1, NULL, &op), -ENOTCONN);
	engine_close();
}

TEST(space_handle_out_of_range)
{
	assert_int_equal(engine_open(PEER_WRONG_HANDLE), -ENOTCONN);
	assert_non_null(strstr(kvtier_last_error(), "SPACE_OK.space is 99"));
	engine_close();
}

TEST(refused_space_leaves_the_connection)
{
	assert_int_equal(engine_open(PEER_REFUSES_SPACE), -EINVAL);
	assert_non_null(strstr(kvtier_last_error(), "geometry.layers is 7"));
	assert_int_equal(e.peer.connections, 1);
	assert_int_equal(kvtier_poll(e.client, NULL, 0), 0);
	engine_close();
	assert_int_equal(e.peer.connections, 1);
}

TEST_DO(space_open_ends_at_its_deadline,
	assert_int_equal(engine_open(PEER_IGNORES_SPACE), -ETIMEDOUT);
	engine_close());

TEST(space_close_ends_at_its_deadline_and_cuts)
{
	assert_int_equal(engine_open(PEER_IGNORES_CLOSE), 0);
	kvtier_space_close(e.space);
	while (e.peer.connections == 1) { /* it comes again, by itself */
		assert_int_equal(kvtier_poll(e.client, NULL, 0), 0);
		(void)usleep(1000);
	}
	engine_close();
}
