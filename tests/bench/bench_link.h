/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_link.h - a link of a given speed on one machine: a network namespace whose loopback is
 * shaped (tc-tbf(8)), so that a network limits, as between nodes, and not the CPUs that both ends
 * share here.
 */
#pragma once

#include "bench.h"

const char *bench_link_rate(void); /* KVTIER_BENCH_LINK as tc takes it, or "10gbit" */
/*
 * Runs a case in a child process with such a loopback; its servers and daemons are there, too. The
 * case is skipped where there is no ip(8), tc(8) or namespace to be had (root has them, and users
 * who may have user namespaces).
 */
void bench_link_run(bench_run_fn *run, const struct bench_case *self, struct bench_result *ret);
