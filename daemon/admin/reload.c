/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reload.c - see reload.h.
 *
 * Invariants
 *   - `next`, `setup` and the mistakes are the helper's while it works, and the core's otherwise.
 *   - what is applied cannot fail: all that can was done by the helper.
 *   - sockets are compared by name. If one is new or gone, shares and priorities wait for the
 *     restart, too, since those of all sockets are one sum.
 *   - the keys of the Redis tier are applied together, by a tier that is there and stays.
 */
#include "reload.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/log.h"
#include "base/notify.h"
#include "base/workers.h"
#include "daemon/config/config_place.h"
#include "daemon/config/config_redis.h"
#include "daemon/config/config_value.h"
#include "daemon/kvtierd.h"
#include "daemon/write/writeback.h"
#include "tiers/nvme/nvme.h"
#include "tiers/redis/conn/redis_setup.h"
#include "tiers/redis/redis.h"

struct reload {
	struct kvtierd *d;
	struct config *config;
	const char *path;
	const struct notify *notify;
	struct workers *helper;
	struct work work;
	bool lent;
	uint64_t begun, wanted, ended; /* numbers of reloads */
	struct config next;
	struct redis_setup *setup; /* of next; NULL: it has no endpoints */
	struct reload_report report;
};

/* --- the helper --- */

/* The line of the key that a sentence such as "[redis] password_file: ..." begins with; 0: none. */
static unsigned line_of(const struct config *config, const char *sentence)
{
	char key[128];

	for (size_t i = 0; i < CONFIG_ROWS; i++) {
		const int n = snprintf(key, sizeof(key), "[%s] %s:", config_rows[i].section,
				       config_rows[i].key);

		if (strncmp(sentence, key, (size_t)n) == 0)
			return config->line_of[0][i];
	}
	return 0;
}

/* Reads the files that [redis] names. False: one is wrong. */
static bool read_redis(struct reload *r)
{
	struct redis_tier_conf conf = { 0 };
	struct config_redis *secrets = config_redis_new();
	char text[512] = "[redis]: out of memory";
	int error = secrets ? config_redis(&r->next, secrets, &conf, text, sizeof(text)) : -ENOMEM;

	if (error == 0 && conf.n_endpoints > 0) {
		spaces_seals(r->d->tables.spaces, secrets->sealing, &secrets->seals);
		error = redis_setup_new(&conf, &r->setup, text, sizeof(text));
	}
	config_redis_close(secrets);
	if (error)
		config_note(&r->report.mistakes, r->next.file, line_of(&r->next, text), "%s", text);
	return error == 0;
}

static enum work_end run(struct work *work, uint32_t thread)
{
	struct reload *r = container_of(work, struct reload, work);

	(void)thread;
	r->report.refused = config_load(r->path, &r->next, &r->report.mistakes) != 0 ||
			    config_derive(&r->next, &r->report.mistakes) != 0 || !read_redis(r);
	return WORK_ENDED;
}

/* --- one value --- */

/* "[socket NAME] share" or "[host] bytes". */
static const char *key_name(const struct reload *r, uint32_t socket, const struct config_row *row,
			    char ret[128])
{
	const char *name = r->config->sockets[socket].name;

	snprintf(ret, 128, "[%s%s%s] %s", row->section, name[0] != '\0' ? " " : "", name, row->key);
	return ret;
}

/* The value of socket `from` of the file beside that of `socket`. */
static void compare(struct reload *r, size_t i, uint32_t socket, uint32_t from, bool may_apply)
{
	const struct config_row to = config_row_at(i, socket), of = config_row_at(i, from);
	char now[CONFIG_ENDPOINTS_BYTES], new[CONFIG_ENDPOINTS_BYTES], key[128];
	const unsigned line = r->next.line_of[from][i];

	(void)config_text(&to, r->config, now, sizeof(now));
	(void)config_text(&of, &r->next, new, sizeof(new));
	(void)key_name(r, socket, &to, key);
	if (strcmp(now, new) != 0 && !(to.reload && may_apply)) {
		config_note(&r->report.restart, line ? r->next.file : NULL, line,
			    "%s: %.128s is in effect, and %.128s needs a restart", key, now, new);
		return;
	}
	r->config->line_of[socket][i] = line;
	if (strcmp(now, new) == 0)
		return;
	memcpy((char *)r->config + to.offset, (const char *)&r->next + of.offset, to.bytes);
	config_note(&r->report.applied, line ? r->next.file : NULL, line,
		    "%s: %.128s, no longer %.128s", key, new, now);
}

/* --- all of them --- */

/* The place of the socket with this name. */
static uint32_t place_of(const struct config *config, const char *name)
{
	uint32_t i = 0;

	while (i < config->n_sockets && strcmp(config->sockets[i].name, name) != 0)
		i++;
	return i;
}

/* Whether both have the same sockets. */
static bool compare_sockets(struct reload *r)
{
	const struct config *c = r->config, *next = &r->next;
	bool same = true;

	for (uint32_t i = 0; i < c->n_sockets; i++) {
		if (place_of(next, c->sockets[i].name) < next->n_sockets)
			continue;
		same = false;
		config_note(&r->report.restart, next->file, 0,
			    "[socket %s] is gone from the file: that needs a restart",
			    c->sockets[i].name);
	}
	for (uint32_t i = 0; i < next->n_sockets; i++) {
		if (place_of(c, next->sockets[i].name) < c->n_sockets)
			continue;
		same = false;
		config_note(&r->report.restart, next->file, 0,
			    "[socket %s] is new: that needs a restart", next->sockets[i].name);
	}
	return same;
}

static void take_over(struct reload *r)
{
	const bool same = compare_sockets(r), redis = r->d->tables.tiers[TIER_REDIS] && r->setup;

	if (!r->path)
		config_note(&r->report.restart, NULL, 0,
			    "kvtierd was started without --config: to have a file needs a restart");
	for (size_t i = 0; i < CONFIG_ROWS; i++) {
		const bool of_sockets = config_row_of_sockets(&config_rows[i]),
			   of_redis = strcmp(config_rows[i].section, "redis") == 0,
			   may_apply = of_sockets ? same : !of_redis || redis;

		for (uint32_t s = 0; s < (of_sockets ? r->config->n_sockets : 1); s++) {
			const uint32_t from = place_of(&r->next, r->config->sockets[s].name);

			if (from < r->next.n_sockets)
				compare(r, i, s, from, may_apply);
		}
	}
}

/* Tells the rooms that keep a value of their own; others look at the configuration. */
static void tell_rooms(struct reload *r)
{
	struct kvtierd *d = r->d;
	const struct config *c = r->config;
	struct tier *nvme = d->tables.tiers[TIER_NVME], *redis = d->tables.tiers[TIER_REDIS];

	log_set_level((enum log_level)c->daemon_log_level);
	for (uint32_t i = 0; i < c->n_sockets; i++)
		quota_change(&d->quota, i, c->sockets[i].share, c->sockets[i].priority);
	quota_set(&d->quota, QUOTA_kept_bytes, d->quota.all[QUOTA_kept_bytes],
		  c->hints_share_percent);
	if (nvme) {
		nvme_set_budget(nvme, c->nvme_write_budget_bytes_per_day);
		writeback_kick(d->tables.writeback);
	}
	if (redis && r->setup && redis_change(redis, r->setup))
		config_note(&r->report.applied, NULL, 0,
			    "[redis] connects anew, with the files of secrets as they are now");
	else if (!redis)
		redis_setup_free(r->setup);
	r->setup = NULL;
}

/* --- its end --- */

static void log_lines(enum log_level level, const char *event, const struct config_notes *notes)
{
	const char *cursor = notes->text;
	char line[CONFIG_NOTE_BYTES];

	while (config_next_note(&cursor, line))
		log_line(level, NULL, event, "%s", line);
}

static void done(struct work *work)
{
	struct reload *r = container_of(work, struct reload, work);

	r->lent = false;
	if (r->report.refused) {
		log_lines(LOG_LEVEL_ERROR, "config_mistake", &r->report.mistakes);
		log_error("config_refused", "the configuration has %u mistakes: nothing changed",
			  r->report.mistakes.n);
	} else {
		take_over(r);
		tell_rooms(r);
		log_lines(LOG_LEVEL_INFO, "config_applied", &r->report.applied);
		log_lines(LOG_LEVEL_WARNING, "config_restart", &r->report.restart);
		log_info("config_reloaded",
			 "%s was read again: %u values changed, %u need a restart", r->next.file,
			 r->report.applied.n, r->report.restart.n);
	}
	r->ended = r->begun;
	if (r->wanted > r->begun)
		(void)reload_begin(r);
	else
		(void)notify_send(r->notify, "READY=1");
}

uint64_t reload_begin(struct reload *r)
{
	if (r->lent)
		return r->wanted = r->begun + 1;
	if (r->wanted == r->ended) {
		r->wanted++;
		(void)notify_reloading(r->notify);
	}
	r->begun = r->wanted;
	r->lent = true;
	memset(&r->report, 0, sizeof(r->report));
	workers_submit(r->helper, &r->work);
	return r->begun;
}

const struct reload_report *reload_ended(const struct reload *r, uint64_t number)
{
	return !r->lent && r->ended >= number ? &r->report : NULL;
}

bool reload_log_level(struct reload *r, const char *level)
{
	const struct config_row *row = &config_rows[CONFIG_ROW_daemon_log_level];
	char why[256];

	if (config_value(row, level, r->config, why, sizeof(why)) < 0)
		return false;
	r->config->line_of[0][CONFIG_ROW_daemon_log_level] = CONFIG_LINE_OPERATOR;
	log_set_level((enum log_level)r->config->daemon_log_level);
	log_info("log_level", "%s from now on, as asked by the operator", level);
	return true;
}

bool reload_busy(const struct reload *r)
{
	return r && r->lent;
}

int reload_open(struct kvtierd *d, struct config *config, const char *path,
		const struct notify *notify, struct reload **ret)
{
	struct reload *r = calloc(1, sizeof(*r));
	int error;

	if (!r)
		return -ENOMEM;
	r->d = d;
	r->config = config;
	r->path = path;
	r->notify = notify;
	r->work = (struct work){ .run = run, .done = done };
	error = workers_open_helpers(d->loop, 1, &r->helper);
	if (error)
		reload_close(r);
	else
		*ret = r;
	return error;
}

void reload_close(struct reload *r)
{
	if (!r)
		return;
	workers_close(r->helper);
	free(r);
}
