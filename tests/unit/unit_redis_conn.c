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

/* --- round trips --- */

static void there_and_back(struct rig *r, struct random *random, uint32_t n, uint32_t max_opaque)
{
	for (uint32_t i = 0; i < n; i++) {
		struct block b = block_make(random, max_opaque);
		struct rig_command set = { 0 }, get = { 0 };

		rig_set(&set, &b, 0);
		assert_int_equal(rig_do(r, &set), 0);
		assert_string_equal(set.words, "OK");
		rig_get(&get, &b);
		assert_int_equal(rig_do(r, &get), 0);
		rig_has(&get, &b);
		rig_forget(&get);
		block_free(&b);
	}
}

static void images_come_back(void **state)
{
	struct random random = random_seeded("images_come_back");
	struct rig r;

	(void)state;
	rig_open(&r, rig_server.address);
	there_and_back(&r, &random, 100, 300);
	there_and_back(&r, &random, 20, 3 << 20);
	rig_close(&r);
}

static void images_come_back_through_a_unix_socket(void **state)
{
	struct random random = random_seeded("images_come_back_through_a_unix_socket");
	char address[REDIS_TEST_PATH + 8];
	struct rig r;

	(void)state;
	(void)snprintf(address, sizeof(address), "unix:%s", rig_server.socket);
	rig_open(&r, address);
	there_and_back(&r, &random, 20, 3 << 20);
	rig_close(&r);
}

/* The server holds envelope, header, scales, payload, MAC, and nothing between. */
static void the_value_is_packed(void **state)
{
	struct random random = random_seeded("the_value_is_packed");
	struct block b = block_make(&random, 5000);
	uint8_t *want = malloc(b.shape.packed_bytes), *have = malloc(block_bytes(&b));
	struct rig_command set = { 0 };
	struct rig r;

	(void)state;
	rig_open(&r, rig_server.address);
	rig_set(&set, &b, 0);
	assert_int_equal(rig_do(&r, &set), 0);
	assert_int_equal(redis_get(&rig_server, b.name, have, block_bytes(&b)), block_bytes(&b));
	block_pack(&b, want);
	assert_memory_equal(have + sizeof(struct redis_envelope), want, b.shape.packed_bytes);
	assert_int_equal(redis_ask(&rig_server, "PTTL %s", b.name), -1);
	rig_set(&set, &b, 3600000);
	assert_int_equal(rig_do(&r, &set), 0);
	assert_in_range(redis_ask(&rig_server, "PTTL %s", b.name), 1, 3600000);
	rig_close(&r);
	free(have);
	free(want);
	block_free(&b);
}

static void exists_and_words(void **state)
{
	static const char *const ping[] = { "PING" };
	struct random random = random_seeded("exists_and_words");
	struct block b = block_make(&random, 100);
	struct rig_command c = { 0 };
	struct rig r;

	(void)state;
	rig_open(&r, rig_server.address);
	rig_exists(&c, &b);
	assert_int_equal(rig_do(&r, &c), 0);
	assert_int_equal(c.integer, 0);
	rig_set(&c, &b, 0);
	assert_int_equal(rig_do(&r, &c), 0);
	rig_exists(&c, &b);
	assert_int_equal(rig_do(&r, &c), 0);
	assert_int_equal(c.integer, 1);
	rig_fresh(&c);
	redis_command_words(&c.command, ping, 1);
	assert_int_equal(rig_do(&r, &c), 0);
	assert_string_equal(c.words, "PONG");
	rig_close(&r);
	block_free(&b);
}

/* 100 commands at once, sets and gets mixed: each gets its own reply. */
static void many_keep_their_order(void **state)
{
	enum { N = 100 };
	static struct rig_command commands[N];
	struct random random = random_seeded("many_keep_their_order");
	struct block blocks[N / 2];
	struct redis_conn_counters counters;
	uint64_t bytes = 0;
	struct rig r;

	(void)state;
	rig_open(&r, rig_server.address);
	for (uint32_t i = 0; i < N / 2; i++) {
		blocks[i] = block_make(&random, 60000);
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
	redis_conn_counters(r.conn, &counters);
	assert_int_equal(counters.sent_bytes, bytes);
	assert_int_equal(counters.received_bytes, bytes);
	for (uint32_t i = 0; i < N / 2; i++) {
		assert_int_equal(commands[2 * i].command.status, 0);
		rig_has(&commands[2 * i + 1], &blocks[i]);
		rig_forget(&commands[2 * i + 1]);
		block_free(&blocks[i]);
	}
	rig_close(&r);
}

static void no_more_places_than_there_are(void **state)
{
	static struct rig_command commands[REDIS_CONN_COMMANDS + 1];
	struct random random = random_seeded("no_more_places_than_there_are");
	struct block b = block_make(&random, 100);
	struct rig r;

	(void)state;
	rig_open(&r, rig_server.address);
	for (uint32_t i = 0; i <= REDIS_CONN_COMMANDS; i++)
		rig_exists(&commands[i], &b);
	for (uint32_t i = 0; i < REDIS_CONN_COMMANDS; i++)
		rig_submit(&r, &commands[i]);
	assert_int_equal(redis_conn_submit(r.conn, &commands[REDIS_CONN_COMMANDS].command),
			 -EAGAIN);
	rig_wait(&r, &commands[REDIS_CONN_COMMANDS - 1]);
	assert_int_equal(rig_do(&r, &commands[REDIS_CONN_COMMANDS]), 0);
	rig_close(&r);
	block_free(&b);
}

/* --- values that are not this block --- */

enum { FRONT = 32 + 128 }; /* envelope, header */

struct planted {
	struct rig r;
	struct block b;
	struct rig_command get;
	uint8_t *value;
};

static void plant_begin(struct planted *p, const char *test)
{
	struct random random = random_seeded(test);

	memset(p, 0, sizeof(*p));
	p->b = block_make(&random, 200000);
	p->value = malloc(block_bytes(&p->b) + 100);
	assert_non_null(p->value);
	block_value(&p->b, p->value);
	rig_open(&p->r, rig_server.address);
}

/* The connection is as good as before. */
static void plant_end(struct planted *p)
{
	struct rig_command c = { 0 };

	rig_set(&c, &p->b, 0);
	assert_int_equal(rig_do(&p->r, &c), 0);
	rig_get(&p->get, &p->b);
	assert_int_equal(rig_do(&p->r, &p->get), 0);
	rig_has(&p->get, &p->b);
	rig_forget(&p->get);
	rig_close(&p->r);
	free(p->value);
	block_free(&p->b);
}

/* Refused before a byte of it is in the buffer, and known so well that it, and only it, can be
 * deleted. */
static void refused(struct planted *p, size_t n)
{
	uint8_t sha1[20];
	struct rig_command c = { 0 };

	redis_put(&rig_server, p->b.name, p->value, n);
	rig_get(&p->get, &p->b);
	assert_int_equal(rig_do(&p->r, &p->get), -EBADMSG);
	rig_is_poison(&p->get);
	assert_int_equal(p->get.value.length, n);
	assert_true(p->get.value.hashed);
	(void)SHA1(p->value, n, sha1);
	assert_memory_equal(p->get.value.sha1, sha1, sizeof(sha1));

	rig_fresh(&c);
	sha1[0] ^= 1;
	redis_command_delete_if(&c.command, p->b.name, strlen(p->b.name), sha1, false, n);
	assert_int_equal(rig_do(&p->r, &c), 0);
	assert_int_equal(c.integer, 0);
	rig_fresh(&c);
	sha1[0] ^= 1;
	redis_command_delete_if(&c.command, p->b.name, strlen(p->b.name), sha1, false, n);
	assert_int_equal(rig_do(&p->r, &c), 0);
	assert_int_equal(c.integer, 1);
	assert_int_equal(redis_ask(&rig_server, "EXISTS %s", p->b.name), 0);
}

static void nothing_there(void **state)
{
	struct planted p;

	(void)state;
	plant_begin(&p, "nothing_there");
	rig_get(&p.get, &p.b);
	assert_int_equal(rig_do(&p.r, &p.get), -ENOENT);
	rig_is_poison(&p.get);
	plant_end(&p);
}

static void a_list_is_a_miss(void **state)
{
	struct planted p;

	(void)state;
	plant_begin(&p, "a_list_is_a_miss");
	assert_int_equal(redis_ask(&rig_server, "RPUSH %s a b c", p.b.name), 3);
	rig_get(&p.get, &p.b);
	assert_int_equal(rig_do(&p.r, &p.get), -EBADMSG);
	assert_int_equal(p.get.value.length, 0);
	assert_false(p.get.value.hashed);
	assert_memory_equal(p.get.command.error, "WRONGTYPE", 9);
	rig_is_poison(&p.get);
	plant_end(&p);
}

static void truncated_values(void **state)
{
	struct planted p;

	(void)state;
	plant_begin(&p, "truncated_values");
	refused(&p, block_bytes(&p.b) - 1);
	refused(&p, FRONT + 1);
	refused(&p, FRONT);
	refused(&p, FRONT - 1);
	refused(&p, 129);
	refused(&p, 128);
	refused(&p, 1);
	refused(&p, 0);
	plant_end(&p);
}

static void a_value_too_long_by_one(void **state)
{
	struct planted p;

	(void)state;
	plant_begin(&p, "a_value_too_long_by_one");
	p.value[block_bytes(&p.b)] = 1;
	refused(&p, block_bytes(&p.b) + 1);
	plant_end(&p);
}

static void a_flipped_header_bit(void **state)
{
	struct planted p;

	(void)state;
	plant_begin(&p, "a_flipped_header_bit");
	for (size_t bit = FRONT * 8 - 128 * 8; bit < FRONT * 8; bit += 37) {
		p.value[bit / 8] ^= (uint8_t)(1 << bit % 8);
		refused(&p, block_bytes(&p.b));
		p.value[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	plant_end(&p);
}

/* A good image of the same geometry, of another key. */
static void anothers_value(void **state)
{
	struct random random = random_seeded("anothers_value, the other");
	struct planted p;
	struct block other;

	(void)state;
	plant_begin(&p, "anothers_value");
	other = block_of(&p.b.geometry, CODEC_FP8, &random);
	p.value = realloc(p.value, block_bytes(&other));
	block_value(&other, p.value);
	refused(&p, block_bytes(&other));
	block_free(&other);
	plant_end(&p);
}

/* Longer than any value is: read past, not hashed, nothing of it kept. */
static void a_huge_value(void **state)
{
	struct planted p;
	uint8_t *huge = calloc(1, RIG_MAX_VALUE + 1);

	(void)state;
	plant_begin(&p, "a_huge_value");
	redis_put(&rig_server, p.b.name, huge, RIG_MAX_VALUE + 1);
	rig_get(&p.get, &p.b);
	assert_int_equal(rig_do(&p.r, &p.get), -EBADMSG);
	assert_int_equal(p.get.value.length, RIG_MAX_VALUE + 1);
	assert_false(p.get.value.hashed);
	rig_is_poison(&p.get);
	plant_end(&p);
	free(huge);
}

/* Good, and there is room for it, but longer than this daemon takes. */
static void a_good_value_that_is_too_long(void **state)
{
	struct random random = random_seeded("a_good_value_that_is_too_long");
	const struct image_geometry geometry = { .dtype = DTYPE_BF16,
						 .block_tokens = 16,
						 .opaque_bytes = RIG_MAX_VALUE };
	struct block b = block_of(&geometry, CODEC_RAW, &random);
	struct rig_command c = { 0 };
	struct rig r;

	(void)state;
	rig_open(&r, rig_server.address);
	rig_set(&c, &b, 0);
	assert_int_equal(rig_do(&r, &c), 0);
	rig_get(&c, &b);
	assert_int_equal(rig_do(&r, &c), -EBADMSG);
	assert_int_equal(c.value.length, block_bytes(&b));
	rig_is_poison(&c);
	rig_close(&r);
	rig_forget(&c);
	block_free(&b);
}

/* It came in whole, and its fate goes by the image in it. */
static void came_but_is(struct planted *p, int status)
{
	struct rig_command c = { 0 };

	redis_put(&rig_server, p->b.name, p->value, block_bytes(&p->b));
	rig_get(&p->get, &p->b);
	assert_int_equal(rig_do(&p->r, &p->get), status);
	assert_true(p->get.value.hashed && p->get.value.packed);
	rig_fresh(&c);
	redis_command_delete_if(&c.command, p->b.name, strlen(p->b.name), p->get.value.sha1, true,
				block_bytes(&p->b));
	assert_int_equal(rig_do(&p->r, &c), 0);
	assert_int_equal(c.integer, 1);
}

/* Any flipped bit of the body is damage. With one of nonce or MAC the value is as one made without
 * the secret. */
static void a_flipped_bit_behind_the_header(void **state)
{
	struct random random = random_seeded("a_flipped_bit_behind_the_header");
	struct planted p;

	(void)state;
	plant_begin(&p, "a_flipped_bit_behind_the_header, the block");
	for (int i = 0; i < 32; i++) {
		const size_t at =
			i == 0 ? FRONT :
				 FRONT + random_below(&random, p.b.shape.packed_bytes - 128);

		p.value[at] ^= 1;
		came_but_is(&p, -EBADMSG);
		p.value[at] ^= 1;
	}
	for (size_t i = 0; i < REDIS_MAC_BYTES; i++) {
		const size_t at[2] = { 16 + i, block_bytes(&p.b) - 1 - i };

		for (int j = 0; j < 2; j++) {
			p.value[at[j]] ^= 0x10;
			came_but_is(&p, -EKEYREJECTED);
			p.value[at[j]] ^= 0x10;
		}
	}
	plant_end(&p);
}

/* Sealed for another tenant, or with another secret. */
static void anothers_seal(void **state)
{
	struct redis_seal other = redis_test_seal;
	uint8_t *packed;
	struct planted p;

	(void)state;
	plant_begin(&p, "anothers_seal");
	packed = malloc(p.b.shape.packed_bytes);
	block_pack(&p.b, packed);
	other.key[31] ^= 1;
	(void)redis_sealed(&other, packed, p.b.shape.packed_bytes, p.value);
	came_but_is(&p, -EKEYREJECTED);
	free(packed);
	plant_end(&p);
}

/* Of an older kvtierd, the image alone; of a newer one. */
static void other_forms(void **state)
{
	struct planted p;

	(void)state;
	plant_begin(&p, "other_forms");
	p.value[4] = 3;
	redis_put(&rig_server, p.b.name, p.value, block_bytes(&p.b));
	rig_get(&p.get, &p.b);
	assert_int_equal(rig_do(&p.r, &p.get), -ENOTSUP);
	rig_is_poison(&p.get);
	assert_false(p.get.value.hashed);
	block_pack(&p.b, p.value);
	redis_put(&rig_server, p.b.name, p.value, p.b.shape.packed_bytes);
	rig_get(&p.get, &p.b);
	assert_int_equal(rig_do(&p.r, &p.get), -ENOTSUP);
	rig_is_poison(&p.get);
	assert_false(p.get.value.hashed);
	plant_end(&p);
}

static void a_larger_room_is_asked_for(void **state)
{
	struct planted p;
	struct rig_command set = { 0 };

	(void)state;
	plant_begin(&p, "a_larger_room_is_asked_for");
	rig_set(&set, &p.b, 0);
	assert_int_equal(rig_do(&p.r, &set), 0);
	rig_get(&p.get, &p.b);
	p.get.value.room = p.b.shape.image_bytes - 1;
	assert_int_equal(rig_do(&p.r, &p.get), -EFBIG);
	assert_int_equal(p.get.value.bytes, p.b.shape.image_bytes);
	rig_is_poison(&p.get);
	plant_end(&p);
}

/* The SHA-1 made from memory is that of the image in the value. */
static void memory_and_value_hash_alike(void **state)
{
	struct planted p;
	uint8_t have[20], want[20];

	(void)state;
	plant_begin(&p, "memory_and_value_hash_alike");
	redis_image_sha1(p.b.image, &p.b.shape, have);
	(void)SHA1(p.value + sizeof(struct redis_envelope), p.b.shape.packed_bytes, want);
	assert_memory_equal(have, want, sizeof(want));
	plant_end(&p);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(images_come_back),
		cmocka_unit_test(images_come_back_through_a_unix_socket),
		cmocka_unit_test(the_value_is_packed),
		cmocka_unit_test(exists_and_words),
		cmocka_unit_test(many_keep_their_order),
		cmocka_unit_test(no_more_places_than_there_are),
		cmocka_unit_test(nothing_there),
		cmocka_unit_test(a_list_is_a_miss),
		cmocka_unit_test(truncated_values),
		cmocka_unit_test(a_value_too_long_by_one),
		cmocka_unit_test(a_flipped_header_bit),
		cmocka_unit_test(anothers_value),
		cmocka_unit_test(a_huge_value),
		cmocka_unit_test(a_good_value_that_is_too_long),
		cmocka_unit_test(a_flipped_bit_behind_the_header),
		cmocka_unit_test(anothers_seal),
		cmocka_unit_test(other_forms),
		cmocka_unit_test(a_larger_room_is_asked_for),
		cmocka_unit_test(memory_and_value_hash_alike),
	};

	redis_needed();
	return cmocka_run_group_tests_name("without TLS", tests, rig_server_start,
					   rig_server_stop) ||
	       cmocka_run_group_tests_name("with TLS", tests, rig_server_start_with_tls,
					   rig_server_stop);
}
