/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * Goal: the Redis tier on servers that are well: stored values are found, by this tier and by
 * another, on their server, with their bytes; many at once, several servers; absent values are
 * misses; close ends all. Method: real redis-servers on loopback and on a Unix socket; every byte
 * of every image is compared.
 */
#include "tests/lib/lib_redis_tier.h"
#include "tests/lib/test.h"

#include <stdlib.h>

static struct redis_server server[2];
static struct kit kit;

enum { SMALL = 3000, LARGE = 1 << 20 };

FIXTURE(start_server)
{
	redis_start(&server[0], NULL);
	return 0;
}

FIXTURE(stop_server)
{
	redis_stop(&server[0]);
	redis_stop(&server[1]);
	return 0;
}

static void open_kit(uint32_t opaque_bytes)
{
	char text[32];

	redis_say(&server[0], text, sizeof(text), "FLUSHALL");
	kit_init(&kit, opaque_bytes);
}

/* --- one server --- */

TEST(what_is_stored_is_loaded)
{
	char name[KIT_NAME_BYTES];
	uint8_t *value;

	open_kit(SMALL);
	kit_start_at(&kit, server[0].address);
	assert_int_equal(kit_load(&kit, 1), -ENOENT);
	assert_int_equal(kit_store(&kit, 1), 0);
	assert_int_equal(kit_load(&kit, 1), 0);
	kit_name(1, name);
	value = malloc(2ull * kit.room);
	assert_non_null(value);
	assert_int_equal(kit_value(&kit, 1, value),
			 redis_get(&server[0], name, value + kit.room, kit.room));
	assert_memory_equal(value + sizeof(struct redis_envelope),
			    value + kit.room + sizeof(struct redis_envelope),
			    kit.shape.packed_bytes); /* the nonce is another, and so the MAC */
	free(value);
	kit_free(&kit);
}

TEST(a_unix_socket_will_do)
{
	char address[REDIS_TEST_PATH + 8];

	open_kit(SMALL);
	(void)snprintf(address, sizeof(address), "unix:%s", server[0].socket);
	kit_start_at(&kit, address);
	kit_store_all(&kit, 0, 50);
	assert_int_equal(kit_load_each(&kit, 0, 60, false), 50);
	kit_free(&kit);
}

TEST(a_name_is_looked_up)
{
	char address[64];

	open_kit(SMALL);
	(void)snprintf(address, sizeof(address), "localhost:%u", server[0].port);
	kit_start_at(&kit, address);
	assert_int_equal(kit_store(&kit, 1), 0);
	assert_int_equal(kit_load(&kit, 1), 0);
	kit_free(&kit);
}

TEST(another_tier_finds_it)
{
	open_kit(SMALL);
	kit_start_at(&kit, server[0].address);
	kit_store_all(&kit, 0, 20);
	kit_stop(&kit);
	kit_start_at(&kit, server[0].address);
	assert_int_equal(kit_load_each(&kit, 0, 20, false), 20);
	kit_free(&kit);
}

TEST(a_probe_says_whether_it_is_there)
{
	open_kit(SMALL);
	kit_start_at(&kit, server[0].address);
	assert_int_equal(kit_store(&kit, 1), 0);
	assert_int_equal(kit_do(&kit, XFER_PROBE, 1), 0);
	assert_int_equal(kit_do(&kit, XFER_PROBE, 2), -ENOENT);
	assert_int_equal(kit_counters(&kit).probes_total, 2);
	kit_free(&kit);
}

TEST(many_at_once_over_several_connections)
{
	struct redis_counters c;

	open_kit(LARGE);
	kit.conf.connections = 4;
	kit.conf.timeout_ms = 30000;
	kit_start_at(&kit, server[0].address);
	kit_store_all(&kit, 0, 200);
	assert_int_equal(kit_load_each(&kit, 0, 200, false), 200);
	c = kit_counters(&kit);
	assert_int_equal(c.sets_total, 200);
	assert_int_equal(c.gets_total, 200);
	assert_int_equal(c.hits_total, 200);
	assert_int_equal(c.received_bytes_total, 200ull * kit.shape.packed_bytes);
	assert_int_equal(c.sent_bytes_total, 200ull * kit.shape.packed_bytes);
	assert_true(kit_row(&kit, 0).connections <= 4);
	kit_free(&kit);
}

static uint32_t clients_whose_last_was(const char *word)
{
	char list[8192];
	uint32_t n = 0;

	redis_say(&server[0], list, sizeof(list), "CLIENT LIST");
	for (const char *at = strstr(list, word); at; at = strstr(at + 1, word))
		n++;
	return n;
}

TEST(stores_leave_connections_to_reads)
{
	open_kit(LARGE);
	kit.conf.connections = 4;
	kit.conf.timeout_ms = 30000;
	kit_start_at(&kit, server[0].address);
	kit_store_all(&kit, 0, 100);
	/* a slow thread may never need the second */
	assert_in_range(clients_whose_last_was("cmd=set"), 1, 2);
	assert_int_equal(kit_load_each(&kit, 0, 100, false), 100);
	kit_free(&kit);
}

TEST(more_than_max_in_flight_are_refused)
{
	struct kit_slot *slots[8];
	int r;

	open_kit(SMALL);
	kit.conf.max_in_flight = 8;
	kit_start_at(&kit, server[0].address);
	for (uint32_t i = 0; i < 8; i++) {
		slots[i] = kit_begin(&kit, XFER_READ, i, &r);
		assert_non_null(slots[i]);
	}
	assert_null(kit_begin(&kit, XFER_READ, 8, &r));
	assert_int_equal(r, -EAGAIN);
	for (uint32_t i = 0; i < 8; i++)
		assert_int_equal(kit_settle(&kit, slots[i]), -ENOENT);
	assert_int_equal(kit_load(&kit, 8), -ENOENT);
	kit_free(&kit);
}

TEST(a_buffer_too_small_is_told_what_it_needs)
{
	struct kit_slot *slot;
	int r;

	open_kit(SMALL);
	kit_start_at(&kit, server[0].address);
	assert_int_equal(kit_store(&kit, 1), 0);
	slot = kit_begin_with(&kit, XFER_READ, 1, IMAGE_ALIGN, &r);
	assert_non_null(slot);
	assert_int_equal(kit_settle(&kit, slot), -EFBIG);
	assert_int_equal(slot->x.bytes, kit.shape.image_bytes);
	assert_int_equal(kit_load(&kit, 1), 0);
	kit_free(&kit);
}

TEST(values_expire_after_ttl)
{
	char name[KIT_NAME_BYTES];
	long long left;

	open_kit(SMALL);
	kit.conf.ttl_ms = 3600000;
	kit_start_at(&kit, server[0].address);
	assert_int_equal(kit_store(&kit, 1), 0);
	kit_name(1, name);
	left = redis_ask(&server[0], "PTTL %s", name);
	assert_true(left > 3000000 && left <= 3600000);
	kit_free(&kit);
}

static void never(struct xfer *x)
{
	fail_msg("an xfer that was refused has ended: %d", x->status);
}

TEST(a_damaged_image_is_not_stored)
{
	struct kit_slot *slot;
	int r;

	open_kit(SMALL);
	kit_start_at(&kit, server[0].address);
	slot = &kit.slots[0];
	memset(slot, 0, sizeof(*slot));
	slot->x = (struct xfer){ .op = XFER_WRITE,
				 .buffer = kit.memory,
				 .bytes = kit.shape.image_bytes,
				 .seal = &redis_test_seal };
	slot->x.done = never;
	kit_image_of(&kit, 1, kit.memory);
	kit.memory[40] ^= 1;
	r = tier_submit(kit.tier, &slot->x);
	assert_int_equal(r, -EINVAL);
	kit_free(&kit);
}

/* --- cancel and close --- */

TEST(a_cancelled_xfer_ends_once)
{
	struct kit_slot *slots[40];
	uint32_t cancelled = 0;
	int r;

	open_kit(SMALL);
	kit_start_at(&kit, server[0].address);
	redis_signal(&server[0], SIGSTOP);
	for (uint32_t i = 0; i < 40; i++) {
		slots[i] = kit_begin(&kit, i % 2 ? XFER_READ : XFER_WRITE, i, &r);
		assert_non_null(slots[i]);
		if (i == 20)
			kit_run_ms(&kit, 50); /* these are sent, the others not yet */
	}
	for (uint32_t i = 0; i < 40; i++) {
		tier_cancel(kit.tier, &slots[i]->x);
		tier_cancel(kit.tier, &slots[i]->x);
	}
	for (uint32_t i = 0; i < 40; i++)
		cancelled += kit_settle(&kit, slots[i]) == -ECANCELED;
	redis_signal(&server[0], SIGCONT);
	assert_int_equal(cancelled, 40);
	kit_until_state(&kit, TIER_UP);
	assert_int_equal(kit_store(&kit, 50), 0);
	assert_int_equal(kit_load(&kit, 50), 0);
	kit_free(&kit);
}

TEST(close_ends_what_is_lent)
{
	struct kit_slot *slots[64];
	int r;

	open_kit(LARGE);
	kit_start_at(&kit, server[0].address);
	kit_store_all(&kit, 0, 64); /* so that every job has a past */
	redis_signal(&server[0], SIGSTOP);
	for (uint32_t i = 0; i < 64; i++) {
		slots[i] = kit_begin(&kit, i % 2 ? XFER_READ : XFER_WRITE, i, &r);
		assert_non_null(slots[i]);
		if (i == 32)
			kit_run_ms(&kit, 50);
	}
	kit_stop(&kit);
	redis_signal(&server[0], SIGCONT);
	for (uint32_t i = 0; i < 64; i++) {
		assert_int_equal(slots[i]->dones, 1);
		assert_int_equal(slots[i]->x.status, -ECANCELED);
	}
	kit_free(&kit);
}

/* Mostly before the I/O thread has seen them: earlier events of their jobs must not be taken for
 * their end. */
TEST(close_right_after_submit)
{
	struct kit_slot *slots[8];
	int r;

	open_kit(SMALL);
	kit.conf.max_in_flight = 8;
	for (uint32_t round = 0; round < 10; round++) {
		kit_start_at(&kit, server[0].address);
		kit_store_all(&kit, 0, 8);
		redis_signal(&server[0], SIGSTOP);
		for (uint32_t i = 0; i < 8; i++) {
			slots[i] = kit_begin(&kit, XFER_READ, i, &r);
			assert_non_null(slots[i]);
		}
		kit_stop(&kit);
		redis_signal(&server[0], SIGCONT);
		for (uint32_t i = 0; i < 8; i++)
			assert_int_equal(kit_settle(&kit, slots[i]), -ECANCELED);
	}
	kit_free(&kit);
}

/* --- two servers without Cluster --- */

TEST(values_are_spread_by_key)
{
	long long n[2];

	redis_start(&server[1], NULL);
	open_kit(SMALL);
	kit.conf.endpoints[1] = server[1].address;
	kit.conf.endpoints[0] = server[0].address;
	kit.conf.n_endpoints = 2;
	kit_start(&kit);
	kit_until_state(&kit, TIER_UP);
	kit_store_all(&kit, 0, 200);
	n[0] = redis_ask(&server[0], "DBSIZE");
	n[1] = redis_ask(&server[1], "DBSIZE");
	assert_int_equal(n[0] + n[1], 200);
	assert_true(n[0] > 60 && n[1] > 60);
	kit_stop(&kit);
	kit.conf.endpoints[0] = server[1].address; /* the order is of no account */
	kit.conf.endpoints[1] = server[0].address;
	kit_start(&kit);
	kit_until_state(&kit, TIER_UP);
	assert_int_equal(kit_load_each(&kit, 0, 200, false), 200);
	kit_free(&kit);
	redis_stop(&server[1]);
}

/* --- configuration --- */

static void refused(const char *what, const char *words)
{
	const struct tier_conf conf = { .redis = &kit.conf };
	struct tier *tier;

	assert_int_equal(tier_open(TIER_REDIS, &conf, kit.loop, &tier, kit.text, sizeof(kit.text)),
			 -EINVAL);
	if (!strstr(kit.text, words) || !strstr(kit.text, "[redis]"))
		fail_msg("%s: \"%s\" has no \"%s\"", what, kit.text, words);
}

TEST(wrong_options_are_named)
{
	open_kit(SMALL);
	refused("no endpoint", "endpoints");
	kit.conf.n_endpoints = 1;
	kit.conf.endpoints[0] = "nowhere";
	refused("no port", "nowhere");
	kit.conf.endpoints[0] = "::1:6379";
	refused("v6 without brackets", "::1:6379");
	kit.conf.endpoints[0] = "[::1]:6379";
	kit.conf.connections = 65;
	refused("connections", "connections");
	kit.conf.connections = 1;
	kit.conf.n_endpoints = 2;
	kit.conf.endpoints[1] = "[::1]:6379";
	refused("twice", "twice");
	kit_free(&kit);
}

TEST_GROUP(start_server, stop_server);

TEST_BEGIN
{
	redis_needed();
}
