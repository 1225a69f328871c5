/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_status.c - the stats page, and status and version, which need nothing else: they answer
 * in any state of the daemon.
 */
#include "kvtierctl_status.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/socket.h"
#include "daemon/base/text.h"
#include "daemon/stats/stats.h"
#include "kvtierctl.h"
#include "kvtierctl_text.h"

#ifndef KVTIER_VERSION
#define KVTIER_VERSION "0"
#endif

const struct stats *stats_page(const struct context *context)
{
	const struct stats *stats;
	const int r = stats_map(context->stats_path, &stats);

	if (r == 0)
		return stats;
	if (r == -ENOENT && socket_answers(context->socket_path))
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

/* The same in JSON. */
static void print_json_name(const char *from)
{
	char name[STATS_NAME_BYTES];

	print_json_string(stats_text_get(from, sizeof(name), name));
}

char *daemon_line(const struct stats *stats, char *ret, size_t n)
{
	char age[32], version[NAME_ROOM], device[NAME_ROOM], kernels[NAME_ROOM];

	text_age(stats_get(&stats->v.uptime_s), age, sizeof(age));
	snprintf(ret, n, "kvtierd %s, pid %d, up %s, device %s, kernels %s",
		 shown_name(stats->version, version), stats->pid, age,
		 shown_name(stats->device, device), shown_name(stats->kernels, kernels));
	return ret;
}

/* The state in one word, where there is such a word. */
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

/* The daemon's words about a part, which may come from outside. */
static void print_text(const char *part, const char *first, const char *text, int width)
{
	char shown[4 * STATS_TEXT_BYTES], front[4 * STATS_NAME_BYTES],
		line[sizeof(shown) + sizeof(front) + 128];

	snprintf(line, sizeof(line), "%s: %s%s%s", part, log_escape(first, front, sizeof(front)),
		 first[0] != '\0' && text[0] != '\0' ? "; " : "",
		 log_escape(text, shown, sizeof(shown)));
	text_wrap(stdout, line, 0, 2, width);
}

static void files_text(const struct stats *stats, int width)
{
	char text[STATS_TEXT_BYTES];

	if (stats_text_get(stats->files_text, sizeof(text), text)[0] != '\0')
		print_text("files", "", text, width);
}

static void clients_text(const struct stats *stats, int width)
{
	char text[STATS_TEXT_BYTES];

	if (stats_text_get(stats->clients_text, sizeof(text), text)[0] != '\0')
		print_text("clients", "", text, width);
}

static void refused_text(const struct stats *stats, int width)
{
	char text[STATS_TEXT_BYTES];

	if (stats_text_get(stats->refused_text, sizeof(text), text)[0] != '\0')
		print_text("refused", "", text, width);
}

static void nvme_text(const struct stats *stats, int width)
{
	char engine[STATS_NAME_BYTES], text[STATS_TEXT_BYTES];

	(void)stats_text_get(stats->nvme_engine, sizeof(engine), engine);
	(void)stats_text_get(stats->nvme_text, sizeof(text), text);
	if (engine[0] != '\0' || text[0] != '\0')
		print_text("nvme", engine, text, width);
}

static const char *redis_state(const struct stats *stats, char *buffer, size_t n)
{
	const uint64_t value = stats_get(&stats->v.tiers_redis_state);
	const struct stats_row *rows;

	for (size_t i = stats_rows(&rows); i-- > 0;) {
		if (rows[i].offset == offsetof(struct stats_values, tiers_redis_state))
			return stats_state_name(&rows[i], value, buffer, n);
	}
	return "unknown";
}

static void redis_text(const struct stats *stats, int width)
{
	char state[32], text[STATS_TEXT_BYTES], first[96];

	if (stats_get(&stats->v.tiers_redis_state) == STATS_TIER_OFF)
		return;
	snprintf(first, sizeof(first), "%s, %" PRIu64 " of %" PRIu64 " endpoints usable",
		 redis_state(stats, state, sizeof(state)),
		 stats_get(&stats->v.tiers_redis_usable_endpoints),
		 stats_get(&stats->v.tiers_redis_endpoints));
	print_text("redis", first, stats_text_get(stats->redis_text, sizeof(text), text), width);
}

static void gpu_text(const struct stats *stats, int width)
{
	char text[STATS_TEXT_BYTES];

	if (stats_text_get(stats->gpu_text, sizeof(text), text)[0] != '\0')
		print_text("gpu", "", text, width);
}

static void redis_json(const struct stats *stats)
{
	char state[32], text[STATS_TEXT_BYTES];

	printf(",\"redis\":{\"state\":\"%s\",\"endpoints\":%" PRIu64
	       ",\"usable_endpoints\":%" PRIu64 ",\"text\":",
	       redis_state(stats, state, sizeof(state)), stats_get(&stats->v.tiers_redis_endpoints),
	       stats_get(&stats->v.tiers_redis_usable_endpoints));
	print_json_string(stats_text_get(stats->redis_text, sizeof(text), text));
	putchar('}');
}

void status_print(const struct stats *stats, uint64_t health, int width)
{
	char line[256], head[320];

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
	files_text(stats, width);
	clients_text(stats, width);
	refused_text(stats, width);
	nvme_text(stats, width);
	redis_text(stats, width);
	gpu_text(stats, width);
}

static void status_json(const struct stats *stats, uint64_t health)
{
	const uint64_t now = clock_ns(), beat = stats_get(&stats->heartbeat_ns);
	char engine[STATS_NAME_BYTES], text[STATS_TEXT_BYTES];
	const char *comma = "";

	printf("{\"status\":\"%s\",\"reasons\":[", stats_health_word(health));
	for (unsigned bit = 0; bit < STATS_HEALTH_COUNT; bit++) {
		const struct stats_health_row *row = stats_health_row(bit);

		if ((health >> bit & 1) == 0)
			continue;
		printf("%s{\"code\":\"%s\",\"severity\":\"%s\",\"next_step\":", comma, row->name,
		       stats_severity_name(row->severity));
		print_json_string(row->prose);
		putchar('}');
		comma = ",";
	}
	printf("],\"pid\":%d,\"uptime_s\":%" PRIu64 ",\"heartbeat_age_ms\":%" PRIu64
	       ",\"version\":",
	       stats->pid, stats_get(&stats->v.uptime_s), now > beat ? (now - beat) / 1000000 : 0);
	print_json_name(stats->version);
	printf(",\"device\":");
	print_json_name(stats->device);
	printf(",\"kernels\":");
	print_json_name(stats->kernels);
	printf(",\"files\":{\"text\":");
	print_json_string(stats_text_get(stats->files_text, sizeof(text), text));
	printf("},\"clients\":{\"text\":");
	print_json_string(stats_text_get(stats->clients_text, sizeof(text), text));
	printf(",\"refused\":");
	print_json_string(stats_text_get(stats->refused_text, sizeof(text), text));
	printf("},\"nvme\":{\"engine\":");
	print_json_string(stats_text_get(stats->nvme_engine, sizeof(engine), engine));
	printf(",\"text\":");
	print_json_string(stats_text_get(stats->nvme_text, sizeof(text), text));
	putchar('}');
	redis_json(stats);
	printf(",\"gpu\":{\"text\":");
	print_json_string(stats_text_get(stats->gpu_text, sizeof(text), text));
	printf("}}\n");
}

int command_status(struct context *context, int argc, char **argv)
{
	const struct stats *stats;
	uint64_t health;

	(void)context_option(context, argc, argv, "", NULL);
	no_more_arguments(context, argc, argv);
	stats = stats_page(context);
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
	const struct stats *stats;
	char version[NAME_ROOM];

	(void)context_option(context, argc, argv, "", NULL);
	no_more_arguments(context, argc, argv);
	if (context->json)
		printf("{\"kvtierctl\":\"%s\"", KVTIER_VERSION);
	else
		printf("kvtierctl %s\n", KVTIER_VERSION);
	fflush(stdout);
	if (stats_map(context->stats_path, &stats) < 0) {
		puts(context->json ? ",\"kvtierd\":null}" : "kvtierd   not running");
		return EXIT_FINE;
	}
	if (context->json) {
		printf(",\"kvtierd\":");
		print_json_name(stats->version);
		puts("}");
	} else {
		printf("kvtierd   %s, pid %d\n", shown_name(stats->version, version), stats->pid);
	}
	stats_unmap(stats);
	return EXIT_FINE;
}
