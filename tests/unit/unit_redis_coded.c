/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: a coded value comes back as the image that it was, whoever sends it in whatever pieces; one
 * that is not the coded form of this image, or was not made with the secret, is refused, and known
 * so well that it, and only it, can be deleted. Method: a redis-server of this test's own, without
 * TLS and with it; values planted through another client, with and without the right MAC.
 */
#include "kernels/form.h"
#include "tests/lib/lib_redis_conn.h"
#include "tiers/redis/conn/redis_pack.h"

static struct random dice;
static struct rig r;
static struct rig_command c;
static struct block b;
/* its coded form behind its header; and the value */
static uint8_t *coded, *value;
static uint32_t n;

/* Opaque bytes are few to code, so the codes are what is tried. */
static void soften(struct block *block)
{
	struct image_header *header = (void *)block->image;
	const uint32_t plain = block->shape.payload_bytes - block->geometry.opaque_bytes;

	for (uint32_t i = 0; i < block->shape.payload_bytes; i++) {
		const uint64_t x = random_next(&dice);
		const uint32_t rank = (uint32_t)__builtin_ctzll(x >> 8 | 1ull << 40) % 16;

		block->image[block->shape.payload_offset + i] =
			(uint8_t)(i < plain ? (x & 0x87) | (15 - rank) << 3 : i % 200);
	}
	image_seal(header, image_checksum(block->image, &block->shape));
}

/* Header and form in `coded`, the value in `value`, with room for a byte more. */
static void code(const struct block *block)
{
	const struct codec_kernels *k = codec_kernels(NULL);
	const uint32_t head = sizeof(struct image_header);
	struct form_pack p;
	int done;

	coded = calloc(1, head + form_most(&block->shape) + FORM_SPARE);
	value = calloc(1, block_bytes(block) + FORM_SPARE);
	assert_true(coded && value);
	memcpy(coded, block->image, head);
	form_pack_start(&p, k, &block->geometry, &block->shape, block->image, coded + head);
	do
		done = form_pack_step(&p, 100000);
	while (done == CODEC_MORE);
	assert_int_equal(done, 0);
	n = head + p.n;
	(void)redis_sealed_as(&redis_test_seal, REDIS_VALUE_CODED, coded, n, value);
}

static const struct image_geometry geometry = {
	.dtype = DTYPE_BF16,
	.layers = 4,
	.kv_heads = 2,
	.head_dim_k = 64,
	.head_dim_v = 64,
	.block_tokens = 16,
	.opaque_bytes = 1000,
};

FIXTURE(begin)
{
	dice = random_seeded("unit_redis_coded");
	rig_open(&r, rig_server.address);
	c = (struct rig_command){ 0 };
	b = block_of(&geometry, CODEC_FP8, &dice);
	soften(&b);
	code(&b);
	return 0;
}

FIXTURE(end)
{
	free(coded);
	free(value);
	block_free(&b);
	rig_forget(&c);
	rig_close(&r);
	return 0;
}

TEST_EACH(begin, end);

/* A SET of the form; then the server has `value`, but for nonce and MAC. */
static void store_coded(const struct block *block)
{
	struct rig_command set = { 0 };
	const uint32_t head = sizeof(struct image_header);

	rig_set(&set, block, 0);
	assert_int_equal(redis_command_set(&set.command, block->name, block->image, &block->shape,
					   (struct redis_coded){ .bytes = coded + head,
								 .n = n - head },
					   &redis_test_seal, 0),
			 0);
	assert_int_equal(rig_do(&r, &set), 0);
}

TEST(the_value_is_header_and_form)
{
	uint8_t *have = malloc(n + REDIS_SEAL_BYTES);

	store_coded(&b);
	assert_int_equal(redis_get(&rig_server, b.name, have, n + REDIS_SEAL_BYTES),
			 n + REDIS_SEAL_BYTES);
	assert_memory_equal(have + sizeof(struct redis_envelope), coded, n);
	assert_true(n < 0.95 * b.shape.packed_bytes);
	free(have);
}

TEST(coded_images_come_back)
{
	for (uint32_t i = 0; i < 40; i++) {
		const struct image_geometry g = {
			.dtype = DTYPE_BF16,
			.layers = 1 + random_below(&dice, 40),
			.kv_heads = 1 + random_below(&dice, 8),
			.head_dim_k = 64,
			.head_dim_v = 1 + random_below(&dice, 64),
			.block_tokens = 16 + random_below(&dice, 32),
			.opaque_bytes = random_below(&dice, i % 8 ? 1000 : 2 << 20),
		};

		end(state);
		dice.state += i;
		rig_open(&r, rig_server.address);
		c = (struct rig_command){ 0 };
		b = block_of(&g, CODEC_FP8, &dice);
		soften(&b);
		code(&b);
		store_coded(&b);
		assert_int_equal(rig_load(&r, &c, &b), 0);
		rig_has_from(&c, &b, n + REDIS_SEAL_BYTES);
	}
}

TEST(a_larger_room_is_asked_for)
{
	store_coded(&b);
	rig_get(&c, &b);
	c.value.room = b.shape.image_bytes - 1;
	assert_int_equal(rig_do(&r, &c), -EFBIG);
	assert_int_equal(c.value.bytes, b.shape.image_bytes);
	rig_is_poison(&c);
}

/* Planted, `bytes` long. It is refused in one of these two ways, and can be deleted while it is
 * there; a value with another nonce cannot. */
static void refused(uint32_t bytes, int status, int or_status)
{
	struct rig_command del = { 0 };

	redis_put(&rig_server, b.name, value, bytes);
	assert_true(rig_load(&r, &c, &b) == status || c.command.status == or_status);
	assert_true(c.value.hashed && c.value.part == REDIS_PART_FRONT);
	for (int other = 1; other >= 0; other--) {
		value[20] ^= (uint8_t)other;
		redis_put(&rig_server, b.name, value, bytes);
		value[20] ^= (uint8_t)other;
		rig_fresh(&del);
		redis_command_delete_if(&del.command, b.name, c.value.sha1, c.value.part, bytes);
		assert_int_equal(rig_do(&r, &del), 0);
		assert_int_equal(del.integer, !other);
	}
	/* the connection goes on */
	assert_int_equal(rig_load(&r, &c, &b), -ENOENT);
}

/* Most damage of the body is found by the form or the checksum; what neither heeds by the MAC. */
TEST(a_flipped_bit_behind_the_header)
{
	const uint32_t front = sizeof(struct redis_front);

	for (uint32_t i = 0; i < 200; i++) {
		const uint32_t at = front + (i < 20 ? i : random_below(&dice, n - front));

		value[at] ^= (uint8_t)(1 << i % 8);
		refused(n + REDIS_SEAL_BYTES, -EBADMSG, -EKEYREJECTED);
		value[at] ^= (uint8_t)(1 << i % 8);
	}
}

TEST(another_nonce_or_mac_is_a_forgery)
{
	for (uint32_t i = 0; i < REDIS_MAC_BYTES; i++) {
		const uint32_t at[2] = { 16 + i, n + REDIS_SEAL_BYTES - 1 - i };

		for (uint32_t j = 0; j < 2; j++) {
			value[at[j]] ^= 0x10;
			refused(n + REDIS_SEAL_BYTES, -EKEYREJECTED, -EKEYREJECTED);
			value[at[j]] ^= 0x10;
		}
	}
}

/* The form is bound by the MAC, too. */
TEST(a_plain_value_that_says_that_it_is_coded)
{
	uint8_t *plain = malloc(block_bytes(&b));

	block_value(&b, plain);
	plain[4] = REDIS_VALUE_CODED;
	redis_put(&rig_server, b.name, plain, block_bytes(&b));
	assert_int_equal(rig_load(&r, &c, &b), -EBADMSG);
	rig_is_poison(&c);
	value[4] = REDIS_VALUE_FORM;
	redis_put(&rig_server, b.name, value, n + REDIS_SEAL_BYTES);
	assert_int_equal(rig_load(&r, &c, &b), -EBADMSG);
	rig_is_poison(&c);
	free(plain);
}

/* Sealed with the secret, as a node that is broken might. */
static void sealed_is_refused(uint32_t bytes)
{
	(void)redis_sealed_as(&redis_test_seal, REDIS_VALUE_CODED, coded, bytes, value);
	refused(bytes + REDIS_SEAL_BYTES, -EBADMSG, -EBADMSG);
}

TEST(a_form_that_is_cut_or_too_long)
{
	const uint32_t head = sizeof(struct image_header);

	sealed_is_refused(n + 1);
	sealed_is_refused(n - 1);
	sealed_is_refused(head + 1);
	/* the chunk of scales alone */
	sealed_is_refused(head + FORM_HEAD_BYTES + b.shape.scale_bytes);
}

/* A good form, of other bytes than the header's checksum says. */
TEST(a_form_of_another_image)
{
	b.image[b.shape.payload_offset] ^= 1;
	free(coded);
	free(value);
	code(&b);
	b.image[b.shape.payload_offset] ^= 1;
	sealed_is_refused(n);
}

TEST(a_head_that_lies)
{
	uint8_t *head = coded + sizeof(struct image_header) + FORM_HEAD_BYTES + b.shape.scale_bytes;

	for (uint32_t i = 0; i < 8 * FORM_HEAD_BYTES; i++) {
		head[i / 8] ^= (uint8_t)(1 << i % 8);
		sealed_is_refused(n);
		head[i / 8] ^= (uint8_t)(1 << i % 8);
	}
}

/* The packer's memory has a bound, and what does not fit goes out as it is. */
TEST(the_packer_has_so_much_memory)
{
	static struct redis_packer packer;
	struct redis_pack packs[4] = { 0 };
	const struct image_geometry big = { .dtype = DTYPE_BF16,
					    .block_tokens = 16,
					    .opaque_bytes = 30 << 20 };
	struct block large = block_of(&big, CODEC_RAW, &dice);

	for (uint32_t i = 0; i < large.shape.payload_bytes; i++)
		large.image[large.shape.payload_offset + i] = (uint8_t)random_next(&dice);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(redis_pack_begin(&packer, &packs[i], large.image, &large.shape, 1),
				 i < 2);
	while (redis_pack_step(&packer, &packs[0], 1) == CODEC_MORE)
		;
	assert_int_equal(packs[0].n, 0); /* noise: it gave its memory back */
	assert_true(redis_pack_begin(&packer, &packs[2], large.image, &large.shape, 1));
	for (uint32_t i = 0; i < 4; i++)
		redis_pack_free(&packer, &packs[i]);
	assert_int_equal(packer.bytes, 0);
	block_free(&large);
}

TEST_GROUPS({ "without TLS", rig_server_start, rig_server_stop },
	    { "with TLS", rig_server_start_with_tls, rig_server_stop });

TEST_FIRST(redis_needed());
