/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * Goal: the Redis tier on servers that are well: stored values are found, by this tier and by
 * another, on their server, with their bytes; many at once, several servers; absent values are
 * misses; close ends all. A wrong value under our name is a miss, is counted and deleted, unless it
 * was replaced meanwhile; the next store mends it. Method: real redis-servers on loopback and on a
 * Unix socket, some values planted by hand; every byte of every image is compared.
 */
#include "tests/lib/lib_redis_tier.h"

static struct redis_server server[2];
static struct kit kit;
static char name[KIT_NAME_BYTES]; /* of block 1 */

enum { SMALL = 3000, LARGE = 1 << 20 };

FIXTURE_DO(start_server, redis_start(&server[0], NULL));

FIXTURE_DO(stop_server, redis_stop(&server[0]); redis_stop(&server[1]));

/* The kit of a case on the first server, which is empty; images of so many opaque bytes. */
FIXTURE(open_kit)
{
	char text[32];

	redis_say(&server[0], text, sizeof(text), "FLUSHALL");
	kit_init(&kit, *state ? (uint32_t)(uintptr_t)*state : SMALL);
	kit_name(1, name);
	return 0;
}

/* The same, and the tier is up. */
FIXTURE_DO(begin, (void)open_kit(state); kit_start_at(&kit, server[0].address));
FIXTURE_DO(end, kit_free(&kit));

TEST_EACH(begin, end);
/* A case that starts the tier itself; one of large images. */
#define NOT_STARTED(name)  TEST_WITH(name, open_kit, end)
#define LARGE_IMAGES(name) TEST_GIVEN(name, open_kit, end, LARGE)

/* --- one server --- */

TEST(what_is_stored_is_loaded)
{
	uint8_t *value;

	assert_int_equal(kit_load(&kit, 1), -ENOENT);
	assert_int_equal(kit_store(&kit, 1), 0);
	assert_int_equal(kit_load(&kit, 1), 0);
	value = malloc(2ull * kit.room);
	assert_non_null(value);
	assert_int_equal(kit_value(&kit, 1, value),
			 redis_get(&server[0], name, value + kit.room, kit.room));
	assert_memory_equal(value + sizeof(struct redis_envelope),
			    value + kit.room + sizeof(struct redis_envelope),
			    kit.shape.packed_bytes); /* the nonce is another, and so the MAC */
	free(value);
}

NOT_STARTED(a_unix_socket_will_do)
{
	char address[REDIS_TEST_PATH + 8];

	(void)snprintf(address, sizeof(address), "unix:%s", server[0].socket);
	kit_start_at(&kit, address);
	kit_store_all(&kit, 0, 50);
	assert_int_equal(kit_load_each(&kit, 0, 60, false), 50);
}

NOT_STARTED(a_name_is_looked_up)
{
	char address[64];

	(void)snprintf(address, sizeof(address), "localhost:%u", server[0].port);
	kit_start_at(&kit, address);
	assert_int_equal(kit_store(&kit, 1), 0);
	assert_int_equal(kit_load(&kit, 1), 0);
}

TEST(another_tier_finds_it)
{
	kit_store_all(&kit, 0, 20);
	kit_stop(&kit);
	kit_start_at(&kit, server[0].address);
	assert_int_equal(kit_load_each(&kit, 0, 20, false), 20);
}

TEST(a_probe_says_whether_it_is_there)
{
	assert_int_equal(kit_store(&kit, 1), 0);
	assert_int_equal(kit_do(&kit, XFER_PROBE, 1), 0);
	assert_int_equal(kit_do(&kit, XFER_PROBE, 2), -ENOENT);
	assert_int_equal(kit_counters(&kit).probes_total, 2);
}

LARGE_IMAGES(many_at_once_over_several_connections)
{
	struct redis_counters c;

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

LARGE_IMAGES(stores_leave_connections_to_reads)
{
	kit.conf.connections = 4;
	kit.conf.timeout_ms = 30000;
	kit_start_at(&kit, server[0].address);
	kit_store_all(&kit, 0, 100);
	/* a slow thread may never need the second */
	assert_in_range(clients_whose_last_was("cmd=set"), 1, 2);
	assert_int_equal(kit_load_each(&kit, 0, 100, false), 100);
}

NOT_STARTED(more_than_max_in_flight_are_refused)
{
	struct kit_slot *slots[8];

	kit.conf.max_in_flight = 8;
	kit_start_at(&kit, server[0].address);
	for (uint32_t i = 0; i < 8; i++)
		slots[i] = kit_begin(&kit, XFER_READ, i);
	assert_int_equal(kit_refused(&kit, XFER_READ, 8), -EAGAIN);
	for (uint32_t i = 0; i < 8; i++)
		assert_int_equal(kit_settle(&kit, slots[i]), -ENOENT);
	assert_int_equal(kit_load(&kit, 8), -ENOENT);
}

TEST(a_buffer_too_small_is_told_what_it_needs)
{
	struct kit_slot *slot;
	int r;

	assert_int_equal(kit_store(&kit, 1), 0);
	slot = kit_try_with(&kit, XFER_READ, 1, IMAGE_ALIGN, &r);
	assert_non_null(slot);
	assert_int_equal(kit_settle(&kit, slot), -EFBIG);
	assert_int_equal(slot->x.bytes, kit.shape.image_bytes);
	assert_int_equal(kit_load(&kit, 1), 0);
}

NOT_STARTED(values_expire_after_ttl)
{
	long long left;

	kit.conf.ttl_ms = 3600000;
	kit_start_at(&kit, server[0].address);
	assert_int_equal(kit_store(&kit, 1), 0);
	left = redis_ask(&server[0], "PTTL %s", name);
	assert_true(left > 3000000 && left <= 3600000);
}

static bool has_an_hour(TEST_UNUSED struct kit *k, void *arg)
{
	return redis_ask(&server[0], "PTTL %s", (const char *)arg) > 3000000;
}

NOT_STARTED(a_value_that_is_read_late_in_its_ttl_has_all_of_it_again)
{
	char other[KIT_NAME_BYTES];

	kit_name(2, other);
	kit.conf.ttl_ms = 3600000;
	kit_start_at(&kit, server[0].address);
	assert_int_equal(kit_store(&kit, 1), 0);
	assert_int_equal(kit_store(&kit, 2), 0);
	assert_int_equal(redis_ask(&server[0], "PEXPIRE %s 1900000", name), 1);
	assert_int_equal(redis_ask(&server[0], "PEXPIRE %s 1700000", other), 1);
	assert_int_equal(kit_load(&kit, 1), 0);
	assert_int_equal(kit_load(&kit, 2), 0);
	assert_true(kit_until(&kit, has_an_hour, other));
	assert_in_range(redis_ask(&server[0], "PTTL %s", name), 1, 1900000);
	assert_int_equal(kit_load(&kit, 1), 0);
	assert_int_equal(kit_counters(&kit).refreshed_total, 1);
}

/* So all of them are gone after a ttl, and the older seal may be, too. */
NOT_STARTED(a_value_under_the_older_seal_is_read_and_gets_no_more_time)
{
	struct redis_seals seals = { .n = 2, .all = { redis_test_seal, redis_test_seal } };

	kit.conf.ttl_ms = 3600000;
	seals.all[0].key[31] ^= 1;
	kit_start_at(&kit, server[0].address);
	assert_int_equal(kit_store(&kit, 1), 0);
	kit_stop(&kit);
	kit.conf.seals = &seals;
	kit_start_at(&kit, server[0].address);
	assert_int_equal(redis_ask(&server[0], "PEXPIRE %s 1700000", name), 1);
	assert_int_equal(kit_load(&kit, 1), 0);
	assert_int_equal(kit_load(&kit, 1), 0);
	assert_int_equal(kit_counters(&kit).refreshed_total, 0);
	assert_in_range(redis_ask(&server[0], "PTTL %s", name), 1, 1700000);
	assert_int_equal(kit_store(&kit, 1), 0); /* under the newer one */
	kit_stop(&kit);
	seals.n = 1;
	kit_start_at(&kit, server[0].address);
	assert_int_equal(kit_load(&kit, 1), 0);
	kit_stop(&kit);
	seals.all[0] = redis_test_seal;
	kit_start_at(&kit, server[0].address);
	assert_int_equal(kit_load(&kit, 1), -EKEYREJECTED);
	kit.conf.seals = NULL;
}

NOT_STARTED(a_user_who_may_not_refresh_reads_as_before)
{
	char text[64];

	kit.conf.ttl_ms = 3600000;
	kit_start_at(&kit, server[0].address);
	assert_int_equal(kit_store(&kit, 1), 0);
	redis_say(&server[0], text, sizeof(text), "ACL SETUSER default -eval");
	for (int i = 0; i < 5; i++)
		assert_int_equal(kit_load(&kit, 1), 0);
	redis_say(&server[0], text, sizeof(text), "ACL SETUSER default +eval");
	assert_int_equal(tier_state(kit.tier), TIER_UP);
	assert_int_equal(kit_counters(&kit).refreshed_total, 0);
	assert_int_equal(kit_counters(&kit).errors_total, 0);
}

static void never(struct xfer *x)
{
	fail_msg("an xfer that was refused has ended: %d", x->status);
}

TEST(a_damaged_image_is_not_stored)
{
	struct kit_slot *slot;
	int r;

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
}

/* --- cancel and close --- */

TEST(a_cancelled_xfer_ends_once)
{
	struct kit_slot *slots[40];
	uint32_t cancelled = 0;

	redis_signal(&server[0], SIGSTOP);
	for (uint32_t i = 0; i < 40; i++) {
		slots[i] = kit_begin(&kit, i % 2 ? XFER_READ : XFER_WRITE, i);
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
}

LARGE_IMAGES(close_ends_what_is_lent)
{
	struct kit_slot *slots[64];

	kit_start_at(&kit, server[0].address);
	kit_store_all(&kit, 0, 64); /* so that every job has a past */
	redis_signal(&server[0], SIGSTOP);
	for (uint32_t i = 0; i < 64; i++) {
		slots[i] = kit_begin(&kit, i % 2 ? XFER_READ : XFER_WRITE, i);
		if (i == 32)
			kit_run_ms(&kit, 50);
	}
	kit_stop(&kit);
	redis_signal(&server[0], SIGCONT);
	for (uint32_t i = 0; i < 64; i++) {
		assert_int_equal(slots[i]->dones, 1);
		assert_int_equal(slots[i]->x.status, -ECANCELED);
	}
}

/* Mostly before the I/O thread has seen them: earlier events of their jobs must not be taken for
 * their end. */
NOT_STARTED(close_right_after_submit)
{
	struct kit_slot *slots[8];

	kit.conf.max_in_flight = 8;
	for (uint32_t round = 0; round < 10; round++) {
		kit_start_at(&kit, server[0].address);
		kit_store_all(&kit, 0, 8);
		redis_signal(&server[0], SIGSTOP);
		for (uint32_t i = 0; i < 8; i++)
			slots[i] = kit_begin(&kit, XFER_READ, i);
		kit_stop(&kit);
		redis_signal(&server[0], SIGCONT);
		for (uint32_t i = 0; i < 8; i++)
			assert_int_equal(kit_settle(&kit, slots[i]), -ECANCELED);
	}
}

/* --- two servers without Cluster --- */

NOT_STARTED(values_are_spread_by_key)
{
	long long n[2];

	redis_start(&server[1], NULL);
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
	redis_stop(&server[1]);
}

/* --- values planted by hand, which no node with the secret makes --- */

static void plant(uint32_t block, size_t at, uint8_t flip, uint32_t bytes)
{
	uint8_t *value = calloc(2, kit.room);
	char key[KIT_NAME_BYTES];
	uint32_t n;

	assert_non_null(value);
	n = kit_value(&kit, block, value);
	value[at] ^= flip;
	kit_name(block, key);
	redis_put(&server[0], key, value, bytes ? bytes : n);
	free(value);
}

/* Its image was damaged before it was sealed, by a node's memory; with `sums` the image is
 * consistent again, but has the MAC of the undamaged one. Anyone without the secret can make
 * this. */
static void plant_image(uint32_t block, size_t at, uint8_t flip, bool sums)
{
	uint8_t *value = calloc(1, 2 * kit.room), *good = calloc(1, 2 * kit.room);
	uint8_t *image = aligned_alloc(IMAGE_ALIGN, kit.room);
	const size_t head = sizeof(struct image_header) + kit.shape.scale_bytes;
	char key[KIT_NAME_BYTES];
	uint32_t n;

	assert_true(image && value && good);
	n = kit_value(&kit, block, good);
	kit_image_of(&kit, block, image);
	image[at] ^= flip;
	if (sums)
		image_seal((void *)image, image_checksum(image, &kit.shape));
	memmove(image + head, image + kit.shape.payload_offset, kit.shape.payload_bytes);
	assert_int_equal(redis_sealed(&redis_test_seal, image, kit.shape.packed_bytes, value), n);
	if (sums) {
		memcpy(value, good, sizeof(struct redis_envelope));
		memcpy(value + n - REDIS_MAC_BYTES, good + n - REDIS_MAC_BYTES, REDIS_MAC_BYTES);
	}
	kit_name(block, key);
	redis_put(&server[0], key, value, n);
	free(image);
	free(value);
	free(good);
}

static bool is_gone(TEST_UNUSED struct kit *k, void *arg)
{
	return redis_ask(&server[0], "EXISTS %s", (const char *)arg) == 0;
}

TEST(a_bad_value_is_a_miss_and_goes)
{
	char key[KIT_NAME_BYTES];

	plant(1, 40, 4, 0);  /* header */
	plant(2, 0, 0, 500); /* truncated */
	plant(3, 0, 0, kit.shape.packed_bytes + REDIS_SEAL_BYTES + 1);
	plant(4, 0, 0, 1);
	plant(5,
	      sizeof(struct redis_envelope) + sizeof(struct image_header) + kit.shape.scale_bytes +
		      100,
	      8, 0);
	for (uint32_t i = 1; i <= 5; i++) {
		assert_int_equal(kit_load(&kit, i), -EBADMSG);
		kit_name(i, key);
		assert_true(kit_until(&kit, is_gone, key));
	}
	assert_int_equal(kit_counters(&kit).corrupt_total, 5);
	assert_int_equal(kit_counters(&kit).deleted_total, 5);
	assert_int_equal(kit_counters(&kit).forged_total, 0);
	assert_int_equal(kit_store(&kit, 1), 0);
	assert_int_equal(kit_load(&kit, 1), 0);
}

TEST(a_forged_value_is_a_miss_and_goes)
{
	plant_image(1, kit.shape.payload_offset + 100, 8, true);
	assert_int_equal(kit_load(&kit, 1), -EKEYREJECTED);
	assert_true(kit_until(&kit, is_gone, name));
	assert_int_equal(kit_counters(&kit).forged_total, 1);
	assert_int_equal(kit_counters(&kit).corrupt_total, 0);
	assert_int_equal(kit_counters(&kit).deleted_total, 1);
}

TEST(a_value_of_another_form_is_a_miss_and_stays)
{
	uint8_t *value;
	uint32_t n;

	value = calloc(2, kit.room);
	n = kit_value(&kit, 1, value);
	/* form 1 */
	redis_put(&server[0], name, value + sizeof(struct redis_envelope), n - REDIS_SEAL_BYTES);
	assert_int_equal(kit_load(&kit, 1), -ENOENT);
	value[offsetof(struct redis_envelope, form)] = REDIS_VALUE_LESSER + 1;
	redis_put(&server[0], name, value, n);
	assert_int_equal(kit_load(&kit, 1), -ENOENT);
	assert_int_equal(kit_counters(&kit).other_forms_total, 2);
	assert_int_equal(kit_counters(&kit).forged_total + kit_counters(&kit).corrupt_total, 0);
	assert_int_equal(redis_ask(&server[0], "EXISTS %s", name), 1);
	free(value);
}

TEST(a_wrong_type_is_a_miss_and_overwritten)
{
	char text[64];

	redis_say(&server[0], text, sizeof(text), "LPUSH %s x", name);
	assert_int_equal(kit_load(&kit, 1), -EBADMSG);
	assert_int_equal(tier_state(kit.tier), TIER_UP);
	assert_int_equal(kit_store(&kit, 1), 0);
	assert_int_equal(kit_load(&kit, 1), 0);
}

static void condemn(uint32_t block, size_t at, uint8_t flip)
{
	uint8_t *image = aligned_alloc(IMAGE_ALIGN, kit.room);

	assert_non_null(image);
	kit_image_of(&kit, block, image);
	image[at] ^= flip;
	tier_condemn(kit.tier, &redis_test_seal, image, kit.shape.image_bytes);
	free(image);
}

TEST(a_condemned_value_goes)
{
	plant_image(1, kit.shape.payload_offset + 100, 8, false);
	/* header and MAC are good: only the checksum tells */
	assert_int_equal(kit_load(&kit, 1), -EILSEQ);
	condemn(1, kit.shape.payload_offset + 100, 8);
	assert_true(kit_until(&kit, is_gone, name));
	assert_int_equal(kit_counters(&kit).corrupt_total, 1);
	assert_int_equal(kit_counters(&kit).deleted_total, 1);
}

TEST(a_condemned_value_that_was_replaced_stays)
{
	assert_int_equal(kit_store(&kit, 1), 0);
	condemn(1, kit.shape.payload_offset + 100, 8);
	assert_int_equal(kit_counters(&kit).deleted_total, 0);
	assert_int_equal(kit_load(&kit, 1), 0);
}

/* Hashing takes the core's time: so many a second, not as many as a server sends. */
TEST(condemned_in_a_row_are_not_all_hashed)
{
	struct redis_counters counters;

	for (uint32_t i = 0; i < 15; i++)
		plant_image(100 + i, kit.shape.payload_offset + 100, 8, false);
	kit_run_ms(&kit, 1);
	for (uint32_t i = 0; i < 15; i++)
		condemn(100 + i, kit.shape.payload_offset + 100, 8);
	kit_run_ms(&kit, 300);
	counters = kit_counters(&kit);
	assert_int_equal(counters.corrupt_total, 15);
	assert_int_equal(counters.deleted_total, 10);
}

/* --- coded values --- */

/* The tier is up, and codes its values. */
static void start_coded(bool soft)
{
	kit.conf.compress = true;
	kit.soft = soft;
	kit_start_at(&kit, server[0].address);
}

static bool has_set(struct kit *k, void *n)
{
	return kit_counters(k).sets_total == (uint32_t)(uintptr_t)n;
}

static void restart(bool compress)
{
	kit_stop(&kit);
	kit.conf.compress = compress;
	kit_start(&kit);
	kit_until_state(&kit, TIER_UP);
}

NOT_STARTED(coded_values_are_shorter_and_any_node_loads_them)
{
	struct redis_counters counters;

	start_coded(true);
	kit_store_all(&kit, 1, 101);
	assert_true(kit_until(&kit, has_set, (void *)100));
	counters = kit_counters(&kit);
	assert_int_equal(counters.coded_total, 100);
	assert_int_equal(counters.saved_bytes_total + counters.sent_bytes_total,
			 100ull * kit.shape.packed_bytes);
	assert_true(counters.saved_bytes_total > 6ull * kit.shape.packed_bytes);
	assert_in_range(redis_ask(&server[0], "STRLEN %s", name), 1,
			kit.shape.packed_bytes * 94 / 100 + REDIS_SEAL_BYTES);
	restart(false);
	assert_int_equal(kit_load_each(&kit, 1, 101, false), 100);
}

/* Of 100 blocks 64 are tried. */
NOT_STARTED(noise_goes_out_as_it_is)
{
	struct redis_counters counters;

	start_coded(false);
	kit_store_all(&kit, 1, 101);
	assert_true(kit_until(&kit, has_set, (void *)100));
	counters = kit_counters(&kit);
	assert_int_equal(counters.coded_total, 0);
	assert_int_equal(counters.saved_bytes_total, 0);
	assert_int_equal(kit_load_each(&kit, 1, 101, false), 100);
}

NOT_STARTED(a_damaged_coded_value_is_a_miss_and_goes)
{
	char text[32];

	start_coded(true);
	assert_int_equal(kit_store(&kit, 1), 0);
	assert_int_equal(kit_load(&kit, 1), 0);
	redis_say(&server[0], text, sizeof(text), "SETRANGE %s 300 damaged", name);
	assert_int_equal(kit_load(&kit, 1), -EBADMSG);
	assert_true(kit_until(&kit, is_gone, name));
	assert_int_equal(kit_counters(&kit).corrupt_total, 1);
	assert_int_equal(kit_store(&kit, 1), 0);
	assert_int_equal(kit_load(&kit, 1), 0);
}

/* Some are still being packed then. */
LARGE_IMAGES(cancel_and_close_end_what_is_being_packed)
{
	struct kit_slot *slots[20];

	start_coded(true);
	for (uint32_t i = 0; i < 20; i++)
		slots[i] = kit_begin(&kit, XFER_WRITE, i);
	for (uint32_t i = 0; i < 20; i += 2)
		tier_cancel(kit.tier, &slots[i]->x);
	for (uint32_t i = 0; i < 20; i += 2)
		assert_in_range(-kit_settle(&kit, slots[i]), 0, ECANCELED);
	kit_stop(&kit);
}

TEST_GROUP(start_server, stop_server);
TEST_FIRST(redis_needed());
