/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_status.h - what the commands that read the stats page share: the page opened, its
 * statements about health, and JSON by paths. Whoever made the page may have written anything
 * there, and no end.
 */
#pragma once

#include "base/json.h"
#include "daemon/stats/stats.h"
#include "kvtierctl.h"

/* Maps the stats page. The exit status, after the reason was printed. */
int status_page(const struct context *context, const struct stats **ret);
/* The statements of `status`, in lines of at most `width` columns; INT_MAX: each is one line. */
void status_print(const struct stats *stats, uint64_t health, int width);
/* The name of the state that is at this offset in *v. */
const char *status_state(const struct stats_values *v, size_t offset, char *ret, size_t n);

/* JSON in which the dots of a path are objects: rows with a common prefix stand together. It begins
 * as { .open = "" }, with json_start() and "{". */
struct printer {
	const char *open; /* the path last written; its groups are open */
	struct json json;
};
void printer_name(struct printer *w, const char *path); /* its value comes next */
void printer_end(struct printer *w);                    /* ends the groups, prints the text */
