/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: where [nvme] or [redis] compress is auto, an image that was to be coded and found no room
 * is counted apart from one whose space would save too little; what was to be requantised and found
 * no room is counted, too, and sent as it is; threads that code are made when the first record asks
 * for them. Method: the coders of both tiers by themselves, told that their memory is used up.
 */
#include <string.h>

#include "base/loop.h"
#include "tests/lib/lib_nvme.h"
#include "tests/lib/test.h"
#include "tiers/nvme/nvme_coder.h"
#include "tiers/redis/conn/redis_pack.h"

static struct loop *loop;
static struct nvme_coders coders;
static struct redis_packer packer;
static uint8_t *image;
static uint32_t bytes;
static struct image_shape shape;

FIXTURE(begin)
{
	const struct image_header *header;
	struct image_geometry geometry;

	coders = (struct nvme_coders){ 0 };
	packer = (struct redis_packer){ 0 };
	image = aligned_alloc(NVME_PAGE, nvme_round_page(KIT_IMAGE_MAX));
	assert_non_null(image);
	bytes = kit_image(2, image);
	header = (const void *)image;
	image_header_geometry(header, &geometry);
	assert_int_equal(image_shape(&geometry, header->codec_k, header->codec_v, &shape, NULL), 0);
	return loop_open(0, &loop);
}

FIXTURE(end)
{
	nvme_coders_close(&coders);
	loop_close(loop);
	free(image);
	return 0;
}

TEST_EACH(begin, end);

static void ended(TEST_UNUSED struct nvme_coder *coder)
{
	loop_stop(loop);
}

static bool nvme_takes(void)
{
	struct nvme_coder coder;

	return nvme_coder_pack(&coders, &coder, image, bytes, 0, ended);
}

static bool redis_takes(struct redis_pack *pack)
{
	return redis_pack_begin(&packer, pack, image, &shape, 1);
}

/* The image's space had its trial, which saved nothing. */
static void not_worth_it(struct form_trials *trials, uint64_t now_ns)
{
	const uint8_t *space = ((const struct image_header *)(const void *)image)->space_id;

	assert_true(form_trial_asks(trials, space, now_ns));
	for (uint32_t i = 0; i < FORM_TRIAL_BLOCKS; i++)
		form_trial_learns(trials, space, bytes, bytes, now_ns);
}

TEST(nvme_counts_what_has_no_room)
{
	assert_int_equal(nvme_coders_open(&coders, loop, true), 0);
	coders.bytes = NVME_CODER_BYTES;
	assert_false(nvme_takes());
	assert_int_equal(coders.full, 1);
}

TEST(nvme_does_not_count_what_is_not_worth_it)
{
	assert_int_equal(nvme_coders_open(&coders, loop, true), 0);
	coders.bytes = NVME_CODER_BYTES;
	not_worth_it(&coders.trials, loop_now(loop));
	assert_false(nvme_takes());
	assert_int_equal(coders.full, 0);
}

TEST(redis_tells_what_has_no_room)
{
	struct redis_pack pack;

	packer.bytes = REDIS_PACK_BYTES;
	assert_false(redis_takes(&pack));
	assert_true(pack.full);
}

TEST(redis_does_not_tell_what_is_not_worth_it)
{
	struct redis_pack pack;

	packer.bytes = REDIS_PACK_BYTES;
	not_worth_it(&packer.trials, 1);
	assert_false(redis_takes(&pack));
	assert_false(pack.full);
}

/* An int8 image with a good header; nobody comes to look at its values. */
static void become_int8(void)
{
	const struct image_geometry geometry = { .dtype = DTYPE_BF16,
						 .layers = 1,
						 .kv_heads = 1,
						 .head_dim_k = 64,
						 .head_dim_v = 64,
						 .block_tokens = 64 };
	const struct image_identity identity = { .space_id = { 1 } };

	assert_int_equal(image_shape(&geometry, CODEC_INT8, CODEC_INT8, &shape, NULL), 0);
	assert_true(shape.image_bytes <= KIT_IMAGE_MAX);
	memset(image, 0, shape.image_bytes);
	image_header_fill((void *)image, &geometry, CODEC_INT8, CODEC_INT8, &shape, &identity);
	image_seal((void *)image, image_checksum(image, &shape));
	bytes = shape.image_bytes;
}

TEST(nvme_requantises_nothing_that_has_no_room)
{
	struct nvme_coder coder;

	become_int8();
	assert_int_equal(nvme_coders_open(&coders, loop, false), 0);
	coders.bytes = NVME_CODER_BYTES;
	assert_false(nvme_coder_pack(&coders, &coder, image, bytes, CODECS_Q4, ended));
	assert_int_equal(coders.full, 1);
}

TEST(redis_requantises_nothing_that_has_no_room)
{
	struct redis_pack pack;

	become_int8();
	packer.bytes = REDIS_PACK_BYTES;
	assert_false(redis_pack_lesser(&packer, &pack, image, &shape, CODECS_Q4));
	assert_true(pack.full && !pack.lesser);
	assert_int_equal(packer.bytes, REDIS_PACK_BYTES);
}

TEST(redis_gives_the_room_of_a_lesser_image_back)
{
	struct redis_pack pack;

	become_int8();
	assert_true(redis_pack_lesser(&packer, &pack, image, &shape, CODECS_Q4));
	assert_true(packer.bytes >= shape.logical_bytes);
	while (redis_pack_step(&packer, &pack, 1) == CODEC_MORE)
		;
	assert_true(pack.lesser && recode_has((void *)pack.recode->made, CODECS_Q4));
	redis_pack_free(&packer, &pack);
	assert_int_equal(packer.bytes, 0);
}

TEST(redis_sends_a_damaged_image_as_it_is)
{
	struct redis_pack pack;

	become_int8();
	image[shape.payload_offset] ^= 1;
	assert_true(redis_pack_lesser(&packer, &pack, image, &shape, CODECS_Q4));
	while (redis_pack_step(&packer, &pack, 1) == CODEC_MORE)
		;
	assert_true(!pack.lesser && !pack.recode);
	assert_int_equal(packer.bytes, 0);
}

TEST(without_compress_threads_wait_for_a_coded_record)
{
	struct nvme_coder coder;

	assert_int_equal(nvme_coders_open(&coders, loop, false), 0);
	assert_null(coders.workers);
	assert_false(nvme_takes());
	assert_null(coders.workers);
	assert_int_equal(nvme_coder_unpack(&coders, &coder, image, bytes, bytes, ended), 0);
	assert_non_null(coders.workers);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(coder.status, -EBADMSG);
}
