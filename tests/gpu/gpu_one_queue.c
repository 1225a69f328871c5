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

static struct kvtier_key keys[BLOCKS];

static void begin_with(enum gpu_memory_kind kind, const char *words)
{
	gpu_served_begin(config, &large_fp8, BLOCKS, kind, words);
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

TEST_DO(a_stream_waits_for_the_daemon, begin_with(GPU_ALLOC, "CUDA IPC"); a_load_and_a_step(true));
TEST_DO(no_stream_waits_for_staged_pages, begin_with(GPU_POOL, "CUDA staged");
	a_load_and_a_step(false));

/* Calls of a close wait for the whole context, so the streams go first. */
TEST(a_close_frees_streams_that_wait)
{
	const struct kvtier_op o = { .size = sizeof(o), .layer_groups = 2 };
	uint64_t op;

	begin_with(GPU_ALLOC, "CUDA IPC");
	op = gpu_store_op(keys, 0, 1, &o); /* its layers are never given */
	assert_int_equal(kvtier_stream_wait(ge.e.client, op, KVTIER_ALL, engine_stream), 0);
	kvtier_close(ge.e.client);
	ge.e.client = NULL;
	ge.e.space = NULL;
	GPU(gpu_api()->cuCtxSynchronize());
}

TEST_FIRST(gpu_begin(argv, "queues=1 waits=1"));
