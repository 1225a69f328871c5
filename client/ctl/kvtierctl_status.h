/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_status.h - the stats page, and its statements about the daemon's health; it answers in
 * any state of the daemon.
 */
#ifndef KVTIERCTL_STATUS_H
#define KVTIERCTL_STATUS_H

#include <stddef.h>
#include <stdint.h>

struct context;
struct stats;

/* Maps the stats page; NULL: said why on stderr, and the caller exits with EXIT_NO_DAEMON. */
const struct stats *stats_page(const struct context *context);
/* "kvtierd 0.1.0, pid 42, up 3h 2m, device cpu, kernels avx2" */
char *daemon_line(const struct stats *stats, char *ret, size_t n);
/* The statements of `status`, as text in lines of at most `width` columns; INT_MAX: each statement
 * is one line. */
void status_print(const struct stats *stats, uint64_t health, int width);

#endif
