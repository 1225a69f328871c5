/* SPDX-License-Identifier: Apache-2.0 */
/* kvtierctl_stats.h - the page for people of `kvtierctl stats`; `kvtierctl top` begins with it. */
#pragma once

#include "kvtierctl.h"

/* Prints the status and the changes since the page that this function printed before, or since the
 * daemon's start if that was none or another daemon's. The exit status, after a reason was
 * printed. */
int stats_page_print(const struct context *context, uint64_t *ret_health);
/* Does as `kvtierctl stats --json`, with context->json. */
int stats_json_print(const struct context *context);
/* A number for a table, in at most seven columns. */
char *text_count(double value, char *ret, size_t n);
