/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl.c - the operator's program: finds the daemon, then runs a command of tbl_ctl.h.
 */
#include "kvtierctl.h"

#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/runtime_dir.h"
#include "daemon/base/text.h"

static const struct command commands[] = {
#define CTL(name, where, arguments, prose, example) \
	{ #name, arguments, prose, example, command_##name },
#include "daemon/admin/tbl_ctl.h"
};
enum { COMMANDS = sizeof(commands) / sizeof(commands[0]), MAX_OPTIONS = 16 };
enum { OPTION_SOCKET = 1000, OPTION_HELP, OPTION_JSON }; /* above commands' own */

static void print_help(FILE *out)
{
	fprintf(out, "usage: kvtierctl [--socket PATH] COMMAND [OPTION...]\n\n"
		     "Asks and steers a running kvtierd.\n\ncommands:\n");
	for (size_t i = 0; i < COMMANDS; i++) {
		fprintf(out, "  %s %s\n", commands[i].name, commands[i].arguments);
		text_wrap(out, commands[i].prose, 0, 6, TEXT_WIDTH);
	}
	fprintf(out,
		"\noptions of every command:\n"
		"  --socket PATH  the daemon's client socket; its admin socket and stats page are "
		"found beside it.\n"
		"                 Default: $KVTIER_SOCKET, else /run/kvtier/kvtier.sock for root, "
		"else\n"
		"                 $XDG_RUNTIME_DIR/kvtier/kvtier.sock, else "
		"/tmp/kvtier-UID/kvtier.sock\n"
		"  --json         JSON instead of text\n"
		"  --help         this, or with a command its own help\n\n"
		"exit status: 0 fine; 1 failed (status: WARN); 2 status: ERR; 3 no daemon answers; "
		"64 usage\n\n"
		"example:\n  kvtierctl status || kvtierctl stats -f '*dropped*' -f '*failed*'\n");
}

static void print_command_help(const struct command *command)
{
	printf("usage: kvtierctl [--socket PATH] %s %s\n\n", command->name, command->arguments);
	text_wrap(stdout, command->prose, 0, 0, TEXT_WIDTH);
	printf("\nexample:\n  %s\n", command->example);
}

void usage_error(const struct context *context, const char *format, ...)
{
	va_list args;

	fputs("kvtierctl: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	if (context->command)
		fprintf(stderr, "\nusage: kvtierctl %s %s\n", context->command->name,
			context->command->arguments);
	else
		fprintf(stderr,
			"\nusage: kvtierctl [--socket PATH] COMMAND [OPTION...]; kvtierctl --help "
			"says more\n");
	exit(EXIT_USAGE);
}

/* The three paths, from the client socket's. */
static void set_socket(struct context *context, const char *path)
{
	const char *slash = strrchr(path, '/');
	const int directory = !slash ? 0 : (int)(slash - path) + 1;

	/* room for the names beside it, "admin.sock" the longest */
	if (path[0] == '\0' || strlen(path) + 16 > sizeof(context->socket_path))
		usage_error(context, "--socket needs a path of 1 to %zu bytes",
			    sizeof(context->socket_path) - 16);
	snprintf(context->socket_path, sizeof(context->socket_path), "%s", path);
	snprintf(context->admin_path, sizeof(context->admin_path), "%.*sadmin.sock", directory,
		 path);
	snprintf(context->stats_path, sizeof(context->stats_path), "%.*sstats", directory, path);
}

static void default_socket(struct context *context)
{
	const char *path = getenv("KVTIER_SOCKET");
	char directory[4096], text[sizeof(directory) + 16];

	if (!path || path[0] == '\0') {
		if (runtime_dir(directory, sizeof(directory)) < 0)
			usage_error(context, "$XDG_RUNTIME_DIR is too long; give --socket PATH");
		snprintf(text, sizeof(text), "%s/" RUNTIME_DIR_SOCKET, directory);
		path = text;
	}
	set_socket(context, path);
}

int context_option(struct context *context, int argc, char **argv, const char *letters,
		   const struct option *options)
{
	struct option all[MAX_OPTIONS] = {
		{ "socket", required_argument, NULL, OPTION_SOCKET },
		{ "help", no_argument, NULL, OPTION_HELP },
		{ "json", no_argument, NULL, OPTION_JSON },
	};
	size_t n = 3;

	while (options && options->name && n < MAX_OPTIONS - 1)
		all[n++] = *options++;
	for (;;) {
		const int option = getopt_long(argc, argv, letters, all, NULL);

		switch (option) {
		case OPTION_SOCKET:
			set_socket(context, optarg);
			break;
		case OPTION_JSON:
			context->json = true;
			break;
		case OPTION_HELP:
			if (!context->command)
				print_help(stdout);
			else
				print_command_help(context->command);
			exit(EXIT_FINE);
		case '?':
			usage_error(context, "see above"); /* getopt has said which option */
		default:
			return option;
		}
	}
}

void no_more_arguments(const struct context *context, int argc, char **argv)
{
	if (optind < argc)
		usage_error(context, "%s takes no \"%s\"", context->command->name, argv[optind]);
}

/* The stats page was truncated while it was read. */
static void on_sigbus(int signal_number)
{
	static const char said[] = "kvtierctl: the stats page was truncated; see who writes to "
				   "[daemon] runtime_dir\n";

	(void)signal_number;
	if (write(STDERR_FILENO, said, sizeof(said) - 1) < 0)
		_exit(EXIT_FAILED);
	_exit(EXIT_FAILED);
}

int main(int argc, char **argv)
{
	struct context context = { 0 };
	char *program = argv[0];
	const char *name;

	(void)signal(SIGBUS, on_sigbus);
	default_socket(&context);
	if (context_option(&context, argc, argv, "+", NULL) != -1) /* '+': stop at the command */
		return EXIT_USAGE;
	if (optind == argc) {
		print_help(stderr);
		return EXIT_USAGE;
	}
	name = argv[optind];
	for (size_t i = 0; i < COMMANDS; i++) {
		if (strcmp(commands[i].name, name) == 0)
			context.command = &commands[i];
	}
	if (!context.command)
		usage_error(&context, "%s: no such command", name);
	argc -= optind;
	argv += optind;
	optind = 0; /* glibc: start over, with the command's own arguments */
	argv[0] = program;
	return context.command->run(&context, argc, argv);
}
