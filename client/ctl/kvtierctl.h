/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl.h - what the files of kvtierctl share. A short-lived, single-threaded program: it may
 * allocate, and prints what it has to say where it finds it out.
 */
#ifndef KVTIERCTL_H
#define KVTIERCTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum exit_status {
	EXIT_FINE = 0,
	EXIT_FAILED = 1,    /* status: WARN */
	EXIT_ERR = 2,       /* status: ERR */
	EXIT_NO_DAEMON = 3, /* nothing there, or it does not answer */
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
struct stats;

/* command_NAME of each command of tbl_ctl.h; argv[0]: the command. The exit status. */
#define CTL(name, where, arguments, prose, example) \
	int command_##name(struct context *context, int argc, char **argv);
#include "daemon/admin/tbl_ctl.h"

/* kvtierctl.c */
/* getopt_long(3) with --json, --help and --socket, which every command takes, dealt with. -1 at the
 * end, else the option's value; on a mistake or --help it exits. */
int context_option(struct context *context, int argc, char **argv, const char *letters,
		   const struct option *options);
void usage_error(const struct context *context, const char *format, ...)
	__attribute__((format(printf, 2, 3), noreturn));
/* after context_option's -1 */
void no_more_arguments(const struct context *context, int argc, char **argv);

/* kvtierctl_status.c */
/* Maps the stats page; NULL: said why on stderr, and the caller exits with EXIT_NO_DAEMON. */
const struct stats *stats_page(const struct context *context);
/* "kvtierd 0.1.0, pid 42, up 3h 2m, device cpu, kernels avx2" */
char *daemon_line(const struct stats *stats, char *ret, size_t n);
/* What `status` says, as text in lines of at most `width` columns; INT_MAX: each statement is one
 * line. */
void status_print(const struct stats *stats, uint64_t health, int width);

/* kvtierctl_ask.c */
struct reply {
	char *text; /* NUL-terminated; the caller frees it, also after a failure */
	size_t bytes;
};
/* words[0]: the command. EXIT_FINE with the whole text, or what to exit with, said why on
 * stderr. */
int ask(const struct context *context, int argc, const char *const *words, struct reply *reply);

/* kvtierctl_text.c */
uint64_t clock_ns(void);                               /* CLOCK_MONOTONIC */
char *text_bytes(uint64_t bytes, char *ret, size_t n); /* "1.5 GiB" */
char *text_age(uint64_t seconds, char *ret, size_t n); /* "3h 2m" */
bool parse_bytes(const char *text, uint64_t *ret);     /* 512M, 1GiB; > 0 */
/* with quotes, to stdout; at most 300 bytes */
void print_json_string(const char *text);

/* One line on stderr, written over itself, when that is a terminal and it takes over two seconds.
 * All else zero. */
struct progress {
	const char *what;
	uint64_t start_ns, shown_ns;
};
/* total 0: unknown */
void progress_show(struct progress *progress, uint64_t done, uint64_t total, const char *unit);
void progress_end(struct progress *progress); /* takes the line away */

/* A table with aligned columns: cells are copied, escaped for the terminal, and printed by
 * table_print. */
struct table;
struct table *table_new(size_t columns);
void table_cell(struct table *table, const char *text);
void table_print(struct table *table, const bool *right); /* columns to align right; frees */

#endif
