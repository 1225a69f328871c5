/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl.c - the operator's program. It finds the daemon and runs a command of tbl_ctl.h. This
 * file also has what the commands share: errors; numbers, times, progress and tables for people.
 */
#include "kvtierctl.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "client/abi/runtime_dir.h"
#include "daemon/stats/stats.h"

/* --- for people --- */

char *text_bytes(uint64_t bytes, char *ret, size_t n)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double value = (double)bytes;
	size_t unit = 0;

	while (value >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
		value /= 1024;
		unit++;
	}
	snprintf(ret, n, unit == 0 || value >= 99.95 ? "%.0f %s" : "%.1f %s", value, units[unit]);
	return ret;
}

/* The values of a page may be anything: a value that does not fit becomes the largest that does. */
uint64_t whole_number(double value)
{
	if (!(value > 0))
		return 0;
	return value < 18446744073709549568.0 ? (uint64_t)value : UINT64_MAX;
}

char *text_percent(uint64_t part, uint64_t whole, char *ret, size_t n)
{
	const double percent = whole > 0 ? 100 * (double)part / (double)whole : 0;

	if (whole == 0)
		snprintf(ret, n, "-");
	else
		snprintf(ret, n, "%.1f %%", (double)whole_number(percent * 10) / 10);
	return ret;
}

char *text_age(uint64_t seconds, char *ret, size_t n)
{
	const uint64_t minutes = seconds / 60, hours = minutes / 60, days = hours / 24;

	if (days > 0)
		snprintf(ret, n, "%" PRIu64 "d %" PRIu64 "h", days, hours % 24);
	else if (hours > 0)
		snprintf(ret, n, "%" PRIu64 "h %" PRIu64 "m", hours, minutes % 60);
	else if (minutes > 0)
		snprintf(ret, n, "%" PRIu64 "m %" PRIu64 "s", minutes, seconds % 60);
	else
		snprintf(ret, n, "%" PRIu64 "s", seconds);
	return ret;
}

char *text_time(uint64_t ns, char *ret, size_t n)
{
	static const char *const units[] = { "ns", "µs", "ms", "s" };
	double value = (double)ns;
	size_t unit = 0;

	for (; value >= 999.5 && unit + 1 < sizeof(units) / sizeof(units[0]); unit++)
		value /= 1000;
	snprintf(ret, n, unit > 0 && value < 9.95 ? "%.1f %s" : "%.0f %s", value, units[unit]);
	return ret;
}

enum { PROGRESS_AFTER_MS = 2000, PROGRESS_EVERY_MS = 200 };

void progress_show(struct progress *progress, uint64_t done, uint64_t total, const char *unit)
{
	const bool bytes = strcmp(unit, "bytes") == 0;
	const uint64_t now_ns = clock_ns();
	char a[32], b[32], age[32], shown[64];

	if (progress->start_ns == 0)
		progress->start_ns = now_ns;
	if (now_ns - progress->start_ns < PROGRESS_AFTER_MS * 1000000ull ||
	    now_ns - progress->shown_ns < PROGRESS_EVERY_MS * 1000000ull ||
	    isatty(STDERR_FILENO) != 1)
		return;
	progress->shown_ns = now_ns;
	snprintf(a, sizeof(a), "%" PRIu64, done);
	snprintf(b, sizeof(b), "%" PRIu64, total);
	text_age((now_ns - progress->start_ns) / 1000000000u, age, sizeof(age));
	if (total == 0)
		fprintf(stderr, "\r\033[K%s: %s", progress->what, age);
	else
		fprintf(stderr, "\r\033[K%s: %s of %s%s%s, %d %%, %s", progress->what,
			bytes ? text_bytes(done, a, sizeof(a)) : a,
			bytes ? text_bytes(total, b, sizeof(b)) : b, bytes ? "" : " ",
			bytes ? "" : log_escape(unit, shown, sizeof(shown)),
			done < total ? (int)(100.0 * (double)done / (double)total) : 100, age);
	fflush(stderr);
}

void progress_end(struct progress *progress)
{
	if (progress->shown_ns != 0)
		fputs("\r\033[K", stderr);
	progress->shown_ns = 0;
}

struct table {
	char aligns[48]; /* a letter for each column */
	size_t columns, n, room;
	char **cells;
};

static void *must(void *memory)
{
	if (!memory) {
		fprintf(stderr, "kvtierctl: out of memory\n");
		exit(EXIT_FAILED);
	}
	return memory;
}

struct table *table_new(const char *aligns, const char *titles)
{
	struct table *table = must(calloc(1, sizeof(*table)));
	char title[64];

	table->columns = strlen(aligns);
	assert(table->columns < sizeof(table->aligns));
	memcpy(table->aligns, aligns, table->columns);
	for (size_t i = 0; titles && i < table->columns; i++) {
		const size_t length = strcspn(titles, "|");

		snprintf(title, sizeof(title), "%.*s", (int)length, titles);
		table_cell(table, title);
		titles += length + (titles[length] != '\0');
	}
	return table;
}

void table_cell(struct table *table, const char *text)
{
	size_t bytes;

	if (!text) /* a null of JSON */
		text = "?";
	bytes = strlen(text) * 4 + 8; /* as large as escaping can make it */

	if (table->n == table->room) {
		table->room = table->room * 2 + 64;
		table->cells = must(realloc(table->cells, table->room * sizeof(table->cells[0])));
	}
	table->cells[table->n] = must(malloc(bytes));
	log_escape(text, table->cells[table->n++], bytes);
}

void table_number(struct table *table, uint64_t number)
{
	char text[32];

	snprintf(text, sizeof(text), "%" PRIu64, number);
	table_cell(table, text);
}

void table_print(struct table *table)
{
	int *widths = must(calloc(table->columns, sizeof(widths[0])));

	assert(table->n % table->columns == 0);
	for (size_t i = 0; i < table->n; i++) {
		const int here = text_columns(table->cells[i]);

		if (here > widths[i % table->columns])
			widths[i % table->columns] = here;
	}
	for (size_t i = 0; i < table->n; i++) {
		const size_t column = i % table->columns;
		const bool last = column == table->columns - 1;
		const bool right = table->aligns[column] == 'r';
		const int blank = widths[column] - text_columns(table->cells[i]);

		if (right)
			printf("%*s", blank, "");
		fputs(table->cells[i], stdout);
		if (!last)
			printf("%*s", (right ? 0 : blank) + 2, "");
		else
			putchar('\n');
		free(table->cells[i]);
	}
	free(widths);
	free(table->cells);
	free(table);
}

/* --- the program --- */

static const struct command commands[] = {
#define CTL(name, where, arguments, prose, example) \
	{ #name, arguments, prose, example, CTL_RUN_##where(name) },
#include "daemon/admin/tbl_ctl.h"
};
enum { COMMANDS = sizeof(commands) / sizeof(commands[0]), MAX_OPTIONS = 16 };

/* The table again, with its groups, for the list of a few lines. */
static const struct {
	bool group;
	const char *word;
} outline[] = {
#define CTL_GROUP(word)                             { true, word },
#define CTL(name, where, arguments, prose, example) { false, #name },
#include "daemon/admin/tbl_ctl.h"
};

/* The options of every command, in the order of read_options(). A command's own come next. */
enum { OPTION_SOCKET, OPTION_HELP, OPTION_JSON, OPTION_OWN };

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
		"/tmp/kvtier-UID/kvtier.sock;\n"
		"                 where the user has no daemon, /run/kvtier/kvtier.sock\n"
		"  --json         JSON instead of text; an error is {\"error\":...,\"exit\":N}\n"
		"  --help         this, or with a command its own help\n"
		"  --version      of kvtierctl; `kvtierctl version` has the daemon's, too\n\n"
		"exit status: 0 fine; 1 failed (status: WARN); 2 status: ERR; 3 no daemon "
		"answers;\n4 status: STARTING; 64 usage; 77 permission denied\n\n"
		"example:\n  kvtierctl status || kvtierctl stats -f '*dropped*' -f '*failed*'\n");
}

/* What there is, in about 20 lines. */
static void print_outline(FILE *out)
{
	const size_t n = sizeof(outline) / sizeof(outline[0]);
	char words[256];

	fprintf(out, "usage: kvtierctl [--socket PATH] COMMAND [OPTION...]\n\n"
		     "Asks and steers a running kvtierd.\n\n");
	for (size_t i = 0; i < n;) {
		size_t used = 0;

		fprintf(out, "  %-8s", outline[i++].word);
		for (; i < n && !outline[i].group; i++)
			used += (size_t)snprintf(words + used, sizeof(words) - used, "%s ",
						 outline[i].word);
		assert(used > 0 && used < sizeof(words));
		words[used - 1] = '\0';
		text_wrap(out, words, 10, 12, TEXT_WIDTH);
	}
	fprintf(out, "\nBegin with:             kvtierctl status\n"
		     "What a command does:    kvtierctl COMMAND --help\n"
		     "All commands, options:  kvtierctl --help\n");
}

/* The sections of kvtierctl.1 that tables make: the Makefile puts them into kvtierctl.1.in. */
static void print_man(void)
{
	const struct stats_row *rows;
	const size_t n = stats_rows(&rows);

	printf(".Sh COMMANDS\n.Bl -tag -width Ds\n");
	for (size_t i = 0; i < COMMANDS; i++)
		printf(".It Ic %s Li \"%s\"\n\\&%s\n.br\nExample:\n.Dl %s\n", commands[i].name,
		       commands[i].arguments, commands[i].prose, commands[i].example);
	printf(".El\n.Sh REASONS\nThe sentences of status, by severity:\n.Bl -tag -width Ds\n");
	for (unsigned bit = 0; bit < STATS_HEALTH_COUNT; bit++) {
		const struct stats_health_row *row = stats_health_row(bit);

		printf(".It Li %s Pq %s\n\\&%s\n", row->name, stats_severity_name(row->severity),
		       row->prose);
	}
	printf(".El\n.Sh NUMBERS\nNames that stats shows, with kind and unit:\n"
	       ".Bl -tag -width Ds\n");
	for (size_t i = 0; i < n; i++)
		printf(".It Li %s Pq %s, %s\n\\&%s\n", rows[i].path, stats_kind_name(rows[i].kind),
		       rows[i].unit, rows[i].prose);
	printf(".El\n");
}

/* The options that a command's arguments name, and those of every command. */
static void print_options(const char *arguments)
{
	char text[512];

	snprintf(text, sizeof(text), "%s", arguments);
	for (char *word = strtok(text, " []|"); word; word = strtok(NULL, " []|"))
		if (word[0] == '-' && strcmp(word, "--json") != 0)
			printf("%s ", word);
	printf("--socket --json --help");
}

/* What the shell offers behind the words that are there: commands, or a command's options. Both
 * shells read the middle; files come where no word fits. */
static void print_completion(bool zsh)
{
	printf("%s", zsh ? "#compdef kvtierctl\n"
			   "local -a given\n"
			   "given=(\"${(@)words[2,CURRENT-1]}\")\n" :
			   "_kvtierctl()\n"
			   "{\n"
			   "local given=(\"${COMP_WORDS[@]:1:COMP_CWORD-1}\")\n");
	printf("local word skip= command= list=\n"
	       "for word in \"${given[@]}\"; do\n"
	       "\tif [ -n \"$skip\" ]; then skip=\n"
	       "\telif [ \"$word\" = --socket ]; then skip=1\n"
	       "\telif [ -z \"$command\" ] && [ \"${word#-}\" = \"$word\" ]; then command=$word\n"
	       "\tfi\n"
	       "done\n"
	       "[ -z \"$skip\" ] && case $command in\n"
	       "'') list='");
	for (size_t i = 0; i < COMMANDS; i++)
		printf("%s ", commands[i].name);
	printf("--version ");
	print_options("");
	printf("' ;;\n");
	for (size_t i = 0; i < COMMANDS; i++) {
		printf("%s) list='", commands[i].name);
		print_options(commands[i].arguments);
		printf("' ;;\n");
	}
	printf("esac\n%s", zsh ? "compadd -- ${=list}\n_files\n" :
				 "COMPREPLY=($(compgen -W \"$list\" -- "
				 "\"${COMP_WORDS[COMP_CWORD]}\"))\n"
				 "}\n"
				 "complete -o default -F _kvtierctl kvtierctl\n");
}

static void print_command_help(const struct command *command)
{
	printf("usage: kvtierctl [--socket PATH] %s %s\n\n", command->name, command->arguments);
	text_wrap(stdout, command->prose, 0, 0, TEXT_WIDTH);
	printf("\nexample:\n  %s\n", command->example);
}

enum { SENTENCE_BYTES = 2048 };

/* usage NULL: the error is of another kind. */
static void print_error(const struct context *context, int status, const char *usage,
			const char *format, va_list args)
{
	char sentence[SENTENCE_BYTES], text[8 * SENTENCE_BYTES];
	struct json json;

	vsnprintf(sentence, sizeof(sentence), format, args);
	if (!context->json) {
		fprintf(stderr, "kvtierctl: %s\n", sentence);
		if (usage)
			fprintf(stderr, "usage: kvtierctl %s\n", usage);
		return;
	}
	json_start(&json, text, sizeof(text));
	json_print(&json, "{");
	json_text(&json, "error", sentence);
	if (usage)
		json_text(&json, "usage", usage);
	json_number(&json, "exit", (uint64_t)status);
	assert(!json.full);
	printf("%s}\n", text);
}

int tell_error(const struct context *context, int status, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	print_error(context, status, NULL, format, args);
	va_end(args);
	return status;
}

void usage_error(const struct context *context, const char *format, ...)
{
	const struct command *command = context->command;
	char usage[512];
	va_list args;

	snprintf(usage, sizeof(usage), "%s %s", command ? command->name : "[--socket PATH] COMMAND",
		 command ? command->arguments : "[OPTION...]; kvtierctl --help says more");
	va_start(args, format);
	print_error(context, EXIT_USAGE, usage, format, args);
	va_end(args);
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
		path = access(text, F_OK) == 0 || access(RUNTIME_DIR_NODE_SOCKET, F_OK) != 0 ?
			       text :
			       RUNTIME_DIR_NODE_SOCKET;
	}
	set_socket(context, path);
}

/* The options that `arguments` names, cut up in `text`: a word behind "--bytes" makes it take a
 * value. Each option's value is its place. */
static void read_options(const char *arguments, char *text, size_t n, struct option *ret)
{
	struct option *last = NULL;
	int at = OPTION_OWN;

	ret[OPTION_SOCKET] = (struct option){ "socket", required_argument, NULL, OPTION_SOCKET };
	ret[OPTION_HELP] = (struct option){ "help", no_argument, NULL, OPTION_HELP };
	ret[OPTION_JSON] = (struct option){ "json", no_argument, NULL, OPTION_JSON };
	snprintf(text, n, "%s", arguments);
	for (char *word = strtok(text, " []|"); word; word = strtok(NULL, " []|")) {
		if (word[0] != '-' && last)
			last->has_arg = required_argument;
		if (word[0] != '-')
			continue;
		last = NULL;
		if (word[1] != '-' || strcmp(word, "--json") == 0)
			continue;
		assert(at < MAX_OPTIONS);
		last = &ret[at];
		*last = (struct option){ word + 2, no_argument, NULL, at++ };
	}
	ret[at] = (struct option){ 0 };
}

/* getopt_long() returned `found`, '?' or ':', and knows the word by its place or its letter. */
static void option_error(const struct context *context, int found, const char *word)
{
	char letter[3] = "-", shown[64];

	if (optopt >= ' ') {
		letter[1] = (char)optopt;
		word = letter;
	}
	log_escape(word, shown, sizeof(shown));
	usage_error(context,
		    found == ':'      ? "%s needs a value" :
		    strchr(word, '=') ? "%s: no such option, or it takes no value" :
					"%s: no such option",
		    shown);
}

const char *context_option(struct context *context, int argc, char **argv)
{
	static struct option all[MAX_OPTIONS + 1];
	static char text[256];
	const char *arguments = context->command ? context->command->arguments : "--version";
	const char *letters = !context->command ? "+:h" : /* stop at the command */
				      strstr(arguments, "[-f ") ? ":hf:" :
								  ":h";

	opterr = 0;
	read_options(arguments, text, sizeof(text), all);
	for (;;) {
		const int option = getopt_long(argc, argv, letters, all, NULL);

		switch (option) {
		case -1:
			return NULL;
		case OPTION_SOCKET:
			set_socket(context, optarg);
			break;
		case OPTION_JSON:
			context->json = true;
			break;
		case 'h':
		case OPTION_HELP:
			if (!context->command)
				print_help(stdout);
			else
				print_command_help(context->command);
			exit(EXIT_FINE);
		case '?':
		case ':':
			option_error(context, option, argv[optind - 1]);
			break;
		case 'f':
			return "-f";
		default:
			return all[option].name - 2; /* its dashes stand before it in the text */
		}
	}
}

void no_more_arguments(const struct context *context, int argc, char **argv)
{
	if (optind < argc)
		usage_error(context, "%s takes no \"%s\"", context->command->name, argv[optind]);
}

int connect_within(const char *path, int ms)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const struct timeval timeout = { .tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000 };
	int fd, r;

	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	memcpy(address.sun_path, path, strlen(path) + 1);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	/* connect() waits while the backlog is full, but no longer than this */
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
	if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	r = -errno;
	(void)close(fd);
	return r;
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

static const struct command *find_command(const struct context *context, const char *name)
{
	const struct command *near = NULL;
	unsigned best = 64;
	char shown[64];

	for (size_t i = 0; i < COMMANDS; i++) {
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
		if (text_close_to(name, commands[i].name, &best))
			near = &commands[i];
	}
	usage_error(context, near ? "%s: no such command; did you mean %s?" : "%s: no such command",
		    log_escape(name, shown, sizeof(shown)), near ? near->name : "");
}

/* An answer of which a part was not written does not end with 0. */
static int written(int status)
{
	errno = 0;
	if ((fflush(stdout) == 0 && !ferror(stdout)) || status != EXIT_FINE)
		return status;
	fprintf(stderr, "kvtierctl: cannot write: %s\n", errno ? strerror(errno) : "an error");
	return EXIT_FAILED;
}

int main(int argc, char **argv)
{
	struct context context = { 0 };
	char *program = argv[0];

	(void)signal(SIGBUS, on_sigbus);
	if (argc == 2 && strcmp(argv[1], "--man") == 0) {
		print_man();
		return EXIT_FINE;
	}
	if (argc == 3 && strcmp(argv[1], "--completion") == 0) {
		print_completion(strcmp(argv[2], "zsh") == 0);
		return EXIT_FINE;
	}
	/* errors have the form that is asked for, wherever among the words they are */
	for (int i = 1; i < argc; i++)
		context.json = context.json || strcmp(argv[i], "--json") == 0;
	default_socket(&context);
	if (context_option(&context, argc, argv)) {
		puts("kvtierctl " KVTIER_VERSION);
		return EXIT_FINE;
	}
	if (optind == argc && context.json)
		usage_error(&context, "a command is missing");
	if (optind == argc) {
		print_outline(stderr);
		return EXIT_USAGE;
	}
	context.command = find_command(&context, argv[optind]);
	argc -= optind;
	argv += optind;
	optind = 0; /* glibc: start over, with the command's own arguments */
	argv[0] = program;
	return written(context.command->run(&context, argc, argv));
}
