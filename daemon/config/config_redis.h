/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_redis.h - turns [redis] of the configuration into the arguments that open the Redis tier:
 * the endpoints one by one, and the contents of the files that hold secrets. Runs once, at start.
 *
 * Passwords and secrets are in struct config_redis and nowhere else. struct config, which is
 * printed, has only the names of the files.
 */
#ifndef KVTIER_CONFIG_REDIS_H
#define KVTIER_CONFIG_REDIS_H

#include "tiers/redis/redis.h"
#include "config_table.h"

enum { CONFIG_SHARED_MIN = 32, CONFIG_SHARED_BYTES = 512 };

/* Lies in the vault. */
struct config_redis {
	char endpoints[REDIS_ENDPOINTS][REDIS_ADDRESS_BYTES];
	char password[REDIS_SECRET_BYTES];
	uint8_t shared[CONFIG_SHARED_BYTES]; /* the content of secret_file; for spaces_share() */
	size_t shared_bytes;                 /* 0: none */
};

struct config_redis *config_redis_new(void);         /* zeroed; NULL: no memory */
void config_redis_close(struct config_redis *redis); /* wipes it; NULL is fine */

/* The error of [redis] as a whole: NULL, or a sentence's end, and the key that it is about.
 */
const char *config_redis_fault(const struct config *config, enum config_row_index *ret);

/*
 * Reads the files and fills *ret, whose pointers go into *config and *redis; its events,
 * max_in_flight and max_image_bytes are left alone. n_endpoints 0: there is to be no Redis tier.
 *
 * 0: text (>= 512 bytes) is a warning for the log, or "". Else -errno, and text names the option
 * and the file: -EPERM (no file, or others may read it), -EBADMSG (too short, too long, empty),
 * -ENOMEM, or the error of open() or read().
 */
int config_redis(const struct config *config, struct config_redis *redis,
		 struct redis_tier_conf *ret, char *text, size_t n);

#endif
