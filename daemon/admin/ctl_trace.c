/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_trace.c - the admin command about ops: trace, a row for each step. Core thread only; see
 * ctl_commands.h.
 */
#include <string.h>

#include "ctl_commands.h"
#include "daemon/op/trace.h"

int trace_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	return ctl_no_arguments(d, request, sentence, n);
}

static const char *status_text(const struct trace_row *row)
{
	if (!row->done)
		return "";
	return row->status < 0 ? strerrorname_np(-row->status) : row->status > 0 ? "present" : "ok";
}

static bool step_row(struct kvtierd *d, uint32_t position, struct json *json, bool *ret_end)
{
	struct trace_row found, *row = &found;

	if (!trace_row(d->ops, position, row, ret_end))
		return false;
	json_print(json, "{");
#define TRACE_COLUMN(title, name, kind, value) CTL_##kind(json, name, value);
#include "tbl_lists.h"
	json_print(json, "}");
	return true;
}

enum ctl_progress trace_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	return ctl_list(d, request, json, "trace", step_row);
}
