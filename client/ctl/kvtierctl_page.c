/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_page.c - the page that `kvtierctl stats` shows to people: a page of at most 80 columns.
 * It covers the time since the daemon's start, or with --watch the time since the page before; each
 * page says which. State, fill and clients are as of now.
 */
#include "kvtierctl_page.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/stats/stats.h"
#include "daemon/base/text.h"
#include "kvtierctl_status.h"
#include "kvtierctl_text.h"

/* The figures of the time that the page covers. */
struct span {
	double seconds;
	bool from_start;
	struct stats_values v; /* counters: how much they grew. Gauges mean nothing here */
	struct histogram load_times, store_times;
};

/* A number of a table: short enough for seven columns. */
static char *text_count(double value, char *ret, size_t n)
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

static char *text_time(uint64_t ns, char *ret, size_t n)
{
	static const char *const units[] = { "ns", "µs", "ms", "s" };
	double value = (double)ns;
	size_t unit = 0;

	for (; value >= 999.5 && unit + 1 < sizeof(units) / sizeof(units[0]); unit++)
		value /= 1000;
	snprintf(ret, n, unit > 0 && value < 9.95 ? "%.1f %s" : "%.0f %s", value, units[unit]);
	return ret;
}

/* Not rounded up: 100 % means all. */
static char *text_percent(uint64_t part, uint64_t whole, char *ret, size_t n)
{
	const double percent = whole > 0 ? 100 * (double)part / (double)whole : 0;

	if (whole == 0)
		snprintf(ret, n, "-");
	else
		snprintf(ret, n, "%.1f %%", (double)whole_number(percent * 10) / 10);
	return ret;
}

/* --- the time that is covered --- */

/* The page's numbers one by one: the daemon writes them meanwhile. */
static void values_copy(const struct stats_values *from, struct stats_values *to)
{
	for (size_t i = 0; i < sizeof(*from) / sizeof(uint64_t); i++)
		((uint64_t *)to)[i] = stats_get(&((const uint64_t *)from)[i]);
}

/* Advances *before to now. */
static void span_of(const struct stats *stats, struct page_sample *before, uint64_t now_ns,
		    struct span *ret)
{
	static const struct histogram none;
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
	histogram_since(&stats->load_times, &none, &now.load_times);
	histogram_since(&stats->store_times, &none, &now.store_times);
	for (size_t i = 0; i < sizeof(now.v) / sizeof(uint64_t); i++)
		((uint64_t *)&ret->v)[i] = ((uint64_t *)&now.v)[i] - ((uint64_t *)&before->v)[i];
	histogram_since(&now.load_times, &before->load_times, &ret->load_times);
	histogram_since(&now.store_times, &before->store_times, &ret->store_times);
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

/* "-": a daemon that starts has not measured any time yet. */
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

/* "-": there was no op. */
static void percentile(struct table *table, const struct histogram *times, unsigned percent)
{
	char text[32];

	if (histogram_total(times) == 0)
		table_cell(table, "-");
	else
		table_cell(table,
			   text_time(histogram_percentile(times, percent), text, sizeof(text)));
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
	percentile(table, times, 50);
	percentile(table, times, 99);
}

static void print_ops(const struct span *span)
{
	static const char *const titles[] = { "",      "OPS",  "BLOCKS", "RATE",
					      "BYTES", "RATE", "P50",    "P99" };
	enum { COLUMNS = sizeof(titles) / sizeof(titles[0]) };
	static const bool right[COLUMNS] = { false, true, true, true, true, true, true, true };
	struct table *table = table_new(COLUMNS);

	for (size_t i = 0; i < COLUMNS; i++)
		table_cell(table, titles[i]);
	op_row(table, "load", span, span->v.load_blocks_total, span->v.load_logical_bytes_total,
	       &span->load_times);
	op_row(table, "store", span, span->v.store_blocks_total, span->v.store_logical_bytes_total,
	       &span->store_times);
	table_print(table, right);
}

/* Of lookups: engines load what they have found, so nearly all that they load is there. */
static void hit_rate(uint64_t hits, uint64_t asked)
{
	char percent[32], count[32];

	if (asked > 0)
		printf("Hit rate: %s of %s blocks that were looked up.\n",
		       text_percent(hits, asked, percent, sizeof(percent)),
		       text_count((double)asked, count, sizeof(count)));
	else
		printf("Hit rate: none, as nothing was looked up.\n");
}

/* A sentence for each trouble that there was in the time covered, and for each queue that is not
 * empty. */
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

static uint64_t value_at(const struct stats_values *v, size_t offset)
{
	return *(const uint64_t *)(const void *)((const char *)v + offset);
}

/* Of all actions together: how many blocks were answered so. */
static uint64_t hints_answered(const struct stats_values *v, const char *answer)
{
	const struct stats_row *rows;
	const size_t n = stats_rows(&rows);
	uint64_t sum = 0;
	char glob[64];

	snprintf(glob, sizeof(glob), "hints.*.%s_total", answer);
	for (size_t i = 0; i < n; i++) {
		if (fnmatch(glob, rows[i].path, 0) == 0)
			sum += value_at(v, rows[i].offset);
	}
	return sum;
}

static void print_hints(const struct span *span)
{
	static const char *const answers[] = { "accepted", "clipped", "deferred", "rejected",
					       "missing" };
	char line[160], count[32];
	size_t n = 0;

	for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
		const uint64_t blocks = hints_answered(&span->v, answers[i]);

		if (blocks > 0)
			n += (size_t)snprintf(line + n, sizeof(line) - n, "%s %s %s",
					      n > 0 ? "," : "Hints:",
					      text_count((double)blocks, count, sizeof(count)),
					      answers[i]);
	}
	if (n > 0)
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
		hit_rate(v->lookup_hit_blocks_total, v->lookup_requested_blocks_total);
	}
	print_hints(span);
	print_trouble(span, now);
}

/* --- tiers --- */

/* Where a tier's numbers are in struct stats_values. */
static const struct tier_fields {
	const char *name;
	size_t state, capacity, used, hits, read, written;
} tiers[] = {
#define TIER(name)                                                                          \
	{                                                                                   \
#name, TIER_AT(name, state), TIER_AT(name, capacity_bytes),                 \
			TIER_AT(name, used_bytes), TIER_AT(name, hit_blocks_total),         \
			TIER_AT(name, read_bytes_total), TIER_AT(name, written_bytes_total) \
	}
#define TIER_AT(name, field) offsetof(struct stats_values, tiers_##name##_##field)
	TIER(gpu),
	TIER(host),
	TIER(nvme),
	TIER(redis),
};
enum { TIERS = sizeof(tiers) / sizeof(tiers[0]) };

static const char *state_at(const struct stats_values *v, size_t offset, char *ret, size_t n)
{
	const struct stats_row *rows;

	for (size_t i = stats_rows(&rows); i-- > 0;) {
		if (rows[i].offset == offset)
			return stats_state_name(&rows[i], value_at(v, offset), ret, n);
	}
	return "unknown";
}

static void tier_row(struct table *table, const struct tier_fields *tier, const struct span *span,
		     const struct stats_values *now)
{
	const uint64_t asked = span->v.load_blocks_total + span->v.load_missed_blocks_total;
	const uint64_t hits = value_at(&span->v, tier->hits);
	const uint64_t used = value_at(now, tier->used), capacity = value_at(now, tier->capacity);
	char text[32];

	table_cell(table, tier->name);
	table_cell(table, state_at(now, tier->state, text, sizeof(text)));
	table_cell(table, text_count((double)hits, text, sizeof(text)));
	table_cell(table, text_percent(hits, asked, text, sizeof(text)));
	table_cell(table, text_bytes(value_at(&span->v, tier->read), text, sizeof(text)));
	table_cell(table, text_bytes(value_at(&span->v, tier->written), text, sizeof(text)));
	/* Redis has no capacity: this node does not know how much others keep there */
	table_cell(table, text_percent(used, capacity, text, sizeof(text)));
	table_cell(table, capacity > 0 ? text_bytes(capacity, text, sizeof(text)) : "-");
}

static void print_tiers(const struct span *span, const struct stats_values *now)
{
	static const char *const titles[] = { "TIER", "STATE",   "HITS", "SHARE",
					      "READ", "WRITTEN", "FILL", "OF" };
	enum { COLUMNS = sizeof(titles) / sizeof(titles[0]) };
	static const bool right[COLUMNS] = { false, false, true, true, true, true, true, true };
	struct table *table = table_new(COLUMNS);

	for (size_t i = 0; i < COLUMNS; i++)
		table_cell(table, titles[i]);
	for (size_t i = 0; i < TIERS; i++) {
		if (value_at(now, tiers[i].state) != STATS_TIER_OFF)
			tier_row(table, &tiers[i], span, now);
	}
	table_print(table, right);
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

void page_print(const struct stats *stats, struct page_sample *before, uint64_t now_ns)
{
	static struct span span; /* large */

	span_of(stats, before, now_ns, &span);
	status_print(stats, stats_health(stats, now_ns), TEXT_WIDTH);
	putchar('\n');
	print_span(&span, &before->v);
	putchar('\n');
	print_tiers(&span, &before->v);
	putchar('\n');
	print_now(&before->v);
}
