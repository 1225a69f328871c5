/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h - a benchmark case. kvtier-bench's main is bench_main.c.
 *
 * Each bench_<subject>.c owns one table of cases that ends with an all-zero entry. A case measures
 * value and limit in alternation, one pair a run, so that both see the same machine; main takes the
 * medians. Its ratio is the median of the runs' own ratios, value / limit (limit / value where less
 * is better); ok = ratio >= goal.
 */
#ifndef KVTIER_BENCH_H
#define KVTIER_BENCH_H

#include <stdint.h>
#include <stdlib.h>
#include <time.h>

enum { BENCH_MAX_RUNS = 64 };
enum bench_better { BENCH_MORE = 1, BENCH_LESS };

/* Filled by a case: `n` runs. A limit that is not measured (a figure promised) is the same in every
 * run. */
struct bench_result {
	uint32_t n;
	double value[BENCH_MAX_RUNS];
	double limit[BENCH_MAX_RUNS];
	char note[128]; /* shown beside the figures; why, where the case was skipped */
};

struct bench_case {
	const char *name; /* dotted; selected by any prefix of it */
	/* 0; -ENOTSUP: cannot run here (note says why); other -errno: failed. *ret comes zeroed. */
	int (*run)(const struct bench_case *self, struct bench_result *ret);
	const char *prose; /* the value and its limit, one line */
	double goal;       /* least ratio that is ok; 0: none, it is only reported */
	enum bench_better better;
	const char *unit; /* of value and limit: "GB/s", "ns", "B" */
	const void *arg;  /* the case's own */
};

extern const struct bench_case bench_codec_cases[];  /* bench_codec.c */
extern const struct bench_case bench_lookup_cases[]; /* bench_lookup.c: lookup.* */
extern const struct bench_case bench_memory_cases[]; /* bench_memory.c: memory.per_block* */
extern const struct bench_case bench_keys_cases[];   /* bench_keys.c: keys */
extern const struct bench_case bench_nvme_cases[];   /* bench_nvme.c: nvme.* */
/* bench_nvme_daemon.c: nvme.store, nvme.load */
extern const struct bench_case bench_nvme_daemon_cases[];
extern const struct bench_case bench_redis_cases[]; /* bench_redis.c: redis.* */
/* bench_redis_daemon.c: redis.store, redis.load */
extern const struct bench_case bench_redis_daemon_cases[];
extern const struct bench_case bench_hostile_cases[]; /* bench_hostile.c: hostile.* */
extern const struct bench_case bench_cuda_cases[];    /* bench_cuda.c: cuda.* */
/* bench_cuda_step.c: cuda.traffic, cuda.step */
extern const struct bench_case bench_cuda_step_cases[];
/* bench_cuda_modes.c: cuda.step.daemon, cuda.step.engine* */
extern const struct bench_case bench_cuda_modes_cases[];
extern const struct bench_case bench_cuda_pin_cases[]; /* bench_cuda_pin.c: cuda.pin.* */
/* bench_cuda_daemon.c: cuda.store.*, cuda.load.*, cuda.hit */
extern const struct bench_case bench_cuda_daemon_cases[];
extern const struct bench_case bench_cuda_beside_cases[]; /* bench_cuda_beside.c: cuda.beside.* */
extern const struct bench_case bench_layers_cases[]; /* bench_layers.c: layers.*, cuda.layers.* */
extern const struct bench_case bench_io_cases[];     /* bench_io.c: submit.*, store.*, load.* */

static inline uint64_t bench_now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* sorts them; bench_main.c */
double bench_percentile(double *values, uint32_t n, uint32_t percent);

/* Notes one run; false when there is no room for more. */
static inline int bench_add(struct bench_result *result, double value, double limit)
{
	if (result->n == BENCH_MAX_RUNS)
		return 0;
	result->value[result->n] = value;
	result->limit[result->n++] = limit;
	return 1;
}

#endif
