/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_stats.c - the numbers of the stats page, once or again and again: as the page for
 * people that kvtierctl_page.c makes, as a list, or as JSON.
 */
#include <fnmatch.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/base/log.h"
#include "daemon/stats/stats.h"
#include "kvtierctl_page.h"
#include "kvtierctl_status.h"
#include "kvtierctl_text.h"

enum { MAX_GLOBS = 16, MAX_ROWS = 512 };

struct view {
	const char *globs[MAX_GLOBS];
	size_t n_globs;
	bool list, all, watch, counted;
	double every_s;
	uint64_t count;
	/* as of the time before, for rates */
	uint64_t before[MAX_ROWS];
	uint64_t before_ns, before_start_ns;
	struct page_sample page;
};

static bool selected(const struct view *view, const char *path)
{
	for (size_t i = 0; i < view->n_globs; i++) {
		if (fnmatch(view->globs[i], path, 0) == 0)
			return true;
	}
	return view->n_globs == 0;
}

/* The texts of the page: no rows of the table, for they are no numbers. */
static const struct text_row {
	const char *path, *after; /* stands behind this row */
	const char *prose;
	size_t offset, bytes; /* in struct stats */
} text_rows[] = {
	{ "tiers.nvme.engine", "tiers.nvme.state", "What does the I/O: io_uring, threads, or both",
	  offsetof(struct stats, nvme_engine), STATS_NAME_BYTES },
	{ "tiers.nvme.text", "tiers.nvme.state",
	  "Why the nvme tier is not up, or not as it should be", offsetof(struct stats, nvme_text),
	  STATS_TEXT_BYTES },
	{ "tiers.redis.text", "tiers.redis.state",
	  "Why the redis tier is not up, or not as it should be",
	  offsetof(struct stats, redis_text), STATS_TEXT_BYTES },
};
enum { TEXT_ROWS = sizeof(text_rows) / sizeof(text_rows[0]) };

static char *text_of(const struct stats *stats, const struct text_row *row, char *ret)
{
	return stats_text_get((const char *)stats + row->offset, row->bytes, ret);
}

static void print_list(const struct view *view)
{
	static const bool right[4] = { false };
	const struct stats_row *rows;
	const size_t n = stats_rows(&rows);
	struct table *table = table_new(4);

	for (size_t i = 0; i < n; i++) {
		if (!selected(view, rows[i].path))
			continue;
		table_cell(table, rows[i].path);
		table_cell(table, stats_kind_name(rows[i].kind));
		table_cell(table, rows[i].unit);
		table_cell(table, rows[i].prose);
	}
	for (size_t i = 0; i < TEXT_ROWS; i++) {
		if (!selected(view, text_rows[i].path))
			continue;
		table_cell(table, text_rows[i].path);
		table_cell(table, "text");
		table_cell(table, "");
		table_cell(table, text_rows[i].prose);
	}
	table_print(table, right);
}

/* --- JSON: dots in a path are objects; rows with a common prefix stand together in the table
 * --- */

struct writer {
	const char *open; /* the path last written; its groups are open */
	bool comma;
};

static size_t groups_of(const char *path)
{
	size_t n = 0;

	for (; *path != '\0'; path++)
		n += *path == '.';
	return n;
}

/* Leading groups that both paths are in. */
static size_t common_groups(const char *a, const char *b)
{
	size_t n = 0;

	for (size_t i = 0; a[i] != '\0' && a[i] == b[i]; i++)
		n += a[i] == '.';
	return n;
}

static void json_name(struct writer *w, const char *path)
{
	const size_t common = common_groups(w->open, path);
	size_t depth = groups_of(w->open);

	for (; depth > common; depth--) {
		putchar('}');
		w->comma = true;
	}
	for (size_t i = 0; i < common; i++)
		path = strchr(path, '.') + 1;
	for (const char *dot; (dot = strchr(path, '.')) != NULL; path = dot + 1) {
		printf("%s\"%.*s\":{", w->comma ? "," : "", (int)(dot - path), path);
		w->comma = false;
	}
	printf("%s\"%s\":", w->comma ? "," : "", path);
	w->comma = true;
}

static void json_health(struct writer *w, const struct view *view, uint64_t health)
{
	const char *comma = "";

	if (selected(view, "health")) {
		printf("%s\"health\":\"%s\"", w->comma ? "," : "", stats_health_word(health));
		w->comma = true;
	}
	if (!selected(view, "health_reasons"))
		return;
	printf("%s\"health_reasons\":[", w->comma ? "," : "");
	for (unsigned bit = 0; bit < STATS_HEALTH_COUNT; bit++) {
		if ((health >> bit & 1) == 0)
			continue;
		printf("%s\"%s\"", comma, stats_health_row(bit)->name);
		comma = ",";
	}
	putchar(']');
	w->comma = true;
}

static void json_texts(struct writer *w, const struct stats *stats, const struct view *view,
		       const char *after)
{
	char text[STATS_TEXT_BYTES];

	for (size_t i = 0; i < TEXT_ROWS; i++) {
		if (strcmp(text_rows[i].after, after) != 0 || !selected(view, text_rows[i].path))
			continue;
		json_name(w, text_rows[i].path);
		w->open = text_rows[i].path;
		print_json_string(text_of(stats, &text_rows[i], text));
	}
}

static void json_number(struct writer *w, const struct stats *stats, const struct stats_row *row)
{
	const uint64_t value = stats_value(stats, row);
	char name[32];

	json_name(w, row->path);
	w->open = row->path;
	if (row->kind == STATS_STATE)
		printf("\"%s\"", stats_state_name(row, value, name, sizeof(name)));
	else
		printf("%" PRIu64, value);
}

static void print_json(const struct stats *stats, const struct view *view)
{
	const uint64_t health = stats_health(stats, clock_ns());
	struct writer w = { .open = "" };
	const struct stats_row *rows;
	const size_t n = stats_rows(&rows);

	putchar('{');
	if (selected(view, "schema_version")) {
		printf("\"schema_version\":%d", STATS_SCHEMA_VERSION);
		w.comma = true;
	}
	json_health(&w, view, health);
	for (size_t i = 0; i < n; i++) {
		if (selected(view, rows[i].path))
			json_number(&w, stats, &rows[i]);
		json_texts(&w, stats, view, rows[i].path);
	}
	for (size_t depth = groups_of(w.open); depth > 0; depth--)
		putchar('}');
	printf("}\n");
}

/* --- text --- */

static void text_rate(const struct stats_row *row, uint64_t value, const struct view *view,
		      size_t i, uint64_t now_ns, char *ret, size_t n)
{
	const double seconds = (double)(now_ns - view->before_ns) / 1e9;
	double rate;

	ret[0] = '\0';
	if (row->kind != STATS_COUNTER || view->before_ns == 0 || value < view->before[i] ||
	    seconds <= 0)
		return;
	rate = (double)(value - view->before[i]) / seconds;
	if (strcmp(row->unit, "bytes") == 0) {
		text_bytes(whole_number(rate), ret, n);
		snprintf(ret + strlen(ret), n - strlen(ret), "/s");
	} else {
		snprintf(ret, n, rate < 100 ? "%.1f/s" : "%.0f/s", rate);
	}
}

static void text_value(const struct stats_row *row, uint64_t value, struct table *table)
{
	char text[64];

	if (row->kind == STATS_STATE) {
		table_cell(table, stats_state_name(row, value, text, sizeof(text)));
		table_cell(table, "");
		return;
	}
	snprintf(text, sizeof(text), "%" PRIu64, value);
	table_cell(table, text);
	/* "s" and "bytes" say something; the other units are in the name */
	if (strcmp(row->unit, "bytes") == 0)
		table_cell(table, text_bytes(value, text, sizeof(text)));
	else
		table_cell(table,
			   strcmp(row->unit, "s") == 0 ? text_age(value, text, sizeof(text)) : "");
}

static void print_text(const struct stats *stats, const struct view *view, uint64_t now_ns)
{
	static const bool right[4] = { false, true, true, true };
	const uint64_t health = stats_health(stats, now_ns);
	const struct stats_row *rows;
	const size_t n = stats_rows(&rows);
	struct table *table = table_new(view->watch ? 4 : 3);
	char line[256], rate[64], text[STATS_TEXT_BYTES], shown[4 * STATS_TEXT_BYTES];

	printf("%s: %s\n", daemon_line(stats, line, sizeof(line)), stats_health_word(health));
	for (unsigned bit = 0; bit < STATS_HEALTH_COUNT; bit++) {
		if ((health >> bit & 1) != 0)
			printf("  %s: %s\n", stats_health_row(bit)->name,
			       stats_health_row(bit)->prose);
	}
	for (size_t i = 0; i < TEXT_ROWS; i++) {
		(void)text_of(stats, &text_rows[i], text);
		if (text[0] != '\0' && selected(view, text_rows[i].path))
			printf("  %s: %s\n", text_rows[i].path,
			       log_escape(text, shown, sizeof(shown)));
	}
	for (size_t i = 0; i < n; i++) {
		const uint64_t value = stats_value(stats, &rows[i]);

		if (!selected(view, rows[i].path))
			continue;
		table_cell(table, rows[i].path);
		text_value(&rows[i], value, table);
		if (view->watch) {
			text_rate(&rows[i], value, view, i, now_ns, rate, sizeof(rate));
			table_cell(table, rate);
		}
	}
	table_print(table, right);
}

/* Another daemon since: nothing to compare with. */
static void remember(const struct stats *stats, struct view *view, uint64_t now_ns)
{
	const struct stats_row *rows;
	const size_t n = stats_rows(&rows);

	for (size_t i = 0; i < n && i < MAX_ROWS; i++)
		view->before[i] = stats_value(stats, &rows[i]);
	view->before_ns = now_ns;
	view->before_start_ns = stats->start_monotonic_ns;
}

static int print_once(const struct context *context, struct view *view)
{
	const struct stats *stats = stats_page(context);
	const uint64_t now_ns = clock_ns();

	if (!stats)
		return EXIT_NO_DAEMON;
	if (view->before_start_ns != stats->start_monotonic_ns)
		view->before_ns = 0;
	if (context->json)
		print_json(stats, view);
	else if (view->all)
		print_text(stats, view, now_ns);
	else
		page_print(stats, &view->page, now_ns);
	remember(stats, view, now_ns);
	stats_unmap(stats);
	/* a reader that closed the pipe (head) ends the watching */
	return fflush(stdout) == 0 ? EXIT_FINE : EXIT_FAILED;
}

static int watch(const struct context *context, struct view *view)
{
	const time_t whole = (time_t)view->every_s;
	const struct timespec pause = { whole, (long)((view->every_s - (double)whole) * 1e9) };

	for (uint64_t i = 0; !view->counted || i < view->count; i++) {
		int r;

		if (i > 0) {
			(void)nanosleep(&pause, NULL);
			if (!context->json)
				putchar('\n');
		}
		r = print_once(context, view);
		if (r != EXIT_FINE)
			return r;
	}
	return EXIT_FINE;
}

static void parse_seconds(const struct context *context, const char *text, struct view *view)
{
	char *end;

	view->watch = true;
	view->every_s = 1;
	if (!text)
		return;
	view->every_s = strtod(text, &end);
	if (end == text || *end != '\0' || !(view->every_s >= 0.1 && view->every_s <= 86400))
		usage_error(context, "--watch=%s: seconds from 0.1 to 86400", text);
}

static void parse_count(const struct context *context, const char *text, struct view *view)
{
	const size_t digits = strspn(text, "0123456789");

	if (digits == 0 || digits > 9 || text[digits] != '\0' || strtoul(text, NULL, 10) == 0)
		usage_error(context, "--count %s: a number from 1 to 999999999", text);
	view->count = strtoul(text, NULL, 10);
	view->counted = true;
}

static void check_globs(const struct context *context, const struct view *view)
{
	const struct stats_row *rows;
	const size_t n = stats_rows(&rows);
	bool any = selected(view, "schema_version") || selected(view, "health") ||
		   selected(view, "health_reasons");

	for (size_t i = 0; i < n && !any; i++)
		any = selected(view, rows[i].path);
	for (size_t i = 0; i < TEXT_ROWS && !any; i++)
		any = selected(view, text_rows[i].path);
	if (!any)
		usage_error(context, "-f %s matches no name; kvtierctl stats --list shows them",
			    view->globs[0]);
}

int command_stats(struct context *context, int argc, char **argv)
{
	static const struct option options[] = {
		{ "watch", optional_argument, NULL, 'w' },
		{ "count", required_argument, NULL, 'c' },
		{ "filter", required_argument, NULL, 'f' },
		{ "list", no_argument, NULL, 'l' },
		{ "all", no_argument, NULL, 'a' },
		{ 0 },
	};
	static struct view view; /* large, and one */
	int option;

	while ((option = context_option(context, argc, argv, "f:", options)) != -1) {
		if (option == 'w')
			parse_seconds(context, optarg, &view);
		else if (option == 'c')
			parse_count(context, optarg, &view);
		else if (option == 'l')
			view.list = true;
		else if (option == 'a')
			view.all = true;
		else if (view.n_globs == MAX_GLOBS)
			usage_error(context, "at most %d -f", (int)MAX_GLOBS);
		else
			view.globs[view.n_globs++] = optarg;
	}
	no_more_arguments(context, argc, argv);
	view.all = view.all || view.n_globs > 0;
	check_globs(context, &view);
	if (view.list) {
		print_list(&view);
		return EXIT_FINE;
	}
	if (view.counted && !view.watch)
		parse_seconds(context, NULL, &view);
	return view.watch ? watch(context, &view) : print_once(context, &view);
}
