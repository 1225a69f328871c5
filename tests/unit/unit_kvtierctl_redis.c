/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_kvtierctl_redis - goal: an operator sees the work of the Redis tier, and why it rests; no
 * words of a server can talk to the terminal. Method: the built program with a stats page made
 * here; a child plays the daemon's admin socket.
 */
#include "tests/lib/lib_kvtierctl.h"

#include "tiers/tier.h"

static void redis_is(enum tier_state state, uint64_t usable, const char *text)
{
	stats_set(&tool.page->v.tiers_redis_state, STATS_TIER_STATE_BASE + (uint64_t)state);
	stats_set(&tool.page->v.tiers_redis_endpoints, 3);
	stats_set(&tool.page->v.tiers_redis_usable_endpoints, usable);
	stats_text_set(tool.page->redis_text, STATS_TEXT_BYTES, text);
}

TEST(status_says_nothing_of_what_is_not_there)
{
	assert_int_equal(tool_run("status"), 0);
	assert_null(strstr(tool.output, "redis"));
	assert_int_equal(tool_run("status --json"), 0);
	assert_string_equal(tool_json_at("redis.state"), "off");
}

TEST(status_shows_a_tier_that_is_up)
{
	redis_is(TIER_UP, 3, "");
	assert_int_equal(tool_run("status"), 0);
	tool_says("  redis: up, 3 of 3 endpoints usable\n");
}

TEST(status_shows_the_reason)
{
	redis_is(TIER_MISCONFIGURED, 0, "10.0.0.7:6379: WRONGPASS \033[31m");
	stats_health_set(tool.page, STATS_HEALTH_REDIS_MISCONFIGURED, true);
	assert_int_equal(tool_run("status"), 1);
	assert_memory_equal(tool.output, "WARN: ", 6);
	tool_says("redis_misconfigured");
	tool_says("password_file");
	tool_says("  redis: misconfigured, 0 of 3 endpoints usable; 10.0.0.7:6379: WRONGPASS "
		  "\\x1b[31m\n");
	assert_int_equal(tool_run("status --json"), 1);
	assert_string_equal(tool_json_at("redis.state"), "misconfigured");
	assert_string_equal(tool_json_at("redis.endpoints"), "3");
	assert_string_equal(tool_json_at("redis.text"), "10.0.0.7:6379: WRONGPASS \033[31m");
}

TEST(stats_has_the_text_beside_the_numbers)
{
	redis_is(TIER_OFFLINE, 0, "a:1: \"refused\"");
	assert_int_equal(tool_run("stats --json -f tiers.redis.text -f tiers.redis.state"), 0);
	assert_string_equal(tool.output,
			    "{\"tiers\":{\"redis\":{\"state\":\"offline\",\"text\":\"a:1: "
			    "\\\"refused\\\"\"}}}\n");
	assert_int_equal(tool_run("stats --all"), 0);
	tool_says("endpoints usable; a:1:");
}

#define ROW_UP                                                                                \
	"{\"endpoint\":0,\"address\":\"10.0.0.7:6379\",\"state\":\"up\",\"tls\":\"TLSv1.3\"," \
	"\"text\":\"\",\"slots\":5461,"                                                       \
	"\"connections\":4,\"in_flight\":2,\"retry_in_ms\":0,\"hits\":77,"                    \
	"\"received_bytes\":1073741824,"                                                      \
	"\"sent_bytes\":4096,\"timeouts\":1}"
#define ROW_AWAY                                                                          \
	"{\"endpoint\":1,\"address\":\"unix:/run/redis.sock\",\"state\":\"offline\","     \
	"\"tls\":\"no\",\"text\":"                                                        \
	"\"connection refused\\u001b[0m\",\"slots\":0,\"connections\":0,\"in_flight\":0," \
	"\"retry_in_ms\":7300,"                                                           \
	"\"hits\":0,\"received_bytes\":0,\"sent_bytes\":0,\"timeouts\":9}"

/* The line of the output that begins with this, its blanks made one. */
static char *line_of(const char *begin)
{
	static char line[512];
	const char *at = strstr(tool.output, begin);
	size_t n = 0;

	if (!at)
		fail_msg("no %s in: %s", begin, tool.output);
	for (; at && *at != '\n' && *at != '\0' && n < sizeof(line) - 1; at++) {
		if (*at != ' ' || n == 0 || line[n - 1] != ' ')
			line[n++] = *at;
	}
	line[n] = '\0';
	return line;
}

TEST(endpoints_are_a_table)
{
	assert_int_equal(tool_told("endpoints", ".{\"endpoints\":[" ROW_UP ",\n" ROW_AWAY "]}\n",
				   NULL),
			 0);
	assert_memory_equal(
		line_of("ADDRESS"),
		"ADDRESS STATE TLS SLOTS CONNECTIONS IN FLIGHT HITS RECEIVED SENT TIMEOUTS RETRY "
		"WHY",
		83);
	assert_memory_equal(line_of("10.0.0.7"),
			    "10.0.0.7:6379 up TLSv1.3 5461 4 2 77 1.0 GiB 4.0 KiB 1", 54);
	assert_non_null(strstr(line_of("unix:"), " 9 7.3 s connection refused\\x1b[0m"));
}

TEST(endpoints_of_no_tier_are_none)
{
	assert_int_equal(tool_told("endpoints", ".{\"endpoints\":[]}\n", NULL), 0);
	assert_string_equal(tool.output, "no endpoints\n");
}

TEST(json_is_what_the_daemon_said)
{
	assert_int_equal(tool_told("endpoints --json", "+{\"endpoints\":[" ROW_UP, ".]}\n"), 0);
	assert_string_equal(tool.output, "{\"endpoints\":[" ROW_UP "]}\n");
}

TEST(endpoints_takes_no_arguments)
{
	assert_int_equal(tool_run("endpoints all"), 64);
	assert_int_equal(tool_run("endpoints"), 3); /* nobody there */
}

TEST_EACH(tool_set_up, tool_tear_down);
TEST_FIRST(tool_needed());
