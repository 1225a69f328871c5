/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_redis_conn.h - one connection on the test's own loop, commands that note how they ended, and
 * images of random shape. Buffers are poisoned, and larger than the bytes that may be written to
 * them, so that a byte too far is seen.
 */
#pragma once

#include <hiredis/hiredis.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/loop.h"
#include "test.h"
#include "tiers/redis/conn/redis_conn.h"
#include "lib_redis.h"
#include "lib_tls.h"

enum { RIG_POISON = 0xa5, RIG_GUARD = 8192, RIG_MAX_VALUE = 8 << 20, RIG_PATIENCE_S = 60 };

/* The connections opened next have it; NULL: none. rig_tls_begin() sets it, rig_tls_end() removes
 * the files as well. */
extern struct redis_tls *rig_tls;

void rig_tls_begin(const struct tls_files *files);
void rig_tls_end(struct tls_files *files);

/* Group fixtures: a redis-server of the test's own, at rig_server. With TLS (the files of
 * tls_group) connections that are opened afterwards have it, too. */
extern struct redis_server rig_server;
int rig_server_start(void **state);
int rig_server_start_with_tls(void **state);
int rig_server_stop(void **state);
/* A case begins with an empty server, so that its keys are new to it with the same SEED, too. */
void rig_empty(void);

struct rig {
	struct loop *loop;
	struct loop_timer tick;
	struct redis_conn *conn;
	struct redis_conn_counters counters;
	uint32_t changes;
	/* for the end of a command, or a change: the loop stops then */
	bool waits;
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
	uint8_t *buffer; /* room for the largest, and a guard */
	uint32_t allocated;
	uint32_t dones;
	struct rig *rig;   /* submitted to; NULL: not yet */
	long long integer; /* of the reply */
	char words[128];   /* likewise */
};

uint64_t rig_in_ms(uint64_t ms);

/* --- the loop --- */

/* Lets the loop run for so long. */
void rig_run(struct rig *r, uint64_t ms);

void rig_changed(struct redis_conn *c, void *rig); /* changed() of the connections */
/* Fails the test after a minute, or if the connection dies instead. */
void rig_state_becomes(struct rig *r, enum redis_conn_state state);
/* open_to() begins to connect; open() waits until it is UP, without a password. */
void rig_open_to(struct rig *r, const char *address, const char *username, const char *password);
void rig_open_within(struct rig *r, const char *address, const char *username, const char *password,
		     uint64_t ms); /* a deadline of its own; open_to() has 20 s */
void rig_open(struct rig *r, const char *address);
void rig_close(struct rig *r);
/* Waits until it is DOWN, for this reason; one that is not UP must not become so. Its words. */
const char *rig_goes_down(struct rig *r, int why);

/* --- blocks --- */

struct block block_of(const struct image_geometry *geometry, enum image_codec codec,
		      struct random *random);
/* Planes with scales, and opaque bytes that make it any length up to max_opaque more. */
struct block block_make(struct random *random, uint32_t max_opaque);
/* The packed image; ret of shape.packed_bytes. */
void block_pack(const struct block *b, uint8_t *ret);
/* The value as Redis has it; ret of block_bytes(). */
void block_value(const struct block *b, uint8_t *ret);
uint32_t block_bytes(const struct block *b);
void block_free(struct block *b);

/* --- commands: filled, submitted, waited for until done() ran --- */

void rig_done(struct redis_command *command); /* done() of each: notes how it ended */
/* As if nothing had been submitted yet. */
void rig_fresh(struct rig_command *c);
void rig_get(struct rig_command *c, const struct block *b);
void rig_set(struct rig_command *c, const struct block *b, uint64_t ttl_ms);
void rig_exists(struct rig_command *c, const struct block *b);
void rig_submit(struct rig *r, struct rig_command *c);
void rig_wait(struct rig *r, struct rig_command *c);
void rig_ends(struct rig *r, struct rig_command *c, int status); /* likewise, so */
int rig_do(struct rig *r, struct rig_command *c);                /* submits and waits; the status */
int rig_load(struct rig *r, struct rig_command *c, const struct block *b); /* a GET, likewise */
void rig_store(struct rig *r, struct rig_command *c,
	       const struct block *b); /* a SET; it succeeds */
/* In the buffer: the image, its padding zero, and nothing written behind it. */
void rig_has(const struct rig_command *c, const struct block *b);
/* The same, from a value of this length. */
void rig_has_from(const struct rig_command *c, const struct block *b, uint64_t length);
void rig_is_poison(const struct rig_command *c);
void rig_forget(struct rig_command *c);
