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

/* --- values that kvtierd 0.2.0 wrote: one image, in form 2 and in form 3 --- */

static const char form_2[] =
	"4b5652560200000000000000000000005fa75f710f199b14cc39113b4af4b1764b56494d0100020201"
	"00010002000800080010001000000004000000000200000004000000000000ed272e99b76c05615d71"
	"145fc4e9c80df737aace6029e6cde5812203a2aa8eab4da5435590f6c9fcd65e48660c723379af5ddf"
	"ac0d06b6bbefab62a38c6bfaf70000000000000000b19b26d85b95ef2b0000000080ac22b402cbda11"
	"def67979f37c7e68fef8f7f775f06ff5fddf70f9f26f7f6d70e4f8ea716b78756773f9f968f4face77"
	"4e7ef0fa7a7aee7b7b66f7f27afef2f2f8c97b697bfffef6fd647d5c7972f8746b7bfe67e6667fdef5"
	"fe7578f971daebfef47a707173f77cedfaf8f87ddaf87e7a70e9f5ffff7877fbfc7bea6de44b7e7efa"
	"f75f7178e87efaf372f4fbfaf7f3f873efffd87678f3eaf4fff2f1785ef9f8f5fb6ae0fe7bf47ffff9"
	"7febfcf77dff7d6e7b72687e787b6c7cf064fdfbb0f37df8f5ff7dd8ff62f6fb7fe4fffc7bf46bec5a"
	"7bfcfc7bfe7c7cec74d0fbfefc7df677defff7fffc6acb7a7a736766757cf87c75f578f5ee6979ff75"
	"6c736f4decfcf87e57fadffffbdafa7576ec7bfaf86eea73fd7bfdedfd76f5eceb7b73fbfef9fd7cfc"
	"fe797d7875fef37f6660fa7cf1c379fb75dbe1deebf07df57a716feb7b527dff7e7678f77e6bfdfeef"
	"e4ff7dd1f1e87c6d7a777bff7cfa4e6bf6ffca707f7c766e7a75f0f7fa73786e7a6c767a7b7c50eb7e"
	"7e71edf0fd7ffeeb6975e873ef7bf97c7aeb72fee27d7bf9737871f8fd7e7d66ddfa7cfd7f7cf8ff7b"
	"fb75f577f57973fe72717ad8fd41ff657ceaea7cfe7e7c7efdf3f57af06c68fa6bdd6de9f87b78fb76"
	"f07bfa7b6cd7d7e024727577e8f27cfd7d54fe7350defa79f2f67ff0f77f717d71fc7b7e7577f97fe8"
	"7dfb78f8fafaef7972f4ffebff6bfdfbf178e4efdd62c685e84dd356a7bf35e9d3cbdcae";
static const char form_3[] =
	"4b56525603000000000000000000000019e8428f36ef2523d6203c23e54afff84b56494d0100020201"
	"00010002000800080010001000000004000000000200000004000000000000ed272e99b76c05615d71"
	"145fc4e9c80df737aace6029e6cde5812203a2aa8eab4da5435590f6c9fcd65e48660c723379af5ddf"
	"ac0d06b6bbefab62a38c6bfaf70000000000000000b19b26d85b95ef2b0000000080ac22b400000000"
	"0300030002cbda1101000000ff019f01efcdab89465723017e3e91910bc4a6e07e686f8fa52827ed3d"
	"3f60f9aa27e7a5a08c983a1133f0e54edda4858451a2886423039ed7fef6077ebdce35a059c13a6b6e"
	"acf27011038fc67afb927cbbcaff5bf8536f3f2806600b3a4c4f8a49d0b689b85d8bd2f85e83ffc22e"
	"bb272c3f7c635c438c4253dc0cd3ee1414fc54483b7e5cc5ce876e7faf1f5f0b5aeab5766c03aa4896"
	"ba13bd53bd9dedb68d5cdb23137bbe392d54fc6e26508ff6a33d0e6f2c4f6529394804b5626713df84"
	"da76e3be1f5a8037f4369634e22b122e8ad513f95340a1a84de665466ddab4dd2784480fa33bd55d97"
	"8d31701b5618c33a63547f9f788452b50788aaa4fd1524cef3b0fe3ad1ba9e07c8ff13bc1693a30b9c"
	"058140a22a918204145571cbf44014c138147281014208f0909c65b524812030930028823020482481"
	"261260b8c863a142221c50208c01464769201801a89957118918620080110f160519424d2e44141490"
	"a9c08480c2082b280a0378ad02580824000300a01a803d0c7fd1d98a013050808f9001000884c2b3e2"
	"9e691ac59840b000025006e8013b000080008000200848f15a53c7cf8bd0a1888421d568e73b";

/* Plants a value, and loads it as the block. */
static void plant(const char *hex, uint8_t *ret)
{
	const size_t bytes = strlen(hex) / 2;

	for (size_t i = 0; i < bytes; i++) {
		unsigned byte;

		assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
		ret[i] = (uint8_t)byte;
	}
	redis_put(&rig_server, b.name, ret, bytes);
}

/* A newer kvtierd goes on to read the forms of earlier ones, and gives the bytes that were stored:
 * labels, MAC, header, order and code are as they were. */
TEST(values_of_earlier_forms_are_read)
{
	const struct image_geometry g = {
		.dtype = DTYPE_BF16,
		.layers = 1,
		.kv_heads = 2,
		.head_dim_k = 16,
		.head_dim_v = 16,
		.block_tokens = 8,
	};
	const struct image_header *header;
	uint8_t bytes[sizeof(form_2) / 2];
	uint32_t at = sizeof(struct redis_envelope);

	block_free(&b);
	b = block_of(&g, CODEC_FP8, &dice);
	plant(form_2, bytes);
	assert_int_equal(sizeof(bytes), block_bytes(&b));
	header = memcpy(b.image, bytes + at, sizeof(*header) + b.shape.scale_bytes);
	at += (uint32_t)sizeof(*header) + b.shape.scale_bytes;
	memcpy(b.image + b.shape.payload_offset, bytes + at, b.shape.payload_bytes);
	memcpy(b.identity.key, header->key, sizeof(header->key));
	memcpy(b.identity.space_id, header->space_id, sizeof(header->space_id));
	assert_int_equal(rig_load(&r, &c, &b), 0);
	rig_has(&c, &b);
	rig_forget(&c);
	plant(form_3, bytes);
	assert_int_equal(rig_load(&r, &c, &b), 0);
	rig_has_from(&c, &b, strlen(form_3) / 2);
}

TEST_GROUPS({ "without TLS", rig_server_start, rig_server_stop },
	    { "with TLS", rig_server_start_with_tls, rig_server_stop });

TEST_FIRST(redis_needed());
