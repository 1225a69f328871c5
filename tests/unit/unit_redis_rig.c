/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: lib_redis.h keeps its word to tests: a server restarts empty on its port, and replies are
 * text. fault_redis_cluster.c stands on its Cluster, whose slots move and whose replicas take over.
 * Method: a real redis-server, asked about itself.
 */
#include "tests/lib/lib_redis.h"
#include "tests/lib/test.h"

TEST(a_server_restarts_empty)
{
	struct redis_server s;
	char text[256], key[64], value[8];
	uint16_t port;

	redis_start(&s, "--requirepass secret --maxmemory 10mb");
	port = s.port;
	redis_put(&s, "kv:1", "\0\1\2", 3);
	assert_int_equal(redis_get(&s, "kv:1", value, sizeof(value)), 3);
	assert_memory_equal(value, "\0\1\2", 3);
	assert_true(redis_any_key(&s, "kv:*", key, sizeof(key)));
	assert_string_equal(key, "kv:1");
	assert_false(redis_any_key(&s, "other:*", key, sizeof(key)));
	redis_say(&s, text, sizeof(text), "CONFIG GET maxmemory");
	assert_string_equal(text, "maxmemory\n10485760");
	redis_say(&s, text, sizeof(text), "GET kv:2");
	assert_string_equal(text, "(nil)");
	redis_say(&s, text, sizeof(text), "NONSENSE");
	assert_memory_equal(text, "-ERR", 4);
	redis_kill(&s);
	redis_restart(&s);
	assert_int_equal(s.port, port);
	assert_int_equal(redis_ask(&s, "DBSIZE"), 0);
	redis_stop(&s);
	redis_stop(&s);
}

TEST_FIRST(redis_needed());
