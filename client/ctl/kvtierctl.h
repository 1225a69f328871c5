/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl.h - a command and its context, and all commands. A short-lived, single-threaded
 * program: it may allocate, and prints each sentence where it finds the fact.
 */
#ifndef KVTIERCTL_H
#define KVTIERCTL_H

#include <stdbool.h>

enum exit_status {
	EXIT_FINE = 0,
	EXIT_FAILED = 1,    /* status: WARN */
	EXIT_ERR = 2,       /* status: ERR */
	EXIT_NO_DAEMON = 3, /* nothing there, or it does not answer */
	EXIT_STARTING = 4,  /* status: it is there, and no engine can connect yet */
	EXIT_USAGE = 64,
};

struct command;

struct context {
	const struct command *command;
	char socket_path[256]; /* the daemon's client socket; the others are beside it */
	char admin_path[256];
	char stats_path[256];
	bool json;
};

struct command {
	const char *name;
	const char *arguments;
	const char *prose;
	const char *example;
	/* argv[0]: the command; exit status */
	int (*run)(struct context *context, int argc, char **argv);
};

struct option;

/* command_NAME of each command of tbl_ctl.h; argv[0]: the command. The exit status. The table makes
 * their prototypes, so all stand here, whichever file a command is in. */
#define CTL(name, where, arguments, prose, example) \
	int command_##name(struct context *context, int argc, char **argv);
#include "daemon/admin/tbl_ctl.h"

/* getopt_long(3) with --json, --help and --socket, which every command takes, dealt with. -1 at the
 * end, else the option's value; on a mistake or --help it exits. */
int context_option(struct context *context, int argc, char **argv, const char *letters,
		   const struct option *options);
void usage_error(const struct context *context, const char *format, ...)
	__attribute__((format(printf, 2, 3), noreturn));
/* after context_option's -1 */
void no_more_arguments(const struct context *context, int argc, char **argv);

#endif
