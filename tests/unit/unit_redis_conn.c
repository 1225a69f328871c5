/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: redis_conn.h holds with a real server: images come back byte for byte, with their padding
 * zeroed. Anything else under a name is refused with the status for its kind. Replies keep their
 * order. Method: a redis-server of this test's own, without TLS and with it; the connection on the
 * test's loop; values planted through another client.
 */
#include "tests/lib/lib_redis_conn.h"

#include <openssl/sha.h>

/* Of each case: dice, and a connection to the server. */
static struct random dice;
static struct rig r;
static struct rig_command c;
static struct block b; /* of the cases that have one */

FIXTURE_DO(begin, dice = random_seeded("unit_redis_conn"); rig_empty();
	   rig_open(&r, rig_server.address); c = (struct rig_command){ 0 });
FIXTURE_DO(end, rig_close(&r));

TEST_EACH(begin, end);

FIXTURE_DO(block_begin, (void)begin(state); b = block_make(&dice, (uint32_t)(uintptr_t)*state));
FIXTURE_DO(block_end, block_free(&b); (void)end(state));
/* With a block of so many opaque bytes, at most. */
#define WITH_BLOCK(max_opaque, name) TEST_GIVEN(name, block_begin, block_end, max_opaque)

/* --- round trips --- */

static void there_and_back(struct rig *on, uint32_t n, uint32_t max_opaque)
{
	for (uint32_t i = 0; i < n; i++) {
		struct rig_command set = { 0 }, get = { 0 };

		b = block_make(&dice, max_opaque);
		rig_set(&set, &b, 0);
		assert_int_equal(rig_do(on, &set), 0);
		assert_string_equal(set.words, "OK");
		assert_int_equal(rig_load(on, &get, &b), 0);
		rig_has(&get, &b);
		rig_forget(&get);
		block_free(&b);
	}
}

TEST_DO(images_come_back, there_and_back(&r, 100, 300); there_and_back(&r, 20, 3 << 20));

TEST(images_come_back_through_a_unix_socket)
{
	char address[REDIS_TEST_PATH + 8];
	struct rig local;

	(void)snprintf(address, sizeof(address), "unix:%s", rig_server.socket);
	rig_open(&local, address);
	there_and_back(&local, 20, 3 << 20);
	rig_close(&local);
}

/* The server holds envelope, header, scales, payload, MAC, and nothing between. */
WITH_BLOCK(5000, the_value_is_packed)
{
	uint8_t *want = malloc(b.shape.packed_bytes), *have = malloc(block_bytes(&b));

	rig_store(&r, &c, &b);
	assert_int_equal(redis_get(&rig_server, b.name, have, block_bytes(&b)), block_bytes(&b));
	block_pack(&b, want);
	assert_memory_equal(have + sizeof(struct redis_envelope), want, b.shape.packed_bytes);
	assert_int_equal(redis_ask(&rig_server, "PTTL %s", b.name), -1);
	rig_set(&c, &b, 3600000);
	assert_int_equal(rig_do(&r, &c), 0);
	assert_in_range(redis_ask(&rig_server, "PTTL %s", b.name), 1, 3600000);
	free(have);
	free(want);
}

WITH_BLOCK(100, exists_and_words)
{
	rig_exists(&c, &b);
	assert_int_equal(rig_do(&r, &c), 0);
	assert_int_equal(c.integer, 0);
	rig_store(&r, &c, &b);
	rig_exists(&c, &b);
	assert_int_equal(rig_do(&r, &c), 0);
	assert_int_equal(c.integer, 1);
	rig_fresh(&c);
	redis_command_make(&c.command, (const char *const[]){ "PING", NULL });
	assert_int_equal(rig_do(&r, &c), 0);
	assert_string_equal(c.words, "PONG");
}

/* 100 commands at once, sets and gets mixed: each gets its own reply. */
TEST(many_keep_their_order)
{
	enum { N = 100 };
	static struct rig_command commands[N];
	struct block blocks[N / 2];
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < N / 2; i++) {
		blocks[i] = block_make(&dice, 60000);
		bytes += blocks[i].shape.packed_bytes;
		rig_set(&commands[2 * i], &blocks[i], 0);
		rig_get(&commands[2 * i + 1], &blocks[i]);
		rig_submit(&r, &commands[2 * i]);
		rig_submit(&r, &commands[2 * i + 1]);
	}
	assert_int_equal(redis_conn_in_flight(r.conn), N);
	for (uint32_t i = 0; i < N; i++)
		rig_wait(&r, &commands[i]);
	assert_int_equal(redis_conn_in_flight(r.conn), 0);
	assert_int_equal(redis_conn_unsent_bytes(r.conn), 0);
	assert_int_equal(r.counters.sent_bytes, bytes);
	assert_int_equal(r.counters.received_bytes, bytes);
	for (uint32_t i = 0; i < N / 2; i++) {
		assert_int_equal(commands[2 * i].command.status, 0);
		rig_has(&commands[2 * i + 1], &blocks[i]);
		rig_forget(&commands[2 * i + 1]);
		block_free(&blocks[i]);
	}
}

WITH_BLOCK(100, no_more_places_than_there_are)
{
	static struct rig_command commands[REDIS_CONN_COMMANDS + 1];

	for (uint32_t i = 0; i <= REDIS_CONN_COMMANDS; i++)
		rig_exists(&commands[i], &b);
	for (uint32_t i = 0; i < REDIS_CONN_COMMANDS; i++)
		rig_submit(&r, &commands[i]);
	assert_int_equal(redis_conn_submit(r.conn, &commands[REDIS_CONN_COMMANDS].command),
			 -EAGAIN);
	rig_wait(&r, &commands[REDIS_CONN_COMMANDS - 1]);
	assert_int_equal(rig_do(&r, &commands[REDIS_CONN_COMMANDS]), 0);
}

/* --- values that are not this block --- */

enum { FRONT = 32 + 128 }; /* envelope, header */

struct planted {
	struct block b;
	struct rig_command get;
	uint8_t *value;
};

static struct planted p;

FIXTURE(plant_begin)
{
	(void)begin(state);
	memset(&p, 0, sizeof(p));
	p.b = block_make(&dice, 200000);
	p.value = malloc(block_bytes(&p.b) + 100);
	assert_non_null(p.value);
	block_value(&p.b, p.value);
	return 0;
}

/* The connection is as good as before. */
FIXTURE(plant_end)
{
	rig_store(&r, &c, &p.b);
	assert_int_equal(rig_load(&r, &p.get, &p.b), 0);
	rig_has(&p.get, &p.b);
	rig_forget(&p.get);
	free(p.value);
	block_free(&p.b);
	return end(state);
}

/* Refused before a byte of it is in the buffer, and known so well that it, and only it, can be
 * deleted. */
static void refused(size_t n)
{
	uint8_t sha1[20];

	redis_put(&rig_server, p.b.name, p.value, n);
	assert_int_equal(rig_load(&r, &p.get, &p.b), -EBADMSG);
	rig_is_poison(&p.get);
	assert_int_equal(p.get.value.length, n);
	assert_true(p.get.value.hashed);
	(void)SHA1(p.value, n, sha1);
	assert_memory_equal(p.get.value.sha1, sha1, sizeof(sha1));

	rig_fresh(&c);
	sha1[0] ^= 1;
	redis_command_delete_if(&c.command, p.b.name, sha1, REDIS_PART_WHOLE, n);
	assert_int_equal(rig_do(&r, &c), 0);
	assert_int_equal(c.integer, 0);
	rig_fresh(&c);
	sha1[0] ^= 1;
	redis_command_delete_if(&c.command, p.b.name, sha1, REDIS_PART_WHOLE, n);
	assert_int_equal(rig_do(&r, &c), 0);
	assert_int_equal(c.integer, 1);
	assert_int_equal(redis_ask(&rig_server, "EXISTS %s", p.b.name), 0);
}

#define PLANTED(name) TEST_WITH(name, plant_begin, plant_end)

PLANTED(nothing_there)
{
	assert_int_equal(rig_load(&r, &p.get, &p.b), -ENOENT);
	rig_is_poison(&p.get);
}

PLANTED(a_list_is_a_miss)
{
	assert_int_equal(redis_ask(&rig_server, "RPUSH %s a b c", p.b.name), 3);
	assert_int_equal(rig_load(&r, &p.get, &p.b), -EBADMSG);
	assert_int_equal(p.get.value.length, 0);
	assert_false(p.get.value.hashed);
	assert_memory_equal(p.get.command.error, "WRONGTYPE", 9);
	rig_is_poison(&p.get);
}

PLANTED(truncated_values)
{
	refused(block_bytes(&p.b) - 1);
	refused(FRONT + 1);
	refused(FRONT);
	refused(FRONT - 1);
	refused(129);
	refused(128);
	refused(1);
	refused(0);
}

PLANTED(a_value_too_long_by_one)
{
	p.value[block_bytes(&p.b)] = 1;
	refused(block_bytes(&p.b) + 1);
}

PLANTED(a_flipped_header_bit)
{
	for (size_t bit = FRONT * 8 - 128 * 8; bit < FRONT * 8; bit += 37) {
		p.value[bit / 8] ^= (uint8_t)(1 << bit % 8);
		refused(block_bytes(&p.b));
		p.value[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
}

/* A good image of the same geometry, of another key. */
PLANTED(anothers_value)
{
	struct block other = block_of(&p.b.geometry, CODEC_FP8, &dice);

	p.value = realloc(p.value, block_bytes(&other));
	block_value(&other, p.value);
	refused(block_bytes(&other));
	block_free(&other);
}

/* Longer than any value is: read past, not hashed, nothing of it kept. */
PLANTED(a_huge_value)
{
	uint8_t *huge = calloc(1, RIG_MAX_VALUE + 1);

	redis_put(&rig_server, p.b.name, huge, RIG_MAX_VALUE + 1);
	assert_int_equal(rig_load(&r, &p.get, &p.b), -EBADMSG);
	assert_int_equal(p.get.value.length, RIG_MAX_VALUE + 1);
	assert_false(p.get.value.hashed);
	rig_is_poison(&p.get);
	free(huge);
}

/* Good, and there is room for it, but longer than this daemon takes. */
TEST(a_good_value_that_is_too_long)
{
	const struct image_geometry geometry = { .dtype = DTYPE_BF16,
						 .block_tokens = 16,
						 .opaque_bytes = RIG_MAX_VALUE };

	b = block_of(&geometry, CODEC_RAW, &dice);
	rig_store(&r, &c, &b);
	assert_int_equal(rig_load(&r, &c, &b), -EBADMSG);
	assert_int_equal(c.value.length, block_bytes(&b));
	rig_is_poison(&c);
	rig_forget(&c);
	block_free(&b);
}

/* It came in whole, and its fate goes by the image in it. */
static void came_but_is(int status)
{
	redis_put(&rig_server, p.b.name, p.value, block_bytes(&p.b));
	assert_int_equal(rig_load(&r, &p.get, &p.b), status);
	assert_true(p.get.value.hashed && p.get.value.part == REDIS_PART_IMAGE);
	rig_fresh(&c);
	redis_command_delete_if(&c.command, p.b.name, p.get.value.sha1, REDIS_PART_IMAGE,
				block_bytes(&p.b));
	assert_int_equal(rig_do(&r, &c), 0);
	assert_int_equal(c.integer, 1);
}

/* Any flipped bit of the body is damage. With one of nonce or MAC the value is as one made without
 * the secret. */
PLANTED(a_flipped_bit_behind_the_header)
{
	for (int i = 0; i < 32; i++) {
		const size_t at =
			i == 0 ? FRONT : FRONT + random_below(&dice, p.b.shape.packed_bytes - 128);

		p.value[at] ^= 1;
		came_but_is(-EBADMSG);
		p.value[at] ^= 1;
	}
	for (size_t i = 0; i < REDIS_MAC_BYTES; i++) {
		const size_t at[2] = { 16 + i, block_bytes(&p.b) - 1 - i };

		for (int j = 0; j < 2; j++) {
			p.value[at[j]] ^= 0x10;
			came_but_is(-EKEYREJECTED);
			p.value[at[j]] ^= 0x10;
		}
	}
}

/* Sealed for another tenant, or with another secret. */
PLANTED(anothers_seal)
{
	struct redis_seal other = redis_test_seal;
	uint8_t *packed;

	packed = malloc(p.b.shape.packed_bytes);
	block_pack(&p.b, packed);
	other.key[31] ^= 1;
	(void)redis_sealed(&other, packed, p.b.shape.packed_bytes, p.value);
	came_but_is(-EKEYREJECTED);
	free(packed);
}

/* Sealed with the secret, as a node that is broken might: it says that it lost values, but has
 * them. */
PLANTED(an_image_that_is_no_lesser_one)
{
	uint8_t *packed = malloc(p.b.shape.packed_bytes);

	block_pack(&p.b, packed);
	(void)redis_sealed_as(&redis_test_seal, REDIS_VALUE_LESSER, packed, p.b.shape.packed_bytes,
			      p.value);
	redis_put(&rig_server, p.b.name, p.value, block_bytes(&p.b));
	assert_int_equal(rig_load(&r, &p.get, &p.b), -EBADMSG);
	rig_is_poison(&p.get);
	free(packed);
}

/* Of an older kvtierd, the image alone; of a newer one. */
PLANTED(other_forms)
{
	p.value[4] = REDIS_VALUE_LESSER + 1;
	redis_put(&rig_server, p.b.name, p.value, block_bytes(&p.b));
	assert_int_equal(rig_load(&r, &p.get, &p.b), -ENOTSUP);
	rig_is_poison(&p.get);
	assert_false(p.get.value.hashed);
	block_pack(&p.b, p.value);
	redis_put(&rig_server, p.b.name, p.value, p.b.shape.packed_bytes);
	assert_int_equal(rig_load(&r, &p.get, &p.b), -ENOTSUP);
	rig_is_poison(&p.get);
	assert_false(p.get.value.hashed);
}

PLANTED(a_larger_room_is_asked_for)
{
	rig_store(&r, &c, &p.b);
	rig_get(&p.get, &p.b);
	p.get.value.room = p.b.shape.image_bytes - 1;
	assert_int_equal(rig_do(&r, &p.get), -EFBIG);
	assert_int_equal(p.get.value.bytes, p.b.shape.image_bytes);
	rig_is_poison(&p.get);
}

/* The SHA-1 made from memory is that of the image in the value. */
PLANTED(memory_and_value_hash_alike)
{
	uint8_t have[20], want[20];

	redis_image_sha1(p.b.image, &p.b.shape, have);
	(void)SHA1(p.value + sizeof(struct redis_envelope), p.b.shape.packed_bytes, want);
	assert_memory_equal(have, want, sizeof(want));
}

TEST_GROUPS({ "without TLS", rig_server_start, rig_server_stop },
	    { "with TLS", rig_server_start_with_tls, rig_server_stop });

TEST_FIRST(redis_needed());
