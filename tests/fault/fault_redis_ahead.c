/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * Goal: the tier asks a server ahead for no more than keeps it busy, however the requests end.
 * Other servers' requests may pass waiting ones. A server that answers nothing is left alone,
 * though most of its requests were never sent. A server that was asked for too much at once is not.
 * Method: a scripted server that counts commands; values of a MiB, two connections.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_redis_tier.h"

enum { LARGE = 1 << 20, CONNECTIONS = 2, AHEAD = 2, READS = 40, ANSWERS = 12 };

static struct fake_server fake;
static struct kit kit;

static void open_at(const struct fake_step *steps, uint32_t n)
{
	fake_start(&fake, steps, n, false);
	kit_init(&kit, LARGE);
	kit.conf.connections = CONNECTIONS;
	kit_start_at(&kit, fake.address);
}

FIXTURE_DO(clean, kit_free(&kit); fake_stop(&fake));

TEST_EACH(NULL, clean);

/* The first command is the trial. */
static uint32_t asked(void)
{
	return fake_commands(&fake) - 1;
}

static bool is_asked_for(TEST_UNUSED struct kit *k, void *n)
{
	return asked() >= *(uint32_t *)n;
}

static void until_asked_for(uint32_t n)
{
	assert_true(kit_until(&kit, is_asked_for, &n));
}

/* Begins so many; how many were refused. */
static uint32_t begin(struct kit_slot *slots[READS], enum xfer_op op, uint32_t n)
{
	uint32_t refused = 0;
	int r;

	for (uint32_t i = 0; i < n; i++) {
		slots[i] = kit_try(&kit, op, i, &r);
		refused += slots[i] == NULL;
	}
	return refused;
}

/* Their time is up, and none was answered. */
static void time_out(struct kit_slot **slots, uint32_t n)
{
	clock_pass_ms(KIT_TIMEOUT_MS);
	for (uint32_t i = 0; i < n; i++)
		if (slots[i])
			assert_int_equal(kit_settle(&kit, slots[i]), -ETIMEDOUT);
}

static const struct fake_step mute[] = { { .reply = "$-1\r\n" }, { .reply = NULL } };

static void ask_a_mute_server(void)
{
	struct kit_slot *slots[READS];

	open_at(mute, 2);
	assert_int_equal(begin(slots, XFER_READ, READS), 0);
	until_asked_for(CONNECTIONS * AHEAD);
	time_out(slots, READS);
	assert_int_equal(asked(), CONNECTIONS * AHEAD);
}

TEST_DO(a_mute_server_is_asked_for_little, ask_a_mute_server());

/* Commands that were given up are still on their way. */
TEST(nor_for_more_when_that_was_given_up)
{
	struct kit_slot *slots[READS];

	ask_a_mute_server();
	if (begin(slots, XFER_READ, 4) == 0)
		time_out(slots, 4);
	assert_int_equal(asked(), CONNECTIONS * AHEAD);
}

TEST(a_mute_server_is_left_alone)
{
	struct kit_slot *slots[READS];

	open_at(mute, 2);
	for (int round = 0; round < 20 && tier_state(kit.tier) != TIER_OFFLINE; round++) {
		(void)begin(slots, XFER_READ, 8);
		clock_pass_ms(KIT_TIMEOUT_MS);
		for (uint32_t i = 0; i < 8; i++)
			if (slots[i])
				(void)kit_settle(&kit, slots[i]);
	}
	assert_int_equal(tier_state(kit.tier), TIER_OFFLINE);
	assert_true(kit_says(&kit, "no answer within timeout_ms"));
}

TEST(a_probe_passes_what_waits)
{
	struct kit_slot *reads[READS], *probe;

	open_at(mute, 2);
	assert_int_equal(begin(reads, XFER_READ, READS), 0);
	until_asked_for(CONNECTIONS * AHEAD);
	probe = kit_begin(&kit, XFER_PROBE, 77);
	until_asked_for(CONNECTIONS * AHEAD + 1);
	time_out(&probe, 1);
	time_out(reads, READS);
	assert_int_equal(asked(), CONNECTIONS * AHEAD + 1);
}

static bool are_answered(struct kit *k, void *n)
{
	return k->busy <= READS - *(uint32_t *)n;
}

/* So many, in a part of the time that there is for them. */
static void answer(uint32_t n)
{
	fake_release(&fake, n);
	assert_true(kit_until(&kit, are_answered, &(uint32_t){ READS - kit.busy + n }));
	clock_pass_ms(KIT_TIMEOUT_MS / 2);
}

/* There is time for a part of the requests. */
TEST(more_than_a_server_can_do_at_once)
{
	static const struct fake_step slow[] = { { .reply = "$-1\r\n" },
						 { .reply = "$-1\r\n", .held = true } };
	struct kit_slot *slots[READS];
	uint32_t late = 0, absent = 0;

	open_at(slow, 2);
	assert_int_equal(begin(slots, XFER_READ, READS), 0);
	answer(ANSWERS / 2);
	answer(ANSWERS / 2);
	for (uint32_t i = 0; i < READS; i++) {
		const int r = kit_settle(&kit, slots[i]);

		late += r == -ETIMEDOUT;
		absent += r == -ENOENT;
	}
	assert_int_equal(absent, ANSWERS);
	assert_int_equal(late, READS - ANSWERS);
	assert_int_equal(kit_row(&kit, 0).counters.breaker_opens_total, 0);
	fake_release(&fake, READS);
	assert_int_equal(kit_load(&kit, READS), -ENOENT);
}
