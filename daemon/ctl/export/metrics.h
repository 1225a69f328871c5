/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.h - the stats page as Prometheus' text format 0.0.4. Names follow from tbl_stats.h by
 * rules, so a new number needs no line here:
 *
 *	load.blocks_total               kvtier_load_blocks_total
 *	tiers.nvme.recovery_ms          kvtier_tier_recovery_seconds{tier="nvme"}
 *	tiers.host.state                kvtier_tier_state{tier="host",state="up"} 1, for each state
 *	lookup.host_blocks_total        kvtier_lookup_blocks_total{result="host"}
 *	hints.clipped_blocks_total      kvtier_hint_blocks_total{answer="clipped"}
 *	load.duration_ns                kvtier_load_duration_seconds_bucket{le="0.016777216"}...
 */
#pragma once

#include <stdio.h>

#include "daemon/ctl/kvtierctl.h"

/* HELP and TYPE of a family, whose samples follow at once. */
void metric_family(FILE *out, const char *name, const char *type, const char *help);
/* name="value" of a label. The value may be anything. */
void metric_label(FILE *out, const char *name, const char *value);

/* Prints all that the page at context->stats_path says. Without a page, or if its daemon is dead,
 * that is kvtier_up 0 and little more. Returns whether the daemon runs: it can be asked for lists.
 * If the page is there and cannot be read, it says why on stderr and exits. */
bool metrics_print(FILE *out, const struct context *context);
