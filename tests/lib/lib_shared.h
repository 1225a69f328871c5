/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_shared.h - shared by system tests of the Redis tier: daemons with an engine each ("nodes")
 * that look at the same Redis, and their words about it. Waits have an end, which ends the test.
 */
#pragma once

#include "lib.h"
#include "lib_redis.h"

enum {
	SHARED_BLOCKS = 32,
	SHARED_PAGES = 2 * SHARED_BLOCKS,
	SHARED_MS = PATIENT_MS,
	SHARED_NAME = 160
};

/* Bytes of the values of tiny_geometry()'s blocks: envelope, header, 8 scales, 4,096 values, MAC;
 * or 8,192 bytes. */
enum {
	SHARED_FRONT = 32,
	SHARED_FP8_BYTES = 32 + 128 + 8 + 4096 + 16,
	SHARED_RAW_BYTES = 32 + 128 + 8192 + 16,
	SHARED_RAW_IMAGE = 4096 + 8192
};

/* --- a node --- */

struct node {
	struct daemon d;
	struct engine e; /* not open: client NULL */
	char text[8192]; /* for output */
};

struct node_conf {
	const char *endpoints;
	const char *lines; /* of section [redis], and whole sections after it; NULL: none */
	const char *host;  /* lines of [host]; NULL: 16M */
	uint32_t secret;   /* nodes with the same number have the same [redis] secret_file */
};

/* Directories, secret and configuration; nothing runs. Configured again: the same directories. */
void node_place(struct node *n, const struct node_conf *conf);
void node_configure(struct node *n, const struct node_conf *conf);
/* the daemon starts, and knows its Redis's state */
void node_live(struct node *n);
void node_join(struct node *n, const struct kvtier_geometry *geometry); /* SHARED_PAGES pages */
void node_end(struct node *n); /* all of it; NULL-safe on a zeroed one */
/* Asserts the state in which nothing is under way: no lease, no op, no slot of host memory. Evicts
 * all blocks from memory. */
void node_owes_nothing(struct node *n);

/* tiers.redis.state */
void node_becomes(const struct node *n, const char *state, int timeout_ms);
void node_evict(struct node *n); /* kvtierctl evict --all */
/* A file of these bytes in the node's directory, with this mode; its path into ret. */
void node_file(const struct node *n, const char *name, const char *text, int mode, char ret[200]);

/* Prefetches; leading blocks that came. Statuses are 0, or a miss's. */
uint32_t node_prefetch(struct node *n, const struct kvtier_key *keys, uint32_t blocks);
/* Block by block, an op each; how many came. A status is 0 or -ENOENT, the page right or
 * untouched. */
uint32_t node_load_each(struct node *n, const struct kvtier_key *keys, uint32_t first,
			uint32_t blocks);
/* Stores a chain and waits until it was written behind, or found there. */
void node_store_through(struct node *n, const struct kvtier_key *keys, uint32_t blocks);

/* The seal of the nodes with this secret; the name of a block's value, of the nodes with number
 * 0. */
void shared_seal(uint32_t secret, struct redis_seal *ret);
void shared_name(const char *prefix, const struct kvtier_key *key, char ret[SHARED_NAME]);
/* redis_ask() */
void shared_asks_until(const struct redis_server *s, long long value, const char *command);

/* --- two nodes, one Redis --- */

struct shared {
	struct redis_server redis;
	struct node a, b;
	struct kvtier_key keys[SHARED_BLOCKS]; /* of a chain, in A's space */
};

/* The server and both nodes live, their engines in equal spaces. lines: of [redis], and sections
 * after it. */
struct shared *shared_begin(const char *redis_options, const char *lines, uint32_t codec);
/* host: lines of [host], as in node_conf. */
struct shared *shared_begin_in(const char *redis_options, const char *lines, const char *host,
			       uint32_t codec);
struct shared *shared_world(void); /* the same one, zeroed, for tests that do it by hand */
void shared_end(struct shared *w);

/* --- under load --- */

enum { SHARED_CHAINS = 48 };

/* A thread that stores these chains, or loads them, over and over: the same ones in every node with
 * the same secret. No other thread uses the engine's first SHARED_BLOCKS pages. A block is right,
 * or a miss and its page untouched. */
struct shared_load {
	pthread_t thread;
	struct engine *e;
	struct kvtier_key chains[SHARED_CHAINS][SHARED_BLOCKS];
	bool stores, good;
	atomic_bool stop;
	uint64_t rounds, hits; /* hits: blocks that came */
};

void shared_load_begin(struct shared_load *load, struct engine *e, bool stores);
void shared_load_end(struct shared_load *load);
/* Memory for 85 raw blocks: most blocks that a thread loads come from Redis. */
#define SHARED_TIGHT "bytes = 1M\nslab_bytes = 256K"
/* Stores fresh chains at A until B finds one whole: the first may be before a server is tried
 * again. */
void shared_meets(const struct daemon *d, struct engine *a, struct engine *b);

/* A node whose Redis is stopped stores for so long as fast as it can, its local blocks are loaded
 * all the time, and its memory does not grow beyond the configured size. */
void shared_flood(uint32_t seconds);
