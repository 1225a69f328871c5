/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: lib_redis.h keeps its word to tests: a server restarts empty on its port, a Cluster serves
 * all slots, slots move with their keys, a replica takes over. Method: real redis-servers, asked
 * about themselves.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

/* Of 60 keys, the keys that this server has. */
static uint32_t keys_at(const struct redis_server *s)
{
	return (uint32_t)redis_ask(s, "DBSIZE");
}

TEST(a_cluster)
{
	struct redis_cluster_rig rig;
	uint32_t slot, there = 0, replica;
	char text[256], key[32];

	redis_cluster_start(&rig, NULL);
	for (uint32_t i = 0; i < 60; i++) { /* all of one slot */
		(void)snprintf(key, sizeof(key), "{a}%u", i);
		slot = (uint32_t)redis_ask(&rig.server[0], "CLUSTER KEYSLOT %s", key);
		assert_int_equal(slot, 15495); /* of server 2 */
		redis_put(&rig.server[2], key, "x", 1);
	}
	(void)snprintf(key, sizeof(key), "{b}"); /* slot 3300, of server 0 */
	redis_put(&rig.server[0], key, "y", 1);
	redis_say(&rig.server[1], text, sizeof(text), "GET %s", key);
	assert_memory_equal(text, "-MOVED 3300", 11);

	redis_cluster_move(&rig, 0, 1, 3301);
	assert_int_equal(keys_at(&rig.server[0]), 0);
	assert_int_equal(keys_at(&rig.server[1]), 1);
	redis_say(&rig.server[1], text, sizeof(text), "GET %s", key);
	assert_string_equal(text, "y");

	redis_kill(&rig.server[2]);
	replica = redis_cluster_failover(&rig, 2);
	assert_int_equal(replica, 5);
	/* a new master takes a moment until it serves */
	for (int i = 0; i < 500 && there < 60; i++) {
		const struct timespec t = { .tv_nsec = 20000000 };

		(void)nanosleep(&t, NULL);
		there = keys_at(&rig.server[replica]);
		redis_say(&rig.server[replica], text, sizeof(text), "GET {a}1");
		if (strcmp(text, "x") != 0)
			there = 0;
	}
	assert_int_equal(there, 60);
	redis_cluster_stop(&rig);
}

TEST_BEGIN
{
	redis_needed();
}
