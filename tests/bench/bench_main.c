/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_main.c - kvtier-bench: runs the cases named (all without names), prints a table, or with
 * --json one object a line. Exit: 0 ran, 1 a case failed to run, 64 usage. Missing a goal is a
 * finding, not a failure.
 */
#include <json-c/json.h>
#include <setjmp.h>
#include <stdarg.h>

#include "bench.h"
#include "client/kvtier.h"

/* --- the case under way --- */

enum { DEFERRED = 64 };

struct deferred {
	void (*end)(void *arg);
	void *arg;
};

static struct {
	jmp_buf failed;
	int status; /* of the first step that failed */
	struct bench_result *result;
	uint32_t n;
	struct deferred deferred[DEFERRED];
} now;

int bench_run(bench_run_fn *run, const struct bench_case *self, struct bench_result *ret)
{
	now.status = 0;
	now.result = ret;
	now.n = 0;
	if (setjmp(now.failed) == 0)
		run(self, ret);
	bench_end(0); /* a step that fails in here comes back to setjmp() */
	return now.status;
}

uint32_t bench_mark(void)
{
	return now.n;
}

void bench_end(uint32_t mark)
{
	while (now.n > mark) {
		const struct deferred *last = &now.deferred[--now.n];

		last->end(last->arg);
	}
}

static void write_note(struct bench_result *ret, const char *format, va_list list)
{
	char text[sizeof(ret->note)];

	(void)vsnprintf(text, sizeof(text), format, list);
	memcpy(ret->note, text, sizeof(text));
}

void bench_note(struct bench_result *ret, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	write_note(ret, format, list);
	va_end(list);
}

void bench_fail(int status, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	if (now.status == 0 && format[0])
		write_note(now.result, format, list);
	va_end(list);
	now.status = now.status ? now.status : status;
	longjmp(now.failed, 1);
}

void bench_must(int r)
{
	const char *words = kvtier_last_error();

	if (r < 0)
		bench_fail(r, "%.60s%s%s", words, words[0] ? "; " : "", strerror(-r));
}

void bench_defer(void (*end)(void *arg), void *arg)
{
	if (now.n == DEFERRED) { /* a mistake of the case's */
		(void)fprintf(stderr, "kvtier-bench: DEFERRED is too small\n");
		abort();
	}
	now.deferred[now.n++] = (struct deferred){ end, arg };
}

void *bench_alloc(size_t bytes)
{
	void *ret = calloc(1, bytes);

	if (!ret)
		bench_fail(-ENOMEM, "%s", "");
	bench_defer(free, ret);
	return ret;
}

static void remove_dir(void *path)
{
	char command[320];

	(void)snprintf(command, sizeof(command), "rm -rf '%s'", (const char *)path);
	if (system(command))
		(void)fprintf(stderr, "cannot remove %s\n", (const char *)path);
}

void bench_dir(const char *parent, char *ret, size_t n)
{
	(void)snprintf(ret, n, "%.200s/kvtier-bench-XXXXXX", parent);
	if (!mkdtemp(ret))
		bench_fail(-errno, "%.80s: %s", parent, strerror(errno));
	bench_defer(remove_dir, ret);
}

struct memfd {
	int fd;
	void *map;
	size_t bytes;
};

static void memfd_end(void *arg)
{
	const struct memfd *m = arg;

	if (m->map != MAP_FAILED)
		(void)munmap(m->map, m->bytes);
	if (m->fd >= 0)
		(void)close(m->fd);
}

uint8_t *bench_memfd(size_t bytes, bool huge, int *ret_fd)
{
	struct memfd *m = bench_alloc(sizeof(*m));

	*m = (struct memfd){ memfd_create("bench", MFD_CLOEXEC | MFD_ALLOW_SEALING), MAP_FAILED,
			     bytes };
	bench_defer(memfd_end, m);
	if (m->fd < 0 || ftruncate(m->fd, (off_t)bytes) ||
	    fcntl(m->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
		bench_must(-errno);
	m->map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
	if (m->map == MAP_FAILED)
		bench_must(-errno);
	if (huge)
		(void)madvise(m->map, bytes, MADV_HUGEPAGE);
	*ret_fd = m->fd;
	return m->map;
}

void bench_add(struct bench_result *ret, double value, double limit)
{
	if (ret->n == BENCH_MAX_RUNS)
		return;
	ret->value[ret->n] = value;
	ret->limit[ret->n++] = limit;
}

static int compare(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double bench_percentile(double *values, uint32_t n, uint32_t percent)
{
	qsort(values, n, sizeof(*values), compare);
	return n ? values[(uint64_t)(n - 1) * percent / 100] : 0;
}

/* --- the table --- */

struct options {
	bool json, list;
	char **names;
	int n_names;
};

static double median(const double *values, uint32_t n)
{
	double sorted[BENCH_MAX_RUNS];

	memcpy(sorted, values, n * sizeof(*values));
	(void)bench_percentile(sorted, n, 50);
	return n & 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* Of the runs' own ratios: a disturbance of the machine in one run hits value and limit alike. */
static double median_ratio(const struct bench_case *c, const struct bench_result *r)
{
	double ratios[BENCH_MAX_RUNS];

	for (uint32_t i = 0; i < r->n; i++)
		ratios[i] = c->better == BENCH_MORE ? r->value[i] / r->limit[i] :
						      r->limit[i] / r->value[i];
	return median(ratios, r->n);
}

static bool selected(const struct options *o, const struct bench_case *c)
{
	const char *input = getenv("KVTIER_BENCH_INPUT");

	/* a file of pages is for the cases that read it */
	if (input && input[0] && strncmp(c->name, "codec.input.", 12) != 0)
		return false;
	for (int i = 0; i < o->n_names; i++)
		if (!strncmp(c->name, o->names[i], strlen(o->names[i])))
			return true;
	return o->n_names == 0;
}

/* Five significant figures are more than these measure; fewer digits compare more easily. */
static void add_figure(struct json_object *to, const char *name, double x)
{
	char text[32];

	(void)snprintf(text, sizeof(text), "%.5g", x);
	json_object_object_add(to, name, json_object_new_double_s(x, text));
}

static void print_json(const struct bench_case *c, const struct bench_result *r, int status,
		       double value, double limit, double ratio)
{
	struct json_object *line = json_object_new_object(), *runs = json_object_new_array();

	json_object_object_add(line, "case", json_object_new_string(c->name));
	if (status) {
		json_object_object_add(line, status == -ENOTSUP ? "skipped" : "error",
				       json_object_new_string(r->note[0] ? r->note :
									   strerror(-status)));
	} else {
		add_figure(line, "value", value);
		json_object_object_add(line, "unit", json_object_new_string(c->unit));
		add_figure(line, "limit", limit);
		add_figure(line, "ratio", ratio);
		if (c->goal > 0) {
			add_figure(line, "goal", c->goal);
			json_object_object_add(line, "ok",
					       json_object_new_boolean(ratio >= c->goal));
		}
		for (uint32_t i = 0; i < r->n; i++) {
			struct json_object *pair = json_object_new_object();

			add_figure(pair, "value", r->value[i]);
			add_figure(pair, "limit", r->limit[i]);
			json_object_array_add(runs, pair);
		}
		json_object_object_add(line, "better",
				       json_object_new_string(c->better == BENCH_MORE ? "more" :
											"less"));
		json_object_object_add(line, "note", json_object_new_string(r->note));
		json_object_object_add(line, "runs", json_object_get(runs));
	}
	json_object_put(runs);
	(void)puts(json_object_to_json_string_ext(line, JSON_C_TO_STRING_PLAIN |
								JSON_C_TO_STRING_NOSLASHESCAPE));
	json_object_put(line);
}

static void print_row(const struct bench_case *c, const struct bench_result *r, int status,
		      double value, double limit, double ratio)
{
	char goal[16] = "-";

	if (c->goal > 0)
		(void)snprintf(goal, sizeof(goal), "%.3g", c->goal);
	if (status)
		(void)printf("%-36s %s: %s\n", c->name, status == -ENOTSUP ? "skipped" : "failed",
			     r->note[0] ? r->note : strerror(-status));
	else
		(void)printf("%-36s %10.5g %10.5g %-5s %7.3f %6s  %-4s %s\n", c->name, value, limit,
			     c->unit, ratio, goal,
			     c->goal <= 0     ? "" :
			     ratio >= c->goal ? "ok" :
						"LESS",
			     r->note);
	(void)fflush(stdout);
}

static int run_case(const struct options *o, const struct bench_case *c)
{
	struct bench_result result = { 0 };
	double value = 0, limit = 0, ratio = 0;
	int status = bench_run(c->run, c, &result);

	if (!status && result.n == 0)
		status = -ENODATA;
	if (!status) {
		value = median(result.value, result.n);
		limit = median(result.limit, result.n);
		ratio = median_ratio(c, &result);
	}
	(o->json ? print_json : print_row)(c, &result, status, value, limit, ratio);
	return status == -ENOTSUP ? 0 : status;
}

static int usage(FILE *to, int status)
{
	(void)fprintf(
		to,
		"usage: kvtier-bench [CASE...] [--input FILE] [--json] [--list] [--help]\n"
		"CASE selects every case whose name begins with it; without any, all run.\n"
		"  --json   one JSON object a line: case, value, unit, limit, ratio, goal, ok, "
		"better, note, runs\n"
		"  --list   the cases and what they measure\n"
		"  --input FILE  only codec.input cases: codecs on the pages that `kvtierctl dump` "
		"wrote there\n"
		"Value and limit are medians of interleaved runs; ratio is the median of "
		"value/limit of each run\n"
		"(limit/value where less is better); ok = ratio >= goal; a case without goal is "
		"only reported.\n"
		"  KVTIER_BENCH_DIR     the directory whose disk nvme cases measure; else TMPDIR "
		"or /var/tmp\n"
		"  KVTIER_BENCH_REDIS   the server that redis cases measure, as 10.0.0.2:6379; "
		"empty, since they\n"
		"                       flush it; else they start their own\n"
		"  KVTIER_BENCH_LINK    the speed of the link of redis.store and redis.load, as "
		"25gbit; else 10gbit\n"
		"  KVTIER_BENCH_HOSTILE idle: the hostile client has SCHED_IDLE; else nice value "
		"19\n"
		"  KVTIER_BENCH_SCALE   1e7: scale cases of 1e7 blocks run, too, in 3 GiB of "
		"memory\n"
		"  KVTIER_BENCH_FILL    blocks of scale.fill, 92 bytes of memory each; else 1e6\n"
		"  KVTIER_BENCH_CUDA_BLOCKS blocks of threads where a case says 16 or 8, and "
		"[gpu] max_ctas\n"
		"  KVTIER_BENCH_CUDA_MIB how much device memory cuda cases copy and encode; else "
		"512\n");
	return status;
}

static int parse(int argc, char **argv, struct options *ret)
{
	ret->names = argv + 1; /* kept in place, options squeezed out */
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--json"))
			ret->json = true;
		else if (!strcmp(argv[i], "--list"))
			ret->list = true;
		else if (!strcmp(argv[i], "--input") && i + 1 < argc)
			(void)setenv("KVTIER_BENCH_INPUT", argv[++i], 1);
		else if (argv[i][0] == '-')
			return -EINVAL;
		else
			ret->names[ret->n_names++] = argv[i];
	}
	return 0;
}

int main(int argc, char **argv)
{
#define TABLE(subject) bench_##subject##_cases,
	const struct bench_case *const tables[] = { BENCH_TABLES(TABLE) };
	struct options o = { 0 };
	int failed = 0, ran = 0;

	if (argc > 1 && !strcmp(argv[1], "--help"))
		return usage(stdout, 0);
	if (parse(argc, argv, &o))
		return usage(stderr, 64);
	if (!o.json && !o.list)
		(void)printf("%-36s %10s %10s %-5s %7s %6s\n", "case", "value", "limit", "unit",
			     "ratio", "goal");
	for (size_t t = 0; t < sizeof(tables) / sizeof(tables[0]); t++)
		for (const struct bench_case *c = tables[t]; c->name; c++) {
			if (!selected(&o, c))
				continue;
			ran++;
			if (o.list && c->goal > 0)
				(void)printf("%-36s %s; goal %g\n", c->name, c->prose, c->goal);
			else if (o.list)
				(void)printf("%-36s %s\n", c->name, c->prose);
			else
				failed += run_case(&o, c) != 0;
		}
	if (!ran) {
		(void)fprintf(stderr, "kvtier-bench: no case begins so; see --list\n");
		return 64;
	}
	return failed ? 1 : 0;
}
