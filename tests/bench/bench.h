/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h - a benchmark case. kvtier-bench's main is bench_main.c.
 *
 * Each bench_<subject>.c owns one table of cases that ends with an all-zero entry. A case measures
 * value and limit in alternation, one pair a run, so that both see the same machine; main takes the
 * medians. Its ratio is the median of the runs' own ratios, value / limit (limit / value where less
 * is better); ok = ratio >= goal.
 *
 * A step that cannot be done ends its case: bench_fail(), bench_must(). What a step opens it hands
 * to bench_defer(), which closes it when the case ends, failed or not. So no function here returns
 * an error that its caller could only pass on. These functions are for the thread that runs the
 * case; a thread of a case's own returns its errors.
 */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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

struct bench_case;
typedef void bench_run_fn(const struct bench_case *self, struct bench_result *ret);

struct bench_case {
	const char *name;  /* dotted; selected by any prefix of it */
	bench_run_fn *run; /* *ret comes zeroed */
	const char *prose; /* the value and its limit, one line */
	double goal;       /* least ratio that is ok; 0: none, it is only reported */
	enum bench_better better;
	const char *unit; /* of value and limit: "GB/s", "ns", "B" */
	const void *arg;  /* the case's own */
};

/* The tables, bench_<subject>_cases of bench_<subject>.c, in the order in which they run. */
#define BENCH_TABLES(TABLE) \
	TABLE(codec)        \
	TABLE(input)        \
	TABLE(lookup)       \
	TABLE(keys)         \
	TABLE(io)           \
	TABLE(core)         \
	TABLE(nvme)         \
	TABLE(nvme_daemon)  \
	TABLE(redis)        \
	TABLE(redis_daemon) \
	TABLE(hostile)      \
	TABLE(cuda)         \
	TABLE(cuda_step)    \
	TABLE(cuda_served)  \
	TABLE(cuda_pin)     \
	TABLE(cuda_daemon)  \
	TABLE(cuda_beside)  \
	TABLE(layers)       \
	TABLE(scale)        \
	TABLE(memory)
#define BENCH_TABLE(subject) extern const struct bench_case bench_##subject##_cases[];
BENCH_TABLES(BENCH_TABLE)

static inline uint64_t bench_clock_ns(clockid_t clock)
{
	struct timespec t = { 0 };

	(void)clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t bench_now_ns(void)
{
	return bench_clock_ns(CLOCK_MONOTONIC);
}

/* Of CPU, by CLOCK_PROCESS_CPUTIME_ID or CLOCK_THREAD_CPUTIME_ID. */
static inline double bench_cpu_seconds(clockid_t clock)
{
	return (double)bench_clock_ns(clock) * 1e-9;
}

double bench_percentile(double *values, uint32_t n, uint32_t percent); /* sorts them */

/* Runs a case: 0; -ENOTSUP: it cannot run here, and the note says why; else -errno: it failed. */
int bench_run(bench_run_fn *run, const struct bench_case *self, struct bench_result *ret);
/* Ends the case with this status, and this note unless it is "". */
_Noreturn void bench_fail(int status, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Ends the case if r < 0, with what libkvtier said last, if anything, and the errno. */
void bench_must(int r);
/* When the case ends end(arg) is called; the last one first. */
void bench_defer(void (*end)(void *arg), void *arg);
/* A part of the case that ends before it: what was deferred since bench_mark() ends. */
uint32_t bench_mark(void);
void bench_end(uint32_t mark);
void *bench_alloc(size_t bytes); /* zeros, until the case ends */
/* An empty directory in `parent`, until the case ends; its path into ret. */
void bench_dir(const char *parent, char *ret, size_t n);
/* A memfd of so many bytes and its mapping, until the case ends. huge: in huge pages, as the host
 * tier is, where the kernel has them. */
uint8_t *bench_memfd(size_t bytes, bool huge, int *ret_fd);
/* One run; no more than there is room for are noted. */
void bench_add(struct bench_result *ret, double value, double limit);
/* In place of the note that is there, which may be one of the arguments. */
void bench_note(struct bench_result *ret, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
