/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=redis_endpoint_row */
/*
 * unit_ctl_redis - goal: the admin command `endpoints` lists every server with its reason, as JSON
 * that is valid and harmless for any words of a server. Method: as unit_ctl.c; the tier is faked
 * (lib_ctl.h).
 */
#include "tests/lib/lib_ctl.h"
#include "tests/lib/test.h"

#include <string.h>
#include <unistd.h>

static void ask_endpoints(void)
{
	const int fd = admin_dial();

	assert_int_equal(ASK(fd, "endpoints"), '.');
	assert_int_equal(admin_rows("endpoints"), 2);
	assert_non_null(strstr(
		heard.text,
		"{\"endpoint\":1,\"address\":\"10.0.0.1:6379\",\"state\":\"offline\",\"tls\":"));
	assert_non_null(strstr(heard.text, "\"slots\":5461,\"connections\":0,\"in_flight\":0,"));
	assert_non_null(strstr(heard.text, "\"retry_in_ms\":7300,\"text\":"));
	assert_non_null(strstr(heard.text, "\"timeouts\":3"));
	assert_non_null(strstr(heard.text, "\"late_replies\":18446744073709551615"));
	assert_null(strpbrk(heard.text, "\033\xff\x9b"));
	(void)close(fd);
}

TEST_EACH(admin_set_up, admin_tear_down);

TEST(endpoints_are_json)
{
	fake.endpoints = 2;
	admin_with_loop(ask_endpoints);
}

static void ask_many(void)
{
	const int fd = admin_dial();

	assert_int_equal(ASK(fd, "endpoints"), '.');
	assert_int_equal(admin_rows("endpoints"), 300);
	assert_true(heard.packets > 1);
	(void)close(fd);
}

TEST(more_than_a_packet_holds_are_several)
{
	fake.endpoints = 300;
	admin_with_loop(ask_many);
}

static void ask_none(void)
{
	const int fd = admin_dial();

	assert_int_equal(ASK(fd, "endpoints"), '.');
	assert_int_equal(admin_rows("endpoints"), 0);
	(void)close(fd);
}

TEST(no_tier_has_no_endpoints)
{
	fake.endpoints = 2;
	admin_daemon.store.tiers[TIER_REDIS] = NULL;
	admin_with_loop(ask_none);
}

static void ask_with_an_argument(void)
{
	const int fd = admin_dial();

	assert_int_equal(ASK(fd, "endpoints\0x"), '!');
	assert_string_equal(heard.text, "endpoints takes no arguments");
	(void)close(fd);
}

TEST(an_argument_is_refused)
{
	admin_with_loop(ask_with_an_argument);
}
