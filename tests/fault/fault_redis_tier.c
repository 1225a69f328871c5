/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * Goal: every xfer ends once and by its deadline, in any state of a server. Requests that the
 * server cannot do are refused at once, and the state says why. When the server is well again, the
 * tier is, too. Method: real redis-servers that are stopped, killed, filled, made replicas.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_redis_tier.h"

static struct redis_server server[2];
enum { LONGEST_REST_MS = 40000 };

static struct kit kit;

FIXTURE_DO(begin, kit_begin_at(&kit, &server[0], NULL));

/* Ends all that a case left. */
FIXTURE_DO(clean, kit_free(&kit); redis_stop(&server[0]); redis_stop(&server[1]));

TEST_EACH(begin, clean);

static void start_up(void)
{
	kit_start(&kit);
	kit_until_state(&kit, TIER_UP);
}

/* --- not there --- */

TEST(a_server_that_comes_later_is_found)
{
	redis_kill(&server[0]);
	kit_start(&kit);
	kit_until_state(&kit, TIER_OFFLINE);
	assert_int_equal(kit_refused(&kit, XFER_READ, 1), -ENODEV);
	redis_restart(&server[0]);
	kit_until_state(&kit, TIER_UP);
	assert_int_equal(kit_store(&kit, 1), 0);
	assert_int_equal(kit_load(&kit, 1), 0);
	assert_true(kit.changes >= 2);
}

TEST(close_while_nobody_answers)
{
	redis_signal(&server[0], SIGSTOP);
	kit.conf.endpoints[1] = "no-such-name.invalid:6379";
	kit.conf.n_endpoints = 2;
	kit_start(&kit);
	kit_run_ms(&kit, 20);
	kit_free(&kit);
	redis_signal(&server[0], SIGCONT);
}

TEST(the_dead_ones_share_are_misses_and_the_rest_goes_on)
{
	uint32_t mine = 0;

	redis_start(&server[1], NULL);
	kit.conf.endpoints[1] = server[1].address;
	kit.conf.n_endpoints = 2;
	start_up();
	kit_store_all(&kit, 0, 200);
	mine = (uint32_t)redis_ask(&server[0], "DBSIZE");
	redis_kill(&server[1]);
	(void)kit_load_each(&kit, 0, 200, true);
	kit_until_state(&kit, TIER_DEGRADED);
	assert_true(kit_says(&kit, server[1].address));
	assert_int_equal(kit_load_each(&kit, 0, 200, false), mine);
	redis_restart(&server[1]);
	kit_until_state(&kit, TIER_UP);
	assert_int_equal(kit_load_each(&kit, 0, 200, false), mine);
	kit_store_all(&kit, 0, 200);
	assert_int_equal(kit_load_each(&kit, 0, 200, false), 200);
}

/* --- silent --- */

TEST(a_stopped_server_costs_one_deadline_and_then_nothing)
{
	struct kit_slot *slots[3];

	start_up();
	kit_store_all(&kit, 0, 20);
	redis_signal(&server[0], SIGSTOP);
	for (uint32_t i = 0; i < 3; i++) {
		slots[i] = kit_begin(&kit, XFER_READ, i);
		kit_pass_ms(&kit, KIT_TIMEOUT_MS / 4); /* three failures, not one */
	}
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(slots[i]->dones, 0);
		clock_pass_ms(KIT_TIMEOUT_MS / 4);
		assert_int_equal(kit_settle(&kit, slots[i]), -ETIMEDOUT);
	}
	kit_until_state(&kit, TIER_OFFLINE);
	assert_int_equal(kit_refused(&kit, XFER_READ, 1), -ENODEV);
	assert_int_equal(kit_refused(&kit, XFER_WRITE, 1), -ENODEV);
	assert_false(kit_readable(&kit, slots[0]->identity.key));
	assert_true(kit_says(&kit, "timeout_ms"));
	assert_true(kit_row(&kit, 0).retry_in_ms <= 40000);
	redis_signal(&server[0], SIGCONT);
	kit_until_state(&kit, TIER_UP);
	assert_int_equal(kit_load_each(&kit, 0, 20, false), 20);
	assert_int_equal(kit_counters(&kit).timeouts_total, 3);
	assert_int_equal(kit_counters(&kit).breaker_opens_total, 1);
}

TEST(killed_with_transfers_under_way)
{
	struct kit_slot *slots[60];
	int r;

	start_up();
	kit_store_all(&kit, 0, 60);
	redis_signal(&server[0], SIGSTOP);
	for (uint32_t i = 0; i < 60; i++)
		slots[i] = kit_begin(&kit, i % 2 ? XFER_READ : XFER_WRITE, i);
	kit_run_ms(&kit, 30);
	redis_kill(&server[0]);
	for (uint32_t i = 0; i < 60; i++) {
		r = kit_settle(&kit, slots[i]);
		assert_true(r == -ECONNRESET || r == -ENODEV);
	}
	kit_until_state(&kit, TIER_OFFLINE);
	redis_restart(&server[0]);
	kit_until_state(&kit, TIER_UP);
	assert_int_equal(kit_load_each(&kit, 0, 60, false), 0); /* it came back empty */
	kit_store_all(&kit, 0, 60);
	assert_int_equal(kit_load_each(&kit, 0, 60, false), 60);
}

static bool is_reconnected(struct kit *k, void *before)
{
	return kit_status(k).counters.reconnects_total > *(uint64_t *)before;
}

/* One connection lost is no failure of the server. */
TEST(connections_that_are_closed_are_opened_again)
{
	char text[64];

	start_up();
	kit_store_all(&kit, 0, 20);
	for (int i = 0; i < 5; i++) {
		uint64_t before = kit_counters(&kit).reconnects_total;

		redis_say(&server[0], text, sizeof(text), "CLIENT KILL TYPE normal");
		assert_true(kit_until(&kit, is_reconnected, &before));
		kit_until_state(&kit, TIER_UP);
		assert_int_equal(kit_load_each(&kit, 0, 20, false), 20);
	}
	assert_true(kit_counters(&kit).reconnects_total >= 5);
	assert_int_equal(kit_counters(&kit).breaker_opens_total, 0);
}

/* --- no stores --- */

TEST_WITH(a_full_server_stops_stores_and_not_reads, NULL, clean)
{
	char text[64];
	int r = 0;
	uint32_t n = 0;

	kit_begin_at(&kit, &server[0], "--maxmemory 6mb --maxmemory-policy noeviction");
	start_up();
	while (n < 10000 && (r = kit_store(&kit, n)) == 0)
		n++;
	assert_int_equal(r, -ENOSPC);
	assert_true(n > 10);
	kit_until_state(&kit, TIER_READONLY);
	assert_int_equal(kit_store(&kit, 0), -EROFS);
	assert_true(kit_says(&kit, "OOM"));
	assert_int_equal(kit_load_each(&kit, 0, n, false), n);
	assert_true(kit_counters(&kit).refused_stores_total >= 1);
	redis_say(&server[0], text, sizeof(text), "FLUSHALL");
	kit_pass_ms(&kit, LONGEST_REST_MS);
	assert_int_equal(tier_state(kit.tier), TIER_READONLY); /* no store was taken yet */
	assert_int_equal(kit_store(&kit, 1), 0);
	kit_until_state(&kit, TIER_UP);
	assert_int_equal(kit_load(&kit, 1), 0);
}

TEST(a_replica_takes_no_stores)
{
	char text[64];

	redis_start(&server[1], NULL);
	start_up();
	kit_store_all(&kit, 0, 10);
	redis_say(&server[0], text, sizeof(text), "CONFIG SET replica-serve-stale-data yes");
	/* nobody is there: its data stay */
	redis_say(&server[0], text, sizeof(text), "REPLICAOF 127.0.0.1 1");
	assert_int_equal(kit_store(&kit, 11), -EROFS);
	kit_until_state(&kit, TIER_READONLY);
	assert_true(kit_says(&kit, "READONLY"));
	assert_int_equal(kit_load_each(&kit, 0, 12, false), 10);
	redis_say(&server[0], text, sizeof(text), "REPLICAOF NO ONE");
	kit_pass_ms(&kit, LONGEST_REST_MS);
	assert_int_equal(kit_store(&kit, 11), 0);
	kit_until_state(&kit, TIER_UP);
}

/* --- all of it --- */

static void trouble(struct random *random, bool *stopped)
{
	char text[64];

	if (*stopped) {
		redis_signal(&server[0], SIGCONT);
		*stopped = false;
		return;
	}
	switch (random_below(random, 3)) {
	case 0:
		redis_signal(&server[0], SIGSTOP);
		*stopped = true;
		break;
	case 1:
		redis_kill(&server[0]);
		redis_restart(&server[0]);
		break;
	default:
		redis_say(&server[0], text, sizeof(text), "CLIENT KILL TYPE normal");
		break;
	}
}

/* Every xfer ends once (kit checks), whole if it says so, while all kinds of things are done to the
 * servers. */
TEST(xfers_end_whatever_happens)
{
	struct random random = random_seeded("fault_redis_tier");
	struct kit_slot *slots[48];
	bool stopped = false;
	uint32_t n;
	int r;

	redis_start(&server[1], NULL);
	kit.conf.endpoints[1] = server[1].address;
	kit.conf.n_endpoints = 2;
	kit.conf.connections = 3;
	start_up();
	redis_kill(&server[1]);
	for (int round = 0; round < 30; round++) {
		for (n = 0; n < 48; n++) {
			const enum xfer_op op = XFER_READ + random_below(&random, 3);

			slots[n] = kit_try(&kit, op, random_below(&random, 100), &r);
			if (!slots[n])
				break;
			if (random_below(&random, 10) == 0)
				tier_cancel(kit.tier, &slots[n]->x);
		}
		if (random_below(&random, 3) == 0)
			trouble(&random, &stopped);
		if (stopped)
			clock_pass_ms(KIT_TIMEOUT_MS);
		while (n > 0)
			assert_int_not_equal(kit_settle(&kit, slots[--n]), -EILSEQ);
		clock_pass_ms(random_below(&random, 1000));
		kit_run_ms(&kit, 1 + random_below(&random, 50));
	}
	redis_signal(&server[0], SIGCONT);
	redis_restart(&server[1]);
	kit_until_state(&kit, TIER_UP);
	kit_stop(&kit);
	start_up(); /* nothing may fail now */
	kit_store_all(&kit, 0, 100);
	assert_int_equal(kit_load_each(&kit, 0, 100, false), 100);
}

TEST_FIRST(redis_needed());
