/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_status.c - the stats page opened, and its words: status, version. These commands need
 * no answer of the daemon, so they work in any state of it.
 */
#include "kvtierctl_status.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/own.h"
#include "base/text.h"

#ifndef KVTIER_VERSION
#define KVTIER_VERSION "0"
#endif

/* --- the daemon's health --- */

const struct stats *status_page(const struct context *context)
{
	const struct stats *stats;
	const int r = stats_map(context->stats_path, &stats);

	if (r == 0)
		return stats;
	if (r == -ENOENT && socket_answers(context->admin_path))
		fprintf(stderr,
			"kvtierctl: kvtierd runs at %s, and its stats page %s is gone: restart it, "
			"and keep what cleans /tmp out of [daemon] runtime_dir\n",
			context->socket_path, context->stats_path);
	else if (r == -ENOENT || r == -ENOTDIR)
		fprintf(stderr, "kvtierctl: no kvtierd runs at %s (there is no %s)\n",
			context->socket_path, context->stats_path);
	else if (r == -EPROTO)
		fprintf(stderr,
			"kvtierctl: %s: not a stats page of this version of kvtier; use the "
			"kvtierctl that came with the kvtierd that runs\n",
			context->stats_path);
	else
		fprintf(stderr, "kvtierctl: %s: %s\n", context->stats_path, strerror(-r));
	return NULL;
}

/* As long as escaping can make a name, with its end. */
enum { NAME_ROOM = 4 * STATS_NAME_BYTES };

/* One of the page's names, for a terminal: whoever made the page may have written anything there,
 * and no end. */
static const char *shown_name(const char *from, char ret[NAME_ROOM])
{
	char name[STATS_NAME_BYTES];

	(void)stats_text_get(from, sizeof(name), name);
	return name[0] != '\0' ? log_escape(name, ret, NAME_ROOM) : "none";
}

/* "kvtierd 0.2.0, pid 42, up 3h 2m, device cpu, kernels avx2" */
static char *daemon_line(const struct stats *stats, char *ret, size_t n)
{
	char age[32], version[NAME_ROOM], device[NAME_ROOM], kernels[NAME_ROOM];

	text_age(stats_get(&stats->v.uptime_s), age, sizeof(age));
	snprintf(ret, n, "kvtierd %s, pid %d, up %s, device %s, kernels %s",
		 shown_name(stats->version, version), stats->pid, age,
		 shown_name(stats->device, device), shown_name(stats->kernels, kernels));
	return ret;
}

/* The state of the process in one word; "" while it runs. */
static const char *condition(uint64_t health)
{
	if ((health >> STATS_HEALTH_DEAD & 1) != 0)
		return " DEAD";
	if ((health >> STATS_HEALTH_STOPPED & 1) != 0 || (health >> STATS_HEALTH_SILENT & 1) != 0)
		return " STOPPED";
	return "";
}

static const char *severity_label(enum stats_severity severity)
{
	static const char *const labels[] = { "NOTE", "WARN", "ERR" };

	return labels[severity];
}

static const struct verdict {
	const char *word, *shown;
	enum exit_status status;
} verdicts[] = {
	{ "ok", "OK", EXIT_FINE },
	{ "warn", "WARN", EXIT_FAILED },
	{ "starting", "STARTING", EXIT_STARTING },
	{ "err", "ERR", EXIT_ERR },
};

static const struct verdict *verdict(uint64_t health)
{
	const struct verdict *v = verdicts;

	while (strcmp(v->word, stats_health_word(health)) != 0)
		v++;
	return v;
}

/* The daemon's words about a part, behind the words `first`. Both may come from outside. */
static void print_part(const char *part, const char *first, const char *from, int width)
{
	char text[STATS_TEXT_BYTES], shown[4 * STATS_TEXT_BYTES], front[4 * STATS_NAME_BYTES],
		line[sizeof(shown) + sizeof(front) + 128];

	(void)stats_text_get(from, sizeof(text), text);
	if (first[0] == '\0' && text[0] == '\0')
		return;
	snprintf(line, sizeof(line), "%s: %s%s%s", part, log_escape(first, front, sizeof(front)),
		 first[0] != '\0' && text[0] != '\0' ? "; " : "",
		 log_escape(text, shown, sizeof(shown)));
	text_wrap(stdout, line, 0, 2, width);
}

const char *status_state(const struct stats_values *v, size_t offset, char *ret, size_t n)
{
	const struct stats_row *rows;

	for (size_t i = stats_rows(&rows); i-- > 0;) {
		if (rows[i].offset == offset)
			return stats_state_name(&rows[i],
						stats_get((const uint64_t *)((const char *)v +
									     offset)),
						ret, n);
	}
	return "unknown";
}

void status_print(const struct stats *stats, uint64_t health, int width)
{
	char line[256], head[320], words[STATS_NAME_BYTES];

	snprintf(head, sizeof(head), "%s%s: %s", verdict(health)->shown, condition(health),
		 daemon_line(stats, line, sizeof(line)));
	text_wrap(stdout, head, 0, 0, width);
	for (unsigned bit = 0; bit < STATS_HEALTH_COUNT; bit++) {
		const struct stats_health_row *row = stats_health_row(bit);

		if ((health >> bit & 1) == 0)
			continue;
		snprintf(line, sizeof(line), "  %-4s %-16s ", severity_label(row->severity),
			 row->name);
		fputs(line, stdout);
		text_wrap(stdout, row->prose, (int)strlen(line), width < INT_MAX ? 7 : 0, width);
	}
	print_part("files", "", stats->files_text, width);
	print_part("clients", "", stats->clients_text, width);
	print_part("refused", "", stats->refused_text, width);
	print_part("nvme", stats_text_get(stats->nvme_engine, sizeof(words), words),
		   stats->nvme_text, width);
	if (stats_get(&stats->v.tiers_redis_state) != STATS_TIER_OFF) {
		snprintf(line, sizeof(line), "%s, %" PRIu64 " of %" PRIu64 " endpoints usable",
			 status_state(&stats->v, offsetof(struct stats_values, tiers_redis_state),
				      words, sizeof(words)),
			 stats_get(&stats->v.tiers_redis_usable_endpoints),
			 stats_get(&stats->v.tiers_redis_endpoints));
		print_part("redis", line, stats->redis_text, width);
	}
	print_part("gpu", "", stats->gpu_text, width);
}

/* --- JSON --- */

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

void printer_name(struct printer *w, const char *path)
{
	const size_t common = common_groups(w->open, path);
	char group[64];

	for (size_t depth = groups_of(w->open); depth > common; depth--)
		json_print(&w->json, "}");
	w->open = path;
	for (size_t i = 0; i < common; i++)
		path = strchr(path, '.') + 1;
	for (const char *dot; (dot = strchr(path, '.')) != NULL; path = dot + 1) {
		snprintf(group, sizeof(group), "%.*s", (int)(dot - path), path);
		json_member(&w->json, group);
		json_print(&w->json, "{");
	}
	json_member(&w->json, path);
}

void printer_end(struct printer *w)
{
	for (size_t depth = groups_of(w->open); depth > 0; depth--)
		json_print(&w->json, "}");
	assert(!w->json.full);
	printf("%s}\n", w->json.text);
}

/* The texts of the page in `status --json`. */
static const struct {
	const char *path;
	size_t offset, bytes; /* in struct stats */
} status_texts[] = {
	{ "version", offsetof(struct stats, version), STATS_NAME_BYTES },
	{ "device", offsetof(struct stats, device), STATS_NAME_BYTES },
	{ "kernels", offsetof(struct stats, kernels), STATS_NAME_BYTES },
	{ "files.text", offsetof(struct stats, files_text), STATS_TEXT_BYTES },
	{ "clients.text", offsetof(struct stats, clients_text), STATS_TEXT_BYTES },
	{ "clients.refused", offsetof(struct stats, refused_text), STATS_TEXT_BYTES },
	{ "nvme.engine", offsetof(struct stats, nvme_engine), STATS_NAME_BYTES },
	{ "nvme.text", offsetof(struct stats, nvme_text), STATS_TEXT_BYTES },
	{ "gpu.text", offsetof(struct stats, gpu_text), STATS_TEXT_BYTES },
	{ "redis.text", offsetof(struct stats, redis_text), STATS_TEXT_BYTES },
};

static void status_json(const struct stats *stats, uint64_t health)
{
	const uint64_t now = clock_ns(), beat = stats_get(&stats->heartbeat_ns);
	static char page[64 << 10];
	struct printer w = { .open = "" };
	char text[STATS_TEXT_BYTES];

	json_start(&w.json, page, sizeof(page));
	json_print(&w.json, "{\"status\":\"%s\",\"reasons\":[", stats_health_word(health));
	for (unsigned bit = 0; bit < STATS_HEALTH_COUNT; bit++) {
		const struct stats_health_row *row = stats_health_row(bit);

		if ((health >> bit & 1) == 0)
			continue;
		json_print(&w.json, "%s{", page[w.json.used - 1] == '}' ? "," : "");
		json_text(&w.json, "code", row->name);
		json_text(&w.json, "severity", stats_severity_name(row->severity));
		json_text(&w.json, "next_step", row->prose);
		json_print(&w.json, "}");
	}
	json_print(&w.json, "],\"pid\":%d", stats->pid);
	json_number(&w.json, "uptime_s", stats_get(&stats->v.uptime_s));
	json_number(&w.json, "heartbeat_age_ms", now > beat ? (now - beat) / 1000000 : 0);
	for (size_t i = 0; i < sizeof(status_texts) / sizeof(status_texts[0]); i++) {
		printer_name(&w, status_texts[i].path);
		json_string(&w.json, stats_text_get((const char *)stats + status_texts[i].offset,
						    status_texts[i].bytes, text));
	}
	/* redis.text was the last one: its object is open */
	json_text(&w.json, "state",
		  status_state(&stats->v, offsetof(struct stats_values, tiers_redis_state), text,
			       sizeof(text)));
	json_number(&w.json, "endpoints", stats_get(&stats->v.tiers_redis_endpoints));
	json_number(&w.json, "usable_endpoints", stats_get(&stats->v.tiers_redis_usable_endpoints));
	printer_end(&w);
}

/* --- the commands --- */

int command_status(struct context *context, int argc, char **argv)
{
	const struct stats *stats;
	uint64_t health;

	(void)context_option(context, argc, argv);
	no_more_arguments(context, argc, argv);
	stats = status_page(context);
	if (!stats)
		return EXIT_NO_DAEMON;
	health = stats_health(stats, clock_ns());
	if (context->json)
		status_json(stats, health);
	else
		status_print(stats, health, INT_MAX);
	stats_unmap(stats);
	return (int)verdict(health)->status;
}

int command_version(struct context *context, int argc, char **argv)
{
	const struct stats *stats = NULL;
	char version[NAME_ROOM], text[2 * NAME_ROOM];
	struct json json;

	(void)context_option(context, argc, argv);
	no_more_arguments(context, argc, argv);
	(void)stats_map(context->stats_path, &stats);
	if (context->json) {
		json_start(&json, text, sizeof(text));
		json_print(&json, "{");
		json_text(&json, "kvtierctl", KVTIER_VERSION);
		json_member(&json, "kvtierd");
		if (stats)
			json_string(&json,
				    stats_text_get(stats->version, STATS_NAME_BYTES, version));
		printf("%s%s}\n", text, stats ? "" : "null");
	} else {
		printf("kvtierctl %s\n", KVTIER_VERSION);
		if (stats)
			printf("kvtierd   %s, pid %d\n", shown_name(stats->version, version),
			       stats->pid);
		else
			puts("kvtierd   not running");
	}
	stats_unmap(stats);
	return EXIT_FINE;
}
