/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=8 */
/*
 * gpu_client_layers - goal: a stream that waits for a layer group of a load finds the bytes of all
 * blocks. A store reads a group when the stream has passed the work that fills it. A load that ends
 * early, in any way, lets go of every stream that waits, and its result says so. Method: a driver
 * that runs queued operations late and in an order of its own; a stream that copies each group out,
 * or in, without the CPU in between; a gate in front of it.
 */
#include "tests/lib/lib_gpu_served.h"

enum { BLOCKS = 12, LAYERS = 8, GROUPS = 3 };

static const char gpu_lines[] = "[gpu]\ndevices = auto\nstaging_bytes = 8M\n" HOST("32M", "4M");

static struct kvtier_key keys[BLOCKS], others[BLOCKS];
static CUstream gated; /* stands at the gate; NULL: none does */

static void begin_verifying(enum gpu_memory_kind kind, const char *words, const char *verify)
{
	struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	char config[256];

	(void)snprintf(config, sizeof(config), "%sverify = %s\n", gpu_lines, verify);
	g.layers = LAYERS;
	gpu_served_begin(config, &g, 2 * BLOCKS, kind, words);
	chain_keys(&ge.e, 1, BLOCKS, keys);
	chain_keys(&ge.e, 2, BLOCKS, others);
	assert_int_equal(gpu_chain_store(&ge, keys, 0, BLOCKS), 0);
}

static void begin_with(enum gpu_memory_kind kind, const char *words)
{
	begin_verifying(kind, words, "once");
}

FIXTURE(end)
{
	gpu_gate_open(&gate);
	if (gated) { /* on a busy machine it may still be at the gate's memory */
		GPU(gpu_api()->cuStreamSynchronize(gated));
		GPU(gpu_api()->cuStreamDestroy(gated));
		gated = NULL;
	}
	return gpu_served_end(state);
}

FIXTURE_DO(begin, begin_with(GPU_ALLOC, "CUDA IPC"));

TEST_EACH(begin, end);

static uint32_t first_layer(uint32_t group)
{
	return LAYERS * group / GROUPS;
}

/* Queues copies of one group of the first pages, between the GPU and the engine's copy on the
 * host. */
static void copy_group(uint32_t group, bool in)
{
	const size_t layer = ge.e.page_bytes / LAYERS;
	const size_t at = layer * first_layer(group);
	const size_t bytes = layer * (first_layer(group + 1) - first_layer(group));

	for (uint32_t i = 0; i < BLOCKS; i++) {
		const size_t page = i * ge.e.page_bytes + at;

		if (in)
			GPU(gpu_api()->cuMemcpyHtoDAsync(ge.memory.base + page, ge.e.memory + page,
							 bytes, engine_stream));
		else
			GPU(gpu_api()->cuMemcpyDtoHAsync(ge.e.memory + page, ge.memory.base + page,
							 bytes, engine_stream));
	}
}

static void poison(void)
{
	gpu_pages_poison(&ge, 0, BLOCKS);
}

static uint64_t submit(bool store, const struct kvtier_key *chain, uint32_t timeout_ms)
{
	const struct kvtier_op o = { .size = sizeof(o),
				     .timeout_ms = timeout_ms,
				     .layer_groups = GROUPS };

	poison();
	return (store ? gpu_store_op : gpu_load_op)(chain, 0, BLOCKS, &o);
}

/* --- loads --- */

static void a_stream_finds_each_group(void)
{
	const uint64_t op = submit(false, keys, 0);

	for (uint32_t g = 0; g < GROUPS; g++) {
		assert_int_equal(kvtier_stream_wait(ge.e.client, op, g, engine_stream), 0);
		copy_group(g, false);
	}
	assert_int_equal(gpu_op_result(op).status, 0);
	GPU(gpu_api()->cuStreamSynchronize(engine_stream));
	gpu_pages_are(keys, BLOCKS);
}

static void the_cpu_finds_each_group(void)
{
	const uint64_t op = submit(false, keys, 0);

	for (uint32_t g = 0; g < GROUPS; g++) {
		INSIST(kvtier_wait_layers(ge.e.client, op, g, PATIENT_MS));
		copy_group(g, false);
		GPU(gpu_api()->cuStreamSynchronize(engine_stream));
		for (uint32_t i = 0; i < BLOCKS; i++)
			assert_true(page_has_layers(&ge.e, i, &keys[i], 0, first_layer(g),
						    first_layer(g + 1)));
	}
	assert_int_equal(gpu_op_result(op).status, 0);
}

/* --- stores --- */

static void fill(void)
{
	for (uint32_t i = 0; i < BLOCKS; i++)
		page_fill(&ge.e, i, &others[i], 0);
}

/* The daemon's word comes behind the stream's copies; ThreadSanitizer does not see that order. */
static void end_store(uint64_t op)
{
	assert_int_equal(gpu_op_result(op).status, 0);
	GPU(gpu_api()->cuStreamSynchronize(engine_stream));
}

static void a_store_reads_what_the_stream_wrote(void)
{
	const uint64_t op = submit(true, others, 0);

	fill();
	for (uint32_t g = 0; g < GROUPS; g++) {
		gpu_gate_close(&gate, engine_stream);
		copy_group(g, true);
		assert_int_equal(kvtier_store_layers(ge.e.client, op, g + 1, engine_stream), 0);
		assert_int_equal(kvtier_wait(ge.e.client, op, 10, NULL), -ETIMEDOUT);
		gpu_gate_open(&gate);
	}
	end_store(op);
	assert_int_equal(gpu_chain_load(&ge, others, 0, BLOCKS), BLOCKS);
}

static void both_ways(void)
{
	a_stream_finds_each_group();
	the_cpu_finds_each_group();
	a_store_reads_what_the_stream_wrote();
}

TEST_DO(over_ipc, both_ways());

TEST_WITH(with_images_that_are_verified, NULL, end)
{
	begin_verifying(GPU_ALLOC, "CUDA IPC", "always");
	both_ways();
}

TEST_WITH(staged, NULL, end)
{
	uint64_t op;
	int r;

	begin_with(GPU_POOL, "CUDA staged");
	the_cpu_finds_each_group();
	a_store_reads_what_the_stream_wrote();
	op = submit(false, others, 0); /* the library's calls bring the pages */
	r = kvtier_stream_wait(ge.e.client, op, 0, engine_stream);
	assert_int_equal(gpu_not_waited_for(&ge, op, r).status, 0);
	copy_group(0, false);
	GPU(gpu_api()->cuStreamSynchronize(engine_stream));
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert_true(page_has_layers(&ge.e, i, &others[i], 0, 0, first_layer(1)));
}

TEST(groups_can_be_given_by_the_cpu)
{
	uint64_t op;

	op = submit(true, others, 0);
	fill();
	for (uint32_t g = 0; g < GROUPS; g++) {
		copy_group(g, true);
		GPU(gpu_api()->cuStreamSynchronize(engine_stream));
		assert_int_equal(kvtier_store_layers(ge.e.client, op, g + 1, NULL), 0);
	}
	assert_int_equal(gpu_op_result(op).status, 0);
	assert_int_equal(gpu_chain_load(&ge, others, 0, BLOCKS), BLOCKS);
}

/* More blocks than the device has jobs for wait for their layers; a load must get through: the
 * layers may be made of its bytes. */
TEST(stores_that_wait_for_layers_leave_room_for_loads)
{
	uint64_t ops[16];

	for (int i = 0; i < 16; i++) {
		chain_keys(&ge.e, 100 + (uint64_t)i, BLOCKS, others);
		ops[i] = submit(true, others, PATIENT_MS);
		assert_int_equal(kvtier_store_layers(ge.e.client, ops[i], 1, NULL), 0);
	}
	assert_int_equal(gpu_chain_load(&ge, keys, BLOCKS, BLOCKS), BLOCKS);
	for (int i = 0; i < 16; i++) {
		assert_int_equal(kvtier_cancel(ge.e.client, ops[i], PATIENT_MS), 0);
		assert_int_equal(gpu_op_result(ops[i]).status, -ECANCELED);
	}
}

TEST(a_store_that_is_not_given_all_ends_at_its_deadline)
{
	uint64_t op;

	op = submit(true, others, 300);
	fill();
	copy_group(0, true);
	assert_int_equal(kvtier_store_layers(ge.e.client, op, 1, engine_stream), 0);
	assert_int_equal(gpu_op_result(op).status, -ETIMEDOUT);
	assert_int_equal(engine_lookup(&ge.e, others, BLOCKS), 0);
	daemon_stat_becomes(&d, "leases", 0, PATIENT_MS);
}

/* A value that FP8 cannot hold, in a layer that is given late: the block is stored raw. */
TEST(a_late_layer_can_make_a_block_raw)
{
	const uint16_t nan = 0x7fc0;
	uint64_t op;

	op = submit(true, others, 0);
	fill();
	memcpy(ge.e.memory + ge.e.page_bytes - sizeof(nan), &nan, sizeof(nan));
	for (uint32_t g = 0; g < GROUPS; g++) {
		copy_group(g, true);
		assert_int_equal(kvtier_store_layers(ge.e.client, op, g + 1, engine_stream), 0);
		nap_ms(5); /* for the daemon to go on with this group alone */
	}
	end_store(op);
	assert_int_equal(daemon_stat(&d, "store.raw_blocks_total"), 1);
	poison();
	op = submit(false, others, 0);
	assert_int_equal(gpu_op_result(op).status, 0);
	gpu_pages_pull(&ge, 0, BLOCKS);
	assert_memory_equal(ge.e.memory + ge.e.page_bytes - sizeof(nan), &nan, sizeof(nan));
	assert_true(page_has_layers(&ge.e, 0, &others[0], 0, 0, LAYERS - 1));
	for (uint32_t i = 1; i < BLOCKS; i++)
		assert_true(page_is(&ge.e, i, &others[i], 0));
}

/* --- loads that end early --- */

static void assert_stream_ends(void)
{
	AWAIT(gpu_api()->cuStreamQuery(engine_stream) != CUDA_ERROR_NOT_READY);
	assert_int_equal(gpu_api()->cuStreamQuery(engine_stream), CUDA_SUCCESS);
}

/* The stream goes on, and the result says that it was for nothing. */
static void assert_let_go(uint64_t op, int status)
{
	const struct kvtier_result r = gpu_op_result(op);

	assert_int_equal(r.status, status);
	assert_stream_ends();
}

static uint64_t load_behind_the_gate(uint32_t timeout_ms)
{
	const struct kvtier_op o = { .size = sizeof(o),
				     .timeout_ms = timeout_ms,
				     .layer_groups = GROUPS,
				     .stream = engine_stream };
	CUstream waits;
	uint64_t op;

	poison();
	gpu_gate_close(&gate, engine_stream);
	op = gpu_load_op(keys, 0, BLOCKS, &o);
	GPU(gpu_api()->cuStreamCreateWithPriority(&waits, CU_STREAM_NON_BLOCKING, 0));
	assert_int_equal(kvtier_stream_wait(ge.e.client, op, GROUPS - 1, waits), 0);
	assert_int_equal(gpu_api()->cuStreamQuery(waits), CUDA_ERROR_NOT_READY);
	gated = engine_stream; /* the gate stays closed for it */
	engine_stream = waits;
	return op;
}

TEST(a_cancel_lets_go_of_the_stream)
{
	uint64_t op;

	op = load_behind_the_gate(PATIENT_MS);
	assert_int_equal(kvtier_cancel(ge.e.client, op, PATIENT_MS), 0);
	assert_let_go(op, -ECANCELED);
	gpu_gate_open(&gate);
}

TEST(a_deadline_lets_go_of_the_stream)
{
	uint64_t op;

	op = load_behind_the_gate(200);
	assert_stream_ends(); /* nobody calls the library: it is the daemon that lets go */
	assert_let_go(op, -ETIMEDOUT);
	gpu_gate_open(&gate);
}

TEST(a_missing_block_lets_go_of_the_stream)
{
	uint64_t op;

	keys[BLOCKS - 1] = others[0];
	op = submit(false, keys, 0);
	assert_int_equal(kvtier_stream_wait(ge.e.client, op, 0, engine_stream), 0);
	assert_stream_ends();
	assert_int_equal(kvtier_wait_layers(ge.e.client, op, 0, PATIENT_MS), -ENODATA);
	assert_let_go(op, -ENOENT);
}

TEST(a_daemons_death_lets_go_of_the_stream)
{
	uint64_t op;

	daemon_signal(&d, SIGSTOP);
	op = submit(false, keys, PATIENT_MS);
	assert_int_equal(kvtier_stream_wait(ge.e.client, op, 0, engine_stream), 0);
	assert_int_equal(gpu_api()->cuStreamQuery(engine_stream), CUDA_ERROR_NOT_READY);
	daemon_signal(&d, SIGKILL);
	assert_int_equal(kvtier_wait_layers(ge.e.client, op, 0, PATIENT_MS), -ENODATA);
	assert_let_go(op, -ECONNRESET);
	gpu_report_clear(); /* a killed daemon leaves its memory */
	daemon_restart(&d);
}

TEST_FIRST(gpu_begin(argv, "null_stream=0 late=3"));
