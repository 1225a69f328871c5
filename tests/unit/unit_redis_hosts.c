/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: a Cluster's map may name hosts in [redis] cluster_hosts, or hosts near the endpoints, and
 * no others. Method: lists good and bad, hosts inside and outside, at the edges of networks.
 */

#include "tests/lib/test.h"
#include "tiers/redis/redis_hosts.h"

static struct redis_hosts hosts;

static const char *parse(const char *list)
{
	memset(&hosts, 0, sizeof(hosts));
	return redis_hosts_parse(list, &hosts);
}

TEST(lists_that_are_good)
{
	static const char *const good[] = { "",
					    "  ",
					    "cache-a",
					    "10.0.0.0/8",
					    "fd00::/8\tcache-a ::1 1.2.3.4",
					    ".example.com",
					    "0.0.0.0/0",
					    "::/0",
					    "10.1.2.3/32",
					    "fd00::1/128" };

	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++)
		if (parse(good[i]))
			fail_msg("\"%s\" %s", good[i], hosts.name[0]);
}

TEST(lists_that_are_not)
{
	static const char *const bad[] = { "cache-a:6379",
					   "[::1]",
					   "10.0.0.0/33",
					   "10.0.0.0/",
					   "10.0.0.0/-1",
					   "10.0.0.0/8x",
					   "fd00::/129",
					   "name/8",
					   ".",
					   "a,b",
					   "unix:/x",
					   "10.0.0.0/8/8",
					   "*" };
	static char many[65 * 4 + 1];

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		if (!parse(bad[i]))
			fail_msg("\"%s\" is taken", bad[i]);
	for (int i = 0; i < 65; i++)
		memcpy(many + 4 * i, "abc ", 4);
	assert_non_null(parse(many));
	many[64 * 4] = 0;
	assert_null(parse(many));
}

TEST(who_is_let_in)
{
	static const struct {
		const char *host, *address;
		bool in;
	} cases[] = {
		{ "10.255.255.255", "10.255.255.255", true },
		{ "11.0.0.0", "11.0.0.0", false },
		{ "9.255.255.255", "9.255.255.255", false },
		{ "192.168.1.127", "192.168.1.127", true },
		{ "192.168.1.128", "192.168.1.128", false },
		{ "fd12:3456::1", "fd12:3456::1", true },
		{ "fd12:3457::1", "fd12:3457::1", false },
		{ "::ffff:10.1.1.1", "::ffff:10.1.1.1", true },
		{ "cache-a", "8.8.8.8", true },
		{ "CACHE-A", "", true },
		{ "cache-ab", "8.8.8.8", false },
		{ "xcache-a", "8.8.8.8", false },
		{ "n1.redis.example", "8.8.8.8", true },
		{ "redis.example", "8.8.8.8", false },
		{ "evilredis.example", "8.8.8.8", false },
		{ "another", "10.1.1.1", true },
		{ "another", "", false },
		{ "another", "fe80::1%eth0", false },
	};

	assert_null(parse("10.0.0.0/8 192.168.1.0/25 fd12:3456::/32 cache-a .redis.example"));
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		if (redis_hosts_allow(&hosts, cases[i].host, cases[i].address) != cases[i].in)
			fail_msg("%s at %s", cases[i].host, cases[i].address);
}

TEST(what_is_near)
{
	memset(&hosts, 0, sizeof(hosts));
	redis_hosts_add_near(&hosts, "10.1.2.3");
	redis_hosts_add_near(&hosts, "10.1.2.77");
	redis_hosts_add_near(&hosts, "127.0.0.1");
	redis_hosts_add_near(&hosts, "fd00::1");
	redis_hosts_add_near(&hosts, "::1");
	redis_hosts_add_near(&hosts, "no address");
	assert_int_equal(hosts.n_networks, 4);
	assert_true(redis_hosts_allow(&hosts, "x", "10.1.2.255"));
	assert_false(redis_hosts_allow(&hosts, "x", "10.1.3.3"));
	assert_true(redis_hosts_allow(&hosts, "x", "127.0.0.1"));
	assert_false(redis_hosts_allow(&hosts, "x", "127.0.0.2"));
	assert_true(redis_hosts_allow(&hosts, "x", "fd00::ffff"));
	assert_false(redis_hosts_allow(&hosts, "x", "fd00:0:0:1::1"));
	assert_true(redis_hosts_allow(&hosts, "x", "::1"));
	assert_false(redis_hosts_allow(&hosts, "x", "::2"));
}

/* An endpoint's name may have other addresses every minute: the oldest are forgotten. */
TEST(more_networks_than_there_are_places)
{
	char address[32];

	memset(&hosts, 0, sizeof(hosts));
	for (unsigned i = 0; i < 2 * REDIS_NETWORKS; i++) {
		(void)snprintf(address, sizeof(address), "10.%u.%u.1", i / 256, i % 256);
		redis_hosts_add_near(&hosts, address);
		assert_true(redis_hosts_allow(&hosts, "x", address));
	}
	assert_int_equal(hosts.n_networks, REDIS_NETWORKS);
	assert_false(redis_hosts_allow(&hosts, "x", "10.0.0.1"));
}
