/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_cuda.c - the CUDA kernels and copies on this machine's first GPU, without a daemon.
 *
 * Pages: token-major BF16 blocks of 1 MiB (16 layers of 8 heads x 128, 16 tokens; for int8 and q4
 * 4 layers and 64 tokens), as many as fill KVTIER_BENCH_CUDA_MIB (512) MiB, in an order that is not
 * that of their addresses; images lie one after the other in device memory. Kernels are measured
 * by the bytes of the pages, from the launch to the end of the stream, 20 ms and more a run. Limits
 * are of the same run: a copy inside the device, and plain copies by the copy engine, 64 MiB each,
 * to pinned memory and back.
 *
 * Without a driver, a GPU or kernels in the program every case is skipped and says why.
 */

#include "bench_cuda.h"
#include "bench_disk.h"
#include "daemon/cuda/driver/cuda_load.h"
#include "kernels/cuda/plan.h"

enum { RUNS = 7, LAYERS = 16, HEADS = 8, DIM = 128, TOKENS = 16, BLOCK = 1 << 20, MIB = 1 << 20 };
enum { LONG = IMAGE_CHANNEL_TOKENS / TOKENS }; /* times the tokens: int8, q4 */
enum {
	ROW = 656,
	ROWS = 64,
	ROW_LAYERS = 61,
	PIECES = ROW_LAYERS > 2 * LAYERS ? ROW_LAYERS : 2 * LAYERS
};
enum { LEAST_MIB = 4 };

void rig_call(const struct rig *r, CUresult result, const char *call)
{
	const char *name = "";

	if (result == CUDA_SUCCESS)
		return;
	if (r->api.cuGetErrorName(result, &name) != CUDA_SUCCESS)
		name = "";
	bench_fail(-EIO, "%s: %s (%d)", call, name, (int)result);
}

static void rig_end(void *arg)
{
	struct rig *r = arg;

	if (r->host)
		(void)r->api.cuMemFreeHost(r->host);
	while (r->n_allocs > 0)
		(void)r->api.cuMemFree(r->allocs[--r->n_allocs]);
	if (r->stream)
		(void)r->api.cuStreamDestroy(r->stream);
	if (r->other)
		(void)r->api.cuStreamDestroy(r->other);
	if (r->module)
		(void)r->api.cuModuleUnload(r->module);
	(void)r->api.cuDevicePrimaryCtxRelease(r->device);
}

static void driver_open(struct rig *r)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	struct cuda_kernels_for kernels;
	const char *missing;
	char why[128];
	int n = 0;

	if (!library)
		bench_fail(-ENOTSUP, "no CUDA driver here: libcuda.so.1 cannot be opened");
	if (cuda_api_load(library, &r->api, &missing))
		bench_fail(-ENOTSUP, "the CUDA driver is too old: 12.0 or later is needed");
	if (r->api.cuInit(0) != CUDA_SUCCESS || r->api.cuDeviceGetCount(&n) != CUDA_SUCCESS || !n)
		bench_fail(-ENOTSUP, "the CUDA driver shows no GPU");
	CALL(r, cuDeviceGet, &r->device, 0);
	if (cuda_kernels_ask(&r->api, r->device, &kernels) == CUDA_SUCCESS &&
	    cuda_kernels_check(kernels, why, sizeof(why)))
		bench_fail(-ENOTSUP, "%s", why);
}

static void make_streams(struct rig *r, enum rig_priority priority)
{
	int least = 0, greatest = 0, mine;

	CALL(r, cuCtxGetStreamPriorityRange, &least, &greatest);
	mine = priority == RIG_STORES ? least : priority == RIG_LOADS ? greatest : 0;
	CALL(r, cuStreamCreateWithPriority, &r->stream, CU_STREAM_NON_BLOCKING, mine);
	CALL(r, cuStreamCreateWithPriority, &r->other, CU_STREAM_NON_BLOCKING, mine);
}

static void load_kernels(struct rig *r)
{
	struct cuda_kernels_for kernels;

	rig_call(r, cuda_kernels_ask(&r->api, r->device, &kernels), "cuDeviceGetAttribute");
	rig_call(r, cuda_kernels_load(&r->api, kernels, &r->module), "cuModuleLoadData");
	CALL(r, cuModuleGetFunction, &r->encode, r->module, "kvtier_encode");
	CALL(r, cuModuleGetFunction, &r->decode, r->module, "kvtier_decode");
}

CUdeviceptr rig_alloc(struct rig *r, uint64_t bytes)
{
	CALL(r, cuMemAlloc, &r->allocs[r->n_allocs], bytes);
	return r->allocs[r->n_allocs++];
}

void rig_open(struct rig *r, enum rig_priority priority, uint32_t divisor, struct bench_result *ret)
{
	const char *given = getenv("KVTIER_BENCH_CUDA_MIB");
	const uint64_t mib = (given ? strtoull(given, NULL, 0) : 512) / divisor;

	*r = (struct rig){ .bytes = (mib < LEAST_MIB ? LEAST_MIB : mib) * MIB };
	driver_open(r);
	CALL(r, cuDevicePrimaryCtxRetain, &r->context, r->device);
	bench_defer(rig_end, r);
	CALL(r, cuCtxSetCurrent, r->context);
	load_kernels(r);
	make_streams(r, priority);
	r->pages = rig_alloc(r, r->bytes);
	r->images = rig_alloc(r, r->bytes);
	CALL(r, cuMemHostAlloc, &r->host, r->bytes, 0);
	/* 0x3e3e: BF16 0.186, E4M3 0.86 */
	CALL(r, cuMemsetD8Async, r->pages, 0x3e, r->bytes, r->stream);
	CALL(r, cuMemsetD8Async, r->images, 0x3e, r->bytes, r->stream);
	CALL(r, cuStreamSynchronize, r->stream);
	CALL(r, cuDeviceGetName, ret->note, 60, r->device);
}

static void layout_bf16(struct rig *r, struct page_layout *layout, struct page_piece *pieces,
			uint32_t tokens)
{
	const uint64_t plane = 2ull * HEADS * DIM * tokens;
	const uint32_t layers = LAYERS * TOKENS / tokens;

	layout->geometry = (struct image_geometry){
		.dtype = DTYPE_BF16,
		.layers = layers,
		.kv_heads = HEADS,
		.head_dim_k = DIM,
		.head_dim_v = DIM,
		.block_tokens = tokens,
	};
	layout->n_pieces = 2 * layers;
	for (uint32_t i = 0; i < layout->n_pieces; i++)
		pieces[i] = (struct page_piece){
			.base = (uint8_t *)(uintptr_t)(r->pages + i * r->blocks * plane),
			.page_stride = plane,
			.head_stride = 2 * DIM,
			.token_stride = 2 * DIM * HEADS,
			.kind = i % 2 ? KIND_V : KIND_K,
			.layer = i / 2,
		};
}

static void layout_rows(struct rig *r, struct page_layout *layout, struct page_piece *pieces)
{
	layout->geometry = (struct image_geometry){
		.dtype = DTYPE_INT8,
		.block_tokens = ROWS,
		.opaque_bytes = ROW_LAYERS * ROWS * ROW,
	};
	layout->n_pieces = ROW_LAYERS;
	for (uint32_t i = 0; i < ROW_LAYERS; i++)
		pieces[i] = (struct page_piece){
			.base = (uint8_t *)(uintptr_t)(r->pages +
						       (uint64_t)i * r->blocks * ROWS * ROW),
			.page_stride = ROWS * ROW,
			.token_stride = ROW,
			.length = ROW,
			.kind = KIND_OPAQUE,
		};
}

/* Plan and pieces, to the device, and a task for each block. */
void rig_plan(struct rig *r, enum image_codec codec)
{
	const enum image_codec codec_v = codec == CODEC_K4 ? CODEC_V4 : codec;
	const bool rows = codec == CODEC_RAW;
	struct page_piece pieces[PIECES];
	struct cuda_piece table[PIECES];
	struct page_layout layout = { .pieces = pieces };
	uint32_t scales, payload;
	uint64_t table_bytes;

	r->blocks = (uint32_t)(r->bytes / (rows ? ROW_LAYERS * ROWS * ROW : BLOCK));
	bench_must(r->blocks > 0 ? 0 : -EINVAL);
	if (rows)
		layout_rows(r, &layout, pieces);
	else
		layout_bf16(r, &layout, pieces,
			    image_codec_channels(codec) ? LONG * TOKENS : TOKENS);
	bench_must(cuda_plan_make(&layout, false, &r->plan, table));
	r->plan.pieces = 0;
	cuda_plan_at(&r->plan, table, codec, codec_v, r->plan.n_tiles, &scales, &payload);
	r->image_bytes = (sizeof(struct image_header) + scales + IMAGE_ALIGN - 1) / IMAGE_ALIGN *
				 IMAGE_ALIGN +
			 payload;
	table_bytes = layout.n_pieces * sizeof(*table);
	r->task = (struct cuda_task){
		.scales = r->images + sizeof(struct image_header),
		.payload = r->images + r->image_bytes - payload,
		.n_tiles = r->plan.n_tiles,
		.codec_k = (uint8_t)codec,
		.codec_v = (uint8_t)codec_v,
	};
	r->task.flag = rig_alloc(r, table_bytes + 256);
	r->plan.pieces = r->task.flag + 256;
	CALL(r, cuMemcpyHtoDAsync, r->plan.pieces, table, table_bytes, r->stream);
	CALL(r, cuStreamSynchronize, r->stream);
}

/* The tasks of one launch: of the blocks from `first` on. */
static void tasks_from(const struct rig *r, uint32_t first, struct cuda_tasks *ret)
{
	const uint32_t left = r->blocks - first;

	ret->n = left < CUDA_TASKS ? left : CUDA_TASKS;
	ret->mark = 1;
	for (uint32_t i = 0; i < ret->n; i++) {
		const uint32_t block = first + i;

		ret->task[i] = r->task;
		ret->task[i].page = block * 7919ull % r->blocks;
		ret->task[i].scales += block * r->image_bytes;
		ret->task[i].payload += block * r->image_bytes;
	}
	(void)cuda_tasks_number(ret);
}

void rig_launch(struct rig *r, CUfunction f, uint32_t blocks)
{
	for (uint32_t first = 0; first < r->blocks; first += CUDA_TASKS) {
		struct cuda_tasks tasks;
		void *params[] = { &r->plan, &tasks };

		tasks_from(r, first, &tasks);
		CALL(r, cuLaunchKernel, f, cuda_plan_blocks(&r->plan, tasks.n_tiles, blocks), 1, 1,
		     CUDA_THREADS, 1, 1, 0, r->stream, params, NULL);
	}
}

void rig_wait(struct rig *r)
{
	CALL(r, cuStreamSynchronize, r->stream);
}

/* Seconds of the launches over all blocks. */
static double launch(struct rig *r, CUfunction f, uint32_t blocks)
{
	const uint64_t start = bench_now_ns();

	rig_launch(r, f, blocks);
	rig_wait(r);
	return (double)(bench_now_ns() - start) / 1e9;
}

void rig_cross(struct rig *r, enum rig_copy way)
{
	const uint64_t bytes = r->blocks * r->image_bytes;

	if (way == DOWN)
		CALL(r, cuMemcpyDtoHAsync, r->host, r->images, bytes, r->stream);
	else
		CALL(r, cuMemcpyHtoDAsync, r->images, r->host, bytes, r->stream);
}

double rig_copy(struct rig *r, enum rig_copy which, uint64_t bytes, uint64_t piece)
{
	const uint64_t start = bench_now_ns(), half = r->bytes / 2;
	const uint64_t most = which == DOWN || which == UP ? bytes : bytes < half ? bytes : half;

	for (uint64_t at = 0; at < most; at += piece) {
		const uint64_t n = most - at < piece ? most - at : piece;
		uint8_t *host = (uint8_t *)r->host + at;

		if (which == INSIDE)
			CALL(r, cuMemcpyDtoDAsync, r->images + at, r->pages + at, n, r->stream);
		if (which == DOWN || which == BOTH)
			CALL(r, cuMemcpyDtoHAsync, host, r->images + at, n, r->stream);
		if (which == UP || which == BOTH)
			CALL(r, cuMemcpyHtoDAsync, r->pages + at,
			     which == BOTH ? host + half : host, n, r->other);
	}
	CALL(r, cuStreamSynchronize, r->stream);
	CALL(r, cuStreamSynchronize, r->other);
	return (double)(bench_now_ns() - start) / 1e9 * ((double)bytes / (double)most);
}

uint32_t rig_blocks(uint32_t usual)
{
	const char *given = getenv("KVTIER_BENCH_CUDA_BLOCKS");

	return given ? (uint32_t)strtoul(given, NULL, 0) : usual;
}

struct setup {
	enum { ENCODE, DECODE, COPY } doing;
	enum image_codec codec; /* raw: rows of opaque bytes */
	uint32_t blocks;
	enum rig_copy limit; /* kernels: the copy that they are held to; copies: which way */
	double promised;     /* GB/s that is the limit instead; 0: none */
};

static void one_run(struct rig *r, const struct setup *s, struct bench_result *ret)
{
	const double gb = (double)r->bytes / 1e9,
		     pages = (double)r->blocks *
			     (s->codec == CODEC_RAW ? ROW_LAYERS * ROWS * ROW : BLOCK) / 1e9;
	double value, limit;

	if (s->doing == DECODE) /* the copy before it left pages where images are */
		(void)launch(r, r->encode, rig_blocks(s->blocks));
	if (s->doing == COPY)
		value = gb / rig_copy(r, s->limit, r->bytes, r->image_bytes);
	else
		value = pages / launch(r, s->doing == ENCODE ? r->encode : r->decode,
				       rig_blocks(s->blocks));
	limit = s->promised > 0 ? s->promised : gb / rig_copy(r, s->limit, r->bytes, 64 * MIB);
	bench_add(ret, value, limit);
}

static void run_cuda(const struct bench_case *self, struct bench_result *ret)
{
	const struct setup *s = self->arg;
	struct rig *r = bench_alloc(sizeof(*r));
	int runs;

	rig_open(r, RIG_NORMAL, 1, ret);
	rig_plan(r, s->codec);
	runs = r->bytes < RIG_SMALL ? 1 : RUNS;
	for (int i = -1; i < runs; i++) { /* run -1 warms up */
		one_run(r, s, ret);
		if (i < 0)
			ret->n = 0;
	}
}

/* Touched memory, registered with the driver. */
static void run_register(const struct bench_case *self, struct bench_result *ret)
{
	struct rig *r = bench_alloc(sizeof(*r));
	size_t bytes;
	void *p;

	(void)self;
	rig_open(r, RIG_NORMAL, 1, ret);
	bytes = 2 * r->bytes; /* 1 GiB, unless less was asked for */
	p = bench_memory(bytes, true);
	for (int i = 0; i < RUNS; i++) {
		uint64_t t0, t1, t2;

		t0 = bench_now_ns();
		memset(p, i, bytes);
		t1 = bench_now_ns();
		CALL(r, cuMemHostRegister, p, bytes, 0);
		t2 = bench_now_ns();
		CALL(r, cuMemHostUnregister, p);
		bench_add(ret, (double)bytes / (double)(t2 - t1),
			  (double)bytes / (double)(t1 - t0));
	}
}

/* clang-format off */
#define CASE(name, prose, goal, ...) \
	{ name, run_cuda, prose, goal, BENCH_MORE, "GB/s", &(const struct setup){ __VA_ARGS__ } }

const struct bench_case bench_cuda_cases[] = {
	CASE("cuda.encode", "gather+encode of BF16 by 16 blocks, of 400 GB/s", 1,
	     ENCODE, CODEC_FP8, 16, INSIDE, 400),
	CASE("cuda.decode", "decode+scatter of BF16 by 16 blocks, of 400 GB/s", 1,
	     DECODE, CODEC_FP8, 16, INSIDE, 400),
	CASE("cuda.encode.int8", "gather+encode of BF16 as int8 by 16 blocks, of 600 GB/s", 0,
	     ENCODE, CODEC_INT8, 16, INSIDE, 600),
	CASE("cuda.decode.int8", "decode+scatter of int8 by 16 blocks, of 600 GB/s", 0,
	     DECODE, CODEC_INT8, 16, INSIDE, 600),
	CASE("cuda.encode.q4", "gather+encode of BF16 as q4 by 16 blocks, of 600 GB/s", 0,
	     ENCODE, CODEC_K4, 16, INSIDE, 600),
	CASE("cuda.decode.q4", "decode+scatter of q4 by 16 blocks, of 600 GB/s", 0,
	     DECODE, CODEC_K4, 16, INSIDE, 600),
	CASE("cuda.encode.device", "gather+encode by 16 blocks, of a copy inside the device", 0,
	     ENCODE, CODEC_FP8, 16, INSIDE, 0),
	CASE("cuda.decode.device", "decode+scatter by 16 blocks, likewise", 0,
	     DECODE, CODEC_FP8, 16, INSIDE, 0),
	CASE("cuda.encode.wire", "gather+encode by 8 blocks, of the copy engine's way down", 1.8,
	     ENCODE, CODEC_FP8, 8, DOWN, 0),
	CASE("cuda.decode.wire", "decode+scatter by 8 blocks, of the copy engine's way up", 1.8,
	     DECODE, CODEC_FP8, 8, UP, 0),
	CASE("cuda.encode.rows656", "gather of 656-byte rows by 8 blocks, likewise down", 0.8,
	     ENCODE, CODEC_RAW, 8, DOWN, 0),
	CASE("cuda.decode.rows656", "scatter of 656-byte rows by 8 blocks, likewise up", 0.8,
	     DECODE, CODEC_RAW, 8, UP, 0),
	CASE("cuda.d2h", "copies down of an image each, of copies of 64 MiB", 0.95,
	     COPY, CODEC_FP8, 0, DOWN, 0),
	CASE("cuda.h2d", "copies up of an image each, of copies of 64 MiB", 0.95,
	     COPY, CODEC_FP8, 0, UP, 0),
	CASE("cuda.both", "copies of an image each, both ways at once, of 64 MiB", 0.9,
	     COPY, CODEC_FP8, 0, BOTH, 0),
	{ "cuda.register", run_register, "memory registered with the driver, of writing to it",
	  0, BENCH_MORE, "GB/s", NULL },
	{ 0 },
};
/* clang-format on */
