/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_hostile.c - hostile.*: the cost of a hostile client (lib_hostile.h) for another client: the
 * 99th percentile of lookup, load and store of 16 blocks of 1 MiB images beside it, against three
 * times the percentile of the same calls alone, right before. Every op has a deadline of 50 ms.
 * hostile.in_time counts the calls of all three kinds that ended by their deadline and 5 ms more,
 * against all of them: a single late one is LESS. On a machine that is busy otherwise there are
 * late calls alone, too: the notes say how many, how many ops ran out of time, and how many blocks
 * were missed. The hostile client's threads have nice value 19, so most of the cost is the harm
 * that the client does through the daemon, not a busy machine's. KVTIER_BENCH_HOSTILE=idle gives
 * them SCHED_IDLE, a fifth of that share of a CPU: the difference is the machine's part.
 */

#include "bench_daemon.h"
#include "tests/lib/lib_hostile.h"

enum { BLOCKS = 16, PAGES = 2 * BLOCKS, RUNS = 7, MAX_SAMPLES = 20000 };
enum { PHASE_MS = 1000, DEADLINE_MS = 50, LATE_MS = 5 };
enum call { LOOKUP, LOAD, STORE };

struct phase {
	double us[MAX_SAMPLES];
	uint32_t n, late, timed_out, missed, failed;
};

struct rig {
	struct bench_daemon d;
	struct hostile hostile;
	uint32_t runs, pages[BLOCKS];
	struct phase phase;
	uint32_t late_alone;
	uint32_t late, timed_out, missed, failed, calls; /* beside it, of all runs */
};

static void new_keys(struct rig *rig)
{
	bench_daemon_keys(&rig->d, ++rig->runs);
}

/* One call; its time goes into the phase. 0, or the op's error. */
static int op(struct rig *rig, enum call call, struct kvtier_result *result)
{
	const struct kvtier_op o = { .size = sizeof(o), .timeout_ms = DEADLINE_MS };
	struct phase *p = &rig->phase;
	struct kvtier_hit hit = { .size = sizeof(hit) };
	const uint64_t start = bench_now_ns();
	uint64_t id, took;
	int r;

	*result = (struct kvtier_result){ 0 };
	if (call == LOOKUP)
		r = kvtier_lookup(rig->d.space, rig->d.keys, BLOCKS, &hit);
	else if (call == LOAD)
		r = kvtier_load(rig->d.space, rig->d.keys, rig->pages, BLOCKS, &o, &id);
	else
		r = kvtier_store(rig->d.space, rig->d.keys, rig->pages, BLOCKS, &o, &id);
	if (r == 0 && call != LOOKUP)
		r = bench_wait(rig->d.client, id, result);
	took = bench_now_ns() - start;
	p->us[p->n++] = (double)took / 1e3;
	p->late += took > (DEADLINE_MS + LATE_MS) * 1000000ull;
	return r;
}

/* Until they are there, as only loads of present blocks are measured; not in the figure. */
static void store_again(struct rig *rig)
{
	struct kvtier_result result;
	const uint32_t n = rig->phase.n, late = rig->phase.late;
	int r = -EAGAIN;

	for (int i = 0; i < 100 && r; i++) {
		r = op(rig, STORE, &result);
		rig->phase.n = n;
		rig->phase.late = late;
	}
	bench_must(r);
}

/* Notes the end of a call. */
static void note(struct rig *rig, enum call call, int r, const struct kvtier_result *result)
{
	struct phase *p = &rig->phase;

	if (r == -ENOTCONN || r == -ECONNRESET)
		bench_must(r);
	p->timed_out += r == -ETIMEDOUT;
	if (call == LOAD && (r == -ENOENT || (r == 0 && result->ok < BLOCKS))) {
		p->missed += BLOCKS - result->ok;
		store_again(rig);
		return;
	}
	p->failed += r && r != -ETIMEDOUT;
}

/* The 99th percentile. */
static double run_phase(struct rig *rig, enum call call)
{
	const uint64_t end = bench_now_ns() + PHASE_MS * 1000000ull;
	struct phase *p = &rig->phase;
	struct kvtier_result result;

	p->n = p->late = p->timed_out = p->missed = p->failed = 0;
	new_keys(rig);
	if (call != STORE)
		store_again(rig);
	while (p->n < MAX_SAMPLES && bench_now_ns() < end) {
		if (call == STORE)
			new_keys(rig);
		note(rig, call, op(rig, call, &result), &result);
		if (call == LOOKUP)
			usleep(20); /* else it is over before the other has begun */
	}
	return bench_percentile(p->us, p->n, 99);
}

static void run_pair(struct rig *rig, enum call call, struct bench_result *ret)
{
	const double alone = run_phase(rig, call);
	double beside;

	rig->late_alone += rig->phase.late;
	bench_must(hostile_start(&rig->hostile, rig->d.socket, rig->runs));
	usleep(100000);
	beside = run_phase(rig, call);
	hostile_stop(&rig->hostile);
	usleep(200000); /* its remains are cleared away */
	rig->late += rig->phase.late;
	rig->timed_out += rig->phase.timed_out;
	rig->missed += rig->phase.missed;
	rig->failed += rig->phase.failed;
	rig->calls += rig->phase.n;
	bench_add(ret, beside, 3 * alone);
}

static void say(const struct rig *rig, struct bench_result *ret)
{
	const struct hostile_tally *tally = rig->hostile.tally;

	bench_note(
		ret,
		"%u calls beside its %llu ops: %u late (alone %u), %u out of time, %u failed, %u "
		"blocks missed",
		rig->calls, tally ? (unsigned long long)atomic_load(&tally->ops) : 0, rig->late,
		rig->late_alone, rig->timed_out, rig->failed, rig->missed);
}

static void end_hostile(void *arg)
{
	hostile_free(arg);
}

/* n kinds of calls, each with all its runs. ret: p99 of each run, or the calls that ended in
 * time. */
static void run_calls(const enum call *calls, uint32_t n, bool in_time, struct bench_result *ret)
{
	struct rig *rig = bench_alloc(sizeof(*rig));
	const char *given = getenv("KVTIER_BENCH_HOSTILE");
	struct bench_result pairs = { 0 };

	for (uint32_t i = 0; i < BLOCKS; i++)
		rig->pages[i] = i;
	rig->hostile.idle = given && strcmp(given, "idle") == 0;
	bench_daemon_open(&rig->d, "[host]\nbytes = 1G\n[nvme]\nbytes = 0\n", &bench_shape_1mib,
			  PAGES);
	bench_daemon_await_up(&rig->d.stats->v.tiers_host_state);
	bench_defer(end_hostile, &rig->hostile);
	for (uint32_t run = 0; run < RUNS * n; run++)
		run_pair(rig, calls[run % n], in_time ? &pairs : ret);
	say(rig, ret);
	if (in_time) /* of all runs at once: a median would hide one late call */
		bench_add(ret, rig->calls - rig->late, rig->calls);
}

static void run_p99(const struct bench_case *self, struct bench_result *ret)
{
	run_calls(self->arg, 1, false, ret);
}

static void run_in_time(const struct bench_case *self, struct bench_result *ret)
{
	static const enum call calls[] = { LOOKUP, LOAD, STORE };

	(void)self;
	run_calls(calls, 3, true, ret);
}

/* clang-format off */
#define CASE(name, which) \
	{ name, run_p99, \
	  "p99 of 16 blocks beside a hostile client; limit: three times that alone", 1, \
	  BENCH_LESS, "us", &(const enum call){ which } }

const struct bench_case bench_hostile_cases[] = {
	CASE("hostile.lookup", LOOKUP),
	CASE("hostile.load", LOAD),
	CASE("hostile.store", STORE),
	{ "hostile.in_time", run_in_time,
	  "calls beside a hostile client that end by their deadline + 5 ms; limit: all", 1,
	  BENCH_MORE, "calls", NULL },
	{ 0 },
};
/* clang-format on */
