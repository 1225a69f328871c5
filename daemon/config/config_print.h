/* SPDX-License-Identifier: Apache-2.0 */
/* config_print.h - the configuration table for people: a file, --help, the man page. */
#ifndef KVTIER_CONFIG_PRINT_H
#define KVTIER_CONFIG_PRINT_H

#include <stdio.h>

#include "config.h"

/* Writes the whole configuration as a file that config_load() reads back to the same. */
void config_print(const struct config *config, FILE *out);
void config_print_help(FILE *out); /* keys, defaults, ranges, prose: part of --help */
void config_print_man(FILE *out);  /* the same as mdoc: part of kvtierd.8 */

#endif
