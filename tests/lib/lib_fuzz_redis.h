/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_fuzz_redis.h - for fuzz_redis_recv.c: things that outlive one input. A loop, a listening
 * socket, four blocks with their values as Redis has them, and the right contents of a buffer.
 */
#ifndef KVTIER_TESTS_LIB_FUZZ_REDIS_H
#define KVTIER_TESTS_LIB_FUZZ_REDIS_H

#include <assert.h>
#include <malloc.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/loop.h"
#include "tiers/redis/conn/redis_conn.h"
#include "random.h"

enum { FUZZ_BLOCKS = 4 };

/* Replies that Redis may send and hardly ever sends; behind them bytes that are no reply. */
enum { ODD_REPLIES = 22, NO_REPLIES = 6 };

extern const char *const odd_replies[ODD_REPLIES + NO_REPLIES];

struct block {
	struct image_geometry geometry;
	struct image_identity identity;
	struct image_shape shape;
	uint8_t *value; /* as Redis has it */
	uint32_t bytes; /* of it */
};

struct world {
	struct loop *loop;
	struct loop_timer tick;
	int listener;
	char address[64]; /* unix:path */
	struct block blocks[FUZZ_BLOCKS];
};

/* --- memory --- */

size_t memory_in_use(void);
bool filled_with(const uint8_t *bytes, size_t n, uint8_t with);
/* The buffer has an image of this block, and zeros in its padding. ret: the packed image, to be
 * freed. */
uint8_t *image_value(const uint8_t *buffer, const struct block *b);

/* --- the world --- */

extern const struct redis_seal fuzz_seal_of;

void world_turn(struct world *w); /* one turn of the loop */

struct world *the_world(void); /* made at the first call */

#endif
