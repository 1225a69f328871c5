/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_top.c - `kvtierctl top`: the page of `stats`, then engines, links and the slowest ops,
 * drawn again each second on a terminal, by the escape sequences that all of them know.
 *
 * A page is printed into memory first, so that it can be cut to the lines of the screen. Sentences
 * about errors are part of it.
 */
#include <json-c/json.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/clock.h"
#include "daemon/stats/stats.h"
#include "kvtierctl_admin.h"
#include "kvtierctl_stats.h"

enum {
	EVERY_MS = 1000,
	ONCE_LINES = 60, /* of a page that is not on a screen */
	SLOW_LINES = 5,  /* at most */
	SLOW_EVERY = 5,  /* pages: the list is long, and changes seldom */
	ROWS = 256,      /* of a list that are compared */
};

struct top {
	const struct context *context;
	uint64_t at_ns; /* of the page before; 0: none */
	uint64_t pages;
	double seconds;                               /* since the page before; 0: since ever */
	struct json_object *clients, *devices, *slow; /* as of that page; NULL: none */
};

/* How much a counter of a row has grown since the page before. */
static uint64_t growth(struct json_object *row, struct json_object *before, const char *id,
		       const char *member)
{
	const uint64_t now = number_at(row, member);

	for (size_t i = 0; i < (before ? json_object_array_length(before) : 0); i++) {
		struct json_object *old = json_object_array_get_idx(before, i);

		if (number_at(old, id) == number_at(row, id))
			return now >= number_at(old, member) ? now - number_at(old, member) : now;
	}
	return now;
}

static void rate_cell(struct table *table, const struct top *top, uint64_t value, bool bytes)
{
	const double rate = top->seconds > 0 ? (double)value / top->seconds : (double)value;
	char text[32], shown[40];

	snprintf(shown, sizeof(shown), "%s%s",
		 bytes ? text_bytes(whole_number(rate), text, sizeof(text)) :
			 text_count(rate, text, sizeof(text)),
		 top->seconds > 0 ? "/s" : "");
	table_cell(table, shown);
}

struct moved {
	struct json_object *row;
	uint64_t n;
};

static int more_first(const void *a, const void *b)
{
	const uint64_t x = ((const struct moved *)a)->n, y = ((const struct moved *)b)->n;

	return x < y ? 1 : x > y ? -1 : 0;
}

/* A list of which the rows are shown whose two counters moved most. */
struct movers {
	const char *titles, *members[5]; /* three texts or numbers, then the counters */
	const char *id;                  /* the number of a row */
	bool bytes;                      /* of these are the counters */
};

static bool is_shown(struct json_object *row)
{
	const char *state = text_at(row, "state");

	return strcmp(state, "refused") != 0 && strcmp(state, "absent") != 0 &&
	       strcmp(text_at(row, "kind"), "cpu") != 0;
}

/* Prints a blank line and a table, in at most so many lines together. */
static void print_moved(const struct top *top, const struct movers *movers,
			struct json_object *rows, struct json_object *before, size_t lines)
{
	enum { TEXTS = 3, COLUMNS = 5 };
	struct moved moved[ROWS];
	struct table *table;
	size_t n = 0;

	for (size_t i = 0; i < json_object_array_length(rows) && n < ROWS; i++) {
		struct json_object *row = json_object_array_get_idx(rows, i);

		if (!is_shown(row))
			continue;
		moved[n] = (struct moved){ .row = row };
		for (size_t k = TEXTS; k < COLUMNS; k++)
			moved[n].n += growth(row, before, movers->id, movers->members[k]);
		n++;
	}
	if (n == 0 || lines < 3)
		return;
	qsort(moved, n, sizeof(moved[0]), more_first);
	table = table_new("lllrr", movers->titles);
	for (size_t i = 0; i < n && i + 2 < lines; i++) {
		struct json_object *row = moved[i].row;

		for (size_t k = 0; k < TEXTS; k++)
			table_cell(table, text_at(row, movers->members[k]));
		for (size_t k = TEXTS; k < COLUMNS; k++)
			rate_cell(table, top, growth(row, before, movers->id, movers->members[k]),
				  movers->bytes);
	}
	putchar('\n');
	table_print(table);
}

static void print_slow(struct json_object *rows, size_t lines)
{
	uint64_t op = UINT64_MAX;
	size_t n = 0;

	for (size_t i = 0; i < json_object_array_length(rows) && n < SLOW_LINES && n + 2 < lines;
	     i++) {
		struct json_object *row = json_object_array_get_idx(rows, i);

		if (number_at(row, "op") == op)
			continue;
		op = number_at(row, "op");
		if (n++ == 0)
			puts("\nSLOWEST OPS OF THE LAST HOUR");
		print_slow_op(row);
	}
}

/* Lines that are left under what was printed so far. */
static size_t lines_left(const char *text, size_t lines)
{
	size_t n = 0;

	for (; *text != '\0'; text++)
		n += *text == '\n';
	return n < lines ? lines - n : 0;
}

/* Asks for a list and keeps it in *kept; the list of the page before is the caller's. */
static struct json_object *ask_again(struct top *top, const char *name, struct json_object **kept)
{
	struct json_object *before = *kept;

	*kept = NULL;
	(void)ask_list(top->context, name, kept);
	return before;
}

/* The lists that the daemon has, each on at most half of the lines that are left. */
static void print_lists(struct top *top, char *const *text, size_t lines)
{
	static const struct movers clients = {
		.titles = "CLIENT|TENANT|PROCESS|LOADED|STORED",
		.members = { "name", "tenant", "pid", "loaded_blocks", "stored_blocks" },
		.id = "id",
	}, gpus = {
		.titles = "GPU|STATE|UUID|IN|OUT",
		.members = { "name", "state", "uuid", "copied_in_bytes_total",
			     "copied_out_bytes_total" },
		.id = "device",
		.bytes = true,
	};
	struct json_object *before;

	if (top->pages % SLOW_EVERY == 0)
		json_object_put(ask_again(top, "slowlog", &top->slow));
	before = ask_again(top, "devices", &top->devices);
	fflush(stdout);
	if (top->devices)
		print_moved(top, &gpus, top->devices, before, lines_left(*text, lines) / 2);
	json_object_put(before);
	before = ask_again(top, "clients", &top->clients);
	fflush(stdout);
	if (top->clients)
		print_moved(top, &clients, top->clients, before, lines_left(*text, lines) / 2 + 1);
	json_object_put(before);
	fflush(stdout);
	if (top->slow)
		print_slow(top->slow, lines_left(*text, lines));
}

/* The page as a text, which the caller frees; the exit status. */
static int make_page(struct top *top, size_t lines, char **ret)
{
	FILE *const out = stdout, *const err = stderr;
	const uint64_t now_ns = clock_ns();
	size_t bytes;
	FILE *page = open_memstream(ret, &bytes);
	uint64_t health;
	int r;

	if (!page)
		return tell_error(top->context, EXIT_FAILED, "out of memory");
	stdout = stderr = page;
	top->seconds = top->at_ns > 0 ? (double)(now_ns - top->at_ns) / 1e9 : 0;
	top->at_ns = now_ns;
	r = stats_page_print(top->context, &health);
	fflush(page);
	if (r == EXIT_FINE && health >> STATS_HEALTH_STOPPED == 0) /* nor silent, nor dead */
		print_lists(top, ret, lines);
	top->pages++;
	stdout = out;
	stderr = err;
	(void)fclose(page);
	return r;
}

/* One page for programs: the numbers of stats, and the lists whole. */
static int print_json(const struct context *context)
{
	static const char *const names[] = { "devices", "clients", "slowlog" };
	struct json_object *rows[3] = { NULL };
	const struct stats *stats;
	int r = EXIT_FINE;
	bool asks;

	if (stats_map(context->stats_path, &stats) < 0)
		return stats_json_print(context); /* says why */
	asks = stats_health(stats, clock_ns()) >> STATS_HEALTH_STOPPED == 0;
	stats_unmap(stats);
	for (size_t i = 0; i < 3 && asks && r == EXIT_FINE; i++)
		r = ask_list(context, names[i], &rows[i]);
	if (r == EXIT_FINE) {
		fputs("{\"stats\":", stdout);
		r = stats_json_print(context);
		for (size_t i = 0; i < 3 && asks; i++)
			printf(",\"%s\":%s", names[i],
			       json_object_to_json_string_ext(rows[i], JSON_C_TO_STRING_PLAIN));
		puts("}");
	}
	for (size_t i = 0; i < 3; i++)
		json_object_put(rows[i]);
	return r;
}

/* --- the screen --- */

static volatile sig_atomic_t ended;

static void on_signal(int signal_number)
{
	(void)signal_number;
	ended = 1;
}

static size_t screen_lines(void)
{
	struct winsize size;

	return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 ? size.ws_row : 24;
}

/* Writes the page over the one before, line by line, so that the screen does not flicker. */
static void draw(const char *text, size_t lines)
{
	fputs("\033[H", stdout);
	for (size_t i = 1; i < lines && *text != '\0'; i++) {
		const size_t length = strcspn(text, "\n");

		printf("%.*s\033[K\r\n", (int)length, text);
		text += length + (text[length] == '\n');
	}
	fputs("\033[Jq: quit", stdout);
	fflush(stdout);
}

/* Waits for the time of the next page. False: the user wants no more. */
static bool next_page(void)
{
	struct pollfd key = { .fd = isatty(STDIN_FILENO) ? STDIN_FILENO : -1, .events = POLLIN };
	char c;

	return poll(&key, 1, EVERY_MS) <= 0 || read(key.fd, &c, 1) != 1 ||
	       (c != 'q' && c != 'Q' && c != 3 && c != 4);
}

static int redraw(struct top *top)
{
	const struct sigaction end = { .sa_handler = on_signal };
	struct termios before, raw;
	const bool keys = tcgetattr(STDIN_FILENO, &before) == 0;
	char *text = NULL;
	int r;

	raw = before;
	raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	if (keys)
		(void)tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	(void)sigaction(SIGINT, &end, NULL);
	(void)sigaction(SIGTERM, &end, NULL);
	(void)sigaction(SIGHUP, &end, NULL);
	/* another screen, no cursor, no line wrapped */
	fputs("\033[?1049h\033[?25l\033[?7l", stdout);
	do {
		const size_t lines = screen_lines();

		free(text);
		text = NULL;
		r = make_page(top, lines - 1, &text);
		if (text)
			draw(text, lines);
	} while (!ended && next_page() && !ended);
	fputs("\033[?7h\033[?25h\033[?1049l", stdout);
	if (keys)
		(void)tcsetattr(STDIN_FILENO, TCSANOW, &before);
	if (r != EXIT_FINE && text)
		fputs(text, stderr);
	free(text);
	return r;
}

int command_top(struct context *context, int argc, char **argv)
{
	struct top top = { .context = context };
	bool once = !isatty(STDOUT_FILENO);
	char *text = NULL;
	int r;

	while (context_option(context, argc, argv) != NULL)
		once = true;
	no_more_arguments(context, argc, argv);
	if (context->json)
		return print_json(context);
	if (once) {
		r = make_page(&top, ONCE_LINES, &text);
		if (text)
			fputs(text, r == EXIT_FINE ? stdout : stderr);
		free(text);
	} else {
		r = redraw(&top);
	}
	json_object_put(top.clients);
	json_object_put(top.devices);
	json_object_put(top.slow);
	return r;
}
