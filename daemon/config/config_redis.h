/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_redis.h - turns the section [redis] into the arguments that open the Redis tier: the
 * endpoints one by one, and the contents of the files with secrets. It runs once, at start.
 *
 * Only struct config_redis has passwords and secrets. struct config, which may be printed, has only
 * the names of the files.
 */
#pragma once

#include "tiers/redis/redis.h"
#include "config_value.h"
#include "secret.h"

enum { CONFIG_SHARED_MIN = 32 };

/* Lies in the vault (base/vault.h). */
struct config_redis {
	char endpoints[REDIS_ENDPOINTS][REDIS_ADDRESS_BYTES];
	char password[REDIS_SECRET_BYTES];
	struct secret_shared shared; /* of secret_file; for spaces_shared_secret() */
	struct secret_shared sealing[REDIS_SEALS_EACH]; /* of seal_files; for spaces_seals() */
	struct redis_seals seals;                       /* which fills this */
};

struct config_redis *config_redis_new(void);         /* zeroed; NULL: no memory */
void config_redis_close(struct config_redis *redis); /* wipes it; may be NULL */

/* Looks for values of [redis] that do not go together. *cursor begins as 0, for the first call.
 * NULL: there are no more of them. Otherwise the end of a sentence, and in *ret the key that it is
 * about. */
const char *config_redis_fault(const struct config *config, size_t *cursor,
			       enum config_row_index *ret);

/*
 * Reads the files and fills *ret, whose pointers point into *config and *redis; its events and its
 * max_in_flight stay as they are. n_endpoints is 0 if there is to be no Redis tier.
 *
 * Returns 0, with a warning for the log in text (>= 512 bytes), or "". Or it returns -errno, and
 * text names the option and the file: -EPERM (no regular file, or others may read it), -EBADMSG
 * (too short, too long, empty), -ENOMEM, or the error of open() or read().
 */
int config_redis(const struct config *config, struct config_redis *redis,
		 struct redis_tier_conf *ret, char *text, size_t n);
