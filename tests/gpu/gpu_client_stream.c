/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=8 */
/*
 * gpu_client_stream - goal: an op that names a stream comes after the work that is in it, and a
 * stream that waits for an op after the op; over each way of reaching pages; and a
 * daemon's death frees a stream that waits. Method: a stream that stands still at a word of host
 * memory until the test lets it go, with the copy that fills the pages behind that word.
 */
#include "tests/lib/lib_gpu_served.h"

enum { BLOCKS = 8 };

static const char config[] = HOST("16M", "2M") "[gpu]\ndevices = auto\nstaging_bytes = 8M\n";

static struct kvtier_key keys[BLOCKS];

static void begin_with(enum gpu_memory_kind kind, const char *words)
{
	gpu_served_begin(config, &large_fp8, 2 * BLOCKS, kind, words);
	chain_keys(&ge.e, 1, BLOCKS, keys);
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
	uint64_t op;

	gpu_pages_poison(&ge, 0, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		page_fill(&ge.e, i, &keys[i], 0);
	gpu_gate_close(&gate, engine_stream);
	GPU(gpu_api()->cuMemcpyHtoDAsync(ge.memory.base, ge.e.memory, bytes, engine_stream));
	op = gpu_store_op(keys, 0, BLOCKS, &o);
	assert_not_done(op);
	gpu_gate_open(&gate);
	assert_int_equal(gpu_op_result(op).ok, BLOCKS);
	assert_int_equal(gpu_chain_load(&ge, keys, BLOCKS, BLOCKS), BLOCKS);
}

/* The stream copies the pages out once the load has ended, without the CPU in between; or the CPU
 * waits, where this process itself brings the pages. */
static void a_stream_copies_what_the_load_brought(bool brings)
{
	const size_t bytes = BLOCKS * ge.e.page_bytes;
	uint64_t op;
	int r;

	gpu_pages_poison(&ge, 0, BLOCKS);
	op = gpu_load_op(keys, 0, BLOCKS, NULL);
	r = kvtier_stream_wait(ge.e.client, op, KVTIER_ALL, engine_stream);
	if (brings)
		assert_int_equal(gpu_not_waited_for(&ge, op, r).ok, BLOCKS);
	else
		assert_int_equal(r, 0);
	GPU(gpu_api()->cuMemcpyDtoHAsync(ge.e.memory, ge.memory.base, bytes, engine_stream));
	if (!brings)
		assert_int_equal(gpu_op_result(op).ok, BLOCKS);
	GPU(gpu_api()->cuStreamSynchronize(engine_stream));
	gpu_pages_are(keys, BLOCKS);
}

static void both_ways(void)
{
	a_store_reads_what_the_stream_wrote();
	a_stream_copies_what_the_load_brought(false);
}

TEST_DO(over_ipc, begin_with(GPU_ALLOC, "CUDA IPC"); both_ways());
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
	uint64_t op;

	begin_with(GPU_ALLOC, "CUDA IPC");
	assert_int_equal(gpu_chain_store(&ge, keys, 0, BLOCKS), 0);
	options.stream = engine_stream;
	gpu_pages_poison(&ge, 0, BLOCKS);
	gpu_gate_close(&gate, engine_stream);
	GPU(gpu_api()->cuMemHostAlloc((void **)&out, BLOCKS * ge.e.page_bytes, 0));
	GPU(gpu_api()->cuMemcpyDtoHAsync(out, ge.memory.base, BLOCKS * ge.e.page_bytes,
					 engine_stream));
	op = gpu_load_op(keys, 0, BLOCKS, &options);
	assert_not_done(op);
	gpu_gate_open(&gate);
	assert_int_equal(gpu_op_result(op).ok, BLOCKS);
	GPU(gpu_api()->cuStreamSynchronize(engine_stream));
	for (size_t i = 0; i < BLOCKS * ge.e.page_bytes; i++)
		assert_int_equal(out[i], 0xa5);
	GPU(gpu_api()->cuMemFreeHost(out));
}

/* A stream that never comes so far: the op ends at its deadline, and no page was touched. */
TEST(an_op_whose_stream_stands_still_ends_at_its_deadline)
{
	struct kvtier_op o = { .size = sizeof(o), .timeout_ms = 200 };

	begin_with(GPU_ALLOC, "CUDA IPC");
	assert_int_equal(gpu_chain_store(&ge, keys, 0, BLOCKS), 0);
	gpu_pages_poison(&ge, 0, BLOCKS);
	gpu_gate_close(&gate, engine_stream);
	o.stream = engine_stream;
	assert_int_equal(gpu_op_result(gpu_load_op(keys, 0, BLOCKS, &o)).status, -ETIMEDOUT);
	gpu_gate_open(&gate);
	gpu_pages_pull(&ge, 0, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert_true(page_is_poison(&ge.e, i));
}

TEST(a_daemons_death_frees_a_stream_that_waits)
{
	uint64_t op;

	begin_with(GPU_ALLOC, "CUDA IPC");
	assert_int_equal(gpu_chain_store(&ge, keys, 0, BLOCKS), 0);
	daemon_signal(&d, SIGSTOP);
	op = gpu_load_op(keys, 0, BLOCKS, NULL);
	assert_int_equal(kvtier_stream_wait(ge.e.client, op, KVTIER_ALL, engine_stream), 0);
	assert_int_equal(gpu_api()->cuStreamQuery(engine_stream), CUDA_ERROR_NOT_READY);
	daemon_signal(&d, SIGKILL);
	assert_int_equal(gpu_op_result(op).status, -ECONNRESET);
	GPU(gpu_api()->cuStreamSynchronize(engine_stream));
	gpu_report_clear(); /* a killed daemon leaves its memory */
	daemon_restart(&d);
}

TEST_EACH(NULL, gpu_served_end);

TEST_FIRST(gpu_begin(argv, "null_stream=0"));
