/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_table.h - tbl_config.h as data. For the files of this room and their tests.
 */
#ifndef KVTIER_CONFIG_TABLE_H
#define KVTIER_CONFIG_TABLE_H

#include "config.h"

enum config_type {
	CONFIG_TYPE_BYTES,
	CONFIG_TYPE_NODES,
	CONFIG_TYPE_COUNT,
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

#endif
