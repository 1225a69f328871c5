/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * Goal: a wrong value under our name is a miss, is counted, and goes, unless it was replaced
 * meanwhile; the next store mends it. Method: a real redis-server, values planted by hand.
 */
#include "tests/lib/lib_redis_tier.h"
#include "tests/lib/test.h"

#include <stdlib.h>

static struct redis_server server;
static struct kit kit;

enum { SMALL = 3000 };

FIXTURE(start_server)
{
	redis_start(&server, NULL);
	return 0;
}

FIXTURE(stop_server)
{
	redis_stop(&server);
	return 0;
}

static void open_kit(uint32_t opaque_bytes)
{
	char text[32];

	redis_say(&server, text, sizeof(text), "FLUSHALL");
	kit_init(&kit, opaque_bytes);
}

static void plant(uint32_t block, size_t at, uint8_t flip, uint32_t bytes)
{
	uint8_t *value = calloc(2, kit.room);
	char name[KIT_NAME_BYTES];
	uint32_t n;

	assert_non_null(value);
	n = kit_value(&kit, block, value);
	value[at] ^= flip;
	kit_name(block, name);
	redis_put(&server, name, value, bytes ? bytes : n);
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
	char name[KIT_NAME_BYTES];
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
	kit_name(block, name);
	redis_put(&server, name, value, n);
	free(image);
	free(value);
	free(good);
}

static bool is_gone(struct kit *k, void *arg)
{
	(void)k;
	return redis_ask(&server, "EXISTS %s", (const char *)arg) == 0;
}

TEST(a_bad_value_is_a_miss_and_goes)
{
	char name[KIT_NAME_BYTES];

	open_kit(SMALL);
	kit_start_at(&kit, server.address);
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
		kit_name(i, name);
		assert_true(kit_until(&kit, is_gone, name));
	}
	assert_int_equal(kit_counters(&kit).corrupt_total, 5);
	assert_int_equal(kit_counters(&kit).deleted_total, 5);
	assert_int_equal(kit_counters(&kit).forged_total, 0);
	assert_int_equal(kit_store(&kit, 1), 0);
	assert_int_equal(kit_load(&kit, 1), 0);
	kit_free(&kit);
}

TEST(a_forged_value_is_a_miss_and_goes)
{
	char name[KIT_NAME_BYTES];

	open_kit(SMALL);
	kit_start_at(&kit, server.address);
	plant_image(1, kit.shape.payload_offset + 100, 8, true);
	assert_int_equal(kit_load(&kit, 1), -EKEYREJECTED);
	kit_name(1, name);
	assert_true(kit_until(&kit, is_gone, name));
	assert_int_equal(kit_counters(&kit).forged_total, 1);
	assert_int_equal(kit_counters(&kit).corrupt_total, 0);
	assert_int_equal(kit_counters(&kit).deleted_total, 1);
	kit_free(&kit);
}

TEST(a_value_of_another_form_is_a_miss_and_stays)
{
	uint8_t *value;
	char name[KIT_NAME_BYTES];
	uint32_t n;

	open_kit(SMALL);
	kit_start_at(&kit, server.address);
	value = calloc(2, kit.room);
	n = kit_value(&kit, 1, value);
	kit_name(1, name);
	/* form 1 */
	redis_put(&server, name, value + sizeof(struct redis_envelope), n - REDIS_SEAL_BYTES);
	assert_int_equal(kit_load(&kit, 1), -ENOENT);
	value[offsetof(struct redis_envelope, form)]++;
	redis_put(&server, name, value, n);
	assert_int_equal(kit_load(&kit, 1), -ENOENT);
	assert_int_equal(kit_counters(&kit).other_forms_total, 2);
	assert_int_equal(kit_counters(&kit).forged_total + kit_counters(&kit).corrupt_total, 0);
	assert_int_equal(redis_ask(&server, "EXISTS %s", name), 1);
	free(value);
	kit_free(&kit);
}

TEST(a_wrong_type_is_a_miss_and_overwritten)
{
	char name[KIT_NAME_BYTES], text[64];

	open_kit(SMALL);
	kit_start_at(&kit, server.address);
	kit_name(1, name);
	redis_say(&server, text, sizeof(text), "LPUSH %s x", name);
	assert_int_equal(kit_load(&kit, 1), -EBADMSG);
	assert_int_equal(tier_state(kit.tier), TIER_UP);
	assert_int_equal(kit_store(&kit, 1), 0);
	assert_int_equal(kit_load(&kit, 1), 0);
	kit_free(&kit);
}

static void condemn(uint32_t block, size_t at, uint8_t flip)
{
	uint8_t *image = aligned_alloc(IMAGE_ALIGN, kit.room);

	assert_non_null(image);
	kit_image_of(&kit, block, image);
	image[at] ^= flip;
	redis_condemn(kit.tier, &redis_test_seal, image, kit.shape.image_bytes);
	free(image);
}

TEST(a_condemned_value_goes)
{
	char name[KIT_NAME_BYTES];

	open_kit(SMALL);
	kit_start_at(&kit, server.address);
	plant_image(1, kit.shape.payload_offset + 100, 8, false);
	/* header and MAC are good: only the checksum tells */
	assert_int_equal(kit_load(&kit, 1), -EILSEQ);
	condemn(1, kit.shape.payload_offset + 100, 8);
	kit_name(1, name);
	assert_true(kit_until(&kit, is_gone, name));
	assert_int_equal(kit_counters(&kit).corrupt_total, 1);
	assert_int_equal(kit_counters(&kit).deleted_total, 1);
	kit_free(&kit);
}

TEST(a_condemned_value_that_was_replaced_stays)
{
	open_kit(SMALL);
	kit_start_at(&kit, server.address);
	assert_int_equal(kit_store(&kit, 1), 0);
	condemn(1, kit.shape.payload_offset + 100, 8);
	assert_int_equal(kit_counters(&kit).deleted_total, 0);
	assert_int_equal(kit_load(&kit, 1), 0);
	kit_free(&kit);
}

/* Hashing takes the core's time: so many a second, not as many as a server sends. */
TEST(condemned_in_a_row_are_not_all_hashed)
{
	struct redis_counters counters;

	open_kit(SMALL);
	kit_start_at(&kit, server.address);
	for (uint32_t i = 0; i < 15; i++)
		plant_image(100 + i, kit.shape.payload_offset + 100, 8, false);
	kit_run_ms(&kit, 1);
	for (uint32_t i = 0; i < 15; i++)
		condemn(100 + i, kit.shape.payload_offset + 100, 8);
	kit_run_ms(&kit, 300);
	counters = kit_counters(&kit);
	assert_int_equal(counters.corrupt_total, 15);
	assert_int_equal(counters.deleted_total, 10);
	kit_free(&kit);
}

TEST_GROUP(start_server, stop_server);

TEST_BEGIN
{
	redis_needed();
}
