/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_page.h - the page that `kvtierctl stats` opens with; the list of all numbers is
 * kvtierctl_stats.c's.
 */
#ifndef KVTIERCTL_PAGE_H
#define KVTIERCTL_PAGE_H

#include "daemon/stats/stats.h"
#include "kvtierctl.h"

/* The numbers as they were at one moment. Zeroed: none yet. */
struct page_sample {
	uint64_t at_ns, start_ns; /* CLOCK_MONOTONIC; start_ns tells one daemon from the next */
	struct stats_values v;
	struct histogram load_times, store_times;
};

/* Prints the changes since *before, or since the daemon's start if *before is none or another
 * daemon's; then *before is the numbers as of now. */
void page_print(const struct stats *stats, struct page_sample *before, uint64_t now_ns);

#endif
