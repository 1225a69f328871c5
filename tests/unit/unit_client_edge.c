/* SPDX-License-Identifier: Apache-2.0 */
/* make: link=client.a (the library's inner names) */
/*
 * Goal: the corners of kvtier.h: odd arguments, extreme timeouts, and state that must not add up
 * over many ops, errors and reconnections. Method: a fake daemon (fake_engine.h); the test looks at
 * facts that cannot be seen from outside in the client's own struct.
 */
#include <limits.h>

#include "client/lib/client.h"
#include "client/lib/base/client_ring.h"
#include "client/lib/client_space.h"
#include "client/lib/memory/staged.h"
#include "tests/lib/fake_engine.h"
#include "tests/lib/test.h"

static int connect_to(const char *path)
{
	const struct kvtier_options o = { .size = sizeof(o),
					  .timeout_ms = fake_timeout_ms,
					  .socket_path = path };
	struct kvtier_client *client;
	const int rc = kvtier_connect(&o, &client);

	if (!rc)
		kvtier_close(client);
	return rc;
}

TEST(empty_path_is_refused)
{
	assert_int_equal(connect_to(""), -EINVAL);
	assert_non_null(strstr(kvtier_last_error(), "socket_path"));
}

TEST(environment_names_the_socket)
{
	char long_path[200] = { 0 };
	struct peer peer;

	peer_start(&peer, PEER_HONEST);
	(void)setenv("KVTIER_SOCKET", peer.path, 1);
	assert_int_equal(connect_to(NULL), 0);
	memset(long_path, 'x', sizeof(long_path) - 1);
	(void)setenv("KVTIER_SOCKET", long_path, 1);
	assert_int_equal(connect_to(NULL), -ENAMETOOLONG);
	(void)unsetenv("KVTIER_SOCKET");
	peer_stop(&peer);
}

TEST(any_name_will_do)
{
	static const char odd[] =
		"\x01 a\nname \xff that is \x7f longer than the sixty-three bytes that the daemon "
		"keeps";
	struct kvtier_options o = { .size = sizeof(o), .timeout_ms = fake_timeout_ms, .name = odd };
	struct kvtier_client *client;
	struct peer peer;

	peer_start(&peer, PEER_HONEST);
	o.socket_path = peer.path;
	assert_int_equal(kvtier_connect(&o, &client), 0);
	assert_int_equal(strlen(client->name), WIRE_NAME_BYTES - 1);
	assert_memory_equal(client->name, "? a?name ? that is ? longer", 27);
	kvtier_close(client);
	peer_stop(&peer);
}

TEST_FAKE(nothing_to_look_up, false)
{
	struct kvtier_hit hit = { .size = sizeof(hit), .blocks = 7 };

	assert_int_equal(kvtier_lookup(sole.space, NULL, 0, &hit), 0);
	assert_int_equal(hit.blocks, 0);
}

TEST_FAKE(lookup_only_space_stores_nothing, false)
{
	struct kvtier_result result = { .size = sizeof(result) };
	struct kvtier_space *space;
	uint64_t op;

	assert_int_equal(kvtier_space_open(sole.client, &fake_geometry, NULL, 0, NULL, 0, &space),
			 0);
	assert_int_equal(kvtier_store(space, &sole.key, &(uint32_t){ 0 }, 1, NULL, &op), -EINVAL);
	assert_non_null(strstr(kvtier_last_error(), "without regions"));
	assert_int_equal(kvtier_prefetch(space, &sole.key, 1, NULL, &op), 0);
	assert_int_equal(kvtier_wait(sole.client, op, -1, &result), 0);
	assert_int_equal(result.status, -ENOENT);
	kvtier_space_close(space);
}

TEST_FAKE(longest_timeouts_do_not_overflow, true)
{
	const struct kvtier_op o = { .size = sizeof(o), .timeout_ms = UINT32_MAX };
	struct kvtier_result result = { .size = sizeof(result) };
	uint64_t op;

	assert_int_equal(kvtier_store(sole.space, &sole.key, &(uint32_t){ 0 }, 1, &o, &op), 0);
	assert_int_equal(kvtier_wait(sole.client, op, INT_MAX, &result), 0);
	assert_int_equal(result.status, 0);
	assert_int_equal(kvtier_load(sole.space, &sole.key, &(uint32_t){ 0 }, 1, &o, &op), 0);
	assert_int_equal(kvtier_cancel(sole.client, op, INT_MAX), 0);
	assert_int_equal(kvtier_wait(sole.client, op, INT_MIN, &result), 0);
}

/* Only the first result of the array has its size. */
TEST_FAKE(results_give_back_the_users_words, false)
{
	struct kvtier_result results[4] = { KVTIER_INIT(kvtier_result) };
	const uint64_t words[4] = { 7, UINT64_MAX, 0, 1ull << 63 };
	uint64_t ops[4];
	int n = 0;

	for (int i = 0; i < 4; i++) {
		const struct kvtier_op o =
			KVTIER_INIT(kvtier_op, .kind = KVTIER_STORE, .keys = &sole.key, .n = 1,
				    .pages = &(uint32_t){ 0 }, .user = words[i]);

		assert_int_equal(kvtier_submit(sole.space, &o, &ops[i]), 0);
	}
	for (int i = 0; i < 5000 && n < 4; i++, (void)usleep(1000)) {
		const int taken = kvtier_poll(sole.client, results, 4);

		assert_true(taken >= 0);
		for (int k = 0; k < taken; k++, n++) {
			assert_true(results[k].user == words[n] && results[k].op == ops[n]);
			assert_int_equal(results[k].size, sizeof(results[0]));
		}
	}
	assert_int_equal(n, 4);
	results[0].size = 2;
	assert_int_equal(kvtier_poll(sole.client, results, 4), -EINVAL);
}

/* Stores, loads and cancels, good and bad pages, results taken in every way: afterwards all is free
 * again. */
TEST_FAKES(nothing_adds_up, nothing_adds_up_shared, nothing_adds_up_staged)
{
	struct kvtier_result results[4];
	const uint32_t pages[5] = { 1, PAGES, 2, 12345678, 3 };
	struct kvtier_key keys[5];
	uint64_t op;

	fake_keys(&sole, 1, 5, keys);
	for (int i = 0; i < 3000; i++) {
		for (int k = 0; k < 4; k++)
			results[k] = (struct kvtier_result){ .size = sizeof(results[0]) };
		assert_int_equal(i % 2 ? kvtier_store(sole.space, keys, pages, 5, NULL, &op) :
					 kvtier_load(sole.space, keys, pages, 5, NULL, &op),
				 0);
		if (i % 5 == 0)
			assert_int_equal(kvtier_cancel(sole.client, op, 60000), 0);
		if (i % 3)
			assert_int_equal(kvtier_wait(sole.client, op, 60000, results), 0);
		else
			assert_true(kvtier_poll(sole.client, results, 4) >= 0);
	}
	while (sole.client->n_free < KVTIER_MAX_OPS) {
		results[0] = (struct kvtier_result){ .size = sizeof(results[0]) };
		assert_true(kvtier_poll(sole.client, results, 1) >= 0);
	}
	assert_int_equal(sole.client->link->arena.n_used, 0);
	assert_int_equal(sole.client->link->in_flight, 0);
	assert_int_equal(sole.client->staged_running, 0);
	if (*state) /* private */
		assert_int_equal(sole.space->staged->arena.n_used, 0);
}

TEST_FAKE(ids_are_not_used_again_after_reconnection, false)
{
	struct kvtier_result result = { .size = sizeof(result) };
	uint64_t before, after = 0;

	sole.peer.hold = true;
	assert_int_equal(kvtier_store(sole.space, &sole.key, &(uint32_t){ 0 }, 1, NULL, &before),
			 0);
	sole.peer.hang_up = true;
	assert_int_equal(kvtier_wait(sole.client, before, 60000, &result), 0);
	assert_int_equal(result.status, -ECONNRESET);
	AWAIT(!kvtier_store(sole.space, &sole.key, &(uint32_t){ 0 }, 1, NULL, &after));
	assert_true(after != before);
	assert_int_equal(kvtier_wait(sole.client, before, 0, &result), -ENOENT);
	sole.peer.hold = false;
	assert_int_equal(kvtier_wait(sole.client, after, 60000, &result), 0);
	assert_int_equal(result.op, after);
}

/* A thread reads the clock, then waits for the lock while another one connects. */
TEST_FAKE(older_clock_does_not_end_a_greeting, false)
{
	sole.peer.lie = PEER_SILENT;
	sole.peer.hang_up = true;
	while (sole.client->state != SESSION_GREETING) {
		assert_int_equal(kvtier_poll(sole.client, NULL, 0), 0);
		(void)usleep(500);
	}
	(void)pthread_mutex_lock(&sole.client->control);
	session_advance(sole.client, sole.client->since_ns - 1);
	assert_int_equal(sole.client->state, SESSION_GREETING);
	(void)pthread_mutex_unlock(&sole.client->control);
}

/* The daemon was short of something when the space came back: that passes, and the reason shows
 * meanwhile. */
TEST_FAKE(space_refused_on_the_way_back_is_asked_for_again, false)
{
	uint64_t op;
	int tries = 0;

	sole.peer.lie = PEER_REFUSES_SPACE;
	sole.peer.hang_up = true;
	do {
		struct kvtier_result result = { .size = sizeof(result) };

		(void)usleep(500);
		assert_true(kvtier_poll(sole.client, &result, 1) >= 0);
		(void)kvtier_store(sole.space, &sole.key, &(uint32_t){ 0 }, 1, NULL, &op);
		assert_true(++tries < 20000);
	} while (!strstr(kvtier_last_error(), "I do not like it"));
	assert_int_equal(kvtier_store(sole.space, &sole.key, &(uint32_t){ 0 }, 1, NULL, &op),
			 -ENOTCONN);
	sole.peer.lie = PEER_HONEST;
	fake_store_again(&sole);
	assert_int_equal(sole.peer.connections, 2);
}

/* Opens, uses and closes spaces of its own, shared and private in turn. */
static void *open_and_close(void *arg)
{
	struct engine *e = arg;

	for (int i = 0; i < 100; i++) {
		const bool private = i % 2;
		const struct kvtier_region r = { .size = sizeof(r),
						 .memory = private ? KVTIER_PRIVATE : KVTIER_MEMFD,
						 .fd = e->fd,
						 .base = e->memory,
						 .length = PAGES * PAGE_BYTES };
		struct kvtier_space *space;
		struct kvtier_hit hit = { .size = sizeof(hit) };
		struct kvtier_key key;
		size_t n = 1;
		uint64_t op;
		const int rc = kvtier_space_open(e->client, &fake_geometry, &r, 1, &fake_segment, 1,
						 &space);

		assert(rc == 0 || rc == -ENOTCONN);
		(void)usleep(rc ? 1000 : 0);
		if (rc)
			continue;
		assert(!kvtier_keys(space, NULL, (uint32_t[]){ 1, 2, 3, (uint32_t)i }, 4, &key,
				    &n));
		assert(!kvtier_lookup(space, &key, 1, &hit));
		/* left to the close */
		(void)kvtier_load(space, &key, &(uint32_t){ 9 }, 1, NULL, &op);
		kvtier_space_close(space);
	}
	return NULL;
}

static void *wait_and_poll(void *arg)
{
	struct engine *e = arg;
	struct kvtier_key key;

	fake_keys(e, 5, 1, &key);
	for (int i = 0; i < 300; i++) {
		struct kvtier_result result = { .size = sizeof(result) };
		uint64_t op = 0;

		if (kvtier_store(e->space, &key, &(uint32_t){ 3 }, 1, NULL, &op))
			(void)usleep(500);
		else if (i % 2)
			(void)kvtier_wait(e->client, op, 60000, &result);
		else
			(void)kvtier_cancel(e->client, op, 60000);
		(void)kvtier_poll(e->client, &result, 1);
	}
	return NULL;
}

/* Spaces come and go while others wait, and the daemon does, too. For sanitizers, above all. */
TEST_FAKE(spaces_come_and_go_under_threads, true)
{
	pthread_t threads[4];

	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL,
						i < 2 ? open_and_close : wait_and_poll, &sole),
				 0);
	for (int i = 0; i < 6; i++) {
		(void)usleep(30000);
		sole.peer.hang_up = true;
	}
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	fake_store_again(&sole);
}

static void limit_files(rlim_t bytes)
{
	struct rlimit limit;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void refused_by_the_limit(int rc, const char *name)
{
	assert_int_equal(rc, -EFBIG);
	assert_non_null(strstr(kvtier_last_error(), name));
	assert_non_null(strstr(kvtier_last_error(), "RLIMIT_FSIZE"));
}

/* The kernel's own answer to a larger file is a signal that ends the process. */
TEST(memory_larger_than_files_may_be)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct kvtier_memory *fits = NULL, *other = NULL;

	limit_files(2 * page);
	refused_by_the_limit(kvtier_memory_alloc(2 * page + 1, "large", &other), "large");
	assert_null(other);
	assert_int_equal(kvtier_memory_alloc(2 * page, NULL, &fits), 0);
	memset(kvtier_memory_address(fits), 7, 2 * page);
	limit_files(page);
	refused_by_the_limit(kvtier_memory_take_back(fits), "kvtier-pages");
	limit_files(RLIM_INFINITY);
	assert_int_equal(kvtier_memory_take_back(fits), 0);
	assert_int_equal(((const uint8_t *)kvtier_memory_address(fits))[2 * page - 1], 7);
	kvtier_memory_free(fits);
}

TEST_FAKE(staging_memory_larger_than_files_may_be, true)
{
	struct kvtier_region r = { .size = sizeof(r),
				   .memory = KVTIER_PRIVATE,
				   .length = PAGES * PAGE_BYTES };
	struct kvtier_space *space = NULL;

	r.base = sole.memory;
	limit_files(PAGE_BYTES);
	refused_by_the_limit(kvtier_space_open(sole.client, &fake_geometry, &r, 1, &fake_segment, 1,
					       &space),
			     "kvtier-staging");
	assert_null(space);
	limit_files(RLIM_INFINITY);
	assert_int_equal(kvtier_space_open(sole.client, &fake_geometry, &r, 1, &fake_segment, 1,
					   &space),
			 0);
	fake_store_again(&sole);
}
