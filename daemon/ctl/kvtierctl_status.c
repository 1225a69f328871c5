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
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/own.h"
#include "base/text.h"

/* --- the daemon's health --- */

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

/* Says why there is no page that this kvtierctl can read. */
static int explain_page(const struct context *context, int error)
{
	const char *path = context->stats_path;
	char version[NAME_ROOM];
	struct stats_maker maker;

	if (error == -ENOENT && socket_answers(context->admin_path))
		return tell_error(context, EXIT_NO_DAEMON,
				  "kvtierd runs at %s, and its stats page %s is gone: restart it, "
				  "and keep what cleans /tmp out of [daemon] runtime_dir",
				  context->socket_path, path);
	if (error == -ENOENT || error == -ENOTDIR)
		return tell_error(context, EXIT_NO_DAEMON, "no kvtierd runs at %s (there is no %s)",
				  context->socket_path, path);
	if (error == -EACCES)
		return tell_error(
			context, EXIT_PERMISSION,
			"permission denied: %s is for root, the daemon's own user and readers that "
			"[stats] mode and group let in; try `sudo kvtierctl %s`",
			path, context->command->name);
	if (error == -EPROTO && stats_maker(path, &maker) == 0)
		return tell_error(
			context, EXIT_NO_DAEMON,
			"%s is the stats page of kvtierd %s, and this is kvtierctl %s; use "
			"the kvtierctl that came with that kvtierd",
			path, shown_name(maker.version, version), KVTIER_VERSION);
	if (error == -EPROTO)
		return tell_error(context, EXIT_NO_DAEMON,
				  "%s: not a stats page of this version of kvtier; use the "
				  "kvtierctl that came with the kvtierd that runs",
				  path);
	return tell_error(context, EXIT_NO_DAEMON, "%s: %s", path, strerror(-error));
}

int status_page(const struct context *context, const struct stats **ret)
{
	const int r = stats_map(context->stats_path, ret);

	return r == 0 ? EXIT_FINE : explain_page(context, r);
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

/* How many of the blocks that were looked up were there, in the times for which it is counted. */
static const struct {
	const char *words, *path; /* path: in `status --json` */
	size_t hits, asked;       /* in struct stats_values */
} hit_rates[] = {
#define RATE(of) offsetof(struct stats_values, lookup_##of)
	{ "in the last minute", "lookup.minute", RATE(minute_hit_blocks),
	  RATE(minute_requested_blocks) },
	{ "in the last hour", "lookup.hour", RATE(hour_hit_blocks), RATE(hour_requested_blocks) },
	{ "since the start", "lookup.start", RATE(hit_blocks_total), RATE(requested_blocks_total) },
};
enum { HIT_RATES = sizeof(hit_rates) / sizeof(hit_rates[0]) };

static uint64_t number_at(const struct stats *stats, size_t offset)
{
	return stats_get((const uint64_t *)(const void *)((const char *)&stats->v + offset));
}

static void print_hit_rates(const struct stats *stats, int width)
{
	char line[160] = "hits of lookups:", percent[32];
	size_t n = strlen(line);

	if (stats_get(&stats->v.lookup_requested_blocks_total) == 0)
		return;
	for (size_t i = 0; i < HIT_RATES; i++)
		n += (size_t)snprintf(line + n, sizeof(line) - n, "%s %s %s", i ? "," : "",
				      text_percent(number_at(stats, hit_rates[i].hits),
						   number_at(stats, hit_rates[i].asked), percent,
						   sizeof(percent)),
				      hit_rates[i].words);
	text_wrap(stdout, line, 0, 2, width);
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
	print_hit_rates(stats, width);
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
	for (size_t i = 0; i < HIT_RATES; i++) {
		printer_name(&w, hit_rates[i].path);
		json_print(&w.json, "{");
		json_number(&w.json, "hit_blocks", number_at(stats, hit_rates[i].hits));
		json_number(&w.json, "requested_blocks", number_at(stats, hit_rates[i].asked));
		json_print(&w.json, "}");
	}
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

/* --- probes, which a supervisor asks again and again --- */

enum { CONNECT_MS = 500 };

/* Says that the probe found what it looks for. */
static int found(const struct context *context, const char *name, const char *sentence)
{
	if (context->json)
		printf("{\"%s\":true}\n", name);
	else
		printf("%s: %s\n", name, sentence);
	return EXIT_FINE;
}

/* The first reason among these bits, as an error; EXIT_FINE: there is none. */
static int not_so(const struct context *context, const char *what, uint64_t health,
		  const enum stats_health_bit *bits, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct stats_health_row *row = stats_health_row(bits[i]);

		if ((health >> bits[i] & 1) != 0)
			return tell_error(context,
					  bits[i] == STATS_HEALTH_STARTING     ? EXIT_STARTING :
					  row->severity == STATS_SEVERITY_warn ? EXIT_FAILED :
										 EXIT_ERR,
					  "not %s: %s: %s", what, row->name, row->prose);
	}
	return EXIT_FINE;
}

static int try_socket(const struct context *context, const char *path)
{
	const int fd = connect_within(path, CONNECT_MS);
	char shown[4 * STATS_TEXT_BYTES];

	if (fd >= 0) {
		(void)close(fd);
		return EXIT_FINE;
	}
	log_escape(path, shown, sizeof(shown));
	if (fd == -EACCES)
		return tell_error(context, EXIT_PERMISSION,
				  "permission denied: %s is for users that [socket] mode and group "
				  "let in; try `sudo kvtierctl status --ready`",
				  shown);
	return tell_error(context, EXIT_NO_DAEMON, "not ready: %s: %s", shown,
			  fd == -EAGAIN ? "engines wait there, and are not accepted" :
					  strerror(-fd));
}

/* Engines can connect, to each socket, wherever it lies. A connect alone is no proof: systemd may
 * hold the socket. */
static int ready(const struct context *context, const struct stats *stats, uint64_t health)
{
	static const enum stats_health_bit bits[] = { STATS_HEALTH_DEAD, STATS_HEALTH_STOPPED,
						      STATS_HEALTH_SILENT, STATS_HEALTH_STARTING,
						      STATS_HEALTH_STOPPING };
	char path[STATS_TEXT_BYTES];
	int r = not_so(context, "ready", health, bits, sizeof(bits) / sizeof(bits[0]));

	for (size_t i = 0; r == EXIT_FINE && i < STATS_SOCKETS; i++) {
		stats_text_get(stats->sockets[i], sizeof(path), path);
		if (i == 0 || path[0] != '\0')
			r = try_socket(context, path[0] != '\0' ? path : context->socket_path);
	}
	return r != EXIT_FINE ? r : found(context, "ready", "engines can connect");
}

/* A daemon that starts or stops is alive: to start it anew would only take longer. */
static int live(const struct context *context, uint64_t health)
{
	static const enum stats_health_bit bits[] = { STATS_HEALTH_DEAD, STATS_HEALTH_STOPPED,
						      STATS_HEALTH_SILENT };
	const int r = not_so(context, "live", health, bits, sizeof(bits) / sizeof(bits[0]));

	return r != EXIT_FINE ?
		       r :
		       found(context, "live",
			     (health >> STATS_HEALTH_STARTING & 1) != 0 ? "the daemon is starting" :
									  "the daemon moves");
}

int command_status(struct context *context, int argc, char **argv)
{
	const struct stats *stats;
	const char *option, *probe = NULL;
	uint64_t health;
	int r;

	while ((option = context_option(context, argc, argv)) != NULL) {
		if (probe)
			usage_error(context, "status: one of --ready and --live");
		probe = option;
	}
	no_more_arguments(context, argc, argv);
	r = status_page(context, &stats);
	if (r != EXIT_FINE)
		return r;
	health = stats_health(stats, clock_ns());
	r = (int)verdict(health)->status;
	if (probe && strcmp(probe, "--ready") == 0)
		r = ready(context, stats, health);
	else if (probe)
		r = live(context, health);
	else if (context->json)
		status_json(stats, health);
	else
		status_print(stats, health, INT_MAX);
	stats_unmap(stats);
	return r;
}

/* --- version --- */

/* The daemon of any version: its version and pid. The exit status; NO_DAEMON and FAILED, which is a
 * daemon of unknown version, have a sentence. */
static int running(const struct context *context, struct stats_maker *ret, char *why, size_t n)
{
	const int r = stats_maker(context->stats_path, ret);

	if (r == -EACCES) {
		snprintf(why, n, "permission denied: %s; try `sudo kvtierctl version`",
			 context->stats_path);
		return EXIT_PERMISSION;
	}
	if (r == 0 && !ret->dead)
		return EXIT_FINE;
	if (socket_answers(context->admin_path)) {
		snprintf(why, n, "running, and %s does not tell its version", context->stats_path);
		return EXIT_FAILED;
	}
	snprintf(why, n, "not running");
	return EXIT_NO_DAEMON;
}

int command_version(struct context *context, int argc, char **argv)
{
	char version[NAME_ROOM], why[512], text[1024];
	struct stats_maker maker;
	struct json json;
	int r;

	(void)context_option(context, argc, argv);
	no_more_arguments(context, argc, argv);
	r = running(context, &maker, why, sizeof(why));
	if (context->json) {
		json_start(&json, text, sizeof(text));
		json_print(&json, "{");
		json_text(&json, "kvtierctl", KVTIER_VERSION);
		json_member(&json, "kvtierd");
		if (r == EXIT_FINE)
			json_string(&json,
				    stats_text_get(maker.version, STATS_NAME_BYTES, version));
		else
			json_print(&json, "null");
		if (r != EXIT_FINE)
			json_text(&json, "error", why);
		json_number(&json, "exit", (uint64_t)r);
		printf("%s}\n", text);
		return r;
	}
	printf("kvtierctl %s\n", KVTIER_VERSION);
	if (r == EXIT_FINE)
		printf("kvtierd   %s, pid %d\n", shown_name(maker.version, version), maker.pid);
	else
		printf("kvtierd   %s\n", why);
	return r;
}
