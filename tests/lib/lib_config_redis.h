/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_config_redis.h - shared by unit_config_redis*.c: configurations from texts.
 */
#ifndef KVTIER_TESTS_LIB_CONFIG_REDIS_H
#define KVTIER_TESTS_LIB_CONFIG_REDIS_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/config/config_redis.h"
#include "tests/lib/test.h"

extern char config_message[1024]; /* the last message */

/* Of a whole file; as config_parse(). */
int config_of(const char *file, struct config *ret);
/* The last message has these words. */
void config_says(const char *words);
/* Lines of [redis], which must be fine. */
void config_takes(const char *key_value, struct config *ret);

#endif
