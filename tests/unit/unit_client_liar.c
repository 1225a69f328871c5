/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: the library refuses any wrong answer on the socket with an error, in time, and the engine
 * lives on. Method: a fake daemon (fake_peer.h) that lies in one way at a time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/kvtier.h"
#include "tests/lib/fake_peer.h"

/* For ops that shall end at their deadline, and for all others. */
enum { SHORT_MS = 300, PATIENT_MS = 60000 };

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

static void nobody_there(void **state)
{
	struct kvtier_client *client;

	(void)state;
	assert_int_equal(connect_to("/tmp/kvtier-nobody.sock", PEER_HONEST, &client), -ENOENT);
	assert_non_null(strstr(kvtier_last_error(), "/tmp/kvtier-nobody.sock"));
}

static void path_too_long(void **state)
{
	struct kvtier_client *client;
	char path[200];

	(void)state;
	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = 0;
	assert_int_equal(connect_to(path, PEER_HONEST, &client), -ENAMETOOLONG);
}

#define GREETING(name, lie, error, word)    \
	static void name(void **state)      \
	{                                   \
		(void)state;                \
		greeting(lie, error, word); \
	}

GREETING(peer_says_nothing, PEER_SILENT, -ETIMEDOUT, "300 ms")
GREETING(peer_hangs_up, PEER_HANGS_UP, -ECONNRESET, "connect")
GREETING(greeting_is_noise, PEER_GARBAGE, -EPROTO, "no message")
GREETING(greeting_is_truncated, PEER_SHORT, -EPROTO, "no message")
GREETING(greeting_is_too_long, PEER_LONG, -EPROTO, "no message")
GREETING(version_nobody_asked_for, PEER_VERSION, -EPROTO, "version 999")
GREETING(no_place_is_free, PEER_FULL, -EBUSY, "no place is free")
GREETING(refusal_is_passed_on, PEER_REFUSES, -EPROTO, "versions do not meet")
GREETING(no_descriptors, PEER_NO_FDS, -EPROTO, "3 or 4 descriptors")
GREETING(too_many_descriptors, PEER_MANY_FDS, -EPROTO, "no message")
GREETING(memory_that_may_shrink, PEER_UNSEALED, -EPROTO, "seals")
GREETING(memory_others_may_write, PEER_WRITABLE, -EPROTO, "seals")
GREETING(memory_smaller_than_said, PEER_SMALL, -EPROTO, "bytes it said")
GREETING(entries_no_power_of_two, PEER_ENTRIES, -EPROTO, "sq_entries")
GREETING(arena_out_of_range, PEER_HUGE_ARENA, -EPROTO, "arena_blocks")
GREETING(index_that_is_none, PEER_BAD_INDEX, -EPROTO, "index")

static void *find_a_place(void *arg)
{
	struct peer *peer = arg;

	while (peer->connections < 3)
		(void)usleep(1000);
	peer->lie = PEER_HONEST;
	return NULL;
}

/* Connections of others end meanwhile. */
static void a_place_that_comes_later_is_taken(void **state)
{
	struct kvtier_options o = { .size = sizeof(o), .timeout_ms = PATIENT_MS };
	struct kvtier_client *client;
	struct peer peer;
	pthread_t thread;

	(void)state;
	peer_start(&peer, PEER_FULL);
	o.socket_path = peer.path;
	assert_int_equal(pthread_create(&thread, NULL, find_a_place, &peer), 0);
	assert_int_equal(kvtier_connect(&o, &client), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	kvtier_close(client);
	peer_stop(&peer);
}

static int count_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void lies_leak_no_descriptors(void **state)
{
	const int before = count_fds();

	(void)state;
	for (int lie = PEER_HANGS_UP; lie <= PEER_BAD_INDEX; lie++) {
		struct kvtier_client *client;
		struct peer peer;

		peer_start(&peer, (enum peer_lie)lie);
		assert_int_not_equal(connect_to(peer.path, (enum peer_lie)lie, &client), 0);
		peer_stop(&peer);
	}
	assert_int_equal(count_fds(), before);
}

/* An engine with one page region and one space. */
struct engine {
	struct peer peer;
	struct kvtier_client *client;
	struct kvtier_space *space;
	int fd;
};

static int engine_open(struct engine *e, enum peer_lie lie)
{
	const struct kvtier_geometry g = { .size = sizeof(g),
					   .dtype = KVTIER_BF16,
					   .model = "m",
					   .convention = "c",
					   .layers = 1,
					   .block_tokens = 4,
					   .world = 1,
					   .opaque_bytes = 4096 };
	struct kvtier_region r = { .size = sizeof(r), .memory = KVTIER_MEMFD, .length = 16 * 4096 };
	const struct kvtier_segment s = {
		.size = sizeof(s), .kind = KVTIER_OPAQUE, .page_stride = 4096, .length = 4096
	};

	memset(e, 0, sizeof(*e));
	peer_start(&e->peer, lie);
	assert_int_equal(connect_to(e->peer.path, lie, &e->client), 0);
	e->fd = r.fd = memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_true(r.fd >= 0 && !ftruncate(r.fd, 16 * 4096) &&
		    !fcntl(r.fd, F_ADD_SEALS, F_SEAL_SHRINK));
	return kvtier_space_open(e->client, &g, &r, 1, &s, 1, &e->space);
}

static void engine_close(struct engine *e)
{
	kvtier_close(e->client);
	(void)close(e->fd);
	peer_stop(&e->peer);
}

/* A lie in the rings ends the connection: the op of that moment says so, and lookups are misses. */
static void ring_lie(enum peer_lie lie)
{
	const struct kvtier_key key = { { 1 } };
	struct kvtier_result result = { .size = sizeof(result) };
	struct kvtier_hit hit = { .size = sizeof(hit) };
	const uint32_t page = 0;
	struct engine e;
	uint64_t op;
	int32_t status = 5;

	assert_int_equal(engine_open(&e, lie), 0);
	result.blocks = &status;
	result.blocks_max = 1;
	assert_int_equal(kvtier_store(e.space, &key, &page, 1, NULL, &op), 0);
	assert_int_equal(kvtier_wait(e.client, op, 60000, &result), 0);
	assert_int_equal(result.status, -ECONNRESET);
	assert_int_equal(status, -ECONNRESET);
	assert_int_equal(kvtier_lookup(e.space, &key, 1, &hit), 0);
	assert_int_equal(hit.blocks, 0);
	engine_close(&e);
}

#define RING_LIE(name, lie)            \
	static void name(void **state) \
	{                              \
		(void)state;           \
		ring_lie(lie);         \
	}

RING_LIE(completion_tail_far_ahead, PEER_TAIL)
RING_LIE(completion_of_an_op_that_is_not, PEER_FOREIGN_CQE)
RING_LIE(completion_with_another_n, PEER_WRONG_N)
RING_LIE(status_that_does_not_exist, PEER_WRONG_STATUS)
RING_LIE(reply_nobody_asked_for, PEER_UNASKED_REPLY)

static void second_completion_cuts_but_keeps_the_result(void **state)
{
	const struct kvtier_key key = { { 1 } };
	struct kvtier_result result = { .size = sizeof(result) };
	const uint32_t page = 0;
	struct engine e;
	uint64_t op;

	(void)state;
	assert_int_equal(engine_open(&e, PEER_DOUBLE_CQE), 0);
	assert_int_equal(kvtier_store(e.space, &key, &page, 1, NULL, &op), 0);
	assert_int_equal(kvtier_wait(e.client, op, 60000, &result), 0);
	assert_int_equal(result.status, 0);
	assert_int_equal(kvtier_store(e.space, &key, &page, 1, NULL, &op), -ENOTCONN);
	engine_close(&e);
}

static void space_handle_out_of_range(void **state)
{
	struct engine e;

	(void)state;
	assert_int_equal(engine_open(&e, PEER_WRONG_HANDLE), -ENOTCONN);
	assert_non_null(strstr(kvtier_last_error(), "SPACE_OK.space is 99"));
	engine_close(&e);
}

static void refused_space_leaves_the_connection(void **state)
{
	struct engine e;

	(void)state;
	assert_int_equal(engine_open(&e, PEER_REFUSES_SPACE), -EINVAL);
	assert_non_null(strstr(kvtier_last_error(), "geometry.layers is 7"));
	assert_int_equal(e.peer.connections, 1);
	assert_int_equal(kvtier_poll(e.client, NULL, 0), 0);
	engine_close(&e);
	assert_int_equal(e.peer.connections, 1);
}

static void space_open_ends_at_its_deadline(void **state)
{
	struct engine e;

	(void)state;
	assert_int_equal(engine_open(&e, PEER_IGNORES_SPACE), -ETIMEDOUT);
	engine_close(&e);
}

static void space_close_ends_at_its_deadline_and_cuts(void **state)
{
	struct engine e;

	(void)state;
	assert_int_equal(engine_open(&e, PEER_IGNORES_CLOSE), 0);
	kvtier_space_close(e.space);
	while (e.peer.connections == 1) { /* it comes again, by itself */
		assert_int_equal(kvtier_poll(e.client, NULL, 0), 0);
		(void)usleep(1000);
	}
	engine_close(&e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_there),
		cmocka_unit_test(path_too_long),
		cmocka_unit_test(peer_says_nothing),
		cmocka_unit_test(peer_hangs_up),
		cmocka_unit_test(greeting_is_noise),
		cmocka_unit_test(greeting_is_truncated),
		cmocka_unit_test(greeting_is_too_long),
		cmocka_unit_test(version_nobody_asked_for),
		cmocka_unit_test(refusal_is_passed_on),
		cmocka_unit_test(no_place_is_free),
		cmocka_unit_test(a_place_that_comes_later_is_taken),
		cmocka_unit_test(no_descriptors),
		cmocka_unit_test(too_many_descriptors),
		cmocka_unit_test(memory_that_may_shrink),
		cmocka_unit_test(memory_others_may_write),
		cmocka_unit_test(memory_smaller_than_said),
		cmocka_unit_test(entries_no_power_of_two),
		cmocka_unit_test(arena_out_of_range),
		cmocka_unit_test(index_that_is_none),
		cmocka_unit_test(lies_leak_no_descriptors),
		cmocka_unit_test(completion_tail_far_ahead),
		cmocka_unit_test(completion_of_an_op_that_is_not),
		cmocka_unit_test(completion_with_another_n),
		cmocka_unit_test(status_that_does_not_exist),
		cmocka_unit_test(reply_nobody_asked_for),
		cmocka_unit_test(second_completion_cuts_but_keeps_the_result),
		cmocka_unit_test(space_handle_out_of_range),
		cmocka_unit_test(refused_space_leaves_the_connection),
		cmocka_unit_test(space_open_ends_at_its_deadline),
		cmocka_unit_test(space_close_ends_at_its_deadline_and_cuts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
