/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait */
/*
 * Goal: of a server no more is asked for ahead than keeps it busy, whatever becomes of what was
 * asked; others may pass what waits; a server that answers nothing is left alone though most of
 * what is wanted of it was never sent, and one that was asked for too much at once is not. Method:
 * a scripted server that counts commands; values of a MiB, two connections.
 */
#include "tests/lib/lib_redis_tier.h"

enum { LARGE = 1 << 20, CONNECTIONS = 2, AHEAD = 2, READS = 40, TIMEOUT_MS = 300 };

static struct fake_server fake;
static struct kit kit;

static void open_at(const struct fake_step *steps, uint32_t n)
{
	fake_start(&fake, steps, n, false);
	kit_init(&kit, LARGE);
	kit.conf.cluster = REDIS_CLUSTER_NO;
	kit.conf.connections = CONNECTIONS;
	kit.conf.timeout_ms = TIMEOUT_MS;
	kit_start_at(&kit, fake.address);
}

static int clean(void **state)
{
	(void)state;
	kit_free(&kit);
	fake_stop(&fake);
	return 0;
}

static uint32_t asked(void)
{
	return __atomic_load_n(fake.commands, __ATOMIC_ACQUIRE);
}

/* Begins so many; how many were refused. */
static uint32_t begin(struct kit_slot *slots[READS], enum xfer_op op, uint32_t n)
{
	uint32_t refused = 0;
	int r;

	for (uint32_t i = 0; i < n; i++) {
		slots[i] = kit_begin(&kit, op, i, &r);
		refused += slots[i] == NULL;
	}
	return refused;
}

static void settle(struct kit_slot *slots[READS], uint32_t n, int status)
{
	for (uint32_t i = 0; i < n; i++)
		if (slots[i])
			assert_int_equal(kit_settle(&kit, slots[i]), status);
}

/* The first command is the trial. */
static const struct fake_step mute[] = { { .reply = "$-1\r\n" }, { .reply = NULL } };

static void a_mute_server_is_asked_for_little(void **state)
{
	struct kit_slot *slots[READS];

	(void)state;
	open_at(mute, 2);
	assert_int_equal(begin(slots, XFER_READ, READS), 0);
	settle(slots, READS, -ETIMEDOUT);
	assert_in_range(asked(), 1 + 1, 1 + CONNECTIONS * AHEAD);
}

/* What was given up is still on its way. */
static void nor_for_more_when_that_was_given_up(void **state)
{
	struct kit_slot *slots[READS];

	(void)state;
	open_at(mute, 2);
	assert_int_equal(begin(slots, XFER_READ, READS), 0);
	settle(slots, READS, -ETIMEDOUT);
	if (begin(slots, XFER_READ, 4) == 0)
		settle(slots, 4, -ETIMEDOUT);
	assert_in_range(asked(), 1 + 1, 1 + CONNECTIONS * AHEAD);
}

static void a_mute_server_is_left_alone(void **state)
{
	struct kit_slot *slots[READS];

	(void)state;
	open_at(mute, 2);
	for (int round = 0; round < 20 && tier_state(kit.tier) != TIER_OFFLINE; round++) {
		(void)begin(slots, XFER_READ, 8);
		for (uint32_t i = 0; i < 8; i++)
			if (slots[i])
				(void)kit_settle(&kit, slots[i]);
	}
	assert_int_equal(tier_state(kit.tier), TIER_OFFLINE);
	assert_true(kit_says(&kit, "no answer within timeout_ms"));
}

static void a_probe_passes_what_waits(void **state)
{
	static const struct fake_step steps[] = { { .reply = "$-1\r\n" }, { .reply = NULL } };
	struct kit_slot *reads[READS], *probe;
	uint32_t before;
	int r;

	(void)state;
	open_at(steps, 2);
	assert_int_equal(begin(reads, XFER_READ, READS), 0);
	kit_run_ms(&kit, TIMEOUT_MS / 4);
	before = asked();
	probe = kit_begin(&kit, XFER_PROBE, 77, &r);
	assert_non_null(probe);
	kit_run_ms(&kit, TIMEOUT_MS / 4);
	assert_int_equal(asked(), before + 1);
	(void)kit_settle(&kit, probe);
	settle(reads, READS, -ETIMEDOUT);
}

/* 80 answers a second, and time for half of what is asked for. */
static void more_than_a_server_can_do_at_once(void **state)
{
	static const struct fake_step slow[] = { { .reply = "$-1\r\n", .delay_ms = 25 } };
	struct kit_slot *slots[READS];
	uint32_t late = 0, absent = 0;

	(void)state;
	open_at(slow, 1);
	assert_int_equal(begin(slots, XFER_READ, READS), 0);
	for (uint32_t i = 0; i < READS; i++) {
		const int r = kit_settle(&kit, slots[i]);

		late += r == -ETIMEDOUT;
		absent += r == -ENOENT;
	}
	assert_int_equal(late + absent, READS);
	assert_true(late > 0 && absent > CONNECTIONS * AHEAD);
	assert_int_equal(kit_row(&kit, 0).counters.breaker_opens_total, 0);
	assert_int_equal(kit_load(&kit, READS), -ENOENT);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(a_mute_server_is_asked_for_little, clean),
		cmocka_unit_test_teardown(nor_for_more_when_that_was_given_up, clean),
		cmocka_unit_test_teardown(a_mute_server_is_left_alone, clean),
		cmocka_unit_test_teardown(a_probe_passes_what_waits, clean),
		cmocka_unit_test_teardown(more_than_a_server_can_do_at_once, clean),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
