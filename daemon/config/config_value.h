/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_value.h - one value of the configuration: text to field, field to text, the allowed
 * values; and the paths of a list of paths.
 */
#ifndef KVTIER_CONFIG_VALUE_H
#define KVTIER_CONFIG_VALUE_H

#include "config_table.h"

/* Parses one value into the row's field. 0, or -EINVAL with why (>= 256 bytes). */
int config_value(const struct config_row *row, const char *text, struct config *config, char *why,
		 size_t n);
/* The values that the row accepts, "64K to 64T" or "no, thp or 2m". Returns ret. */
char *config_range(const struct config_row *row, char *ret, size_t n);
/* The row's value in `config`, as a file would say it. Returns ret. */
char *config_text(const struct config_row *row, const struct config *config, char *ret, size_t n);

/* The next path of a PATHS value, from *cursor (the field to start with) on; false: no more. */
bool config_paths_next(const char **cursor, char ret[CONFIG_PATH_BYTES]);

#endif
