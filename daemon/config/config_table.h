/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_table.h - tbl_config.h as data, for config*.c and their tests. Private to them.
 */
#ifndef KVTIER_CONFIG_TABLE_H
#define KVTIER_CONFIG_TABLE_H

#include "config.h"

enum config_type {
	CONFIG_TYPE_BYTES,
	CONFIG_TYPE_COUNT,
	CONFIG_TYPE_INT,
	CONFIG_TYPE_US,
	CONFIG_TYPE_SECONDS,
	CONFIG_TYPE_BOOL,
	CONFIG_TYPE_ENUM,
	CONFIG_TYPE_STRING,
	CONFIG_TYPE_PATH,
	CONFIG_TYPE_PATHS,
	CONFIG_TYPE_ENDPOINTS,
	CONFIG_TYPE_HOSTS,
	CONFIG_TYPE_MODE,
};

struct config_row {
	const char *section, *key;
	enum config_type type;
	const char *dflt;
	int64_t min, max;
	const char *unit;
	const char *prose;
	size_t offset; /* of the field in struct config */
};

#define CONFIG(section, key, TYPE, dflt, min, max, unit, prose) CONFIG_ROW_##section##_##key,
enum config_row_index {
#include "tbl_config.h"
	CONFIG_ROWS
};

extern const struct config_row config_rows[CONFIG_ROWS];

/* Parses one value into the row's field. 0, or -EINVAL with why (>= 256 bytes). */
int config_value(const struct config_row *row, const char *text, struct config *config, char *why,
		 size_t n);
/* An ENDPOINTS value into `field`, ports added, one blank between; config_redis.c. 0, or -EINVAL
 * with why. */
int config_endpoints_value(const char *text, char field[CONFIG_ENDPOINTS_BYTES], char *why,
			   size_t n);
/* A HOSTS value likewise. */
int config_hosts_value(const char *text, char field[CONFIG_HOSTS_BYTES], char *why, size_t n);
/* What is wrong with [redis] as a whole: NULL, or a sentence's end, and the key that it is about;
 * config_redis.c. */
const char *config_redis_fault(const struct config *config, enum config_row_index *ret);
/* What the row accepts, "64K to 64T" or "no, thp or 2m". Returns ret. */
char *config_range(const struct config_row *row, char *ret, size_t n);
/* The row's value in `config`, as a file would say it. Returns ret. */
char *config_text(const struct config_row *row, const struct config *config, char *ret, size_t n);
/* Reads an open file; name is for messages. */
int config_parse(FILE *in, const char *name, struct config *ret, char *text, size_t n);

#endif
