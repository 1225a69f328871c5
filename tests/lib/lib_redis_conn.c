/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_redis_conn.h"

struct redis_tls *rig_tls;
struct redis_server rig_server;

void rig_tls_begin(const struct tls_files *files)
{
	char text[256] = "";

	if (redis_tls_open(&files->conf, &rig_tls, text, sizeof(text)))
		fail_msg("%s", text);
}

void rig_tls_end(struct tls_files *files)
{
	redis_tls_close(rig_tls);
	rig_tls = NULL;
	tls_remove(files);
}

int rig_server_start(TEST_UNUSED void **state)
{
	redis_start(&rig_server, NULL);
	return 0;
}

int rig_server_start_with_tls(void **state)
{
	(void)tls_group_make(state);
	redis_start(&rig_server, tls_options(&tls_group));
	rig_tls_begin(&tls_group);
	return 0;
}

void rig_empty(void)
{
	char text[32];

	redis_say(&rig_server, text, sizeof(text), "FLUSHALL");
}

int rig_server_stop(TEST_UNUSED void **state)
{
	redis_stop(&rig_server);
	rig_tls_end(&tls_group);
	return 0;
}

uint64_t rig_in_ms(uint64_t ms)
{
	return clock_ns() + ms * 1000000u;
}

static void rig_tick(struct loop_timer *timer)
{
	struct rig *r = container_of(timer, struct rig, tick);

	loop_stop(r->loop);
}

void rig_run(struct rig *r, uint64_t ms)
{
	loop_timer_set(r->loop, &r->tick, rig_in_ms(ms));
	assert_int_equal(loop_run(r->loop), 0);
}

void rig_changed(struct redis_conn *c, void *arg)
{
	struct rig *r = arg;

	assert_true(!r->conn || r->conn == c);
	r->changes++;
	if (r->waits)
		loop_stop(r->loop);
}

void rig_state_becomes(struct rig *r, enum redis_conn_state state)
{
	const uint64_t until = rig_in_ms(RIG_PATIENCE_S * 1000);

	r->waits = true;
	while (redis_conn_state(r->conn) != state) {
		const char *text = "";

		(void)redis_conn_why(r->conn, &text);
		if (clock_ns() > until || redis_conn_state(r->conn) == REDIS_CONN_DOWN)
			fail_msg("the connection is in state %d, not %d: %s",
				 redis_conn_state(r->conn), state, text);
		rig_run(r, 1);
	}
	r->waits = false;
}

void rig_open_within(struct rig *r, const char *address, const char *username, const char *password,
		     uint64_t ms)
{
	const struct redis_conn_conf conf = {
		.address = address,
		.username = username,
		.password = password,
		.tls = rig_tls,
		.host = "127.0.0.1",
		.deadline_ns = rig_in_ms(ms),
		.max_value_bytes = RIG_MAX_VALUE,
		.changed = rig_changed,
		.arg = r,
		.counters = &r->counters,
	};

	memset(r, 0, sizeof(*r));
	r->tick.fire = rig_tick;
	assert_int_equal(loop_open(0, &r->loop), 0);
	assert_int_equal(redis_conn_open(r->loop, &conf, &r->conn), 0);
}

void rig_open_to(struct rig *r, const char *address, const char *username, const char *password)
{
	rig_open_within(r, address, username, password, 20000);
}

void rig_open(struct rig *r, const char *address)
{
	rig_open_to(r, address, "", "");
	rig_state_becomes(r, REDIS_CONN_UP);
}

void rig_close(struct rig *r)
{
	redis_conn_close(r->conn);
	loop_close(r->loop);
}

const char *rig_goes_down(struct rig *r, int why)
{
	const uint64_t until = rig_in_ms(RIG_PATIENCE_S * 1000);
	const bool was_up = redis_conn_state(r->conn) == REDIS_CONN_UP;
	const char *text;

	for (; redis_conn_state(r->conn) != REDIS_CONN_DOWN; rig_run(r, 1)) {
		assert_true(clock_ns() < until);
		assert_true(was_up || redis_conn_state(r->conn) != REDIS_CONN_UP);
	}
	assert_int_equal(redis_conn_why(r->conn, &text), why);
	return text;
}

struct block block_of(const struct image_geometry *geometry, enum image_codec codec,
		      struct random *random)
{
	struct block b = { .geometry = *geometry };
	struct image_header header;
	uint32_t room;

	assert_int_equal(image_shape(geometry, codec, codec, &b.shape, NULL), 0);
	random_key(random_next(random), b.identity.key);
	random_key(random_next(random), b.identity.space_id);
	(void)strcpy(b.name, "kv:");
	for (size_t i = 0; i < 32; i++)
		(void)snprintf(b.name + 3 + 2 * i, 3, "%02x", b.identity.key[i]);
	room = (b.shape.image_bytes + IMAGE_ALIGN - 1) / IMAGE_ALIGN * IMAGE_ALIGN;
	b.image = calloc(1, room);
	assert_non_null(b.image);
	for (uint32_t i = 0; i < b.shape.scale_bytes; i++)
		b.image[sizeof(header) + i] = (uint8_t)random_next(random);
	for (uint32_t i = 0; i < b.shape.payload_bytes; i++)
		b.image[b.shape.payload_offset + i] = (uint8_t)(random->state * (i + 1) >> 24);
	image_header_fill(&header, geometry, codec, codec, &b.shape, &b.identity);
	image_seal(&header, image_checksum(b.image, &b.shape));
	memcpy(b.image, &header, sizeof(header));
	return b;
}

struct block block_make(struct random *random, uint32_t max_opaque)
{
	const struct image_geometry geometry = {
		.dtype = DTYPE_BF16,
		.layers = 1 + random_below(random, 40),
		.kv_heads = 1 + random_below(random, 8),
		.head_dim_k = 1 + random_below(random, 64),
		.head_dim_v = 1 + random_below(random, 64),
		.block_tokens = 1 + random_below(random, 32),
		.opaque_bytes = random_below(random, max_opaque + 1),
	};

	return block_of(&geometry, random_below(random, 4) ? CODEC_FP8 : CODEC_RAW, random);
}

void block_pack(const struct block *b, uint8_t *ret)
{
	const size_t head = sizeof(struct image_header) + b->shape.scale_bytes;

	memcpy(ret, b->image, head);
	memcpy(ret + head, b->image + b->shape.payload_offset, b->shape.payload_bytes);
}

void block_value(const struct block *b, uint8_t *ret)
{
	uint8_t *packed = malloc(b->shape.packed_bytes);

	assert_non_null(packed);
	block_pack(b, packed);
	(void)redis_sealed(&redis_test_seal, packed, b->shape.packed_bytes, ret);
	free(packed);
}

uint32_t block_bytes(const struct block *b)
{
	return b->shape.packed_bytes + REDIS_SEAL_BYTES;
}

void block_free(struct block *b)
{
	free(b->image);
}

void rig_done(struct redis_command *command)
{
	struct rig_command *c = container_of(command, struct rig_command, command);
	const struct redisReply *reply = command->reply;

	c->dones++;
	assert_false(command->lent);
	if (c->rig && c->rig->waits)
		loop_stop(c->rig->loop);
	if (reply && reply->type == REDIS_REPLY_INTEGER)
		c->integer = reply->integer;
	else if (reply && reply->str)
		(void)snprintf(c->words, sizeof(c->words), "%s", reply->str);
}

void rig_fresh(struct rig_command *c)
{
	memset(&c->command, 0, sizeof(c->command));
	c->command.done = rig_done;
	c->command.deadline_ns = rig_in_ms(RIG_PATIENCE_S * 1000);
	c->dones = 0;
	c->integer = -1;
	c->words[0] = 0;
}

void rig_get(struct rig_command *c, const struct block *b)
{
	const uint32_t room = (b->shape.image_bytes + IMAGE_ALIGN - 1) / IMAGE_ALIGN * IMAGE_ALIGN;

	rig_fresh(c);
	free(c->buffer);
	c->allocated = room + RIG_GUARD;
	c->buffer = malloc(c->allocated);
	assert_non_null(c->buffer);
	memset(c->buffer, RIG_POISON, c->allocated);
	c->value = (struct redis_value){ .identity = &b->identity,
					 .geometry = &b->geometry,
					 .buffer = c->buffer,
					 .seal = &redis_test_seal,
					 .room = b->shape.image_bytes };
	c->command.value = &c->value;
	redis_command_make(&c->command, (const char *const[]){ "GET", b->name, NULL });
}

void rig_set(struct rig_command *c, const struct block *b, uint64_t ttl_ms)
{
	rig_fresh(c);
	assert_int_equal(redis_command_set(&c->command, b->name, b->image, &b->shape,
					   (struct redis_coded){ 0 }, &redis_test_seal, ttl_ms),
			 0);
}

void rig_exists(struct rig_command *c, const struct block *b)
{
	rig_fresh(c);
	redis_command_make(&c->command, (const char *const[]){ "EXISTS", b->name, NULL });
}

void rig_submit(struct rig *r, struct rig_command *c)
{
	c->rig = r;
	assert_int_equal(redis_conn_submit(r->conn, &c->command), 0);
	assert_int_equal(c->dones, 0);
}

void rig_wait(struct rig *r, struct rig_command *c)
{
	const uint64_t until = rig_in_ms((RIG_PATIENCE_S + 10) * 1000);

	r->waits = true;
	while (c->dones == 0) {
		if (clock_ns() > until)
			fail_msg("a command has not ended");
		rig_run(r, 1);
	}
	r->waits = false;
	assert_int_equal(c->dones, 1);
}

void rig_ends(struct rig *r, struct rig_command *c, int status)
{
	rig_wait(r, c);
	assert_int_equal(c->command.status, status);
}

int rig_do(struct rig *r, struct rig_command *c)
{
	rig_submit(r, c);
	rig_wait(r, c);
	return c->command.status;
}

int rig_load(struct rig *r, struct rig_command *c, const struct block *b)
{
	rig_get(c, b);
	return rig_do(r, c);
}

void rig_store(struct rig *r, struct rig_command *c, const struct block *b)
{
	rig_set(c, b, 0);
	assert_int_equal(rig_do(r, c), 0);
}

void rig_has(const struct rig_command *c, const struct block *b)
{
	rig_has_from(c, b, block_bytes(b));
}

void rig_has_from(const struct rig_command *c, const struct block *b, uint64_t length)
{
	const uint32_t room = (b->shape.image_bytes + IMAGE_ALIGN - 1) / IMAGE_ALIGN * IMAGE_ALIGN;

	assert_int_equal(c->command.status, 0);
	assert_int_equal(c->value.bytes, b->shape.image_bytes);
	assert_int_equal(c->value.length, length);
	assert_memory_equal(c->buffer, b->image, room);
	for (uint32_t i = room; i < c->allocated; i++)
		assert_int_equal(c->buffer[i], RIG_POISON);
}

void rig_is_poison(const struct rig_command *c)
{
	for (uint32_t i = 0; i < c->allocated; i++)
		assert_int_equal(c->buffer[i], RIG_POISON);
}

void rig_forget(struct rig_command *c)
{
	free(c->buffer);
	c->buffer = NULL;
}
