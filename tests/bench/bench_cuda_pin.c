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
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench_cuda.h"
#include "bench_daemon.h"

enum { BLOCKS = 32, MAX_SAMPLES = 20000, LEAST_SAMPLES = 320, PIECES = 128 };
enum { LAYERS = 2, TOKENS = 16, HEADS = 2, DIM = 64, PLANE = TOKENS * HEADS * DIM * 2 };
enum { PAGE = PLANE * 2 * LAYERS };

static const double ALLOWED_US = 1000;

struct bench {
	struct rig rig;
	struct bench_daemon d;
	CUdeviceptr memory; /* the GPU's */
	struct kvtier_space *gpu, *space;
	uint64_t host_bytes;
	uint32_t runs, n;
	double us[MAX_SAMPLES];
};

static int open_space(struct bench *b, bool on_gpu, struct kvtier_space **ret)
{
	const struct bench_shape shape = {
		.model = "pin@1",
		.layers = LAYERS,
		.tokens = TOKENS,
		.heads = HEADS,
		.dim = DIM,
		.codec = KVTIER_CODEC_FP8,
	};
	const struct kvtier_region region = {
		.size = sizeof(region),
		.memory = on_gpu ? KVTIER_CUDA : KVTIER_MEMFD,
		.fd = on_gpu ? -1 : b->d.fd,
		.base = on_gpu ? (void *)(uintptr_t)b->memory : NULL,
		.length = (uint64_t)BLOCKS * PAGE,
	};

	return bench_space(b->d.client, &shape, &region, ret);
}

static uint64_t pinned(const struct bench *b)
{
	static const char name[] = "tiers.host.pinned_bytes";
	char text[2048];
	const char *line;

	if (bench_daemon_ctl(&b->d, "stats -f tiers.host.pinned_bytes", text, sizeof(text)))
		return 0;
	line = strstr(text, name);
	return line ? strtoull(line + strlen(name), NULL, 10) : 0;
}

/* New blocks, one op each. */
static int store_some(struct bench *b)
{
	uint32_t tokens[BLOCKS * TOKENS];
	struct kvtier_key keys[BLOCKS];
	size_t n = BLOCKS;
	int r;

	for (uint32_t i = 0; i < BLOCKS * TOKENS; i++)
		tokens[i] = b->runs << 16 ^ i;
	b->runs++;
	r = kvtier_keys(b->space, NULL, tokens, (size_t)BLOCKS * TOKENS, keys, &n);
	for (uint32_t i = 0; i < BLOCKS && r == 0; i++) {
		struct kvtier_result result = { .size = sizeof(result) };
		const uint64_t start = bench_now_ns();
		uint64_t op;

		r = kvtier_store(b->space, &keys[i], &i, 1, NULL, &op);
		if (r == 0)
			r = kvtier_wait(b->d.client, op, -1, &result);
		r = r ? r : result.status;
		if (r == 0 && b->n < MAX_SAMPLES)
			b->us[b->n++] = (double)(bench_now_ns() - start) / 1e3;
	}
	return r;
}

/* while_pinning: until all is registered; else as many as then. */
static int run_phase(struct bench *b, bool while_pinning, double *ret_p99, double *ret_most)
{
	const uint64_t until = bench_now_ns() + BENCH_PATIENCE_MS * 1000000ull;
	const uint32_t n = while_pinning        ? MAX_SAMPLES :
			   b->n < LEAST_SAMPLES ? LEAST_SAMPLES :
						  b->n;
	int r = 0;

	b->n = 0;
	while (r == 0 && b->n < n && bench_now_ns() < until) {
		if (while_pinning && pinned(b) >= b->host_bytes)
			break;
		r = store_some(b);
	}
	if (r == 0 && b->n == 0)
		r = -EAGAIN; /* it was over before the first */
	*ret_p99 = r ? 0 : bench_percentile(b->us, b->n, 99);
	*ret_most = r ? 0 : b->us[b->n - 1]; /* sorted by now */
	return r;
}

/* The daemon, and that alone, has a slow driver, if it is the emulated one. */
static int open_daemon(struct bench *b)
{
	const char *before = getenv("KVTIER_EMU");
	char settings[512], sections[256];
	const uint64_t piece = b->host_bytes / PIECES;
	int r;

	(void)snprintf(settings, sizeof(settings), "%s late=0 slow=cuMemHostRegister:50",
		       before ? before : "");
	(void)snprintf(sections, sizeof(sections),
		       "[host]\nbytes = %" PRIu64 "\nslab_bytes = 2M\npin_bytes = %" PRIu64
		       "\n[nvme]\nbytes = 0\n[gpu]\ndevices = required\n",
		       b->host_bytes, piece < 2 << 20 ? 2 << 20 : piece);
	(void)setenv("KVTIER_EMU", settings, 1);
	r = bench_daemon_open(&b->d, BLOCKS, NULL, sections);
	if (before)
		(void)setenv("KVTIER_EMU", before, 1);
	else
		(void)unsetenv("KVTIER_EMU");
	return r;
}

static int measure(struct bench *b, bool on_gpu, struct bench_result *ret)
{
	double during, after, most_during, most_after;
	uint32_t n;
	int r = open_daemon(b);

	if (r == 0)
		r = bench_daemon_await_up(&b->d, "host"); /* faulted in */
	if (r == 0)
		r = open_space(b, true, &b->gpu); /* from here on memory is registered */
	b->space = b->gpu;
	if (r == 0 && !on_gpu)
		r = open_space(b, false, &b->space);
	if (r == 0)
		r = store_some(b); /* the first ones touch memory that no later one touches */
	if (r == 0)
		r = run_phase(b, true, &during, &most_during);
	n = b->n;
	if (r == 0)
		r = run_phase(b, false, &after, &most_after);
	if (r)
		return r;
	(void)bench_add(ret, during - after > 1 ? during - after : 1, ALLOWED_US);
	(void)snprintf(ret->note, sizeof(ret->note),
		       "p99 %.0f us of %u stores, alone %.0f us; longest %.0f and %.0f us", during,
		       n, after, most_during, most_after);
	return 0;
}

static int run_pin(const struct bench_case *self, struct bench_result *ret)
{
	const char *given = getenv("KVTIER_BENCH_CUDA_MIB");
	struct bench *b = calloc(1, sizeof(*b));
	int r;

	if (!b)
		return -ENOMEM;
	b->host_bytes = 16ull * (given ? strtoull(given, NULL, 0) : 512) << 20;
	r = rig_open(&b->rig, RIG_NORMAL, 8, ret);
	if (r == 0 && b->rig.api.cuMemAlloc(&b->memory, (size_t)BLOCKS * PAGE) != CUDA_SUCCESS)
		r = -ENOMEM;
	if (r == 0) {
		r = measure(b, self->arg != NULL, ret);
		bench_daemon_close(&b->d);
	}
	if (b->memory)
		(void)b->rig.api.cuMemFree(b->memory);
	if (r != -ENOTSUP)
		(void)rig_close(&b->rig);
	free(b);
	return r;
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
