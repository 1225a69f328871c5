/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_config_redis.c - see lib_config_redis.h.
 */
#include "lib_config_redis.h"

char config_message[1024];

int config_of(const char *file, struct config *ret)
{
	FILE *in = fmemopen((void *)(uintptr_t)file, strlen(file), "r");
	int r;

	assert_non_null(in);
	config_message[0] = '\0';
	r = config_parse(in, "test.conf", ret, config_message, sizeof(config_message));
	(void)fclose(in);
	return r;
}

void config_says(const char *words)
{
	if (!strstr(config_message, words))
		fail_msg("\"%s\" is not in: %s", words, config_message);
}

void config_takes(const char *key_value, struct config *ret)
{
	char file[1024];

	snprintf(file, sizeof(file), "[redis]\n%s\n", key_value);
	if (config_of(file, ret) != 0)
		fail_msg("%s", config_message);
}
