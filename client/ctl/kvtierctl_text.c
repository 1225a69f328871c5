/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_text.c - numbers, times and tables for people.
 */
#include "kvtierctl_text.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/json.h"
#include "daemon/base/log.h"
#include "daemon/base/text.h"
#include "kvtierctl.h"

uint64_t clock_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

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

/* Above all that fits: the most. A value of a page may be anything. */
uint64_t whole_number(double value)
{
	if (!(value > 0))
		return 0;
	return value < 18446744073709549568.0 ? (uint64_t)value : UINT64_MAX;
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

bool parse_bytes(const char *text, uint64_t *ret)
{
	static const char letters[] = "KMGT";
	const size_t digits = strspn(text, "0123456789");
	const char *unit = text + digits, *letter;
	uint64_t value = 0, factor = 1;

	if (digits == 0 || digits > 19)
		return false;
	for (size_t i = 0; i < digits; i++)
		value = value * 10 + (uint64_t)(text[i] - '0');
	if (*unit != '\0') {
		letter = strchr(letters, *unit);
		if (!letter || (unit[1] != '\0' && strcmp(unit + 1, "iB") != 0))
			return false;
		factor <<= 10 * (letter - letters + 1);
	}
	return !__builtin_mul_overflow(value, factor, ret) && *ret > 0;
}

void print_json_string(const char *text)
{
	char quoted[2048];
	struct json json;

	json_start(&json, quoted, sizeof(quoted));
	json_string(&json, text);
	assert(!json.full);
	fputs(quoted, stdout);
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

struct table *table_new(size_t columns)
{
	struct table *table = must(calloc(1, sizeof(*table)));

	table->columns = columns;
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

void table_print(struct table *table, const bool *right)
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
		const int blank = widths[column] - text_columns(table->cells[i]);

		if (right[column])
			printf("%*s", blank, "");
		fputs(table->cells[i], stdout);
		if (!last)
			printf("%*s", (right[column] ? 0 : blank) + 2, "");
		else
			putchar('\n');
		free(table->cells[i]);
	}
	free(widths);
	free(table->cells);
	free(table);
}
