/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_cuda_pin.c - cuda.pin.*: how much longer a store takes while kvtierd registers its host
 * tier with the driver, through client and daemon.
 *
 *	cuda.pin.gpu	stores of small blocks, one after the other, from the memory of a GPU
 *	cuda.pin.cpu	the same from a memfd, beside an engine that only has memory of the GPU
 *
 * The figure is the 99th percentile of their times while memory is registered, less the percentile
 * of the same stores when all is registered, against the millisecond that is allowed. The note has
 * the longest of each. The memory is 16 times KVTIER_BENCH_CUDA_MIB, in 128 pieces, or in pieces of
 * 2 MiB; with the default these have the 64 MiB of a real one. On the emulated driver each call
 * takes 50 ms, more than 64 MiB should. So with any amount of memory the pin thread is in such a
 * call nearly all the time, and a store that waited for a call would show it. A store from an
 * emulated GPU takes milliseconds of CPU itself, so the figure says something on a quiet machine
 * only.
 */

#include "bench_cuda_client.h"

enum { BLOCKS = 32, MAX_SAMPLES = 20000, LEAST_SAMPLES = 320 };

static const double ALLOWED_US = 1000;

struct bench {
	struct rig rig;
	struct bench_daemon d;
	struct kvtier_space *space;
	uint64_t host_bytes;
	uint32_t runs, n;
	double us[MAX_SAMPLES];
};

/* New blocks, one op each. */
static void store_some(struct bench *b)
{
	struct kvtier_key keys[BLOCKS];

	bench_must(bench_keys(b->space, b->runs++, BLOCKS, keys));
	for (uint32_t i = 0; i < BLOCKS; i++) {
		const uint64_t start = bench_now_ns();

		bench_must(bench_move(b->d.client, b->space, false, &keys[i], i, 1));
		if (b->n < MAX_SAMPLES)
			b->us[b->n++] = (double)(bench_now_ns() - start) / 1e3;
	}
}

static bool all_pinned(const struct bench *b)
{
	return stats_get(&b->d.stats->v.tiers_host_pinned_bytes) >= b->host_bytes;
}

/* The 99th percentile. while_pinning: until all is registered; else as many as then. */
static double run_phase(struct bench *b, bool while_pinning, double *ret_most)
{
	const uint64_t until = bench_now_ns() + BENCH_PATIENCE_MS * 1000000ull;
	const uint32_t n = while_pinning        ? MAX_SAMPLES :
			   b->n < LEAST_SAMPLES ? LEAST_SAMPLES :
						  b->n;
	double ret;

	b->n = 0;
	while (b->n < n && bench_now_ns() < until && !(while_pinning && all_pinned(b)))
		store_some(b);
	bench_must(b->n > 0 ? 0 : -EAGAIN); /* it was over before the first */
	ret = bench_percentile(b->us, b->n, 99);
	*ret_most = b->us[b->n - 1]; /* sorted by now */
	return ret;
}

/* The daemon, and that alone, has a slow driver, if it is the emulated one. */
static void start_daemon(struct bench *b)
{
	const char *before = getenv("KVTIER_EMU");
	char settings[512], sections[256];

	(void)snprintf(settings, sizeof(settings), "%s late=0 slow=cuMemHostRegister:50",
		       before ? before : "");
	(void)snprintf(sections, sizeof(sections),
		       "[host]\nbytes = %" PRIu64 "\nslab_bytes = 2M\n"
		       "[nvme]\nbytes = 0\n[gpu]\ndevices = required\n",
		       b->host_bytes);
	(void)setenv("KVTIER_EMU", settings, 1);
	bench_daemon_start(&b->d, sections);
	if (before)
		(void)setenv("KVTIER_EMU", before, 1);
	else
		(void)unsetenv("KVTIER_EMU");
}

static void run_pin(const struct bench_case *self, struct bench_result *ret)
{
	const char *given = getenv("KVTIER_BENCH_CUDA_MIB");
	struct bench *b = bench_alloc(sizeof(*b));
	double during, after, most_during, most_after;
	uint32_t n;

	b->host_bytes = 16ull * (given ? strtoull(given, NULL, 0) : 512) << 20;
	rig_open(&b->rig, RIG_NORMAL, 8, ret);
	start_daemon(b);
	bench_daemon_await_up(&b->d.stats->v.tiers_host_state); /* faulted in */
	b->space = cuda_small_space(&b->rig, b->d.client, true,
				    BLOCKS); /* from here on memory is registered */
	if (!self->arg)
		b->space = cuda_small_space(&b->rig, b->d.client, false, BLOCKS);
	store_some(b); /* the first ones touch memory that no later one touches */
	during = run_phase(b, true, &most_during);
	n = b->n;
	after = run_phase(b, false, &most_after);
	bench_add(ret, during - after > 1 ? during - after : 1, ALLOWED_US);
	bench_note(ret, "p99 %.0f us of %u stores, alone %.0f us; longest %.0f and %.0f us", during,
		   n, after, most_during, most_after);
}

/* clang-format off */
const struct bench_case bench_cuda_pin_cases[] = {
	{ "cuda.pin.gpu", run_pin, "what registering adds to a store from a GPU, of 1 ms", 1,
	  BENCH_LESS, "us", "" },
	{ "cuda.pin.cpu", run_pin, "what registering adds to a store from the CPU, of 1 ms", 1,
	  BENCH_LESS, "us", NULL },
	{ 0 },
};
/* clang-format on */
