/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_gpu_served.h"

struct daemon d;
struct gpu_engine ge;
CUstream engine_stream;
struct gpu_gate gate;

void gpu_served_begin(const char *config, const struct kvtier_geometry *geometry, uint32_t pages,
		      enum gpu_memory_kind kind, const char *words)
{
	gpu_open(&gpu, 0);
	if (config)
		daemon_start(&d, config);
	gpu_engine_open(&ge, &gpu, d.socket, geometry, pages, kind);
	gpu_engine_reached(&ge, words);
	GPU(gpu_api()->cuStreamCreateWithPriority(&engine_stream, CU_STREAM_NON_BLOCKING, 0));
	gpu_gate_make(&gate);
}

void gpu_served_close(void)
{
	gpu_gate_open(&gate); /* a case that failed left it closed */
	gpu_engine_close(&ge);
	GPU(gpu_api()->cuStreamSynchronize(engine_stream));
	GPU(gpu_api()->cuStreamDestroy(engine_stream));
	gpu_gate_free(&gate);
	daemon_remove(&d);
	gpu_close(&gpu);
}

int gpu_served_end(TEST_UNUSED void **state)
{
	gpu_served_close();
	gpu_report_clean("");
	return 0;
}

static uint64_t op_of(enum kvtier_op_kind kind, const struct kvtier_key *keys, uint32_t first,
		      uint32_t n, const struct kvtier_op *o)
{
	uint32_t pages[KVTIER_MAX_BLOCKS];
	uint64_t op;

	pages_from(first, pages, n);
	assert_int_equal((kind == KVTIER_STORE ? kvtier_store : kvtier_load)(ge.e.space, keys,
									     pages, n, o, &op),
			 0);
	return op;
}

uint64_t gpu_store_op(const struct kvtier_key *keys, uint32_t first, uint32_t n,
		      const struct kvtier_op *o)
{
	return op_of(KVTIER_STORE, keys, first, n, o);
}

uint64_t gpu_load_op(const struct kvtier_key *keys, uint32_t first, uint32_t n,
		     const struct kvtier_op *o)
{
	return op_of(KVTIER_LOAD, keys, first, n, o);
}

struct kvtier_result gpu_op_result(uint64_t op)
{
	struct kvtier_result r = { .size = sizeof(r) };

	assert_int_equal(kvtier_wait(ge.e.client, op, PATIENT_MS, &r), 0);
	return r;
}

void gpu_pages_are(const struct kvtier_key *keys, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		assert_true(page_is(&ge.e, i, &keys[i], 0));
}
