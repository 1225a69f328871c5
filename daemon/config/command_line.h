/* SPDX-License-Identifier: Apache-2.0 */
/*
 * command_line.h - the arguments of kvtierd.
 */
#ifndef KVTIER_COMMAND_LINE_H
#define KVTIER_COMMAND_LINE_H

#include <stdbool.h>

struct command_line {
	const char *config; /* NULL: the defaults */
	bool check, print;
	bool man; /* for the makers of kvtierd.8 */
};

/* -1: go on; else exit with this status, all is said. *ret is zeroed by the caller. */
int command_line_parse(int argc, char **argv, struct command_line *ret);

#endif
