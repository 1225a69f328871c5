/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_conn_rig.h - one connection on the test's own loop, commands that note how they ended, and images of random
 * shape. Buffers are larger than what may be written to them and poisoned, so that a byte too far is seen.
 */
#ifndef KVTIER_TESTS_REDIS_CONN_RIG_H
#define KVTIER_TESTS_REDIS_CONN_RIG_H

#include <errno.h>
#include <hiredis/hiredis.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/container_of.h"
#include "daemon/base/loop.h"
#include "tiers/redis/conn/redis_conn.h"
#include "lib_redis.h"
#include "lib_tls.h"
#include "random.h"

enum { RIG_POISON = 0xa5, RIG_GUARD = 8192, RIG_MAX_VALUE = 8 << 20, RIG_PATIENCE_S = 60 };

/* The connections opened next have it; NULL: none. */
static struct redis_tls *rig_tls;

static inline void rig_tls_begin(const struct tls_files *files)
{
	char text[256] = "";

	if (redis_tls_open(&files->conf, &rig_tls, text, sizeof text))
		fail_msg("%s", text);
}

static inline void rig_tls_end(struct tls_files *files)
{
	redis_tls_close(rig_tls);
	rig_tls = NULL;
	tls_remove(files);
}

struct rig {
	struct loop *loop;
	struct loop_timer tick;
	struct redis_conn *conn;
	uint32_t changes;
};

/* A block and its image, as it lies in memory. */
struct block {
	struct image_geometry geometry;
	struct image_identity identity;
	struct image_shape shape;
	uint8_t *image;
	char name[80];
};

struct rig_command {
	struct redis_command command;
	struct redis_value value;
	uint8_t *buffer;		/* room for the largest, and a guard */
	uint32_t allocated;
	uint32_t dones;
	long long integer;		/* of the reply */
	char words[128];		/* likewise */
};

static inline uint64_t rig_now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t rig_in_ms(uint64_t ms)
{
	return rig_now() + ms * 1000000u;
}

/* --- the loop --- */

static inline void rig_tick(struct loop_timer *timer)
{
	struct rig *r = container_of(timer, struct rig, tick);

	loop_stop(r->loop);
}

/* Lets the loop run for so long. */
static inline void rig_run(struct rig *r, uint64_t ms)
{
	loop_timer_set(r->loop, &r->tick, rig_in_ms(ms));
	assert_int_equal(loop_run(r->loop), 0);
}

static inline void rig_changed(struct redis_conn *c, void *arg)
{
	struct rig *r = arg;

	assert_true(!r->conn || r->conn == c);
	r->changes++;
}

static inline void rig_state_becomes(struct rig *r, enum redis_conn_state state)
{
	const uint64_t until = rig_in_ms(RIG_PATIENCE_S * 1000);

	while (redis_conn_state(r->conn) != state) {
		const char *text = "";

		(void)redis_conn_why(r->conn, &text);
		if (rig_now() > until || redis_conn_state(r->conn) == REDIS_CONN_DOWN)
			fail_msg("the connection is in state %d, not %d: %s", redis_conn_state(r->conn), state, text);
		rig_run(r, 1);
	}
}

static inline void rig_open_to(struct rig *r, const char *address, const char *username, const char *password)
{
	const struct redis_conn_conf conf = {
		.address = address, .username = username, .password = password, .tls = rig_tls, .host = "127.0.0.1",
		.deadline_ns = rig_in_ms(20000), .max_value_bytes = RIG_MAX_VALUE, .changed = rig_changed, .arg = r,
	};

	memset(r, 0, sizeof *r);
	r->tick.fire = rig_tick;
	assert_int_equal(loop_open(0, &r->loop), 0);
	assert_int_equal(redis_conn_open(r->loop, &conf, &r->conn), 0);
}

static inline void rig_open(struct rig *r, const char *address)
{
	rig_open_to(r, address, "", "");
	rig_state_becomes(r, REDIS_CONN_UP);
}

static inline void rig_close(struct rig *r)
{
	redis_conn_close(r->conn);
	loop_close(r->loop);
}

static inline const char *rig_why(struct rig *r, int *ret_why)
{
	const char *text;

	*ret_why = redis_conn_why(r->conn, &text);
	return text;
}

/* --- blocks --- */

static inline struct block block_of(const struct image_geometry *geometry, enum image_codec codec,
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
		b.image[sizeof header + i] = (uint8_t)random_next(random);
	for (uint32_t i = 0; i < b.shape.payload_bytes; i++)
		b.image[b.shape.payload_offset + i] = (uint8_t)(random->state * (i + 1) >> 24);
	image_header_fill(&header, geometry, codec, codec, &b.shape, &b.identity);
	image_seal(&header, image_checksum(b.image, &b.shape));
	memcpy(b.image, &header, sizeof header);
	return b;
}

/* Planes with scales, and opaque bytes that make it any length up to max_opaque more. */
static inline struct block block_make(struct random *random, uint32_t max_opaque)
{
	const struct image_geometry geometry = {
		.dtype = DTYPE_BF16, .layers = 1 + random_below(random, 40), .kv_heads = 1 + random_below(random, 8),
		.head_dim_k = 1 + random_below(random, 64), .head_dim_v = 1 + random_below(random, 64),
		.block_tokens = 1 + random_below(random, 32), .opaque_bytes = random_below(random, max_opaque + 1),
	};

	return block_of(&geometry, random_below(random, 4) ? CODEC_FP8 : CODEC_RAW, random);
}

/* The packed image; ret of shape.packed_bytes. */
static inline void block_pack(const struct block *b, uint8_t *ret)
{
	const size_t head = sizeof(struct image_header) + b->shape.scale_bytes;

	memcpy(ret, b->image, head);
	memcpy(ret + head, b->image + b->shape.payload_offset, b->shape.payload_bytes);
}

/* The value as a server has it; ret of block_bytes(). */
static inline void block_value(const struct block *b, uint8_t *ret)
{
	uint8_t *packed = malloc(b->shape.packed_bytes);

	assert_non_null(packed);
	block_pack(b, packed);
	(void)redis_sealed(&redis_test_seal, packed, b->shape.packed_bytes, ret);
	free(packed);
}

static inline uint32_t block_bytes(const struct block *b)
{
	return b->shape.packed_bytes + REDIS_SEAL_BYTES;
}

static inline void block_free(struct block *b)
{
	free(b->image);
}

/* --- commands --- */

static inline void rig_done(struct redis_command *command)
{
	struct rig_command *c = container_of(command, struct rig_command, command);
	const struct redisReply *reply = command->reply;

	c->dones++;
	assert_false(command->lent);
	if (reply && reply->type == REDIS_REPLY_INTEGER)
		c->integer = reply->integer;
	else if (reply && reply->str)
		(void)snprintf(c->words, sizeof c->words, "%s", reply->str);
}

/* As if nothing had been submitted yet. */
static inline void rig_fresh(struct rig_command *c)
{
	memset(&c->command, 0, sizeof c->command);
	c->command.done = rig_done;
	c->command.deadline_ns = rig_in_ms(RIG_PATIENCE_S * 1000);
	c->dones = 0;
	c->integer = -1;
	c->words[0] = 0;
}

static inline void rig_get(struct rig_command *c, const struct block *b)
{
	const uint32_t room = (b->shape.image_bytes + IMAGE_ALIGN - 1) / IMAGE_ALIGN * IMAGE_ALIGN;

	rig_fresh(c);
	free(c->buffer);
	c->allocated = room + RIG_GUARD;
	c->buffer = malloc(c->allocated);
	assert_non_null(c->buffer);
	memset(c->buffer, RIG_POISON, c->allocated);
	c->value = (struct redis_value){ .identity = &b->identity, .geometry = &b->geometry, .buffer = c->buffer,
					 .seal = &redis_test_seal,
					 .room = b->shape.image_bytes };
	c->command.value = &c->value;
	redis_command_get(&c->command, b->name, strlen(b->name));
}

static inline void rig_set(struct rig_command *c, const struct block *b, uint64_t ttl_ms)
{
	rig_fresh(c);
	assert_int_equal(redis_command_set(&c->command, b->name, strlen(b->name), b->image, &b->shape, &redis_test_seal,
					   ttl_ms), 0);
}

static inline void rig_exists(struct rig_command *c, const struct block *b)
{
	rig_fresh(c);
	redis_command_exists(&c->command, b->name, strlen(b->name));
}

static inline void rig_submit(struct rig *r, struct rig_command *c)
{
	assert_int_equal(redis_conn_submit(r->conn, &c->command), 0);
	assert_int_equal(c->dones, 0);
}

static inline void rig_wait(struct rig *r, struct rig_command *c)
{
	const uint64_t until = rig_in_ms((RIG_PATIENCE_S + 10) * 1000);

	while (c->dones == 0) {
		if (rig_now() > until)
			fail_msg("a command has not ended");
		rig_run(r, 1);
	}
	assert_int_equal(c->dones, 1);
}

static inline int rig_do(struct rig *r, struct rig_command *c)
{
	rig_submit(r, c);
	rig_wait(r, c);
	return c->command.status;
}

/* In the buffer: the image, its padding zero, and nothing written behind it. */
static inline void rig_has(const struct rig_command *c, const struct block *b)
{
	const uint32_t room = (b->shape.image_bytes + IMAGE_ALIGN - 1) / IMAGE_ALIGN * IMAGE_ALIGN;

	assert_int_equal(c->command.status, 0);
	assert_int_equal(c->value.bytes, b->shape.image_bytes);
	assert_int_equal(c->value.length, block_bytes(b));
	assert_memory_equal(c->buffer, b->image, room);
	for (uint32_t i = room; i < c->allocated; i++)
		assert_int_equal(c->buffer[i], RIG_POISON);
}

static inline void rig_is_poison(const struct rig_command *c)
{
	for (uint32_t i = 0; i < c->allocated; i++)
		assert_int_equal(c->buffer[i], RIG_POISON);
}

static inline void rig_forget(struct rig_command *c)
{
	free(c->buffer);
	c->buffer = NULL;
}

#endif
