/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait no=thread (the daemon's threads run in others) */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_codecs.c - goal: an image on NVMe or in Redis whose codecs are not the space's is a miss,
 * though its header, its sums and its MAC are right; a value in Redis is byte for byte the header,
 * scales and payload of an image. Method: images that no kvtierd makes, in the place of one that a
 * real kvtierd has written.
 */
#include "kernels/image.h"
#include "tests/lib/lib_disk.h"
#include "tests/lib/lib_shared.h"

/* The same block with these codecs, and all its values 0: as an image lies in memory, IMAGE_ALIGN
 * aligned, ret_shape->image_bytes. */
static void recoded(const struct image_header *header, enum image_codec codec_k,
		    enum image_codec codec_v, uint8_t *ret, struct image_shape *ret_shape)
{
	struct image_header *made = (void *)ret;
	struct image_geometry geometry;
	struct image_identity its;

	memcpy(its.space_id, header->space_id, sizeof(its.space_id));
	memcpy(its.key, header->key, sizeof(its.key));
	image_header_geometry(header, &geometry);
	assert_int_equal(image_shape(&geometry, codec_k, codec_v, ret_shape, NULL), 0);
	memset(ret, 0, ret_shape->image_bytes);
	image_header_fill(made, &geometry, codec_k, codec_v, ret_shape, &its);
	image_seal(made, image_checksum(ret, ret_shape));
}

/* --- on NVMe --- */

static const char ours[] = HOST("8M", "1M") "[nvme]\nbytes = 16M\nsegment_bytes = 256K\n";

/* The image on disk becomes one with these codecs, and right sums. */
static void recode(const char *path, const struct kvtier_key *key, enum image_codec codec_k,
		   enum image_codec codec_v)
{
	static _Alignas(IMAGE_ALIGN) uint8_t image[4 * IMAGE_ALIGN];
	const uint64_t at = disk_find(path, key);
	struct image_header header;
	struct image_shape shape;

	disk_read(path, at, &header, sizeof(header));
	recoded(&header, codec_k, codec_v, image, &shape);
	disk_write(path, at, image, shape.image_bytes);
}

/* A space that promises exact bytes gets none of FP8, and none of two codecs. */
ON_BOTH_ENGINES(an_image_of_another_codec_is_a_miss)
{
	struct disk_world *w = disk_place(state, ours);
	uint32_t hits = 0;

	disk_live(w);
	assert_int_equal(chain_store(&w->e, w->keys, 0, DISK_BLOCKS), 0);
	(void)daemon_told(&w->d, "flush");
	disk_die(w, SIGKILL);
	recode(w->path, &w->keys[0], CODEC_FP8, CODEC_FP8);
	recode(w->path, &w->keys[1], CODEC_RAW, CODEC_FP8);
	recode(w->path, &w->keys[2], CODEC_FP8, CODEC_RAW);
	disk_live(w);
	for (uint32_t i = 0; i < DISK_BLOCKS; i++)
		hits += chain_load(&w->e, &w->keys[i], 0, 1);
	assert_int_equal(hits, DISK_BLOCKS - 3);
	daemon_stat_becomes(&w->d, "tiers.nvme.corrupt_blocks_total", 3, PATIENT_MS);
	disk_die(w, SIGTERM);
	disk_end(w);
}

/* --- in Redis --- */

/* A value with a good header, checksum and MAC, that no kvtierd writes. */
static void other_codecs_are_a_miss(uint32_t codec, enum image_codec codec_k,
				    enum image_codec codec_v)
{
	struct shared *w = shared_begin(NULL, NULL, codec);
	static uint8_t value[2 * SHARED_RAW_IMAGE], packed[SHARED_RAW_IMAGE];
	static _Alignas(IMAGE_ALIGN) uint8_t image[SHARED_RAW_IMAGE];
	struct image_header header;
	struct image_shape shape;
	struct redis_seal seal;
	char name[SHARED_NAME];
	size_t front;

	node_store_through(&w->a, w->keys, 1);
	shared_name("kvtier:", &w->keys[0], name);
	assert_true(redis_get(&w->redis, name, value, sizeof(value)) > SHARED_FRONT);
	memcpy(&header, value + SHARED_FRONT, sizeof(header));
	recoded(&header, codec_k, codec_v, image, &shape);
	front = sizeof(header) + shape.scale_bytes;
	memcpy(packed, image, front);
	memcpy(packed + front, image + shape.payload_offset, shape.payload_bytes);
	shared_seal(0, &seal);
	redis_put(&w->redis, name, value, redis_sealed(&seal, packed, shape.packed_bytes, value));
	node_evict(&w->a);
	assert_int_equal(node_load_each(&w->a, w->keys, 0, 1), 0);
	shared_asks_until(&w->redis, 0, "DBSIZE");
	daemon_stat_reaches(&w->a.d, "tiers.redis.corrupt_blocks_total", 1);
	node_owes_nothing(&w->a);
	shared_end(w);
}

/* In a space that promises exact bytes. */
TEST_DO(a_value_of_another_codec_is_a_miss,
	other_codecs_are_a_miss(KVTIER_CODEC_RAW, CODEC_FP8, CODEC_FP8));
TEST_DO(a_value_of_two_codecs_is_a_miss,
	other_codecs_are_a_miss(KVTIER_CODEC_FP8, CODEC_FP8, CODEC_RAW);
	other_codecs_are_a_miss(KVTIER_CODEC_FP8, CODEC_RAW, CODEC_FP8));

/* Padding of an image in memory is not in its value. */
static void values_are_unpadded(uint32_t codec, size_t bytes)
{
	struct shared *w = shared_begin(NULL, NULL, codec);
	static uint8_t value[SHARED_RAW_IMAGE], image[SHARED_RAW_IMAGE];
	struct image_header header;
	struct image_shape shape;
	struct image_geometry g;
	struct image_identity its;
	char name[SHARED_NAME];

	node_store_through(&w->a, w->keys, 1);
	shared_name("kvtier:", &w->keys[0], name);
	assert_int_equal(redis_get(&w->redis, name, value, sizeof(value)), bytes);
	/* from here on: header, scales, payload, MAC */
	memmove(value, value + SHARED_FRONT, bytes - SHARED_FRONT);
	memcpy(&header, value, sizeof(header));
	memcpy(its.space_id, header.space_id, sizeof(its.space_id));
	memcpy(its.key, w->keys[0].bytes, sizeof(its.key));
	image_header_geometry(&header, &g);
	assert_int_equal(image_header_check(&header, &g, &its, &shape), 0);
	assert_int_equal(shape.packed_bytes + REDIS_SEAL_BYTES, bytes);
	memset(image, 0, sizeof(image));
	memcpy(image, value, sizeof(header) + shape.scale_bytes);
	memcpy(image + shape.payload_offset, value + sizeof(header) + shape.scale_bytes,
	       shape.payload_bytes);
	assert_true(image_checksum(image, &shape) == header.checksum);
	shared_end(w);
}

TEST_DO(an_fp8_value_is_header_scales_payload,
	values_are_unpadded(KVTIER_CODEC_FP8, SHARED_FP8_BYTES));
TEST_DO(a_raw_value_is_header_payload, values_are_unpadded(KVTIER_CODEC_RAW, SHARED_RAW_BYTES));

TEST_FIRST(redis_needed());
