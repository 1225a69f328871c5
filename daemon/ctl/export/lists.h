/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lists.h - what the daemon's lists (tbl_lists.h) say, as metrics with labels of model, tenant,
 * disk, endpoint and device. The admin socket is asked, which answers packet by packet, so no turn
 * of the core thread gets longer; at most once a second, however often somebody scrapes; and not
 * longer than a deadline.
 *
 * The first LISTS_LABELS label sets of a list have series of their own, as long as this process
 * lives, and all others together have the labels "other". So a counter never falls when a space is
 * removed, and no number of models makes more series. Tenants, which the configuration names, are
 * not that many, and all have their own.
 */
#pragma once

#include <stdio.h>

#include "daemon/ctl/kvtierctl.h"

enum { LISTS_LABELS = 50, LISTS_EVERY_MS = 1000, LISTS_DEADLINE_MS = 1000 };

/* Prints kvtier_lists_up, and if it is 1 the metrics. */
void lists_print(FILE *out, const struct context *context);
