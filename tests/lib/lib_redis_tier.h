/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_redis_tier.h - the Redis tier on a loop of the test's own, blocks whose bytes follow from
 * their numbers, and slots for transfers. A wait has an end and then fails the test.
 *
 * The test holds the clock: it is linked with wrap=clock_gettime,epoll_wait. Where an endpoint
 * rests and no xfer is under way, waiting for a state lets its rest pass at once.
 */
#pragma once

#include "base/loop.h"
#include "kernels/image.h"
#include "test.h"
#include "tiers/redis/redis.h"
#include "lib_redis.h"

enum {
	KIT_SLOTS = 256,
	KIT_TIMEOUT_MS = 5000,
	KIT_SMALL = 3000, /* opaque bytes of an image */
	KIT_PREFIX_BYTES = 3,
	KIT_NAME_BYTES = KIT_PREFIX_BYTES + REDIS_TAG_BYTES + 66
};

struct kit;

struct kit_slot {
	struct xfer x; /* first */
	struct kit *kit;
	struct image_identity identity;
	uint32_t block;
	uint32_t dones;
	bool busy;
};

struct kit {
	struct loop *loop;
	struct tier *tier;
	struct redis_tier_conf conf;
	char text[TIER_TEXT_BYTES];
	struct image_geometry geometry;
	struct image_shape shape;
	uint32_t room;   /* of a slot's buffer */
	uint8_t *memory; /* the slots' buffers */
	uint8_t *expected;
	struct kit_slot slots[KIT_SLOTS];
	bool soft; /* images have few bits to a byte, so that they may be coded */
	uint32_t busy, changes;
	/* in kit_until(): the end of an xfer, or a change, is news */
	bool waits;
	struct loop_timer pause;
};

/* Two connections, KIT_TIMEOUT_MS, 64 in flight, images of about opaque_bytes. The test sets
 * conf.endpoints and other values that it wants, then starts. */
void kit_init(struct kit *kit, uint32_t opaque_bytes);
/* A server with these options starts, and the kit is to have it as its only endpoint; images of
 * KIT_SMALL opaque bytes. */
void kit_begin_at(struct kit *kit, struct redis_server *server, const char *options);
void kit_start(struct kit *kit);                         /* the tier is open */
void kit_start_at(struct kit *kit, const char *address); /* one endpoint, and it is UP */
void kit_stop(struct kit *kit);                          /* closed; nothing is left on its way */
void kit_free(struct kit *kit);                          /* stop, and the memory; or nothing */
void kit_run_ms(struct kit *kit, uint32_t ms);           /* iterations of the loop for so long */
/* So much time passes at once, and the tier has done all that was due; xfers under way are that
 * much older. */
void kit_pass_ms(struct kit *kit, uint32_t ms);
void kit_until_state(struct kit *kit, enum tier_state state);
/* Until fn says so; false: it did not within a minute. */
bool kit_until(struct kit *kit, bool (*is)(struct kit *kit, void *arg), void *arg);

void kit_identity(uint32_t block, struct image_identity *ret);
void kit_name(uint32_t block, char ret[KIT_NAME_BYTES]); /* as Redis has it */
uint32_t kit_slot_of(uint32_t block);                    /* of its name, in a Cluster */
/* in memory: kit->room bytes */
void kit_image_of(const struct kit *kit, uint32_t block, uint8_t *ret);
uint32_t kit_value(struct kit *kit, uint32_t block, uint8_t *ret); /* in Redis; its length */

static inline bool kit_readable(const struct kit *kit, const uint8_t key[32])
{
	return tier_readable(kit->tier,
			     &(struct tier_name){ .seal = &redis_test_seal, .key = key });
}
/* Submits; NULL and *ret: refused. The slot is busy until kit_settle(). */
struct kit_slot *kit_try(struct kit *kit, enum xfer_op op, uint32_t block, int *ret);
struct kit_slot *kit_try_with(struct kit *kit, enum xfer_op op, uint32_t block, uint32_t room,
			      int *ret);
/* The same; it must be taken, or refused, with this error. */
struct kit_slot *kit_begin(struct kit *kit, enum xfer_op op, uint32_t block);
int kit_refused(struct kit *kit, enum xfer_op op, uint32_t block);
/* Waits for its end: its status; -EILSEQ: status 0, but the bytes are not the block's. */
int kit_settle(struct kit *kit, struct kit_slot *slot);
/* Both. Refusals are its result as well; -EAGAIN is waited out. */
int kit_do(struct kit *kit, enum xfer_op op, uint32_t block);
static inline int kit_store(struct kit *kit, uint32_t block)
{
	return kit_do(kit, XFER_WRITE, block);
}
static inline int kit_load(struct kit *kit, uint32_t block)
{
	return kit_do(kit, XFER_READ, block);
}
/* many at once; all must succeed */
void kit_store_all(struct kit *kit, uint32_t from, uint32_t to);
/* Many at once: how many are whole. Any other end than -ENOENT, -ENODEV fails the test, unless
 * `lenient`. */
uint32_t kit_load_each(struct kit *kit, uint32_t from, uint32_t to, bool lenient);
bool kit_says(struct kit *kit, const char *words); /* the status text has them */
/* Lets time pass until it has: rests, deadlines. */
void kit_until_says(struct kit *kit, const char *words);
struct redis_tier_status kit_status(const struct kit *kit);     /* as the tier shows it now */
struct redis_counters kit_counters(struct kit *kit);            /* fresh ones */
struct redis_endpoint_row kit_row(struct kit *kit, uint32_t i); /* likewise */
