/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.c - see metrics.h. */
#include "metrics.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/ctl/kvtierctl_status.h"
#include "daemon/stats/stats.h"

/* --- the format --- */

/* HELP has no quotes around it, and there a quote is no special character. */
static void print_escaped(FILE *out, const char *text, bool quoted)
{
	for (size_t length; *text != '\0'; text += length) {
		length = log_printable(text);
		if (length == 0) {
			fputc('?', out);
			length = 1;
			continue;
		}
		if (*text == '\\' || (quoted && *text == '"'))
			fputc('\\', out);
		fwrite(text, 1, length, out);
	}
}

void metric_family(FILE *out, const char *name, const char *type, const char *help)
{
	fprintf(out, "# HELP kvtier_%s ", name);
	print_escaped(out, help, false);
	fprintf(out, "\n# TYPE kvtier_%s %s\n", name, type);
}

void metric_label(FILE *out, const char *name, const char *value)
{
	fprintf(out, "%s=\"", name);
	print_escaped(out, value, true);
	fputc('"', out);
}

static void print_gauge(FILE *out, const char *name, const char *help, double value)
{
	metric_family(out, name, "gauge", help);
	fprintf(out, "kvtier_%s %.15g\n", name, value);
}

/* --- names --- */

/* A part of a path that becomes a label. */
static const struct group {
	const char *before, *after; /* around that part; after ".": anything */
	const char *values;         /* of that part; "": any */
	const char *family, *label; /* label a.b: the part is that of two labels */
	const char *help;           /* of the family; NULL: the first row's */
} groups[] = {
	{ "tiers.", ".", "", "tier_", "tier", NULL },
	{ "refused.", "_total", "", "client_refusals_total", "reason",
	  "Connections refused, by reason: another version, too many, ..." },
	{ "hints.", "_blocks_total", "", "hint_blocks_total", "answer",
	  "Blocks (of a model, hints) by what became of a hint; expired: the ttl was over" },
	{ "lookup.", "_blocks_total", "|gpu|host|nvme|redis|miss|", "lookup_blocks_total", "result",
	  "Blocks looked up, by the nearest tier that has them; the sum is what was looked up" },
	{ "store.", "_blocks_total", "|no_room|late|canceled|drained|no_parent|no_page|error|",
	  "dropped_blocks_total", "reason", "Blocks offered and not kept, by reason" },
	{ "load.", "_blocks_total", "|missed|no_room|late|canceled|no_page|error|",
	  "missed_after_lookup_blocks_total", "reason",
	  "Blocks that a load asked for, mostly after a lookup, and did not get; missed: they were "
	  "not there" },
	{ "evicted.", "_blocks_total", "", "evicted_blocks_total", "tier.reason",
	  "Blocks dropped from a tier of this node: for room, since the index is full, or as "
	  "kvtierctl evict asked" },
	{ "miss_ratio.", "_ppm", "", "miss_ppm", "size",
	  "Part of the uses of blocks that host memory of half, the same or more of its size "
	  "would not have" },
	{ "working_set.", "_bytes", "", "working_set_bytes", "window",
	  "Host memory that the blocks used in the window take; up to five times what there is" },
};
enum { GROUPS = sizeof(groups) / sizeof(groups[0]) };

/* Base units, and how many of the row's make one. */
static const struct unit {
	const char *name, *base;
	double divisor;
} units[] = {
	{ "ns", "seconds", 1e9 }, { "us", "seconds", 1e6 },    { "ms", "seconds", 1e3 },
	{ "s", "seconds", 1 },    { "percent", "ratio", 100 }, { "ppm", "ratio", 1e6 },
};
enum { UNITS = sizeof(units) / sizeof(units[0]) };

struct metric {
	char family[128];
	char label[128]; /* name="value", or "" */
	const char *help;
	double divisor;
};

static void set_label(struct metric *ret, const char *names, const char *values, size_t n)
{
	const size_t name = strcspn(names, ".");
	const size_t value = names[name] == '.' ? strcspn(values, ".") : n;
	const int used = snprintf(ret->label, sizeof(ret->label), "%.*s=\"%.*s\"", (int)name, names,
				  (int)value, values);

	if (value < n)
		snprintf(ret->label + used, sizeof(ret->label) - (size_t)used, ",%s=\"%.*s\"",
			 names + name + 1, (int)(n - value - 1), values + value + 1);
}

/* Takes the label out of the path. Returns what is behind it. */
static const char *split_path(const char *path, struct metric *ret)
{
	for (size_t i = 0; i < GROUPS; i++) {
		const struct group *group = &groups[i];
		const size_t before = strlen(group->before);
		const char *from = path + before, *after;
		char value[64];

		if (strncmp(path, group->before, before) != 0)
			continue;
		after = strstr(from, group->after);
		if (!after || (group->after[0] != '.' && after[strlen(group->after)] != '\0'))
			continue;
		snprintf(value, sizeof(value), "|%.*s|", (int)(after - from), from);
		if (group->values[0] != '\0' && !strstr(group->values, value))
			continue;
		set_label(ret, group->label, from, (size_t)(after - from));
		snprintf(ret->family, sizeof(ret->family), "%s", group->family);
		if (group->help)
			ret->help = group->help;
		return group->after[0] == '.' ? after + 1 : "";
	}
	return path;
}

static bool ends_with(const char *text, size_t n, const char *end)
{
	const size_t length = strlen(end);

	return n >= length && memcmp(text + n - length, end, length) == 0;
}

/* Cuts the row's unit off the family, and the base unit takes its place. */
static void change_unit(const struct stats_row *row, struct metric *ret)
{
	const bool total = ends_with(ret->family, strlen(ret->family), "_total");
	const size_t length = strlen(ret->family) - (total ? strlen("_total") : 0);
	char suffix[16];

	for (size_t i = 0; i < UNITS && row->kind != STATS_STATE; i++) {
		if (strcmp(row->unit, units[i].name) != 0)
			continue;
		snprintf(suffix, sizeof(suffix), "_%s", units[i].name);
		if (!ends_with(ret->family, length, suffix))
			continue;
		ret->divisor = units[i].divisor;
		snprintf(ret->family + length - strlen(units[i].name),
			 sizeof(ret->family) - length + strlen(units[i].name), "%s%s",
			 units[i].base, total ? "_total" : "");
		return;
	}
}

static void metric_of(const struct stats_row *row, struct metric *ret)
{
	const char *rest;
	size_t used;

	*ret = (struct metric){ .help = row->prose, .divisor = 1 };
	rest = split_path(row->path, ret);
	used = strlen(ret->family);
	snprintf(ret->family + used, sizeof(ret->family) - used, "%s", rest);
	for (char *at = ret->family; *at != '\0'; at++)
		if (*at == '.')
			*at = '_';
	change_unit(row, ret);
}

/* --- the page's numbers --- */

static void print_states(FILE *out, const struct stats_row *row, const struct metric *metric,
			 uint64_t now)
{
	uint64_t state = 0;

	for (const char *name = row->unit; name; state++) {
		const char *end = strchr(name, '|');

		fprintf(out, "kvtier_%s{%s%sstate=\"%.*s\"} %d\n", metric->family, metric->label,
			metric->label[0] != '\0' ? "," : "",
			end ? (int)(end - name) : (int)strlen(name), name, state == now);
		name = end ? end + 1 : NULL;
	}
}

/* A bucket ends at each doubling, where the page's buckets end, too: from 8 us to 137 s of a
 * histogram in ns, from 1 ms to 12 days of one in us. */
static void print_histogram(FILE *out, const struct stats *stats, const struct stats_row *row,
			    const struct metric *metric)
{
	const char *name = metric->family, *label = metric->label;
	const bool labelled = label[0] != '\0';
	const char *open = labelled ? "{" : "", *close = labelled ? "}" : "";
	const struct histogram *there = stats_histogram(&stats->v, row);
	static struct histogram now; /* of one moment, so that the buckets agree with the count */
	const uint64_t unit_ns = stats_unit_ns(row);
	const uint32_t first = unit_ns == 1 ? 13 : 10, last = unit_ns == 1 ? 37 : 40;

	for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++)
		now.count[i] = stats_get(&there->count[i]);
	for (uint32_t bits = first; bits <= last; bits++)
		fprintf(out, "kvtier_%s_bucket{%s%sle=\"%.9g\"} %" PRIu64 "\n", name, label,
			labelled ? "," : "", (double)(unit_ns << bits) / 1e9,
			histogram_below(&now, bits));
	fprintf(out,
		"kvtier_%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\nkvtier_%s_sum%s%s%s %.15g\n"
		"kvtier_%s_count%s%s%s %" PRIu64 "\n",
		name, label, labelled ? "," : "", histogram_total(&now), name, open, label, close,
		(double)histogram_sum(&now) * (double)unit_ns / 1e9, name, open, label, close,
		histogram_total(&now));
}

static void print_sample(FILE *out, const struct stats *stats, const struct stats_row *row,
			 const struct metric *metric)
{
	const bool labelled = metric->label[0] != '\0';
	const uint64_t value = stats_value(stats, row);

	if (row->kind == STATS_STATE) {
		print_states(out, row, metric, value);
		return;
	}
	if (row->kind == STATS_HISTOGRAM) {
		print_histogram(out, stats, row, metric);
		return;
	}
	fprintf(out, "kvtier_%s%s%s%s ", metric->family, labelled ? "{" : "", metric->label,
		labelled ? "}" : "");
	if (metric->divisor > 1)
		fprintf(out, "%.15g\n", (double)value / metric->divisor);
	else
		fprintf(out, "%" PRIu64 "\n", value);
}

/* Histograms say it better, and can be summed over nodes. */
static bool is_percentile(const struct stats_row *row)
{
	return row->kind == STATS_GAUGE && fnmatch("*.p[0-9]*_us", row->path, 0) == 0;
}

/* The samples of a family stand together, so each family begins at its first row. */
static void print_rows(FILE *out, const struct stats *stats)
{
	enum { MAX_ROWS = 512 };
	static struct metric metrics[MAX_ROWS];
	static bool done[MAX_ROWS];
	const struct stats_row *rows;
	const size_t n = stats_rows(&rows) < MAX_ROWS ? stats_rows(&rows) : MAX_ROWS;

	for (size_t i = 0; i < n; i++) {
		metric_of(&rows[i], &metrics[i]);
		done[i] = is_percentile(&rows[i]);
	}
	for (size_t i = 0; i < n; i++) {
		if (done[i])
			continue;
		metric_family(out, metrics[i].family,
			      rows[i].kind == STATS_STATE ? "gauge" : stats_kind_name(rows[i].kind),
			      metrics[i].help);
		for (size_t k = i; k < n; k++) {
			if (done[k] || strcmp(metrics[k].family, metrics[i].family) != 0)
				continue;
			print_sample(out, stats, &rows[k], &metrics[k]);
			done[k] = true;
		}
	}
}

/* --- health, build, process --- */

static void print_health(FILE *out, uint64_t health)
{
	static const char *const words[] = { "ok", "warn", "err", "starting" };

	metric_family(out, "health", "gauge", "What kvtierctl status says, 1 for the word it says");
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		fprintf(out, "kvtier_health{state=\"%s\"} %d\n", words[i],
			strcmp(stats_health_word(health), words[i]) == 0);
	metric_family(out, "health_reason", "gauge",
		      "The reasons of kvtierctl status, 1 for each that holds; kvtierctl(1) "
		      "explains them");
	for (unsigned bit = 0; bit < STATS_HEALTH_COUNT; bit++) {
		const struct stats_health_row *row = stats_health_row(bit);

		fprintf(out, "kvtier_health_reason{reason=\"%s\",severity=\"%s\"} %d\n", row->name,
			stats_severity_name(row->severity), (int)(health >> bit & 1));
	}
}

static void print_build(FILE *out, const struct stats *stats)
{
	char text[STATS_NAME_BYTES];

	metric_family(out, "build_info", "gauge", "Always 1: kvtierd's version, device, kernels");
	fputs("kvtier_build_info{", out);
	metric_label(out, "version", stats_text_get(stats->version, sizeof(text), text));
	fputc(',', out);
	metric_label(out, "device", stats_text_get(stats->device, sizeof(text), text));
	fputc(',', out);
	metric_label(out, "kernels", stats_text_get(stats->kernels, sizeof(text), text));
	fputs("} 1\n", out);
}

/* One line of a file of /proc, or the text up to its first NUL. */
static bool proc_text(const char *path, char *ret, size_t n)
{
	FILE *file = fopen(path, "re");
	const size_t length = file ? fread(ret, 1, n - 1, file) : 0;

	if (file)
		(void)fclose(file);
	ret[length] = '\0';
	return length > 0;
}

/* Seconds since 1970 when the system came up. */
static double boot_time(void)
{
	static char text[64 << 10];
	const char *at =
		proc_text("/proc/stat", text, sizeof(text)) ? strstr(text, "\nbtime ") : NULL;

	return at ? strtod(at + strlen("\nbtime "), NULL) : 0;
}

/* Only root and the daemon's own user may count them. */
static void print_fds(FILE *out, int pid)
{
	char path[64];
	DIR *folder;
	int n = -2; /* . and .. */

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	folder = opendir(path);
	if (!folder)
		return;
	while (readdir(folder))
		n++;
	(void)closedir(folder);
	print_gauge(out, "process_open_fds", "File descriptors of kvtierd", n);
}

static void print_process(FILE *out, const struct stats *stats)
{
	/* the fields of /proc/PID/stat behind the name, which is field 2 */
	enum {
		FIELD_UTIME = 14,
		FIELD_STIME,
		FIELD_THREADS = 20,
		FIELD_START = 22,
		FIELD_VSIZE,
		FIELD_RSS,
		FIELDS
	};
	const double hz = (double)sysconf(_SC_CLK_TCK), page = (double)sysconf(_SC_PAGESIZE);
	uint64_t field[FIELDS] = { 0 };
	char path[64], text[1024], *at;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)stats->pid);
	at = proc_text(path, text, sizeof(text)) ? strrchr(text, ')') : NULL;
	if (!at || at[1] != ' ')
		return;
	at += 3; /* the state's letter, field 3 */
	for (int i = 4; i < FIELDS; i++)
		field[i] = strtoull(at + 1, &at, 10);
	/* another process has this number here: kvtierd's is of another pid namespace, or dead */
	if (field[FIELD_START] != stats->pid_start)
		return;
	metric_family(out, "process_cpu_seconds_total", "counter", "CPU time of kvtierd");
	fprintf(out, "kvtier_process_cpu_seconds_total %.15g\n",
		(double)(field[FIELD_UTIME] + field[FIELD_STIME]) / hz);
	print_gauge(out, "process_resident_memory_bytes",
		    "Memory of kvtierd that is resident; the host tier's touched memory is a part",
		    (double)field[FIELD_RSS] * page);
	print_gauge(out, "process_virtual_memory_bytes", "Address space of kvtierd",
		    (double)field[FIELD_VSIZE]);
	print_fds(out, stats->pid);
	print_gauge(out, "process_threads", "Threads of kvtierd", (double)field[FIELD_THREADS]);
	print_gauge(out, "start_time_seconds", "When kvtierd started, in seconds since 1970",
		    boot_time() + (double)field[FIELD_START] / hz);
}

static void print_page(FILE *out, const struct stats *stats, uint64_t health, uint64_t now_ns)
{
	const uint64_t beat_ns = stats_get(&stats->heartbeat_ns);

	print_build(out, stats);
	print_health(out, health);
	print_gauge(out, "heartbeat_age_seconds",
		    "How long ago kvtierd's core thread last wrote its heartbeat",
		    now_ns > beat_ns ? (double)(now_ns - beat_ns) / 1e9 : 0);
	print_process(out, stats);
	print_rows(out, stats);
}

/* NULL: there is none. If it cannot be read, that says nothing about kvtierd, and ends this
 * program: systemd starts the version that is installed now. */
static const struct stats *find_page(const struct context *context)
{
	const struct stats *stats = NULL;
	const int r = stats_map(context->stats_path, &stats);
	int status = EXIT_FINE;

	if (r < 0 && r != -ENOENT && r != -ENOTDIR)
		status = status_page(context, &stats);
	if (status != EXIT_FINE)
		exit(status);
	return stats;
}

bool metrics_print(FILE *out, const struct context *context)
{
	const uint64_t gone = 1ull << STATS_HEALTH_DEAD;
	const uint64_t not_up = gone | 1ull << STATS_HEALTH_STOPPED | 1ull << STATS_HEALTH_SILENT;
	const struct stats *stats = find_page(context);
	const uint64_t now_ns = clock_ns();
	const uint64_t health = stats ? stats_health(stats, now_ns) : gone;

	print_gauge(out, "up", "1: kvtierd runs; 0: it is dead, stopped or silent, or has no page",
		    (health & not_up) == 0);
	metric_family(out, "exporter_build_info", "gauge", "Always 1: the exporter's version");
	fprintf(out, "kvtier_exporter_build_info{version=\"%s\"} 1\n", KVTIER_VERSION);
	/* the numbers of a dead daemon would look like an idle daemon's */
	if ((health & gone) == 0)
		print_page(out, stats, health, now_ns);
	stats_unmap(stats);
	return (health & not_up) == 0;
}
