/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * Goal: a Redis that refuses us is a state with the server's words, not a storm of attempts, and
 * never shows our password; an ACL that allows some commands costs only the ones that it forbids.
 * Method: real redis-servers with passwords and ACLs.
 */
#include "tests/lib/lib_redis_tier.h"

static struct redis_server server;
static struct kit kit;

FIXTURE_DO(clean, kit_free(&kit); redis_stop(&server));

TEST_EACH(NULL, clean);

static void start_up(void)
{
	kit_start(&kit);
	kit_until_state(&kit, TIER_UP);
}

static void it_works(void)
{
	assert_int_equal(kit_store(&kit, 1), 0);
	assert_int_equal(kit_load(&kit, 1), 0);
}

static void refused_with(const char *username, const char *password, const char *words)
{
	const long long before = redis_ask(&server, "DBSIZE");

	kit.conf.username = username;
	kit.conf.password = password;
	kit_start(&kit);
	kit_until_state(&kit, TIER_MISCONFIGURED);
	assert_true(kit_says(&kit, words));
	assert_true(!password || !kit_says(&kit, password));
	assert_int_equal(kit_refused(&kit, XFER_READ, 1), -ENODEV);
	assert_true(kit_row(&kit, 0).retry_in_ms > 15000);
	assert_true(kit_row(&kit, 0).counters.reconnects_total <= 3); /* no storm */
	assert_int_equal(redis_ask(&server, "DBSIZE"), before);
	kit_stop(&kit);
}

TEST(a_wrong_password_is_a_misconfiguration)
{
	kit_begin_at(&kit, &server, "--requirepass right");
	refused_with(NULL, NULL, "NOAUTH");
	refused_with(NULL, "secret-but-wrong", "WRONGPASS");
	refused_with("nobody", "secret-but-wrong", "WRONGPASS");
	kit.conf.username = NULL;
	kit.conf.password = "right";
	start_up();
	it_works();
}

/* A server that answers AUTH and the commands behind it as it is told. */
static void ends_as(const struct fake_step *steps, uint32_t n, enum tier_state state,
		    const char *says)
{
	struct fake_server fake;

	fake_start(&fake, steps, n, true);
	kit_init(&kit, KIT_SMALL);
	kit.conf.password = "hunter2-hunter2";
	kit.conf.endpoints[0] = fake.address;
	kit.conf.n_endpoints = 1;
	kit_start(&kit);
	kit_until_state(&kit, state);
	assert_true(kit_says(&kit, says));
	assert_false(kit_says(&kit, "hunter2"));
	kit_free(&kit);
	fake_stop(&fake);
}

/* A server that does not know AUTH repeats the command. */
TEST(a_password_is_not_repeated)
{
	static const struct fake_step steps[] = {
		{ .reply = "-ERR unknown command 'AUTH', with args beginning with: "
			   "'hunter2-hunter2' \r\n" }
	};

	ends_as(steps, 1, TIER_MISCONFIGURED, "unknown command");
}

/* In any words, in answer to any command, cut or not. */
TEST(a_password_in_other_words_is_not_repeated)
{
	static const struct fake_step loading[] = {
		{ .reply = "+OK\r\n" }, { .reply = "-LOADING for him with hunter2-hunter2\r\n" }
	};
	static const struct fake_step cut[] = { { .reply = "+OK\r\n" },
						{ .reply = "-BUSY with hunter2-hun\r\n" } };
	static const struct fake_step refused[] = {
		{ .reply = "+OK\r\n" },
		{ .reply = "$-1\r\n" },
		{ .reply = "-NOAUTH hunter2-hunter2 has no cluster\r\n" }
	};

	ends_as(loading, 2, TIER_OFFLINE, "repeat the password");
	ends_as(cut, 2, TIER_OFFLINE, "repeat the password");
	ends_as(refused, 3, TIER_MISCONFIGURED, "repeat the password");
}

/* A proxy, for instance, whose server is not ready. */
TEST(a_server_not_ready_for_auth_is_no_misconfiguration)
{
	static const struct fake_step steps[] = {
		{ .reply = "-LOADING Redis is loading the dataset in memory\r\n" }
	};

	ends_as(steps, 1, TIER_OFFLINE, "LOADING");
}

static void acl(const char *rules)
{
	char text[64];

	redis_say(&server, text, sizeof(text), "ACL SETUSER kv on >pw %s", rules);
	assert_string_equal(text, "OK");
	kit.conf.username = "kv";
	kit.conf.password = "pw";
}

static void begin_with_acl(const char *rules)
{
	kit_begin_at(&kit, &server, NULL);
	acl(rules);
}

TEST(the_least_acl_will_do)
{
	begin_with_acl("~kv:* +get +set +exists +eval +strlen +del");
	start_up();
	it_works();
	assert_int_equal(kit_do(&kit, XFER_PROBE, 1), 0);
}

TEST(an_acl_without_set_stops_stores_alone)
{
	char name[KIT_NAME_BYTES];
	uint8_t *value;

	begin_with_acl("~kv:* +get +exists");
	start_up();
	value = malloc(kit.room);
	kit_name(1, name);
	redis_put(&server, name, value, kit_value(&kit, 1, value));
	free(value);
	assert_int_equal(kit_store(&kit, 2), -EROFS);
	kit_until_state(&kit, TIER_READONLY);
	assert_true(kit_says(&kit, "NOPERM"));
	assert_int_equal(kit_load(&kit, 1), 0);
	assert_int_equal(kit_store(&kit, 2), -EROFS);
}

TEST(an_acl_without_get_is_a_misconfiguration)
{
	begin_with_acl("~kv:* +set");
	refused_with("kv", "pw", "NOPERM");
	acl("resetkeys ~other:* +get +set");
	refused_with("kv", "pw", "NOPERM");
}

TEST(an_acl_without_eval_leaves_bad_values)
{
	char name[KIT_NAME_BYTES];

	begin_with_acl("~kv:* +get +set");
	start_up();
	kit_name(1, name);
	redis_put(&server, name, "x", 1);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(kit_load(&kit, 1), -EBADMSG);
		kit_run_ms(&kit, 20);
	}
	assert_int_equal(redis_ask(&server, "EXISTS %s", name), 1);
	assert_int_equal(tier_state(kit.tier), TIER_UP);
	it_works();
}

TEST_FIRST(redis_needed());
