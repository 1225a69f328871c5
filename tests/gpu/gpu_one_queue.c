/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=6 */
/*
 * gpu_one_queue - goal: no client stands still for ever where all streams of a process share one
 * hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1) and calls of the driver wait for a whole context.
 * A stream waits for ops that the daemon does; ops that this process itself carries on refuse such
 * a wait. Method: the emulated driver with queues=1 and waits=1, and one thread, which both polls
 * and synchronizes the context. A case that fails hangs.
 */
#include "tests/lib/lib_gpu_served.h"

enum { BLOCKS = 8 };

static const char config[] = GPU_CONFIG("64M", "2M");
/* Memory for one space in engine mode; the next one is served by the daemon. */
static const char narrow[] = GPU_CONFIG("64M", "2M") "engine_bytes = 16M\n";

static struct kvtier_key keys[BLOCKS];

static void begin_with(const char *conf, enum gpu_memory_kind kind, uint32_t mode, uint32_t pages,
		       const char *words)
{
	gpu_served_begin(conf, &large_fp8, pages, kind, mode, words);
	chain_keys(&ge.e, 1, BLOCKS, keys);
}

TEST_EACH(NULL, gpu_served_end);

/* The engine's next step: it reads the pages behind the load, and waits for all of its work before
 * it asks for the result. */
static void a_load_and_a_step(bool waits)
{
	uint64_t op;
	int r;

	assert_int_equal(gpu_chain_store(&ge, keys, 0, BLOCKS), 0);
	gpu_pages_poison(&ge, 0, BLOCKS);
	op = gpu_load_op(keys, 0, BLOCKS, NULL);
	r = kvtier_stream_wait(ge.e.client, op, KVTIER_ALL, engine_stream);
	if (waits)
		assert_int_equal(r, 0);
	else
		assert_int_equal(gpu_not_waited_for(&ge, op, r).ok, BLOCKS);
	GPU(gpu_api()->cuMemcpyDtoHAsync(ge.e.memory, ge.memory.base, BLOCKS * ge.e.page_bytes,
					 engine_stream));
	GPU(gpu_api()->cuCtxSynchronize());
	if (waits)
		assert_int_equal(gpu_op_result(op).ok, BLOCKS);
	gpu_pages_are(keys, BLOCKS);
}

TEST_DO(a_stream_waits_for_the_daemon,
	begin_with(config, GPU_ALLOC, KVTIER_GPU_DAEMON, BLOCKS, "CUDA IPC");
	a_load_and_a_step(true));
TEST_DO(no_stream_waits_for_staged_pages,
	begin_with(config, GPU_POOL, KVTIER_GPU_DAEMON, BLOCKS, "CUDA staged");
	a_load_and_a_step(false));

TEST_DO(no_stream_waits_in_engine_mode,
	begin_with(config, GPU_ALLOC, KVTIER_GPU_ENGINE, BLOCKS, "CUDA engine mode");
	a_load_and_a_step(false));

/* A second space of the same client, whose pages the daemon reaches by itself. */
static struct kvtier_space *second_space(struct gpu_memory *memory)
{
	static struct kvtier_segment segments[KVTIER_MAX_SEGMENTS];
	const size_t n = engine_segments(&ge.e.geometry, segments, KVTIER_MAX_SEGMENTS);
	const struct kvtier_region region = { .size = sizeof(region),
					      .memory = KVTIER_CUDA,
					      .fd = -1,
					      .length = memory->bytes,
					      .base = (void *)(uintptr_t)memory->base };
	struct kvtier_space *ret;
	char text[256];

	assert_int_equal(kvtier_space_open(ge.e.client, &ge.e.geometry, &region, 1, segments, n,
					   &ret),
			 0);
	assert_int_equal(kvtier_space_memory(ret, text, sizeof(text)), KVTIER_REACH_CUDA_IPC);
	if (strncmp(text, "CUDA IPC; not in engine mode", 28) != 0)
		fail_msg("it says: %s", text);
	return ret;
}

static uint64_t store_in(struct kvtier_space *space, uint32_t block, uint32_t groups)
{
	const struct kvtier_op o = { .size = sizeof(o), .layer_groups = groups };
	uint64_t op;

	assert_int_equal(kvtier_store(space, &keys[block], &block, 1, &o, &op), 0);
	return op;
}

/* A kernel of engine mode stands behind streams that wait for ops of a space without it; then the
 * daemon dies. The ops' numbers are such that one comes before the kernel's op and one after. */
TEST(a_daemons_death_frees_streams_before_kernels)
{
	struct kvtier_space *space;
	struct gpu_memory memory;
	uint64_t waited[2], before, op;

	begin_with(narrow, GPU_ALLOC, KVTIER_GPU_ENGINE, 600, "CUDA engine mode");
	gpu_memory_make(&gpu, GPU_ALLOC, ge.memory.bytes, &memory);
	space = second_space(&memory);
	waited[0] = store_in(space, 0, 2); /* its layers are never given */
	before = store_in(space, 1, 0);
	waited[1] = store_in(space, 2, 2);
	assert_int_equal(gpu_op_result(before).ok, 1);
	for (int i = 0; i < 2; i++)
		assert_int_equal(kvtier_stream_wait(ge.e.client, waited[i], KVTIER_ALL,
						    engine_stream),
				 0);
	op = store_in(ge.e.space, 3, 0);
	assert_int_equal(op & 255, before & 255);
	assert_int_equal(gpu_api()->cuStreamQuery(engine_stream), CUDA_ERROR_NOT_READY);
	daemon_signal(&d, SIGKILL);
	assert_int_equal(gpu_op_result(op).status, -ECONNRESET);
	GPU(gpu_api()->cuStreamSynchronize(engine_stream));
	for (int i = 0; i < 2; i++)
		assert_int_equal(gpu_op_result(waited[i]).status, -ECONNRESET);
	gpu_report_clear(); /* a killed daemon leaves its memory */
	daemon_restart(&d);
	assert_int_equal(kvtier_space_close(space), 0);
	gpu_memory_free(&gpu, &memory);
}

/* Calls of a close wait for the whole context, so the streams go first. */
TEST(a_close_frees_streams_that_wait)
{
	uint64_t op;

	begin_with(config, GPU_ALLOC, KVTIER_GPU_DAEMON, BLOCKS, "CUDA IPC");
	op = store_in(ge.e.space, 0, 2);
	assert_int_equal(kvtier_stream_wait(ge.e.client, op, KVTIER_ALL, engine_stream), 0);
	kvtier_close(ge.e.client);
	ge.e.client = NULL;
	ge.e.space = NULL;
	GPU(gpu_api()->cuCtxSynchronize());
}

TEST_FIRST(gpu_begin(argv, "queues=1 waits=1"));
