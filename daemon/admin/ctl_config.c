/* SPDX-License-Identifier: Apache-2.0 */
/* ctl_config.c - the commands config and loglevel. Contract: ctl_commands.h. Core thread only. */
#include "ctl_commands.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "daemon/config/config_value.h"
#include "reload.h"

static const char *action_of(const struct ctl_request *request)
{
	return request->n_words > 1 ? request->words[1] : "";
}

static bool shows(const struct ctl_request *request)
{
	return strcmp(action_of(request), "show") == 0;
}

/* --- config show: a row in a packet --- */

static void say_where_from(const struct config *config, unsigned line, char *ret, size_t n)
{
	if (line == CONFIG_LINE_OPERATOR)
		snprintf(ret, n, "kvtierctl");
	else if (line > 0)
		snprintf(ret, n, "%s:%u", config->file, line);
	else
		snprintf(ret, n, "default");
}

/* A row of the socket at this place. Sockets but the first have only keys of their own. */
static void show_row(const struct config *config, uint32_t socket, size_t i, struct json *json)
{
	const struct config_row row = config_row_at(i, socket);
	char section[64], value[CONFIG_ENDPOINTS_BYTES], from[CONFIG_PATH_BYTES + 32];

	snprintf(section, sizeof(section), "%s%s%s", row.section, socket > 0 ? " " : "",
		 config->sockets[socket].name);
	say_where_from(config, config->line_of[socket][i], from, sizeof(from));
	json_print(json, "{");
	json_text(json, "section", section);
	json_text(json, "key", row.key);
	json_text(json, "value", config_text(&row, config, value, sizeof(value)));
	json_text(json, "from", from);
	json_bool(json, "reload", row.reload);
	json_print(json, "}");
}

static enum ctl_progress show_next(struct kvtierd *d, struct ctl_request *request,
				   struct json *json)
{
	const uint32_t socket = request->position / CONFIG_ROWS,
		       i = request->position % CONFIG_ROWS;

	if (socket == d->config->n_sockets) {
		json_print(json, "]}\n");
		return CTL_LAST;
	}
	request->position++;
	if (socket > 0 && !config_row_of_sockets(&config_rows[i]))
		return CTL_LATER;
	json_print(json, request->position == 1 ? "{\"config\":[\n" : ",\n");
	show_row(d->config, socket, i, json);
	return CTL_MORE;
}

/* --- config reload --- */

static void lines_member(struct json *json, const char *name, const struct config_notes *notes)
{
	const char *cursor = notes->text, *between = "[";
	char line[CONFIG_NOTE_BYTES];

	json_member(json, name);
	for (; config_next_note(&cursor, line); between = ",") {
		json_print(json, "%s", between);
		json_string(json, line);
	}
	json_print(json, "%s", notes->n > 0 ? "]" : "[]");
}

static enum ctl_progress reload_next(struct kvtierd *d, struct ctl_request *request,
				     struct json *json)
{
	const struct reload_report *report = reload_ended(d->reload, request->reload);
	const uint64_t now = loop_now(d->loop);

	if (!report && now < request->told_ns + CTL_PROGRESS_MS * 1000000ull)
		return CTL_WAIT;
	if (!report) {
		request->told_ns = now;
		json_print(json, "{\"done\":0,\"total\":0,\"unit\":\"files\"}");
		return CTL_TELL;
	}
	json_print(json, "{");
	json_bool(json, "refused", report->refused);
	lines_member(json, "mistakes", &report->mistakes);
	lines_member(json, "applied", &report->applied);
	lines_member(json, "restart", &report->restart);
	json_print(json, "}\n");
	if (!json->full)
		return CTL_LAST;
	json_rewind(json, 0);
	json_print(json, "the answer is too long; the log has it");
	return CTL_FAIL;
}

int config_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	char shown[64];

	if (!shows(request) && strcmp(action_of(request), "reload") != 0)
		return text_fail(sentence, n, -EINVAL,
				 "config takes show, reload or check, not \"%s\"",
				 log_escape(action_of(request), shown, sizeof(shown)));
	if (!d->reload)
		return text_fail(sentence, n, -EBUSY, "config: the daemon is still starting");
	request->told_ns = loop_now(d->loop);
	if (!shows(request))
		request->reload = reload_begin(d->reload);
	return 0;
}

enum ctl_progress config_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	return shows(request) ? show_next(d, request, json) : reload_next(d, request, json);
}

/* --- loglevel --- */

int loglevel_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	char shown[64];

	if (!d->reload)
		return text_fail(sentence, n, -EBUSY, "loglevel: the daemon is still starting");
	if (request->n_words > 1 && !reload_log_level(d->reload, action_of(request)))
		return text_fail(sentence, n, -EINVAL, "loglevel takes %s, not \"%s\"",
				 config_rows[CONFIG_ROW_daemon_log_level].unit,
				 log_escape(action_of(request), shown, sizeof(shown)));
	return 0;
}

enum ctl_progress loglevel_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	char level[32];

	(void)request;
	json_print(json, "{");
	json_text(json, "log_level",
		  config_text(&config_rows[CONFIG_ROW_daemon_log_level], d->config, level,
			      sizeof(level)));
	json_print(json, "}\n");
	return CTL_LAST;
}
