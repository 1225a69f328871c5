/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=8 */
/*
 * gpu_client_stream - goal: an op that names a stream comes after the work that is in it, and a
 * stream that waits for an op after the op; over each way of reaching pages, with events, with
 * words alone, staged; and a daemon's death frees a stream that waits. Method: a stream that stands
 * still at a word of host memory until the test lets it go, with the copy that fills the pages
 * behind that word.
 */
#include "tests/lib/lib_gpu_engine.h"

enum { BLOCKS = 8, DEADLINE_MS = PATIENT_MS };

static const char config[] = "[host]\nbytes = 64M\nslab_bytes = 2M\nhuge_pages = no\n"
			     "[gpu]\ndevices = auto\nstaging_bytes = 8M\n";

static struct daemon d;
static struct gpu gpu;
static struct gpu_engine ge;
static struct kvtier_key keys[BLOCKS];
static CUstream engine_stream;
static struct gpu_gate gate; /* in front of the engine's stream */

static void begin_with(enum gpu_memory_kind kind, const char *words)
{
	gpu_open(&gpu, 0);
	daemon_start(&d, config);
	gpu_engine_open(&ge, &gpu, d.socket, &large_fp8, 2 * BLOCKS, kind);
	gpu_engine_reached(&ge, words);
	chain_keys(&ge.e, 1, BLOCKS, keys);
	GPU(gpu_api()->cuStreamCreateWithPriority(&engine_stream, CU_STREAM_NON_BLOCKING, 0));
	gpu_gate_make(&gate);
}

FIXTURE(end)
{
	gpu_gate_open(&gate); /* a case that failed left it closed */
	gpu_engine_close(&ge);
	GPU(gpu_api()->cuStreamSynchronize(engine_stream));
	GPU(gpu_api()->cuStreamDestroy(engine_stream));
	gpu_gate_free(&gate);
	daemon_remove(&d);
	gpu_close(&gpu);
	gpu_report_clean("");
	return 0;
}

static struct kvtier_result result_of(uint64_t op, int timeout_ms)
{
	struct kvtier_result r = { .size = sizeof(r) };

	assert_int_equal(kvtier_wait(ge.e.client, op, timeout_ms, &r), 0);
	return r;
}

static void assert_not_done(uint64_t op)
{
	assert_int_equal(kvtier_wait(ge.e.client, op, 100, NULL), -ETIMEDOUT);
}

/* The pages get their contents in the stream, behind the gate, while the store is under way. */
static void a_store_reads_what_the_stream_wrote(void)
{
	const struct kvtier_op o = { .size = sizeof(o), .stream = engine_stream };
	const size_t bytes = BLOCKS * ge.e.page_bytes;
	uint32_t pages[BLOCKS];
	uint64_t op;

	pages_from(0, pages, BLOCKS);
	gpu_pages_poison(&ge, 0, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		page_fill(&ge.e, i, &keys[i], 0);
	gpu_gate_close(&gate, engine_stream);
	GPU(gpu_api()->cuMemcpyHtoDAsync(ge.memory.base, ge.e.memory, bytes, engine_stream));
	assert_int_equal(kvtier_store(ge.e.space, keys, pages, BLOCKS, &o, &op), 0);
	assert_not_done(op);
	gpu_gate_open(&gate);
	assert_int_equal(result_of(op, -1).ok, BLOCKS);
	assert_int_equal(gpu_chain_load(&ge, keys, BLOCKS, BLOCKS), BLOCKS);
}

/* The stream copies the pages out once the load has ended, without the CPU in between; or the CPU
 * waits, where this process itself brings the pages. */
static void a_stream_copies_what_the_load_brought(bool brings)
{
	const size_t bytes = BLOCKS * ge.e.page_bytes;
	uint32_t pages[BLOCKS];
	uint64_t op;
	int r;

	gpu_pages_poison(&ge, 0, BLOCKS);
	pages_from(0, pages, BLOCKS);
	assert_int_equal(kvtier_load(ge.e.space, keys, pages, BLOCKS, NULL, &op), 0);
	r = kvtier_stream_wait(ge.e.client, op, KVTIER_ALL, engine_stream);
	if (brings)
		assert_int_equal(gpu_not_waited_for(&ge, op, r).ok, BLOCKS);
	else
		assert_int_equal(r, 0);
	GPU(gpu_api()->cuMemcpyDtoHAsync(ge.e.memory, ge.memory.base, bytes, engine_stream));
	if (!brings)
		assert_int_equal(result_of(op, -1).ok, BLOCKS);
	GPU(gpu_api()->cuStreamSynchronize(engine_stream));
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert_true(page_is(&ge.e, i, &keys[i], 0));
}

static void both_ways(void)
{
	a_store_reads_what_the_stream_wrote();
	a_stream_copies_what_the_load_brought(false);
}

TEST_DO(over_ipc_with_events, begin_with(GPU_ALLOC, "CUDA IPC"); both_ways());
TEST_DO(over_a_descriptor, begin_with(GPU_VMM_FD, "CUDA descriptor"); both_ways());

TEST(staged)
{
	begin_with(GPU_POOL, "CUDA staged");
	a_store_reads_what_the_stream_wrote();
	a_stream_copies_what_the_load_brought(true);
}

/* A load into pages that the stream still reads waits for the stream, too. */
TEST(a_load_comes_after_the_stream)
{
	struct kvtier_op options = { .size = sizeof(options) };
	uint8_t *out;
	uint32_t pages[BLOCKS];
	uint64_t op;

	begin_with(GPU_ALLOC, "CUDA IPC");
	assert_int_equal(gpu_chain_store(&ge, keys, 0, BLOCKS), 0);
	options.stream = engine_stream;
	gpu_pages_poison(&ge, 0, BLOCKS);
	gpu_gate_close(&gate, engine_stream);
	GPU(gpu_api()->cuMemHostAlloc((void **)&out, BLOCKS * ge.e.page_bytes, 0));
	GPU(gpu_api()->cuMemcpyDtoHAsync(out, ge.memory.base, BLOCKS * ge.e.page_bytes,
					 engine_stream));
	pages_from(0, pages, BLOCKS);
	assert_int_equal(kvtier_load(ge.e.space, keys, pages, BLOCKS, &options, &op), 0);
	assert_not_done(op);
	gpu_gate_open(&gate);
	assert_int_equal(result_of(op, -1).ok, BLOCKS);
	GPU(gpu_api()->cuStreamSynchronize(engine_stream));
	for (size_t i = 0; i < BLOCKS * ge.e.page_bytes; i++)
		assert_int_equal(out[i], 0xa5);
	GPU(gpu_api()->cuMemFreeHost(out));
}

/* A stream that never comes so far: the op ends at its deadline, and no page was touched. */
TEST(an_op_whose_stream_stands_still_ends_at_its_deadline)
{
	struct kvtier_op o = { .size = sizeof(o), .timeout_ms = 200 };
	uint32_t pages[BLOCKS];
	uint64_t op;

	begin_with(GPU_ALLOC, "CUDA IPC");
	assert_int_equal(gpu_chain_store(&ge, keys, 0, BLOCKS), 0);
	gpu_pages_poison(&ge, 0, BLOCKS);
	gpu_gate_close(&gate, engine_stream);
	o.stream = engine_stream;
	pages_from(0, pages, BLOCKS);
	assert_int_equal(kvtier_load(ge.e.space, keys, pages, BLOCKS, &o, &op), 0);
	assert_int_equal(result_of(op, DEADLINE_MS).status, -ETIMEDOUT);
	gpu_gate_open(&gate);
	gpu_pages_pull(&ge, 0, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert_true(page_is_poison(&ge.e, i));
}

TEST(a_daemons_death_frees_a_stream_that_waits)
{
	struct kvtier_result r = { .size = sizeof(r) };
	uint32_t pages[BLOCKS];
	uint64_t op;

	begin_with(GPU_ALLOC, "CUDA IPC");
	assert_int_equal(gpu_chain_store(&ge, keys, 0, BLOCKS), 0);
	daemon_signal(&d, SIGSTOP);
	pages_from(0, pages, BLOCKS);
	assert_int_equal(kvtier_load(ge.e.space, keys, pages, BLOCKS, NULL, &op), 0);
	assert_int_equal(kvtier_stream_wait(ge.e.client, op, KVTIER_ALL, engine_stream), 0);
	assert_int_equal(gpu_api()->cuStreamQuery(engine_stream), CUDA_ERROR_NOT_READY);
	daemon_signal(&d, SIGKILL);
	r = result_of(op, -1);
	assert_int_equal(r.status, -ECONNRESET);
	GPU(gpu_api()->cuStreamSynchronize(engine_stream));
	gpu_report_clear(); /* a killed daemon leaves its memory */
	daemon_restart(&d);
}

TEST_EACH(NULL, end);

static void over_ipc_with_words_alone(void **state)
{
	begin_with(GPU_ALLOC, "CUDA IPC");
	both_ways();
	(void)end(state);
}

TEST_BEGIN
{
	gpu_begin(argv, argc > 1 ? "" : "null_stream=0");
	if (argc > 1)
		test_only(over_ipc_with_words_alone);
	if (gpu_wait(gpu_spawn("words", "ipc_events=0", NULL)) != 0)
		exit(1);
}
