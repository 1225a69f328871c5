/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_redis_slots.c - goal: a name has the slot that Redis gives it, a slot has the endpoint in
 * CLUSTER SLOTS, and no wrong answer of a server makes a map or an address.
 * Method: slots as a redis-server 7.0 answered CLUSTER KEYSLOT; replies as literal bytes through
 * hiredis, first a real Cluster's, then one thing wrong a time.
 */

#include <hiredis/hiredis.h>

#include "tests/lib/test.h"
#include "tiers/redis/redis_slots.h"

static struct redis_map map; /* that a case parsed */

/* --- slots --- */

TEST(crc_is_xmodem)
{
	assert_int_equal(redis_slot("123456789", 9), 0x31c3);
	assert_int_equal(redis_slot("", 0), 0);
	assert_int_equal(redis_slot("\xff\x00\x80", 3), 0x5eeb % REDIS_SLOTS);
}

TEST(slots_as_redis_counts_them)
{
	static const struct {
		const char *name;
		uint32_t slot;
	} names[] = {
		{ "foo", 12182 },
		{ "{user1000}.following", 3443 },
		{ "{user1000}.followers", 3443 },
		{ "user1000", 3443 },
		{ "foo{}{bar}", 8363 },    /* empty: all of it */
		{ "foo{{bar}}zap", 4015 }, /* "{bar" */
		{ "foo{bar}{zap}", 5061 }, /* "bar" */
		{ "bar", 5061 },
		{ "{}", 15257 },
		{ "{a", 10276 },   /* no end: all of it */
		{ "a}{b}", 3300 }, /* a } before it is none */
		{ "b", 3300 },
		{ "", 0 },
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		assert_int_equal(redis_slot(names[i].name, strlen(names[i].name)), names[i].slot);
}

/* The brace behind the name's end is not looked at. */
TEST(a_name_ends_at_n)
{
	assert_int_equal(redis_slot("{a}", 2), 10276);
	assert_int_equal(redis_slot("foo{", 3), 12182);
}

/* --- CLUSTER SLOTS --- */

static int parse_bytes(const char *bytes, size_t n, const char *asked, struct redis_map *ret)
{
	redisReader *reader = redisReaderCreate();
	void *reply = NULL;
	int r;

	assert_non_null(reader);
	assert_int_equal(redisReaderFeed(reader, bytes, n), REDIS_OK);
	assert_int_equal(redisReaderGetReply(reader, &reply), REDIS_OK);
	assert_non_null(reply);
	r = redis_map_parse(reply, asked, ret);
	freeReplyObject(reply);
	redisReaderFree(reader);
	return r;
}

static int parse(const char *text, const char *asked, struct redis_map *ret)
{
	return parse_bytes(text, strlen(text), asked, ret);
}

#define ID    "$40\r\n67ebc217a979372e3cc7c38402c28f29afcc7345\r\n"
#define LOCAL "$9\r\n127.0.0.1\r\n"

static const char three_masters[] = "*3\r\n"
				    "*4\r\n:0\r\n:5460\r\n*4\r\n" LOCAL ":7000\r\n" ID
				    "*0\r\n*4\r\n" LOCAL ":7003\r\n" ID "*0\r\n"
				    "*4\r\n:5461\r\n:10922\r\n*4\r\n" LOCAL ":7001\r\n" ID
				    "*0\r\n*4\r\n" LOCAL ":7004\r\n" ID "*0\r\n"
				    "*4\r\n:10923\r\n:16383\r\n*4\r\n" LOCAL ":7002\r\n" ID
				    "*0\r\n*4\r\n" LOCAL ":7005\r\n" ID "*0\r\n";

TEST(three_masters_with_replicas)
{
	assert_int_equal(parse(three_masters, "127.0.0.1:7003", &map), 0);
	assert_int_equal(map.n_endpoints, 3);
	assert_string_equal(map.address[0], "127.0.0.1:7000");
	assert_string_equal(map.address[1], "127.0.0.1:7001");
	assert_string_equal(map.address[2], "127.0.0.1:7002");
	assert_int_equal(map.slots[0], 5461);
	assert_int_equal(map.slots[1], 5462);
	assert_int_equal(map.slots[2], 5461);
	for (uint32_t slot = 0; slot < REDIS_SLOTS; slot++)
		assert_int_equal(map.endpoint[slot], slot <= 5460 ? 0 : slot <= 10922 ? 1 : 2);
}

/* After a resharding: one master, several ranges. */
TEST(ranges_of_one_endpoint_and_holes)
{
	assert_int_equal(parse("*3\r\n*3\r\n:0\r\n:9\r\n*3\r\n" LOCAL ":1\r\n" ID
			       "*3\r\n:11\r\n:11\r\n*3\r\n" LOCAL ":2\r\n" ID
			       "*3\r\n:16383\r\n:16383\r\n*3\r\n" LOCAL ":1\r\n" ID,
			       "x:1", &map),
			 0);
	assert_int_equal(map.n_endpoints, 2);
	assert_int_equal(map.slots[0], 11);
	assert_int_equal(map.slots[1], 1);
	assert_int_equal(map.endpoint[9], 0);
	assert_int_equal(map.endpoint[10], REDIS_NO_ENDPOINT);
	assert_int_equal(map.endpoint[11], 1);
	assert_int_equal(map.endpoint[12], REDIS_NO_ENDPOINT);
	assert_int_equal(map.endpoint[16383], 0);
}

/* The replies of redis-server 7.0 for each cluster-preferred-endpoint-type; Redis 3 has no id. */
TEST(hosts_of_every_kind)
{
	static const struct {
		const char *master, *asked, *address;
	} hosts[] = {
		{ "*4\r\n$0\r\n\r\n:27391\r\n" ID
		  "*2\r\n$8\r\nhostname\r\n$14\r\nnode-1.example\r\n",
		  "10.0.0.7:6379", "10.0.0.7:27391" },
		{ "*4\r\n$14\r\nnode-1.example\r\n:27391\r\n" ID "*2\r\n$2\r\nip\r\n$0\r\n\r\n",
		  "10.0.0.7:6379", "node-1.example:27391" },
		{ "*4\r\n$-1\r\n:27391\r\n" ID "*2\r\n$2\r\nip\r\n$0\r\n\r\n", "10.0.0.7:6379",
		  "10.0.0.7:27391" },
		{ "*4\r\n$1\r\n?\r\n:27391\r\n" ID "*0\r\n", "10.0.0.7:6379", "10.0.0.7:27391" },
		{ "*4\r\n$-1\r\n:27391\r\n" ID "*0\r\n", "[fe80::1%eth0]:6379",
		  "[fe80::1%eth0]:27391" },
		{ "*4\r\n$-1\r\n:27391\r\n" ID "*0\r\n", "unix:/run/redis/a:b.sock",
		  "127.0.0.1:27391" },
		{ "*3\r\n$3\r\n::1\r\n:65535\r\n" ID, "127.0.0.1:1", "[::1]:65535" },
		{ "*2\r\n$7\r\n1.2.3.4\r\n:1\r\n", "127.0.0.1:1", "1.2.3.4:1" },
	};
	char text[512];

	for (size_t i = 0; i < sizeof(hosts) / sizeof(*hosts); i++) {
		(void)snprintf(text, sizeof(text), "*1\r\n*3\r\n:0\r\n:16383\r\n%s",
			       hosts[i].master);
		assert_int_equal(parse(text, hosts[i].asked, &map), 0);
		assert_string_equal(map.address[0], hosts[i].address);
		assert_int_equal(map.slots[0], REDIS_SLOTS);
	}
}

TEST(replies_that_are_no_map)
{
	static const char *const bad[] = {
		"+OK\r\n",
		"-ERR This instance has cluster support disabled\r\n",
		"$-1\r\n",
		"*-1\r\n",
		":3\r\n",
		"$3\r\nabc\r\n",
		"*1\r\n:1\r\n",
		"*1\r\n*0\r\n",
		"*1\r\n*2\r\n:0\r\n:1\r\n",
		"*1\r\n*3\r\n:0\r\n:1\r\n:2\r\n",
		"*1\r\n*3\r\n:0\r\n:1\r\n*0\r\n",
		"*1\r\n*3\r\n:0\r\n:1\r\n*1\r\n" LOCAL,
		"*1\r\n*3\r\n:0\r\n:1\r\n*-1\r\n",
		"*1\r\n*3\r\n:0\r\n$1\r\n1\r\n*2\r\n" LOCAL ":1\r\n",
		"*1\r\n*3\r\n$1\r\n0\r\n:1\r\n*2\r\n" LOCAL ":1\r\n",
		"*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n" LOCAL "$1\r\n1\r\n",
		"*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n:1\r\n:1\r\n",
		"*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n-ERR\r\n:1\r\n",
		"*1\r\n*3\r\n:-1\r\n:1\r\n*2\r\n" LOCAL ":1\r\n",
		"*1\r\n*3\r\n:2\r\n:1\r\n*2\r\n" LOCAL ":1\r\n",
		"*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n" LOCAL ":1\r\n",
		"*1\r\n*3\r\n:4294967296\r\n:4294967297\r\n*2\r\n" LOCAL ":1\r\n",
		"*1\r\n*3\r\n:0\r\n:9223372036854775807\r\n*2\r\n" LOCAL ":1\r\n",
		"*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n" LOCAL ":0\r\n",
		"*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n" LOCAL ":-1\r\n",
		"*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n" LOCAL ":65536\r\n",
		"*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n" LOCAL ":4294967297\r\n",
		"*2\r\n*3\r\n:0\r\n:5\r\n*2\r\n" LOCAL ":1\r\n*3\r\n:5\r\n:6\r\n*2\r\n" LOCAL
		":1\r\n",
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_int_equal(parse(bad[i], "127.0.0.1:1", &map), -EPROTO);
}

/* Into a log, an address or a resolver goes nothing else than a host. */
TEST(hosts_that_are_none)
{
	static const struct {
		const char *host;
		size_t n;
	} hosts[] = {
		{ "a b", 3 }, { "a\n", 2 },   { "a\0b", 3 },  { "\0", 1 },
		{ "a/b", 3 }, { "[::1]", 5 }, { "a\x1b", 2 }, { "\xc3\xa4", 2 },
	};
	char text[1024];
	size_t n;

	for (size_t i = 0; i < sizeof(hosts) / sizeof(*hosts); i++) {
		n = (size_t)snprintf(text, sizeof(text), "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$%zu\r\n",
				     hosts[i].n);
		memcpy(text + n, hosts[i].host, hosts[i].n);
		n += hosts[i].n;
		n += (size_t)snprintf(text + n, sizeof(text) - n, "\r\n:1\r\n");
		assert_int_equal(parse_bytes(text, n, "127.0.0.1:1", &map), -EPROTO);
	}
	for (int length = 200; length < 400; length++) {
		const int fits =
			length + (int)sizeof ":65535" <= REDIS_ADDRESS_BYTES - (int)sizeof "[]";

		(void)snprintf(text, sizeof(text),
			       "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$%d\r\n%0*d\r\n:65535\r\n", length,
			       length, 1);
		assert_int_equal(parse(text, "127.0.0.1:1", &map), fits ? 0 : -EPROTO);
	}
}

TEST_DO(no_slot_has_a_node, assert_int_equal(parse("*0\r\n", "127.0.0.1:1", &map), -ENOENT));

TEST(as_many_masters_as_there_are_places)
{
	for (int endpoints = REDIS_MAP_ENDPOINTS; endpoints <= REDIS_MAP_ENDPOINTS + 1;
	     endpoints++) {
		char text[8192];
		int n = snprintf(text, sizeof(text), "*%d\r\n", endpoints);

		for (int i = 0; i < endpoints; i++)
			n += snprintf(text + n, sizeof(text) - (size_t)n,
				      "*3\r\n:%d\r\n:%d\r\n*2\r\n" LOCAL ":%d\r\n", i, i, i + 1);
		assert_int_equal(parse(text, "127.0.0.1:1", &map),
				 endpoints == REDIS_MAP_ENDPOINTS ? 0 : -E2BIG);
	}
	assert_int_equal(map.n_endpoints, REDIS_MAP_ENDPOINTS);
}

/* --- MOVED, ASK --- */

TEST(redirects_that_are_good)
{
	static const struct {
		const char *text;
		enum redis_redirect what;
		uint32_t slot;
		const char *address;
	} good[] = {
		{ "MOVED 3999 127.0.0.1:6381", REDIS_REDIRECT_MOVED, 3999, "127.0.0.1:6381" },
		{ "ASK 0 10.1.2.3:1", REDIS_REDIRECT_ASK, 0, "10.1.2.3:1" },
		/* as Redis writes it */
		{ "MOVED 16383 ::1:65535", REDIS_REDIRECT_MOVED, 16383, "[::1]:65535" },
		{ "MOVED 16383 [::1]:65535", REDIS_REDIRECT_MOVED, 16383, "[::1]:65535" },
		{ "MOVED 5 :6381", REDIS_REDIRECT_MOVED, 5, "9.9.9.9:6381" },
		{ "MOVED 5 ?:6381", REDIS_REDIRECT_MOVED, 5, "9.9.9.9:6381" },
		{ "ASK 5 node-1.example:6381", REDIS_REDIRECT_ASK, 5, "node-1.example:6381" },
	};

	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
		char address[REDIS_ADDRESS_BYTES] = "";
		uint32_t slot = 77;

		assert_int_equal(redis_redirect_parse(good[i].text, "9.9.9.9:1", &slot, address),
				 good[i].what);
		assert_int_equal(slot, good[i].slot);
		assert_string_equal(address, good[i].address);
	}
}

TEST(redirects_that_are_none)
{
	static const char *const bad[] = {
		"",
		"MOVED",
		"MOVED ",
		"MOVED 1",
		"MOVED 1 ",
		"MOVED 1 :",
		"MOVED 1 a",
		"MOVED 1 a:",
		"MOVED 1 a:0",
		"MOVED 1 a:65536",
		"MOVED 1 a:x",
		"MOVED 1 a:1 ",
		"MOVED 1 a:1 b",
		"MOVED  1 a:1",
		"MOVED x a:1",
		"MOVED -1 a:1",
		"MOVED 16384 a:1",
		"MOVED 4294967296 a:1",
		"MOVED 1 a:4294967297",
		"MOVED 1 a\tb:1",
		"MOVED 1 []:1",
		"moved 1 a:1",
		"MOVEDX 1 a:1",
		"ASKING 1 a:1",
		"ERR MOVED 1 a:1",
		"LOADING Redis is loading the dataset in memory",
		"MOVED 1 unix:/tmp/x",
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		char address[REDIS_ADDRESS_BYTES] = "untouched";
		char *text = strdup(bad[i]); /* of the exact size, for a sanitizer */
		uint32_t slot = 77;

		assert_non_null(text);
		assert_int_equal(redis_redirect_parse(text, "", &slot, address),
				 REDIS_REDIRECT_NONE);
		assert_int_equal(slot, 77);
		assert_string_equal(address, "untouched");
		free(text);
	}
}
