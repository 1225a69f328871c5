/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_redis_breaker.c - goal: each rule of redis_breaker.h: 3 failures in a row open, waits are 1
 * s doubling to 30 s and +- 25 %, one trial at a time, stores stop and come back by themselves, a
 * refusal is tried again after 30 s; and each error reply of Redis means what it should. Method: by
 * hand, with time of our own; the texts are the servers'. (sim_redis_breaker.c has the rules
 * together.)
 */

#include "tests/lib/test.h"
#include "tiers/redis/redis_breaker.h"

#define MS     ((uint64_t)1000000)
#define SECOND (1000 * MS)

static const uint64_t start_ns = 1000 * SECOND;

static struct redis_breaker b; /* the case's, closed at first */

FIXTURE_DO(begin, redis_breaker_open(&b, 1));

TEST_EACH(begin, NULL);

static void open_it(uint64_t seed)
{
	redis_breaker_open(&b, seed);
	for (int i = 0; i < REDIS_BREAKER_FAILURES; i++)
		redis_breaker_failure(&b, start_ns);
	assert_int_equal(b.state, REDIS_OPEN);
}

FIXTURE_DO(begin_opened, open_it(1));

static void assert_wait(uint64_t from_ns, uint64_t until_ns, uint64_t nominal_ns)
{
	assert_in_range(until_ns - from_ns, nominal_ns * 3 / 4, nominal_ns * 5 / 4);
}

/* --- error replies --- */

static const struct {
	const char *text;
	enum redis_verdict verdict;
} said[] = {
	{ "WRONGTYPE Operation against a key holding the wrong kind of value",
	  REDIS_SAYS_WRONG_TYPE },
	{ "OOM command not allowed when used memory > 'maxmemory'.", REDIS_SAYS_NO_STORES },
	{ "OOM allow-oom flag is not set on the script, can not run it when used memory > "
	  "'maxmemory'",
	  REDIS_SAYS_NO_STORES },
	{ "READONLY You can't write against a read only replica.", REDIS_SAYS_NO_STORES },
	{ "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to "
	  "persist to disk.",
	  REDIS_SAYS_NO_STORES },
	{ "MISCONF Valkey is configured to save RDB snapshots, but it's currently unable "
	  "to persist to disk.",
	  REDIS_SAYS_NO_STORES },
	{ "MISCONF Errors writing to the AOF file: No space left on device", REDIS_SAYS_NO_STORES },
	{ "NOREPLICAS Not enough good replicas to write.", REDIS_SAYS_NO_STORES },
	{ "CLUSTERDOWN The cluster is down and only accepts read commands", REDIS_SAYS_NO_STORES },
	{ "CLUSTERDOWN The cluster is down", REDIS_SAYS_NOT_NOW },
	{ "CLUSTERDOWN Hash slot not served", REDIS_SAYS_NOTHING },
	{ "TRYAGAIN Multiple keys request during rehashing of slot", REDIS_SAYS_NOTHING },
	{ "LOADING Redis is loading the dataset in memory", REDIS_SAYS_NOT_NOW },
	{ "LOADING", REDIS_SAYS_NOT_NOW },
	{ "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN "
	  "NOSAVE.",
	  REDIS_SAYS_NOT_NOW },
	{ "BUSY Redis is busy running a module command.", REDIS_SAYS_NOT_NOW },
	{ "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to "
	  "'no'.",
	  REDIS_SAYS_NOT_NOW },
	{ "ERR max number of clients reached", REDIS_SAYS_NOT_NOW },
	{ "ERR max number of clients + cluster connections reached", REDIS_SAYS_NOT_NOW },
	{ "NOAUTH Authentication required.", REDIS_SAYS_NOT_YOU },
	{ "WRONGPASS invalid username-password pair or user is disabled.", REDIS_SAYS_NOT_YOU },
	{ "NOPERM this user has no permissions to run the 'set' command", REDIS_SAYS_NOT_YOU },
	{ "NOPERM User reader has no permissions to run the 'set' command", REDIS_SAYS_NOT_YOU },
	{ "NOPERM this user has no permissions to access one of the keys used as arguments",
	  REDIS_SAYS_NOT_YOU },
	{ "DENIED Redis is running in protected mode because protected mode is enabled and "
	  "no password is set",
	  REDIS_SAYS_NOT_YOU },
	{ "ERR AUTH <password> called without any password configured for the default "
	  "user. Are you sure your configuration is correct?",
	  REDIS_SAYS_NOT_YOU },
	{ "ERR Client sent AUTH, but no password is set", REDIS_SAYS_NOT_YOU },
	{ "ERR invalid password", REDIS_SAYS_NOT_YOU },
	{ "ERR operation not permitted", REDIS_SAYS_NOT_YOU },
	{ "ERR wrong number of arguments for 'auth' command", REDIS_SAYS_NOT_YOU },
	{ "MOVED 3999 127.0.0.1:6381", REDIS_SAYS_MOVED },
	{ "ASK 3999 127.0.0.1:6381", REDIS_SAYS_MOVED },
	{ "ERR unknown command 'FOO', with args beginning with: ", REDIS_SAYS_UNKNOWN_COMMAND },
	{ "ERR unknown command `FOO`, with args beginning with: `AUTH`, ",
	  REDIS_SAYS_UNKNOWN_COMMAND },
	{ "ERR unknown subcommand 'FOO'. Try CLUSTER HELP.", REDIS_SAYS_UNKNOWN_COMMAND },
	{ "ERR Unknown subcommand or wrong number of arguments for 'SLOTS'. Try CLUSTER "
	  "HELP.",
	  REDIS_SAYS_UNKNOWN_COMMAND },
	{ "ERR This instance has cluster support disabled", REDIS_SAYS_NOTHING },
	{ "ERR wrong number of arguments for 'get' command", REDIS_SAYS_NOTHING },
	{ "ERR value is not an integer or out of range", REDIS_SAYS_NOTHING },
	{ "NOSCRIPT No matching script. Please use EVAL.", REDIS_SAYS_NOTHING },
	{ "CROSSSLOT Keys in request don't hash to the same slot", REDIS_SAYS_NOTHING },
	{ "BUSYKEY Target key name already exists.", REDIS_SAYS_NOTHING },
	{ "BUSYGROUP Consumer Group name already exists", REDIS_SAYS_NOTHING },
	{ "loading", REDIS_SAYS_NOTHING },
	{ "", REDIS_SAYS_NOTHING },
};

TEST(verdicts)
{
	for (size_t i = 0; i < sizeof(said) / sizeof(*said); i++) {
		char *text = strdup(said[i].text); /* of the exact size, for a sanitizer */

		assert_non_null(text);
		if (redis_verdict(text) != said[i].verdict)
			fail_msg("\"%s\" is taken for %d", text, (int)redis_verdict(text));
		free(text);
	}
}

/* --- opening, waiting, trying --- */

TEST(three_failures_in_a_row_open)
{
	for (int i = 0; i < 100; i++) { /* two, and an answer, of any kind */
		redis_breaker_failure(&b, start_ns);
		redis_breaker_failure(&b, start_ns);
		assert_true(redis_breaker_try(&b, start_ns));
		if (i % 2)
			redis_breaker_success(&b);
		else
			redis_breaker_verdict(&b, REDIS_SAYS_WRONG_TYPE, false, start_ns);
	}
	for (int i = 0; i < 3; i++) {
		assert_true(redis_breaker_try(&b, start_ns));
		redis_breaker_failure(&b, start_ns);
	}
	assert_false(redis_breaker_try(&b, start_ns));
	assert_int_equal(b.opens_total, 1);
}

TEST(not_now_opens_at_once)
{
	redis_breaker_verdict(&b, REDIS_SAYS_NOT_NOW, true, start_ns);
	assert_false(redis_breaker_try(&b, start_ns));
	assert_wait(start_ns, b.until_ns, SECOND);
	assert_false(b.misconfigured);
}

/* Over 1,000 seeds: the order of waits, and that the jitter uses its whole range. */
TEST(waits_double_and_differ)
{
	static const uint64_t waits[] = { 1, 2, 4, 8, 16, 30, 30, 30 };
	uint64_t least = UINT64_MAX, most = 0;

	for (uint64_t seed = 0; seed < 1000; seed++) {
		uint64_t now = start_ns;

		open_it(seed * 0x9e3779b97f4a7c15u);
		for (size_t i = 0; i < sizeof(waits) / sizeof(*waits); i++) {
			const uint64_t wait = b.until_ns - now;

			assert_wait(now, b.until_ns, waits[i] * SECOND);
			least = waits[i] == 30 && wait < least ? wait : least;
			most = waits[i] == 30 && wait > most ? wait : most;
			assert_false(redis_breaker_try(&b, b.until_ns - 1));
			now = b.until_ns;
			assert_true(redis_breaker_try(&b, now));
			if (i % 2)
				redis_breaker_failure(&b, now);
			else
				redis_breaker_verdict(&b, REDIS_SAYS_NOT_NOW, false, now);
		}
		assert_int_equal(b.opens_total, 1);
	}
	assert_true(least < 23 * SECOND && most > 37 * SECOND);
}

TEST_WITH(success_begins_anew, begin_opened, NULL)
{
	uint64_t now = start_ns;

	for (int i = 0; i < 5; i++) {
		now = b.until_ns;
		assert_true(redis_breaker_try(&b, now));
		redis_breaker_failure(&b, now);
	}
	assert_true(redis_breaker_try(&b, now = b.until_ns));
	redis_breaker_success(&b);
	for (int i = 0; i < 3; i++) {
		assert_true(redis_breaker_try(&b, now));
		redis_breaker_failure(&b, now);
	}
	assert_wait(now, b.until_ns, SECOND);
	assert_int_equal(b.opens_total, 2);
}

TEST_WITH(one_trial_at_a_time, begin_opened, NULL)
{
	uint64_t now = b.until_ns;

	assert_false(redis_breaker_try(&b, now - 1));
	assert_true(redis_breaker_try(&b, now));
	assert_false(redis_breaker_try(&b, now));
	assert_false(redis_breaker_try(&b, now + 60 * SECOND));
	redis_breaker_failure(&b, now + SECOND);
	assert_false(redis_breaker_try(&b, now + SECOND));
	assert_true(redis_breaker_try(&b, b.until_ns));
}

/* A storm of timeouts of commands that were sent before it opened. */
TEST_WITH(what_comes_late_changes_nothing, begin_opened, NULL)
{
	const struct redis_breaker before = b;

	for (int i = 0; i < 1000; i++) {
		redis_breaker_failure(&b, start_ns + SECOND / 2);
		redis_breaker_success(&b);
		redis_breaker_verdict(&b, REDIS_SAYS_NOT_NOW, false, start_ns + SECOND / 2);
	}
	assert_memory_equal(&b, &before, sizeof(b));
}

/* --- stores --- */

TEST(full_server_takes_reads)
{
	static const uint64_t waits[] = { 1, 2, 4, 8, 16, 30, 30 };
	uint64_t now = start_ns;

	for (size_t i = 0; i < sizeof(waits) / sizeof(*waits); i++) {
		assert_true(redis_breaker_may_store(&b, now));
		for (int j = 0; j < 50; j++) /* commands on their way together count once */
			redis_breaker_verdict(&b, REDIS_SAYS_NO_STORES, true, now);
		assert_wait(now, b.no_stores_until_ns, waits[i] * SECOND);
		assert_true(redis_breaker_try(&b, now));
		redis_breaker_success(&b); /* of a read */
		assert_false(redis_breaker_may_store(&b, b.no_stores_until_ns - 1));
		now = b.no_stores_until_ns;
	}
	redis_breaker_success(&b);
	redis_breaker_stored(&b);
	assert_true(redis_breaker_may_store(&b, now));
	redis_breaker_verdict(&b, REDIS_SAYS_NO_STORES, true, now);
	assert_wait(now, b.no_stores_until_ns, SECOND);
}

TEST_WITH(full_server_is_a_server_again, begin_opened, NULL)
{
	const uint64_t now = b.until_ns;

	assert_true(redis_breaker_try(&b, now));
	redis_breaker_verdict(&b, REDIS_SAYS_NO_STORES, true, now);
	assert_int_equal(b.state, REDIS_CLOSED);
	assert_false(redis_breaker_may_store(&b, now));
}

/* The wait is over, reads are answered, it is away and comes back: none of that is a store. */
TEST(takes_no_stores_until_it_has_taken_one)
{
	redis_breaker_verdict(&b, REDIS_SAYS_NO_STORES, true, start_ns);
	redis_breaker_untaken(&b, true);
	assert_true(redis_breaker_may_store(&b, b.no_stores_until_ns));
	assert_false(redis_breaker_takes_stores(&b));
	redis_breaker_success(&b);
	assert_false(redis_breaker_takes_stores(&b));
	redis_breaker_verdict(&b, REDIS_SAYS_NOT_NOW, false, start_ns);
	assert_true(redis_breaker_try(&b, b.until_ns));
	redis_breaker_success(&b);
	assert_false(redis_breaker_takes_stores(&b));
	redis_breaker_stored(&b);
	assert_true(redis_breaker_takes_stores(&b));
}

/* Reads are answered all the time, so it stays CLOSED. */
TEST(stores_without_an_answer_are_counted)
{
	for (int round = 0; round < 10; round++) {
		for (int i = 0; i < 3; i++) {
			assert_true(redis_breaker_takes_stores(&b));
			redis_breaker_failure(&b, start_ns);
			redis_breaker_untaken(&b, false);
			redis_breaker_success(&b);
		}
		assert_false(redis_breaker_takes_stores(&b));
		redis_breaker_stored(&b);
		redis_breaker_untaken(&b, false);
		redis_breaker_untaken(&b, false);
		assert_true(redis_breaker_takes_stores(&b));
		redis_breaker_stored(&b);
	}
}

TEST(an_outage_says_nothing_about_stores)
{
	for (int i = 0; i < 3; i++) {
		redis_breaker_failure(&b, start_ns);
		redis_breaker_untaken(&b, false);
	}
	assert_int_equal(b.state, REDIS_OPEN);
	for (int i = 0; i < 10; i++) /* that were on their way */
		redis_breaker_untaken(&b, false);
	assert_true(redis_breaker_try(&b, b.until_ns));
	redis_breaker_success(&b);
	assert_true(redis_breaker_takes_stores(&b));
	redis_breaker_untaken(&b, false);
	redis_breaker_untaken(&b, false);
	assert_true(redis_breaker_takes_stores(&b));
}

/* --- refusals --- */

TEST(refused_is_tried_every_30_s)
{
	uint64_t now = start_ns;

	for (int i = 0; i < 20; i++) {
		assert_true(redis_breaker_try(&b, now));
		for (int j = 0; j < 50; j++)
			redis_breaker_verdict(&b, REDIS_SAYS_NOT_YOU, false, now);
		assert_true(b.misconfigured);
		assert_wait(now, b.until_ns, 30 * SECOND);
		assert_false(redis_breaker_try(&b, b.until_ns - 1));
		now = b.until_ns;
	}
	assert_true(redis_breaker_try(&b, now));
	redis_breaker_success(&b);
	assert_false(b.misconfigured);
	assert_int_equal(b.state, REDIS_CLOSED);
}

TEST_WITH(refused_while_open_waits_longer, begin_opened, NULL)
{
	redis_breaker_verdict(&b, REDIS_SAYS_NOT_YOU, false, start_ns);
	assert_true(b.misconfigured);
	assert_wait(start_ns, b.until_ns, 30 * SECOND);
	assert_int_equal(b.opens_total, 1);
}

TEST(a_dead_server_refuses_nobody)
{
	redis_breaker_verdict(&b, REDIS_SAYS_NOT_YOU, false, start_ns);
	assert_true(redis_breaker_try(&b, b.until_ns));
	redis_breaker_failure(&b, b.until_ns);
	assert_int_equal(b.state, REDIS_OPEN);
	assert_false(b.misconfigured);
}

/* An ACL with GET and without SET. */
TEST(a_store_refused_leaves_the_reads)
{
	uint64_t now = start_ns;

	for (int i = 0; i < 20; i++) {
		uint64_t until;

		assert_true(redis_breaker_may_store(&b, now));
		redis_breaker_verdict(&b, REDIS_SAYS_NOT_YOU, true, now);
		until = b.no_stores_until_ns;
		assert_wait(now, until, 30 * SECOND);
		for (int j = 0; j < 50; j++) {
			/* commands on their way */
			redis_breaker_verdict(&b, REDIS_SAYS_NOT_YOU, true, now);
			redis_breaker_success(&b); /* of a read */
		}
		assert_true(redis_breaker_try(&b, now));
		assert_true(b.no_stores_until_ns == until);
		assert_false(redis_breaker_may_store(&b, until - 1));
		now = until;
	}
	assert_false(b.misconfigured);
}

TEST_WITH(a_store_refused_ends_a_trial_well, begin_opened, NULL)
{
	const uint64_t now = b.until_ns;

	assert_true(redis_breaker_try(&b, now));
	redis_breaker_verdict(&b, REDIS_SAYS_NOT_YOU, true, now);
	assert_int_equal(b.state, REDIS_CLOSED);
	assert_false(b.misconfigured);
	assert_false(redis_breaker_may_store(&b, now));
}
