/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_redis_rig.h - what unit_config_redis*.c share: configurations from texts.
 */
#ifndef KVTIER_TESTS_CONFIG_REDIS_RIG_H
#define KVTIER_TESTS_CONFIG_REDIS_RIG_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/config/config_redis.h"
#include "daemon/config/config_table.h"

static char text[1024];

/* A whole file. */
static int parse(const char *file, struct config *ret)
{
	FILE *in = fmemopen((void *)(uintptr_t)file, strlen(file), "r");
	int r;

	assert_non_null(in);
	text[0] = '\0';
	r = config_parse(in, "test.conf", ret, text, sizeof(text));
	(void)fclose(in);
	return r;
}

/* The message has these words. */
static void says(const char *words)
{
	if (strstr(text, words) == NULL)
		fail_msg("\"%s\" is not in: %s", words, text);
}

/* Lines of [redis], which are fine. */
static void taken(const char *key_value, struct config *ret)
{
	char file[1024];

	snprintf(file, sizeof(file), "[redis]\n%s\n", key_value);
	if (parse(file, ret) != 0)
		fail_msg("%s", text);
}

#endif
