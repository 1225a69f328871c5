/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl.h - the commands of kvtierctl, their context, and what they share. kvtierctl is a
 * short-lived program with one thread, so it may allocate memory, and it prints each sentence where
 * it finds the fact.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum exit_status {
	EXIT_FINE = 0,
	EXIT_FAILED = 1,    /* status: WARN */
	EXIT_ERR = 2,       /* status: ERR */
	EXIT_NO_DAEMON = 3, /* nothing there, or it does not answer */
	EXIT_STARTING = 4,  /* status: it is there, and no engine can connect yet */
	EXIT_USAGE = 64,
	EXIT_CONFIG = 78,     /* config check: the file has mistakes */
	EXIT_PERMISSION = 77, /* this user may not ask; the daemon may be there */
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

/* command_NAME of each command that kvtierctl answers by itself, and command_ask of all that the
 * daemon answers; argv[0]: the command. The exit status. The table makes their prototypes, so all
 * stand here, whichever file a command is in. */
#define CTL_RUN_local(name) command_##name
#define CTL_RUN_admin(name) command_ask
#define CTL_RUN_waits(name) command_ask
#define CTL_RUN_list(name)  command_ask
#define CTL_RUN_data(name)  command_##name
#define CTL_RUN_both(name)  command_##name
#define CTL(name, where, arguments, prose, example) \
	int CTL_RUN_##where(name)(struct context * context, int argc, char **argv);
#include "daemon/admin/tbl_ctl.h"

/* getopt_long(3) with the options that the command's arguments name in tbl_ctl.h; those that every
 * command takes are dealt with. Returns the option as it is typed, "--bytes", or NULL at the end;
 * on a mistake or --help it exits. */
const char *context_option(struct context *context, int argc, char **argv);
/* Says what went wrong: on stderr, or with --json as {"error":SENTENCE,"exit":STATUS} on stdout.
 * Returns the exit status that it is given. */
int tell_error(const struct context *context, int status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The same for words that make no request, with the usage; exits. */
void usage_error(const struct context *context, const char *format, ...)
	__attribute__((format(printf, 2, 3), noreturn));
/* A SOCK_SEQPACKET socket that is connected to path, or -errno. -EAGAIN: the backlog was full for
 * all of ms. */
int connect_within(const char *path, int ms);
/* after context_option's NULL */
void no_more_arguments(const struct context *context, int argc, char **argv);

/* --- for people --- */

char *text_bytes(uint64_t bytes, char *ret, size_t n); /* "1.5 GiB" */
char *text_age(uint64_t seconds, char *ret, size_t n); /* "3h 2m" */
char *text_time(uint64_t ns, char *ret, size_t n);     /* "1.5 ms" */
uint64_t whole_number(double value);                   /* cut to the range of the type */
/* "88.0 %", not rounded up: 100 % means all. "-": the whole is 0. */
char *text_percent(uint64_t part, uint64_t whole, char *ret, size_t n);

/* One line on stderr that is written over itself. It appears if stderr is a terminal and the work
 * takes over two seconds. `what` is the caller's; all else begins as zero. */
struct progress {
	const char *what;
	uint64_t start_ns, shown_ns;
};
/* total 0: it is not known */
void progress_show(struct progress *progress, uint64_t done, uint64_t total, const char *unit);
void progress_end(struct progress *progress); /* clears the line */

/* A table with aligned columns. Cells are copied, escaped for the terminal, and printed by
 * table_print(). */
struct table;
/* aligns: l or r for each column. titles: A|B|C, or NULL: the caller's first row has them. */
struct table *table_new(const char *aligns, const char *titles);
void table_cell(struct table *table, const char *text); /* NULL: "?" */
void table_number(struct table *table, uint64_t number);
void table_print(struct table *table); /* frees */
