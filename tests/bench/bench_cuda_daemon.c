/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_cuda_daemon.c - blocks in the memory of a GPU, through client and daemon:
 *
 *	cuda.store.*	from kvtier_store() of the first op to the result of the last; wire
 *			bytes, against one copy of as many bytes down, in pieces of 64 MiB
 *	cuda.load.*	likewise loads of them from host memory, against a copy up
 *	cuda.hit	loads that the GPU has in its own memory; logical bytes, against a copy
 *			of as many bytes inside the device
 *
 * Host memory is registered before the first run. Loaded bytes are compared at both ends of each
 * page. On the emulated driver figures mean nothing.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_cuda.h"
#include "bench_daemon.h"

enum { RUNS = 7, OP_BLOCKS = 32, SHARE = 4, PIECE = 64 << 20 };
enum { LAYERS = 16, TOKENS = 16, HEADS = 8, DIM = 128, PLANE = TOKENS * HEADS * DIM * 2 };
enum { PAGE = PLANE * 2 * LAYERS };
/* BF16 3.0, which FP8 holds exactly */
enum { VALUE = 0x40, POISON = 0xa5 };

struct setup {
	enum { STORE, LOAD, HIT } what;
	uint32_t codec;
};

struct bench {
	struct rig rig;
	struct bench_daemon d;
	struct kvtier_space *space;
	const struct setup *setup;
	uint32_t blocks, runs;
	struct kvtier_key *keys; /* of one run */
};

/* Slabs for so many images: twice as many as they fill, since few fit into a small one. */
static uint64_t room_for(uint64_t images, uint64_t slab)
{
	return (images * (PAGE + (64 << 10)) / slab + 2) * slab * 2;
}

static int open_daemon(struct bench *b)
{
	const uint64_t slab = b->rig.bytes < RIG_SMALL ? 2 << 20 : 64 << 20;
	char sections[512];

	(void)snprintf(sections, sizeof(sections),
		       "[host]\nbytes = %" PRIu64 "\nslab_bytes = %" PRIu64 "\n[nvme]\nbytes = 0\n"
		       "[gpu]\ndevices = required\nbytes = %" PRIu64 "\n",
		       room_for((b->runs + 2ull) * b->blocks, slab), slab,
		       b->setup->what == HIT ? room_for(b->blocks, slab) : 0);
	return bench_daemon_open(&b->d, OP_BLOCKS, NULL, sections);
}

static int open_space(struct bench *b)
{
	const struct bench_shape shape = {
		.model = "cuda@1",
		.layers = LAYERS,
		.tokens = TOKENS,
		.heads = HEADS,
		.dim = DIM,
		.codec = b->setup->codec,
	};
	const struct kvtier_region region = {
		.size = sizeof(region),
		.memory = KVTIER_CUDA,
		.fd = -1,
		.base = (void *)(uintptr_t)b->rig.pages,
		.length = (uint64_t)b->blocks * PAGE,
	};

	return bench_space(b->d.client, &shape, &region, &b->space);
}

static uint64_t stat_of(const struct bench *b, const char *name)
{
	char words[96], text[2048];
	const char *line;

	(void)snprintf(words, sizeof(words), "stats -f %s", name);
	if (bench_daemon_ctl(&b->d, words, text, sizeof(text)))
		return 0;
	line = strstr(text, name);
	return line ? strtoull(line + strlen(name), NULL, 10) : 0;
}

/* Not for ever: where the driver registers less memory, the case runs with that. */
static void await_pinned(const struct bench *b)
{
	const uint64_t all = stat_of(b, "tiers.host.capacity_bytes");

	for (int i = 0; i < 1500 && stat_of(b, "tiers.host.pinned_bytes") < all; i++)
		usleep(20000);
}

static int make_keys(struct bench *b, uint32_t run)
{
	uint32_t tokens[TOKENS * OP_BLOCKS];
	int r = 0;

	for (uint32_t i = 0; i < b->blocks && r == 0; i += OP_BLOCKS) {
		const uint32_t some = b->blocks - i < OP_BLOCKS ? b->blocks - i : OP_BLOCKS;
		size_t n = some;

		for (uint32_t t = 0; t < TOKENS * OP_BLOCKS; t++)
			tokens[t] = run << 24 ^ i << 10 ^ t;
		r = kvtier_keys(b->space, NULL, tokens, (size_t)TOKENS * some, b->keys + i, &n);
	}
	return r;
}

/* All blocks, all ops at once; *ret_s: seconds. */
static int move(struct bench *b, bool load, double *ret_s)
{
	const uint32_t n_ops = (b->blocks + OP_BLOCKS - 1) / OP_BLOCKS;
	uint64_t *ops = calloc(n_ops, sizeof(*ops));
	uint32_t pages[OP_BLOCKS], begun = 0;
	const uint64_t start = bench_now_ns();
	int r = ops ? 0 : -ENOMEM;

	for (; begun < n_ops && r == 0; begun += r == 0) {
		const uint32_t first = begun * OP_BLOCKS, left = b->blocks - first;
		const uint32_t n = left < OP_BLOCKS ? left : OP_BLOCKS;

		for (uint32_t i = 0; i < n; i++)
			pages[i] = first + i;
		r = (load ? kvtier_load : kvtier_store)(b->space, b->keys + first, pages, n, NULL,
							&ops[begun]);
	}
	for (uint32_t i = 0; i < begun; i++) {
		struct kvtier_result result = { .size = sizeof(result) };
		const int w = kvtier_wait(b->d.client, ops[i], -1, &result);

		if (r == 0)
			r = w ? w : result.status;
	}
	*ret_s = (double)(bench_now_ns() - start) * 1e-9;
	free(ops);
	return r;
}

static int fill(struct bench *b, uint8_t value)
{
	return b->rig.api.cuMemsetD8Async(b->rig.pages, value, (size_t)b->blocks * PAGE,
					  b->rig.stream) ||
			       b->rig.api.cuStreamSynchronize(b->rig.stream) ?
		       -EIO :
		       0;
}

static int compare(struct bench *b)
{
	for (uint32_t i = 0; i < b->blocks; i++) {
		const CUdeviceptr page = b->rig.pages + (uint64_t)i * PAGE;
		uint8_t ends[2] = { 0, 0 };

		if (b->rig.api.cuMemcpyDtoHAsync(&ends[0], page, 1, b->rig.stream) ||
		    b->rig.api.cuMemcpyDtoHAsync(&ends[1], page + PAGE - 1, 1, b->rig.stream) ||
		    b->rig.api.cuStreamSynchronize(b->rig.stream))
			return -EIO;
		if (ends[0] != VALUE || ends[1] != VALUE)
			return -EBADMSG;
	}
	return 0;
}

/* Store, load, and the copy that is the limit. */
static int one_run(struct bench *b, uint32_t run, struct bench_result *ret)
{
	const bool fp8 = b->setup->codec == KVTIER_CODEC_FP8;
	const double logical = (double)b->blocks * PAGE, wire = fp8 ? logical / 2 : logical;
	const enum rig_copy way[] = { [STORE] = DOWN, [LOAD] = UP, [HIT] = INSIDE };
	const double bytes = b->setup->what == HIT ? logical : wire;
	double store_s, load_s, copy_s;
	int r = make_keys(b, run);

	if (r == 0)
		r = fill(b, VALUE);
	if (r == 0)
		r = move(b, false, &store_s);
	if (r == 0)
		r = fill(b, POISON);
	if (r == 0)
		r = move(b, true, &load_s);
	if (r == 0)
		r = compare(b);
	if (r)
		return r;
	copy_s = rig_copy(&b->rig, way[b->setup->what], (uint64_t)bytes, PIECE);
	if (run > 0) /* the first one warms up */
		(void)bench_add(ret, bytes / (b->setup->what == STORE ? store_s : load_s) * 1e-9,
				bytes / copy_s * 1e-9);
	return b->rig.error;
}

static int measure(struct bench *b, struct bench_result *ret)
{
	int r = open_daemon(b);

	if (r == 0)
		r = bench_daemon_await_up(&b->d, "host");
	if (r == 0)
		r = open_space(b);
	if (r == 0)
		await_pinned(b);
	for (uint32_t run = 0; run <= b->runs && r == 0; run++)
		r = one_run(b, run, ret);
	if (r == 0 && b->setup->what == HIT &&
	    stat_of(b, "tiers.gpu.hit_blocks_total") < (uint64_t)b->blocks * b->runs)
		r = -ENODATA; /* something else was measured */
	if (r == 0)
		(void)snprintf(ret->note, sizeof(ret->note),
			       "%u blocks of %d KiB; pinned %" PRIu64 " MiB", b->blocks, PAGE >> 10,
			       stat_of(b, "tiers.host.pinned_bytes") >> 20);
	else
		(void)snprintf(ret->note, sizeof(ret->note), "%.100s", kvtier_last_error());
	return r;
}

static int run_daemon(const struct bench_case *self, struct bench_result *ret)
{
	struct bench *b = calloc(1, sizeof(*b));
	int r;

	if (!b)
		return -ENOMEM;
	b->setup = self->arg;
	r = rig_open(&b->rig, RIG_NORMAL, SHARE, ret);
	b->blocks = (uint32_t)(b->rig.bytes / PAGE);
	b->runs = b->rig.bytes < RIG_SMALL ? 1 : RUNS;
	b->keys = calloc(b->blocks + OP_BLOCKS, sizeof(*b->keys));
	if (r == 0)
		r = b->keys ? measure(b, ret) : -ENOMEM;
	if (r != -ENOTSUP) {
		(void)kvtier_space_close(b->space);
		bench_daemon_close(&b->d);
		(void)rig_close(&b->rig);
	}
	free(b->keys);
	free(b);
	return r;
}

/* clang-format off */
#define CASE(name, prose, goal, ...) \
	{ name, run_daemon, prose, goal, BENCH_MORE, "GB/s", &(const struct setup){ __VA_ARGS__ } }

const struct bench_case bench_cuda_daemon_cases[] = {
	CASE("cuda.store.fp8", "stores through the daemon, wire bytes, of a copy down", 0.9,
	     STORE, KVTIER_CODEC_FP8),
	CASE("cuda.store.raw", "the same, kept as they are", 0.9, STORE, KVTIER_CODEC_RAW),
	CASE("cuda.load.fp8", "loads from host memory, wire bytes, of a copy up", 0.9,
	     LOAD, KVTIER_CODEC_FP8),
	CASE("cuda.load.raw", "the same, kept as they are", 0.9, LOAD, KVTIER_CODEC_RAW),
	CASE("cuda.hit", "loads from the GPU's own memory, of a copy inside the device", 0.7,
	     HIT, KVTIER_CODEC_FP8),
	{ 0 },
};
/* clang-format on */
