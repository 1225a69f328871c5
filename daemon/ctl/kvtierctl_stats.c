/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_stats.c - the numbers of the stats page: as a page for people, as a list, or as JSON.
 * The page for people has at most 80 columns. It covers the time since the daemon's start, or in
 * `top` the time since the page before; each page says which. State, fill and clients are as of
 * now.
 */
#include "kvtierctl_stats.h"

#include <fnmatch.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "client/abi/tbl_hints.h"
#include "kvtierctl_status.h"

/* --- numbers for people --- */

/* The numbers as they were at one moment. Zeroed: none yet. */
struct page_sample {
	uint64_t at_ns, start_ns; /* CLOCK_MONOTONIC; start_ns tells one daemon from the next */
	struct stats_values v;
};

/* The figures of the time that a page covers. */
struct span {
	double seconds;
	bool from_start;
	struct stats_values v; /* counters, histograms: their growth. Gauges mean nothing here */
};

char *text_count(double value, char *ret, size_t n)
{
	static const char units[] = "kMGTPE";
	int unit = -1;

	if (value < 999999.5) {
		const bool whole = value >= 99.95 || value == (double)whole_number(value);

		snprintf(ret, n, whole ? "%.0f" : "%.1f", value);
		return ret;
	}
	for (; value >= 999.5 && units[unit + 1] != '\0'; unit++)
		value /= 1000;
	snprintf(ret, n, value < 99.95 ? "%.1f %c" : "%.0f %c", value, units[unit]);
	return ret;
}

/* --- the time that is covered --- */

/* Copies the page's numbers one by one, since the daemon writes them meanwhile. */
static void values_copy(const struct stats_values *from, struct stats_values *to)
{
	for (size_t i = 0; i < sizeof(*from) / sizeof(uint64_t); i++)
		((uint64_t *)to)[i] = stats_get(&((const uint64_t *)from)[i]);
}

/* The figures of the time since *before, which becomes the numbers as of now. */
static void span_of(const struct stats *stats, struct page_sample *before, uint64_t now_ns,
		    struct span *ret)
{
	struct page_sample now = { .at_ns = now_ns, .start_ns = stats->start_monotonic_ns };
	const uint64_t beat_ns = stats_get(&stats->heartbeat_ns);
	uint64_t from_ns = before->at_ns;

	if (before->start_ns != now.start_ns)
		*before = (struct page_sample){ 0 };
	ret->from_start = before->start_ns == 0;
	/* the time of a daemon that is dead or stopped ended with its last heartbeat */
	if (ret->from_start) {
		from_ns = now.start_ns;
		now_ns = beat_ns;
	}
	ret->seconds = now_ns > from_ns ? (double)(now_ns - from_ns) / 1e9 : 0;
	values_copy(&stats->v, &now.v);
	for (size_t i = 0; i < sizeof(now.v) / sizeof(uint64_t); i++)
		((uint64_t *)&ret->v)[i] = ((uint64_t *)&now.v)[i] - ((uint64_t *)&before->v)[i];
	*before = now;
}

static char *span_words(const struct span *span, char *ret, size_t n)
{
	char age[32];

	if (span->from_start)
		snprintf(ret, n, "since the start %s ago",
			 text_age(whole_number(span->seconds), age, sizeof(age)));
	else
		snprintf(ret, n, "in the last %.1f s", span->seconds);
	return ret;
}

/* --- loads and stores --- */

/* Shows "-" for a daemon that starts and has measured no time yet. */
static void per_second(struct table *table, const struct span *span, uint64_t value, bool bytes)
{
	const double rate = (double)value / (span->seconds > 0 ? span->seconds : 1);
	char text[32], shown[40];

	if (span->seconds <= 0) {
		table_cell(table, "-");
		return;
	}
	if (bytes)
		text_bytes(whole_number(rate), text, sizeof(text));
	else
		text_count(rate, text, sizeof(text));
	snprintf(shown, sizeof(shown), "%s/s", text);
	table_cell(table, shown);
}

static void op_row(struct table *table, const char *name, const struct span *span, uint64_t blocks,
		   uint64_t bytes, const struct histogram *times)
{
	char text[32];

	table_cell(table, name);
	table_cell(table, text_count((double)histogram_total(times), text, sizeof(text)));
	table_cell(table, text_count((double)blocks, text, sizeof(text)));
	per_second(table, span, blocks, false);
	table_cell(table, text_bytes(bytes, text, sizeof(text)));
	per_second(table, span, bytes, true);
}

static void print_ops(const struct span *span)
{
	struct table *table = table_new("lrrrrr", "|OPS|BLOCKS|RATE|BYTES|RATE");

	op_row(table, "load", span, span->v.load_blocks_total, span->v.load_logical_bytes_total,
	       &span->v.load_duration_ns);
	op_row(table, "store", span, span->v.store_blocks_total, span->v.store_logical_bytes_total,
	       &span->v.store_duration_ns);
	table_print(table);
}

enum { PERCENTILES = 3 };
static const unsigned percentiles[PERCENTILES] = { 50, 90, 99 };

static char *percentile(const struct stats_row *row, const struct histogram *times, size_t i,
			char *ret, size_t n)
{
	return text_time(histogram_percentile(times, percentiles[i]) * stats_unit_ns(row), ret, n);
}

/* Prints the histograms that have a time. Their names are without the unit here. */
static void print_times(const struct span *span)
{
	struct table *table = table_new("lrrrr", "TIMES|COUNT|P50|P90|P99");
	const struct stats_row *rows;
	const size_t n = stats_rows(&rows);
	char text[64];

	for (size_t i = 0; i < n; i++) {
		const struct histogram *times;
		uint64_t total;

		if (rows[i].kind != STATS_HISTOGRAM)
			continue;
		times = stats_histogram(&span->v, &rows[i]);
		total = histogram_total(times);
		if (total == 0)
			continue;
		snprintf(text, sizeof(text), "%.*s",
			 (int)(strrchr(rows[i].path, '_') - rows[i].path), rows[i].path);
		table_cell(table, text);
		table_cell(table, text_count((double)total, text, sizeof(text)));
		for (size_t p = 0; p < PERCENTILES; p++)
			table_cell(table, percentile(&rows[i], times, p, text, sizeof(text)));
	}
	table_print(table);
}

/* The rate is of lookups. Engines load what they have found, so nearly all that they load is
 * there. */
static void hit_rate(const struct stats_values *v)
{
	const uint64_t asked = v->lookup_requested_blocks_total;
	const struct {
		const char *name;
		uint64_t blocks;
	} results[] = {
		{ "gpu", v->lookup_gpu_blocks_total },
		{ "host", v->lookup_host_blocks_total },
		{ "nvme", v->lookup_nvme_blocks_total },
		{ "redis", v->lookup_redis_blocks_total },
		{ "missing", v->lookup_miss_blocks_total },
	};
	char line[256], percent[32], count[32];
	size_t n;

	if (asked == 0) {
		printf("Hit rate: none, as nothing was looked up.\n");
		return;
	}
	n = (size_t)snprintf(line, sizeof(line), "Hit rate: %s of %s blocks that were looked up",
			     text_percent(v->lookup_hit_blocks_total, asked, percent,
					  sizeof(percent)),
			     text_count((double)asked, count, sizeof(count)));
	for (size_t i = 0, shown = 0; i < sizeof(results) / sizeof(results[0]); i++)
		if (results[i].blocks > 0)
			n += (size_t)snprintf(line + n, sizeof(line) - n, "%s %s %s",
					      shown++ ? "," : ":", results[i].name,
					      text_percent(results[i].blocks, asked, percent,
							   sizeof(percent)));
	text_wrap(stdout, line, 0, 0, TEXT_WIDTH);
}

/* Prints a sentence for each trouble in the time that the page covers, and for each queue that is
 * not empty. */
static void print_trouble(const struct span *span, const struct stats_values *now)
{
	const struct {
		uint64_t count;
		const char *what;
	} troubles[] = {
		{ span->v.load_failed_blocks_total, "blocks were there and not given back." },
		{ span->v.store_dropped_blocks_total, "blocks were offered and not kept." },
		{ span->v.load_sparse_blocks_total + span->v.store_sparse_blocks_total,
		  "blocks had pages that their engine had not allocated." },
		{ span->v.ops_timed_out_total, "ops reached their deadline." },
		{ span->v.ops_canceled_total, "ops were cancelled." },
		{ span->v.clients_refused_total, "connections were refused." },
		{ span->v.protocol_errors_total,
		  "connections were ended for breaking the protocol." },
		{ now->tiers_nvme_queued_blocks, "blocks wait to be written to NVMe." },
		{ now->tiers_redis_queued_blocks, "blocks wait to be written to Redis." },
	};
	char count[32];

	for (size_t i = 0; i < sizeof(troubles) / sizeof(troubles[0]); i++) {
		if (troubles[i].count > 0)
			printf("%s %s\n",
			       text_count((double)troubles[i].count, count, sizeof(count)),
			       troubles[i].what);
	}
}

/* Prints how many blocks got each answer, whatever the action of the hint was. */
static void print_hints(const struct span *span)
{
	char line[160], count[32];
	size_t n = 0;

#define ANSWERED(name, number, prose)                                                         \
	if (span->v.hints_##name##_blocks_total > 0)                                          \
		n += (size_t)snprintf(line + n, sizeof(line) - n, "%s %s %s",                 \
				      n > 0 ? "," : "Hints:",                                 \
				      text_count((double)span->v.hints_##name##_blocks_total, \
						 count, sizeof(count)),                       \
				      #name);
	HINT_ANSWERS(ANSWERED)
	if (n > 0)
		text_wrap(stdout, line, 0, 0, TEXT_WIDTH);
}

/* What other sizes of host memory would do, as of now: policy/reuse.h. */
static void print_curve(const struct stats_values *now)
{
	const uint64_t all = 1000000;
	char half[32], same[32], twice[32], four[32], quarter[32], hour[32], day[32], line[320];

	if (now->reuse_sampled_keys == 0)
		return;
#define HITS(size, to)   text_percent(all - now->miss_ratio_##size##_ppm, all, to, sizeof(to))
#define USED(window, to) text_bytes(now->working_set_##window##_bytes, to, sizeof(to))
	snprintf(line, sizeof(line),
		 "Host memory would have %s of the blocks that are used, if it had half its "
		 "size; %s with its size, %s with twice and %s with four times as much.",
		 HITS(half, half), HITS(same, same), HITS(twice, twice), HITS(four_times, four));
	text_wrap(stdout, line, 0, 0, TEXT_WIDTH);
	snprintf(line, sizeof(line),
		 "Working set: %s of the last 15 minutes, %s of the last hour, %s of the last day.",
		 USED(15m, quarter), USED(1h, hour), USED(24h, day));
	text_wrap(stdout, line, 0, 0, TEXT_WIDTH);
}

static void print_span(const struct span *span, const struct stats_values *now)
{
	const struct stats_values *v = &span->v;
	const uint64_t asked = v->load_blocks_total + v->load_missed_blocks_total;
	char words[64];

	span_words(span, words, sizeof(words));
	if (asked + v->lookup_requested_blocks_total + v->store_blocks_total +
		    v->store_present_blocks_total ==
	    0) {
		printf("Nothing was loaded, stored or looked up %s.\n", words);
	} else {
		printf("%c%s:\n\n", words[0] - 'a' + 'A', words + 1);
		print_ops(span);
		putchar('\n');
		print_times(span);
		putchar('\n');
		hit_rate(v);
		print_curve(now);
	}
	print_hints(span);
	print_trouble(span, now);
}

/* --- tiers --- */

static uint64_t value_at(const struct stats_values *v, size_t offset)
{
	return *(const uint64_t *)(const void *)((const char *)v + offset);
}

/* Where a tier's numbers are in struct stats_values. Redis has no capacity: this node does not know
 * how much other nodes keep there. */
static const struct tier_fields {
	const char *name;
	size_t state, hits, read, written;
	size_t capacity, used; /* 0: none */
} tiers[] = {
#define AT(name, field) offsetof(struct stats_values, tiers_##name##_##field)
#define TIER(name)                                                                      \
#name, AT(name, state), AT(name, hit_blocks_total), AT(name, read_bytes_total), \
		AT(name, written_bytes_total)
#define ROOM(name) AT(name, capacity_bytes), AT(name, used_bytes)
	{ TIER(gpu), ROOM(gpu) },
	{ TIER(host), ROOM(host) },
	{ TIER(nvme), ROOM(nvme) },
	{ TIER(redis), 0, 0 },
};
enum { TIERS = sizeof(tiers) / sizeof(tiers[0]) };

static void tier_row(struct table *table, const struct tier_fields *tier, const struct span *span,
		     const struct stats_values *now)
{
	const uint64_t asked = span->v.load_blocks_total + span->v.load_missed_blocks_total;
	const uint64_t hits = value_at(&span->v, tier->hits);
	const uint64_t capacity = tier->capacity ? value_at(now, tier->capacity) : 0;
	const uint64_t used = tier->used ? value_at(now, tier->used) : 0;
	char text[32];

	table_cell(table, tier->name);
	table_cell(table, status_state(now, tier->state, text, sizeof(text)));
	table_cell(table, text_count((double)hits, text, sizeof(text)));
	table_cell(table, text_percent(hits, asked, text, sizeof(text)));
	table_cell(table, text_bytes(value_at(&span->v, tier->read), text, sizeof(text)));
	table_cell(table, text_bytes(value_at(&span->v, tier->written), text, sizeof(text)));
	table_cell(table, text_percent(used, capacity, text, sizeof(text)));
	table_cell(table, capacity > 0 ? text_bytes(capacity, text, sizeof(text)) : "-");
}

static void print_tiers(const struct span *span, const struct stats_values *now)
{
	struct table *table = table_new("llrrrrrr", "TIER|STATE|HITS|SHARE|READ|WRITTEN|FILL|OF");

	for (size_t i = 0; i < TIERS; i++) {
		if (value_at(now, tiers[i].state) != STATS_TIER_OFF)
			tier_row(table, &tiers[i], span, now);
	}
	table_print(table);
}

/* --- the page --- */

static const char *amount(uint64_t value, const char *one, const char *many, char *ret, size_t n)
{
	char count[32];

	snprintf(ret, n, "%s %s", text_count((double)value, count, sizeof(count)),
		 value == 1 ? one : many);
	return ret;
}

static void print_now(const struct stats_values *now)
{
	char clients[48], spaces[48], ops[48], leases[48], known[48], line[320];

	snprintf(line, sizeof(line), "%s, %s, %s under way, %s in use, %s known",
		 amount(now->clients, "client", "clients", clients, sizeof(clients)),
		 amount(now->spaces, "space", "spaces", spaces, sizeof(spaces)),
		 amount(now->ops_outstanding, "op", "ops", ops, sizeof(ops)),
		 amount(now->leases, "block", "blocks", leases, sizeof(leases)),
		 amount(now->index_entries, "block", "blocks", known, sizeof(known)));
	text_wrap(stdout, line, 0, 0, TEXT_WIDTH);
	if (now->hints_noted_blocks == 0)
		return;
	snprintf(line, sizeof(line), "%s with hints, %s, %s retained or pinned",
		 amount(now->hints_noted_blocks, "block", "blocks", known, sizeof(known)),
		 amount(now->hints_sessions, "session", "sessions", spaces, sizeof(spaces)),
		 text_bytes(now->hints_kept_bytes, clients, sizeof(clients)));
	text_wrap(stdout, line, 0, 0, TEXT_WIDTH);
}

static void page_print(const struct stats *stats, uint64_t now_ns, uint64_t health)
{
	static struct page_sample before;
	static struct span span; /* large */

	span_of(stats, &before, now_ns, &span);
	status_print(stats, health, TEXT_WIDTH);
	putchar('\n');
	print_span(&span, &before.v);
	putchar('\n');
	print_tiers(&span, &before.v);
	putchar('\n');
	print_now(&before.v);
}

int stats_page_print(const struct context *context, uint64_t *ret_health)
{
	const struct stats *stats;
	const int r = status_page(context, &stats);
	const uint64_t now_ns = clock_ns();

	if (r != EXIT_FINE)
		return r;
	*ret_health = stats_health(stats, now_ns);
	page_print(stats, now_ns, *ret_health);
	stats_unmap(stats);
	return EXIT_FINE;
}

/* --- which numbers, and how --- */

enum { MAX_GLOBS = 16 };

struct view {
	const char *globs[MAX_GLOBS];
	size_t n_globs;
	bool list, all;
};

static bool selected(const struct view *view, const char *path)
{
	for (size_t i = 0; i < view->n_globs; i++) {
		if (fnmatch(view->globs[i], path, 0) == 0)
			return true;
	}
	return view->n_globs == 0;
}

/* The texts of the stats page, which are no rows of tbl_stats.h since they are no numbers. */
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
	const struct stats_row *rows;
	const size_t n = stats_rows(&rows);
	struct table *table = table_new("llll", NULL);

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
	table_print(table);
}

/* --- JSON --- */

static void json_health(struct json *json, const struct view *view, uint64_t health)
{
	const char *comma = "";

	if (selected(view, "health"))
		json_text(json, "health", stats_health_word(health));
	if (!selected(view, "health_reasons"))
		return;
	json_member(json, "health_reasons");
	json_print(json, "[");
	for (unsigned bit = 0; bit < STATS_HEALTH_COUNT; bit++) {
		if ((health >> bit & 1) == 0)
			continue;
		json_print(json, "%s\"%s\"", comma, stats_health_row(bit)->name);
		comma = ",";
	}
	json_print(json, "]");
}

static void json_texts(struct printer *w, const struct stats *stats, const struct view *view,
		       const char *after)
{
	char text[STATS_TEXT_BYTES];

	for (size_t i = 0; i < TEXT_ROWS; i++) {
		if (strcmp(text_rows[i].after, after) != 0 || !selected(view, text_rows[i].path))
			continue;
		printer_name(w, text_rows[i].path);
		json_string(&w->json, text_of(stats, &text_rows[i], text));
	}
}

/* "buckets" has [the longest time, how many] of each bucket that counts some. */
static void json_histogram(struct json *json, const struct histogram *times)
{
	const char *comma = "";
	char name[8];

	json_print(json, "{");
	json_number(json, "count", histogram_total(times));
	json_number(json, "sum", histogram_sum(times));
	for (size_t i = 0; i < PERCENTILES; i++) {
		snprintf(name, sizeof(name), "p%u", percentiles[i]);
		json_number(json, name, histogram_percentile(times, percentiles[i]));
	}
	json_member(json, "buckets");
	json_print(json, "[");
	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
		const uint64_t count = stats_get(&times->count[i]);

		if (count == 0)
			continue;
		json_print(json, "%s[%" PRIu64 ",%" PRIu64 "]", comma, histogram_longest(i), count);
		comma = ",";
	}
	json_print(json, "]}");
}

static void json_value(struct printer *w, const struct stats *stats, const struct stats_row *row)
{
	const uint64_t value = stats_value(stats, row);
	char name[32];

	printer_name(w, row->path);
	if (row->kind == STATS_HISTOGRAM)
		json_histogram(&w->json, stats_histogram(&stats->v, row));
	else if (row->kind == STATS_STATE)
		json_string(&w->json, stats_state_name(row, value, name, sizeof(name)));
	else
		json_print(&w->json, "%" PRIu64, value);
}

static void print_json(const struct stats *stats, const struct view *view)
{
	/* a number takes some 70 bytes, a bucket 36 at most */
	static char page[1 << 20];
	const uint64_t health = stats_health(stats, clock_ns());
	struct printer w = { .open = "" };
	const struct stats_row *rows;
	const size_t n = stats_rows(&rows);

	json_start(&w.json, page, sizeof(page));
	json_print(&w.json, "{");
	if (selected(view, "schema_version"))
		json_number(&w.json, "schema_version", STATS_SCHEMA_VERSION);
	json_health(&w.json, view, health);
	for (size_t i = 0; i < n; i++) {
		if (selected(view, rows[i].path))
			json_value(&w, stats, &rows[i]);
		json_texts(&w, stats, view, rows[i].path);
	}
	printer_end(&w);
}

/* --- text --- */

static void text_value(const struct stats_row *row, const struct stats *stats, struct table *table)
{
	const uint64_t value = stats_value(stats, row);
	char text[128], times[PERCENTILES][32];

	if (row->kind == STATS_HISTOGRAM) {
		const struct histogram *h = stats_histogram(&stats->v, row);

		snprintf(text, sizeof(text), "%" PRIu64, histogram_total(h));
		table_cell(table, text);
		for (size_t i = 0; i < PERCENTILES; i++)
			(void)percentile(row, h, i, times[i], sizeof(times[i]));
		snprintf(text, sizeof(text), "p50 %s, p90 %s, p99 %s", times[0], times[1],
			 times[2]);
		table_cell(table, text);
		return;
	}
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

static void print_numbers(const struct stats *stats, const struct view *view, uint64_t now_ns)
{
	const struct stats_row *rows;
	const size_t n = stats_rows(&rows);
	struct table *table = table_new("lrr", NULL);
	char text[STATS_TEXT_BYTES], shown[4 * STATS_TEXT_BYTES];

	if (view->n_globs == 0)
		status_print(stats, stats_health(stats, now_ns), INT_MAX);
	for (size_t i = 0; i < TEXT_ROWS && view->n_globs > 0; i++)
		if (selected(view, text_rows[i].path) && *text_of(stats, &text_rows[i], text))
			printf("%s: %s\n", text_rows[i].path,
			       log_escape(text, shown, sizeof(shown)));
	for (size_t i = 0; i < n; i++) {
		if (!selected(view, rows[i].path))
			continue;
		table_cell(table, rows[i].path);
		text_value(&rows[i], stats, table);
	}
	table_print(table);
}

static int print_view(const struct context *context, const struct view *view)
{
	const struct stats *stats;
	const int r = status_page(context, &stats);
	const uint64_t now_ns = clock_ns();

	if (r != EXIT_FINE)
		return r;
	if (context->json)
		print_json(stats, view);
	else if (view->all)
		print_numbers(stats, view, now_ns);
	else
		page_print(stats, now_ns, stats_health(stats, now_ns));
	stats_unmap(stats);
	return EXIT_FINE;
}

int stats_json_print(const struct context *context)
{
	return print_view(context, &(const struct view){ 0 });
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
	struct view view = { 0 };
	const char *option;

	while ((option = context_option(context, argc, argv)) != NULL) {
		if (strcmp(option, "--list") == 0)
			view.list = true;
		else if (strcmp(option, "--all") == 0)
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
	return print_view(context, &view);
}
