/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=8 lane=wait */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * Goal: a reply that is wrong or too late is a miss or an error of that xfer, or a reason to leave
 * the server alone for a while; nothing more. Method: a server that replies as a script tells it
 * to. The first step of each answers the tier's trial. Then SERVERS servers whose scripts are
 * chance, with a printed seed.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_redis_lies.h"
#include "tests/lib/lib_redis_tier.h"

#include "tiers/redis/redis_slots.h"

static struct kit kit;

enum { LOADS = 20, SERVERS = 20, LONGEST_REST_MS = 40000 };

static struct random rnd;

static struct fake_server fake;

FIXTURE_DO(end, kit_free(&kit); fake_stop(&fake));

TEST_EACH(NULL, end);

/* In place of the one before. */
static void serve(const struct fake_step *steps, uint32_t n)
{
	(void)end(NULL);
	fake_start(&fake, steps, n, false);
	kit_init(&kit, KIT_SMALL);
	kit.conf.connections = 1;
	kit_start_at(&kit, fake.address);
}

TEST(a_busy_server_is_left_alone)
{
	static const struct fake_step steps[] = { { .reply = "$-1\r\n" },
						  { .reply = "-BUSY a script runs\r\n" } };

	serve(steps, 2);
	assert_int_equal(kit_load(&kit, 1), -EREMOTEIO);
	kit_until_state(&kit, TIER_OFFLINE);
	assert_true(kit_says(&kit, "BUSY"));
	assert_int_equal(kit_refused(&kit, XFER_READ, 1), -ENODEV);
}

/* A try has been answered, and the next is not due. */
static bool is_between_tries(struct kit *k, void *arg)
{
	const struct kit_slot *slot = arg;

	return slot->dones || kit_row(k, 0).in_flight == 0;
}

TEST(a_cluster_that_votes_is_waited_for)
{
	static const struct fake_step steps[] = {
		{ .reply = "$-1\r\n" },
		{ .reply = "-CLUSTERDOWN The cluster is down\r\n" },
		{ .reply = "-TRYAGAIN Multiple keys request during rehashing of slot\r\n" },
		{ .reply = "$-1\r\n" }
	};

	serve(steps, 4);
	assert_int_equal(kit_load(&kit, 1), -ENOENT);
	assert_int_equal(tier_state(kit.tier), TIER_UP);
}

static void load_in_vain(void)
{
	struct kit_slot *slot;
	int r;

	slot = kit_begin(&kit, XFER_READ, 1);
	while (slot->dones == 0) {
		assert_true(kit_until(&kit, is_between_tries, slot));
		clock_pass_ms(KIT_TIMEOUT_MS / 4);
	}
	r = kit_settle(&kit, slot);
	assert_true(r == -ETIMEDOUT || r == -EREMOTEIO); /* answered when its time was up */
	(void)kit_row(&kit, 0);
}

/* Once, but for a load whose last try was under way at its deadline: that is a mute server's. */
TEST(a_cluster_that_stays_down_is_waited_for_once)
{
	static const struct fake_step steps[] = {
		{ .reply = "$-1\r\n" }, { .reply = "-CLUSTERDOWN The cluster is down\r\n" }
	};

	serve(steps, 2);
	for (int i = 0; i < LOADS && tier_state(kit.tier) == TIER_UP; i++)
		load_in_vain();
	kit_until_state(&kit, TIER_OFFLINE);
	assert_int_equal(kit_load(&kit, 1), -ENODEV);
	assert_true(kit_says(&kit, "CLUSTERDOWN"));
}

/* They are megabytes each time, and nobody waits for them. */
TEST(stores_do_not_wait_for_a_cluster_that_votes)
{
	static const struct fake_step steps[] = {
		{ .reply = "$-1\r\n" },
		{ .reply = "-CLUSTERDOWN The cluster is down\r\n" },
		{ .reply = "$-1\r\n" },
		{ .reply = "+OK\r\n" }
	};

	serve(steps, 4);
	assert_int_equal(kit_store(&kit, 1), -EROFS);
	kit_until_state(&kit, TIER_READONLY);
	assert_int_equal(fake_commands(&fake), 2);
	assert_int_equal(kit_load(&kit, 1), -ENOENT);
	assert_int_equal(kit_counters(&kit).breaker_opens_total, 0);
	kit_pass_ms(&kit, LONGEST_REST_MS);
	assert_int_equal(kit_store(&kit, 1), 0);
	kit_until_state(&kit, TIER_UP);
}

static void takes_no_stores(const char *words)
{
	kit_until_state(&kit, TIER_READONLY);
	for (int i = 0; i < 3; i++) {
		kit_pass_ms(&kit, LONGEST_REST_MS);
		assert_int_equal(tier_state(kit.tier), TIER_READONLY);
		assert_true(kit_says(&kit, words));
	}
}

/* The wait is over three times, and reads are answered: the store alone says that it takes stores.
 * The trial of one that opened is a read, too. */
static void a_refusal_is_told_until_a_store_is_taken(const char *reply, const char *words)
{
	const struct fake_step steps[] = { { .reply = "$-1\r\n" },
					   { .reply = reply },
					   { .reply = "$-1\r\n" },
					   { .reply = "+OK\r\n" } };

	serve(steps, 4);
	assert_true(kit_store(&kit, 1) < 0);
	if (tier_state(kit.tier) != TIER_OFFLINE) /* a trial takes a step, too */
		assert_int_equal(kit_load(&kit, 1), -ENOENT);
	takes_no_stores(words);
	assert_int_equal(kit_store(&kit, 1), 0);
	kit_until_state(&kit, TIER_UP);
	assert_false(kit_says(&kit, words));
}

TEST(each_refusal_of_a_store_is_told_until_one_is_taken)
{
	static const char *const refusals[] = {
		"OOM command not allowed when used memory > 'maxmemory'.",
		"READONLY You can't write against a read only replica.",
		"MISCONF Errors writing to the AOF file: No space left on device",
		"NOREPLICAS Not enough good replicas to write.",
		"NOPERM User reader has no permissions to run the 'set' command",
		"ERR unknown command 'SET'",
		"ERR this proxy forwards reads alone",
		"BUSY to stores",
		"TRYAGAIN",
	};

	for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
		char reply[128];

		(void)snprintf(reply, sizeof(reply), "-%s\r\n", refusals[i]);
		a_refusal_is_told_until_a_store_is_taken(reply, refusals[i]);
	}
	a_refusal_is_told_until_a_store_is_taken("+QUEUED\r\n", "not by OK");
}

/* Its connection is cut each time, and each read between is answered. */
static void stores_that_are_never_answered_are_told(const struct fake_step *instead,
						    const char *words)
{
	const struct fake_step nil = { .reply = "$-1\r\n" }, ok = { .reply = "+OK\r\n" };
	const struct fake_step steps[] = { nil, *instead, nil, *instead, nil, *instead, nil, ok };

	serve(steps, 8);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(tier_state(kit.tier), TIER_UP);
		assert_int_equal(kit_store(&kit, 1), -ECONNRESET);
		kit_pass_ms(&kit, LONGEST_REST_MS);
		assert_int_equal(kit_load(&kit, 1), -ENOENT);
	}
	assert_int_equal(kit_counters(&kit).breaker_opens_total, 0);
	takes_no_stores(words);
	assert_int_equal(kit_store(&kit, 1), 0);
	kit_until_state(&kit, TIER_UP);
}

TEST(stores_that_cost_the_connection_are_told)
{
	stores_that_are_never_answered_are_told(&(struct fake_step){ .reply = "+OK\r\n", .cut = 1 },
						"closed");
	stores_that_are_never_answered_are_told(&(struct fake_step){ .reply = "HTTP/1.1\r\n" },
						"not the Redis protocol");
}

static bool is_asked(TEST_UNUSED struct kit *k, void *commands)
{
	return fake_commands(&fake) >= *(uint32_t *)commands;
}

TEST(late_replies_are_thrown_away)
{
	static const struct fake_step steps[] = { { .reply = "$-1\r\n" },
						  { .reply = "+late\r\n", .held = true },
						  { .reply = "$-1\r\n" } };
	struct kit_slot *slot;

	serve(steps, 3);
	slot = kit_begin(&kit, XFER_READ, 1);
	assert_true(kit_until(&kit, is_asked, &(uint32_t){ 2 }));
	clock_pass_ms(KIT_TIMEOUT_MS);
	assert_int_equal(kit_settle(&kit, slot), -ETIMEDOUT);
	fake_release(&fake, 1);
	assert_int_equal(kit_load(&kit, 1), -ENOENT);
	assert_int_equal(kit_counters(&kit).late_total, 1);
	assert_int_equal(tier_state(kit.tier), TIER_UP);
}

/* Three loads of a value of which no more than its first bytes come. */
static void load_from_a_slow_server(size_t first_bytes)
{
	struct fake_step steps[4] = { { .reply = "$-1\r\n" } };
	struct kit_slot *slots[3];
	char *value;
	int n;

	(void)end(NULL);
	kit_init(&kit, 1 << 20);
	value = calloc(2, kit.room);
	assert_non_null(value);
	n = snprintf(value, 32, "$%" PRIu32 "\r\n", kit.shape.packed_bytes + REDIS_SEAL_BYTES);
	(void)kit_value(&kit, 1, (uint8_t *)value + n);
	for (size_t i = 1; i < 4; i++)
		steps[i] = (struct fake_step){ .reply = value, .bytes = first_bytes };
	fake_start(&fake, steps, 4, false);
	kit.conf.connections = 3;
	kit_start_at(&kit, fake.address);
	for (uint32_t i = 0; i < 3; i++) {
		slots[i] = kit_begin(&kit, XFER_READ, 1);
		assert_true(kit_until(&kit, is_asked, &(uint32_t){ i + 2 }));
		kit_run_ms(&kit, 20);
		kit_pass_ms(&kit, KIT_TIMEOUT_MS / 4); /* three failures, not one */
	}
	for (uint32_t i = 0; i < 3; i++) {
		clock_pass_ms(KIT_TIMEOUT_MS / 4);
		assert_int_equal(kit_settle(&kit, slots[i]), -ETIMEDOUT);
	}
	free(value);
}

TEST(a_server_that_sends_values_slowly_is_busy_and_not_dead)
{
	load_from_a_slow_server(200 << 10);
	assert_int_equal(kit_counters(&kit).timeouts_total, 3);
	assert_int_equal(kit_counters(&kit).breaker_opens_total, 0);
	assert_int_equal(tier_state(kit.tier), TIER_UP);
}

TEST(a_server_that_trickles_is_left_alone)
{
	load_from_a_slow_server(2 << 10);
	kit_until_state(&kit, TIER_OFFLINE);
}

TEST(what_is_no_reply_closes_the_connection)
{
	static const struct fake_step steps[] = { { .reply = "$-1\r\n" },
						  { .reply = "HTTP/1.1 400 Bad Request\r\n\r\n" },
						  { .reply = "$-1\r\n" } };

	serve(steps, 3);
	assert_int_equal(kit_load(&kit, 1), -ECONNRESET);
	assert_int_equal(kit_load(&kit, 1), -ENOENT);
	assert_int_equal(kit_counters(&kit).protocol_errors_total, 1);
	assert_int_equal(kit_counters(&kit).breaker_opens_total, 0);
}

static bool has_sent(struct kit *k, void *xfers)
{
	return kit_row(k, 0).in_flight == *(uint32_t *)xfers;
}

/* With all that was on its way on it. */
TEST(a_connection_lost_is_one_failure)
{
	static const struct fake_step steps[] = { { .reply = "$-1\r\n" },
						  { .reply = "$-1\r\n", .cut = 2, .held = true },
						  { .reply = "$-1\r\n" } };
	struct kit_slot *slots[20];

	serve(steps, 3);
	for (uint32_t i = 0; i < 20; i++)
		slots[i] = kit_begin(&kit, XFER_READ, i);
	assert_true(kit_until(&kit, has_sent, &(uint32_t){ 20 }));
	fake_release(&fake, 1);
	for (uint32_t i = 0; i < 20; i++)
		assert_int_equal(kit_settle(&kit, slots[i]), -ECONNRESET);
	assert_int_equal(tier_state(kit.tier), TIER_UP);
	assert_int_equal(kit_load(&kit, 1), -ENOENT);
	assert_int_equal(kit_counters(&kit).breaker_opens_total, 0);
	assert_int_equal(kit_counters(&kit).resets_total, 20);
}

TEST(odd_replies_are_misses)
{
	static const struct fake_step steps[] = { { .reply = "$-1\r\n" },
						  { .reply = "*2\r\n*1\r\n:1\r\n$3\r\nabc\r\n" },
						  { .reply = ":7\r\n" },
						  { .reply = "+3.14\r\n" },
						  { .reply = "$-1\r\n" } };

	serve(steps, 5);
	for (int i = 0; i < 3; i++)
		assert_int_equal(kit_load(&kit, 1), -EBADMSG);
	assert_int_equal(kit_load(&kit, 1), -ENOENT);
	assert_int_equal(tier_state(kit.tier), TIER_UP);
}

static void moved_to(uint32_t slot, const char *address, int status)
{
	char moved[128];
	const struct fake_step steps[] = { { .reply = "$-1\r\n" }, { .reply = moved } };

	(void)snprintf(moved, sizeof(moved), "-MOVED %u %s\r\n", slot, address);
	serve(steps, 2);
	assert_int_equal(kit_load(&kit, 1), status);
	assert_int_equal(tier_state(kit.tier), TIER_UP);
}

TEST(redirects_to_nowhere_end)
{
	char name[KIT_NAME_BYTES];
	uint32_t slot;

	kit_name(1, name);
	slot = redis_slot(name, strlen(name));
	moved_to(slot, "127.0.0.1:1", -EREMOTEIO); /* no map has it */
	moved_to(slot, "127.0.0.1:0", -EREMOTEIO);
	moved_to(slot, "unix:/etc/passwd", -EREMOTEIO);
	/* not the value that was asked for: not believed */
	moved_to((slot + 1) % REDIS_SLOTS, "127.0.0.1:1", -EREMOTEIO);
}

TEST_DO(lies_by_chance_are_no_hits,
	print_message("%llu lies\n", (unsigned long long)redis_lies_by_chance(&rnd, SERVERS)));

TEST_FIRST(redis_needed(); rnd = random_seeded("fault_redis_lies"));
