/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=24 */
/*
 * gpu_fault - goal: whichever call of the driver fails, the daemon's and libkvtier's: the engine
 * gets an error or its bytes, never wrong ones; nothing hangs, nothing is left behind, and the next
 * engine is served. The same while the daemon puts a region in several allocations together.
 * Method: a whole store, load and close, or ALLOCS by hand, in which the n-th call fails, for each
 * n until none is left to fail (tests/gpu/emu/countdown.c).
 */
#include "tests/lib/lib_gpu_engine.h"
#include "tests/lib/lib_gpu_range.h"

enum { N = 4, CHAIN = 2, DEADLINE_MS = PATIENT_MS, CALLS_MAX = 2000, BREAKS = 6, ALLOCS = 4 };

static const char config[] = "[host]\nbytes = 2M\nslab_bytes = 1M\nhuge_pages = no\n"
			     "[device]\nworkers = 1\n"
			     "[gpu]\nstaging_bytes = 8M\n";

static struct gpu gpu;
static struct gpu_range range; /* of the case with several allocations */

/* --- the daemon's calls --- */

/* The connection may be cut on the way: then there is no completion. */
static bool run(struct gpu_raw *e, enum wire_op op, uint32_t first, struct wire_cqe *ret)
{
	struct wire_error error;

	gpu_raw_start(e, op, CHAIN, first, N);
	for (int ms = 0; ms < DEADLINE_MS; ms++) {
		if (gpu_raw_completed(e)) {
			*ret = gpu_raw_await(e);
			return true;
		}
		if (ms % 100 == 99 &&
		    recv(e->raw.fd, &error, sizeof(error), MSG_DONTWAIT | MSG_PEEK) >= 0)
			return false;
		nap_ms(1);
	}
	fail_msg("neither a completion nor the end of the connection");
	return false;
}

static bool serves_a_gpu(const struct daemon *d)
{
	const char *text = daemon_told(d, "devices --json");

	return strstr(text, "\"kind\":\"cuda\"") && !strstr(text, "\"state\":\"absent\"");
}

/* True: all of it went well, or the daemon has said that the GPU is not to be had for now. */
static bool use(const struct daemon *d, const struct kvtier_geometry *g)
{
	char text[232] = "";
	struct wire_cqe cqe = { 0 };
	struct gpu_raw e;
	bool good = false;

	gpu_raw_dial(&e, d->socket, &gpu, g, 2 * N);
	if (gpu_raw_ask(&e, text) == 0) {
		gpu_raw_fill(&e, CHAIN, 0, N);
		gpu_raw_poison(&e, N, N);
		good = run(&e, WIRE_OP_STORE, 0, &cqe) && cqe.status == 0;
		cqe.prefix = 0;
		good = good && run(&e, WIRE_OP_LOAD, N, &cqe) && cqe.prefix == N;
		gpu_raw_all_hold(&e, CHAIN, N, cqe.prefix);
	}
	gpu_raw_close(&e);
	return good || strstr(text, "cannot be used") || !serves_a_gpu(d);
}

static bool use_range(const struct daemon *d, const struct kvtier_geometry *g)
{
	struct wire_region region;
	struct gpu_allocs allocs;
	char text[232] = "";
	struct gpu_raw e;
	bool good = true;

	gpu_raw_dial(&e, d->socket, &gpu, g, 2 * N);
	e.memory = range.base;
	e.offset = range.alloc_bytes - N * e.page_bytes;
	region = gpu_range_region(&range, 0, e.offset, e.pages * e.page_bytes);
	for (uint32_t at = 0; at < ALLOCS && good; at += 2) {
		gpu_allocs_fill(&range, 0, at, 2, &allocs);
		good = gpu_allocs_send(&e.raw, &allocs, text) == 0;
	}
	good = good && gpu_raw_space(&e, &region, 1, NULL, 0, text) == 0;
	if (good)
		gpu_raw_close_space(&e);
	gpu_raw_close(&e);
	return good || strstr(text, "cannot be used") || strstr(text, "no such device");
}

static bool has_failed(void)
{
	return gpu_reported("kvtierd", "note", "fails, by countdown") > 0;
}

typedef bool use_fn(const struct daemon *d, const struct kvtier_geometry *g);

/* A daemon whose n-th call fails. False: it made fewer calls. */
static bool daemon_with_fault(use_fn *use_it, const char *fault, int n)
{
	struct daemon d;
	bool failed;

	gpu_settings("%s%d", fault, n);
	daemon_start(&d, config);
	(void)use_it(&d, &tiny_fp8);
	daemon_stat_becomes(&d, "ops.outstanding", 0, DEADLINE_MS);
	daemon_stat_becomes(&d, "gpu.regions", 0, DEADLINE_MS);
	if (has_failed() && !use_it(&d, &tiny_fp8))
		fail_msg("%s%d: the next engine is not served", fault, n);
	daemon_stat_becomes(&d, "gpu.regions", 0, DEADLINE_MS);
	daemon_remove(&d);
	failed = has_failed();
	gpu_report_clean("kvtierd");
	gpu_report_clear();
	return failed;
}

static void each_call_may_fail(use_fn *use_it, int least)
{
	int n = 1;

	while (daemon_with_fault(use_it, "countdown=", n))
		n++;
	print_message("the daemon made %d calls\n", n - 1);
	assert_in_range(n, least, CALLS_MAX);
}

TEST(each_call_of_the_daemon_may_fail)
{
	gpu_open(&gpu, 0);
	each_call_may_fail(use, 50);
	for (int n = 1; n <= 3; n++) /* not counted: how often it asks is up to the GPU */
		(void)daemon_with_fault(use, "fail=cuEventQuery:", n);
	gpu_close(&gpu);
}

TEST(each_call_of_the_daemon_for_several_allocations_may_fail)
{
	gpu_report_clear();
	gpu_open(&gpu, 0);
	gpu_range_make(&gpu, WIRE_DEVICE_FD, ALLOCS, &range);
	each_call_may_fail(use_range, 40);
	gpu_range_free(&range);
	gpu_close(&gpu);
}

/* Some calls: the events that follow are the same for any call. */
TEST(a_call_of_the_daemon_may_break_its_context)
{
	struct random random = { .state = gpu_seed() };
	int n = 1 + (int)random_below(&random, BREAKS);

	gpu_report_clear();
	gpu_open(&gpu, 0);
	while (daemon_with_fault(use, "breakdown=", n))
		n += 1 + (int)random_below(&random, 2 * BREAKS);
	gpu_close(&gpu);
}

/* --- libkvtier's calls --- */

struct round {
	const struct daemon *d;
	enum gpu_memory_kind kind;
	struct gpu_memory memory;
	CUdeviceptr base; /* of the region, across the border where it is in two allocations */
	struct kvtier_client *client;
	struct engine e; /* for keys and bytes */
	CUstream stream;
	uint64_t left; /* of the countdown */
	bool good;     /* each call so far */
};

/* Calls libkvtier with the countdown on. */
#define COUNTED(r, result, call)                \
	do {                                    \
		(void)gpu_countdown((r)->left); \
		result = call;                  \
		(r)->left = gpu_countdown(0);   \
	} while (0)

/* Takes an op's result; blocks that have no status of their own have the op's. */
static void take(struct round *r, uint64_t op, int32_t *blocks)
{
	struct kvtier_result result = { .size = sizeof(result), .blocks = blocks, .blocks_max = N };
	int error;

	for (uint32_t i = 0; i < N; i++)
		blocks[i] = -EINPROGRESS;
	COUNTED(r, error, kvtier_wait(r->client, op, -1, &result));
	assert_int_equal(error, 0);
	r->good &= result.status == 0 && result.ok == N;
}

static void store(struct round *r, const struct kvtier_key *keys, const uint32_t *pages)
{
	const struct kvtier_op o = { .size = sizeof(o), .stream = r->stream };
	int32_t blocks[N];
	uint64_t op;
	int error;

	for (uint32_t i = 0; i < N; i++)
		page_fill(&r->e, pages[i], &keys[i], 0);
	gpu_write(&gpu, r->base, r->e.memory, 2 * N * r->e.page_bytes);
	COUNTED(r, error, kvtier_store(r->e.space, keys, pages, N, &o, &op));
	if (error == 0)
		take(r, op, blocks);
	else
		r->good = false;
}

static void load(struct round *r, const struct kvtier_key *keys, const uint32_t *pages)
{
	const struct kvtier_op o = { .size = sizeof(o), .stream = r->stream };
	int32_t blocks[N];
	uint64_t op;
	int error;

	for (uint32_t i = 0; i < N; i++)
		page_poison(&r->e, pages[i]);
	gpu_write(&gpu, r->base, r->e.memory, 2 * N * r->e.page_bytes);
	COUNTED(r, error, kvtier_load(r->e.space, keys, pages, N, &o, &op));
	if (error) {
		r->good = false;
		return;
	}
	COUNTED(r, error, kvtier_stream_wait(r->client, op, KVTIER_ALL, r->stream));
	r->good &= error == 0 || error == -EOPNOTSUPP; /* staged */
	take(r, op, blocks);
	GPU(gpu_api()->cuStreamSynchronize(r->stream));
	gpu_read(&gpu, r->e.memory, r->base, 2 * N * r->e.page_bytes);
	for (uint32_t i = 0; i < N; i++)
		if (!(blocks[i] == 0 ? page_is(&r->e, pages[i], &keys[i], 0) :
				       page_is_part(&r->e, pages[i], &keys[i], 0)))
			fail_msg("after %s failed: block %u with status %d has wrong bytes",
				 gpu_failed() ? gpu_failed() : "nothing", i, blocks[i]);
}

/* Pages are reached as they are without a fault, or the library says why not. */
static void says_how(struct round *r, const char *words)
{
	char text[256];

	assert_true(kvtier_space_memory(r->e.space, text, sizeof(text)) > 0);
	if (strstr(text, words))
		return;
	r->good = false;
	if (!strstr(text, "staged: ") || text[strlen(text) - 1] == ' ')
		fail_msg("\"%s\" neither says %s nor why not", text, words);
}

static void engine_with_fault(struct round *r, const char *words)
{
	static struct kvtier_segment segments[KVTIER_MAX_SEGMENTS];
	const size_t n = engine_segments(&r->e.geometry, segments, KVTIER_MAX_SEGMENTS);
	const struct kvtier_options o = { .size = sizeof(o),
					  .socket_path = r->d->socket,
					  .timeout_ms = DEADLINE_MS };
	const struct kvtier_region region = { .size = sizeof(region),
					      .memory = KVTIER_CUDA,
					      .fd = -1,
					      .base = (void *)(uintptr_t)r->base,
					      .length = 2 * N * r->e.page_bytes };
	struct kvtier_key keys[N];
	uint32_t pages[N];
	int error;

	r->good = true;
	assert_int_equal(kvtier_connect(&o, &r->client), 0);
	COUNTED(r, error,
		kvtier_space_open(r->client, &r->e.geometry, &region, 1, segments, n, &r->e.space));
	if (error == 0) {
		says_how(r, words);
		chain_keys(&r->e, r->kind, N, keys);
		pages_from(0, pages, N);
		store(r, keys, pages);
		pages_from(N, pages, N);
		load(r, keys, pages);
	} else {
		assert_true(*kvtier_last_error() && error != -ETIMEDOUT);
		r->good = false;
	}
	(void)gpu_countdown(r->left);
	kvtier_close(r->client);
	r->left = gpu_countdown(0);
}

static void each_call_of_an_engine_may_fail(enum gpu_memory_kind kind, const char *words)
{
	struct round r = { .kind = kind };
	struct daemon d;
	CUcontext current;
	uint64_t n = 1, rounds = 0;

	gpu_report_clear();
	gpu_open(&gpu, 0);
	gpu_settings("%s", "");
	daemon_start(&d, config);
	r.d = &d;
	r.e = (struct engine){ .geometry = tiny_geometry(KVTIER_CODEC_FP8), .pages = 2 * N };
	r.e.page_bytes = engine_page_bytes(&r.e.geometry);
	r.e.memory = calloc(2 * N, r.e.page_bytes);
	assert_non_null(r.e.memory);
	gpu_memory_make(&gpu, kind, 2 * N * r.e.page_bytes, &r.memory);
	r.base = r.memory.base;
	if (r.memory.allocs == 2)
		r.base += r.memory.bytes / 2 - N * r.e.page_bytes;
	GPU(gpu_api()->cuStreamCreateWithPriority(&r.stream, CU_STREAM_NON_BLOCKING, 0));
	while (n > 0) {
		const uint64_t live = gpu_live();

		r.left = n;
		engine_with_fault(&r, words);
		GPU(gpu_api()->cuCtxGetCurrent(&current));
		if (gpu_live() != live || current != gpu.context)
			fail_msg("after call %d, %s, failed: %d live things, %d before", (int)n,
				 gpu_failed(), (int)gpu_live(), (int)live);
		rounds += gpu_failed() != NULL;
		n = gpu_failed() ? n + 1 : 0;
	}
	assert_true(r.good);
	print_message("%d of libkvtier's calls failed\n", (int)rounds);
	assert_in_range(rounds, 20, CALLS_MAX);
	daemon_stat_becomes(&d, "gpu.regions", 0, DEADLINE_MS);
	daemon_remove(&d);
	GPU(gpu_api()->cuStreamDestroy(r.stream));
	gpu_memory_free(&gpu, &r.memory);
	free(r.e.memory);
	gpu_close(&gpu);
	gpu_report_clean("");
}

TEST_DO(each_call_of_an_engine_by_ipc_may_fail,
	each_call_of_an_engine_may_fail(GPU_ALLOC, "CUDA IPC"));
TEST_DO(each_call_of_an_engine_by_descriptor_may_fail,
	each_call_of_an_engine_may_fail(GPU_VMM_FD, "CUDA descriptor"));
TEST_DO(each_call_of_an_engine_with_two_allocations_may_fail,
	each_call_of_an_engine_may_fail(GPU_VMM_TWO, "CUDA descriptor of 2"));
TEST_DO(each_call_of_a_staged_engine_may_fail,
	each_call_of_an_engine_may_fail(GPU_POOL, "CUDA staged: it is of a stream-ordered pool"));

TEST_FIRST(gpu_begin(argv, "null_stream=0");
	   gpu_needs_emulation("its faults are settings of the emulated driver"));
