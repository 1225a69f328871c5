/* SPDX-License-Identifier: Apache-2.0 */
/* config_table.c - see config_table.h. */
#include "config_table.h"

#define CONFIG(section, key, TYPE, dflt, min, max, unit, prose) \
	{ #section, #key,  CONFIG_TYPE_##TYPE,                  \
	  dflt,     min,   max,                                 \
	  unit,     prose, offsetof(struct config, section##_##key) },
const struct config_row config_rows[CONFIG_ROWS] = {
#include "tbl_config.h"
};
