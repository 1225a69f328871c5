/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reload.c - see reload.h.
 *
 * Invariants
 *   - `next` and the mistakes are the helper's while it works, and the core's otherwise.
 *   - what is applied cannot fail: all that can was done by the helper.
 *   - sockets are compared by name. If one is new or gone, shares and priorities wait for the
 *     restart, too, since those of all sockets are one sum.
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
#include "daemon/config/config_value.h"
#include "daemon/kvtierd.h"
#include "daemon/write/writeback.h"
#include "tiers/nvme/nvme.h"

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
	struct reload_report report;
};

/* --- the helper --- */

static enum work_end run(struct work *work, uint32_t thread)
{
	struct reload *r = container_of(work, struct reload, work);

	(void)thread;
	r->report.refused = config_load(r->path, &r->next, &r->report.mistakes) != 0 ||
			    config_derive(&r->next, &r->report.mistakes) != 0;
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
	const bool same = compare_sockets(r);

	for (size_t i = 0; i < CONFIG_ROWS; i++) {
		const bool of_sockets = config_row_of_sockets(&config_rows[i]);

		for (uint32_t s = 0; s < (of_sockets ? r->config->n_sockets : 1); s++) {
			const uint32_t from = place_of(&r->next, r->config->sockets[s].name);

			if (from < r->next.n_sockets)
				compare(r, i, s, from, same || !of_sockets);
		}
	}
}

/* Tells the rooms that keep a value of their own; others look at the configuration. */
static void tell_rooms(struct reload *r)
{
	struct kvtierd *d = r->d;
	const struct config *c = r->config;
	struct tier *nvme = d->tables.tiers[TIER_NVME];

	log_set_level((enum log_level)c->daemon_log_level);
	for (uint32_t i = 0; i < c->n_sockets; i++)
		quota_change(&d->quota, i, c->sockets[i].share, c->sockets[i].priority);
	quota_set(&d->quota, QUOTA_kept_bytes, d->quota.all[QUOTA_kept_bytes],
		  c->hints_share_percent);
	if (nvme) {
		nvme_set_budget(nvme, c->nvme_write_budget_bytes_per_day);
		writeback_kick(d->tables.writeback);
	}
}

/* --- its end --- */

static void log_lines(enum log_level level, const char *event, const struct config_notes *notes)
{
	for (const char *line = notes->text; *line != '\0';) {
		const int n = (int)strcspn(line, "\n");

		log_line(level, NULL, event, "%.*s", n, line);
		line += n + (line[n] != '\0');
	}
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
