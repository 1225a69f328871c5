/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=5 */
/*
 * gpu_order - goal: no page of an op is touched before the word that the op names; an op that waits
 * holds up no other client, and can be cancelled; its end is told by its word.
 * Method: the engine's stream is held by a word that the test writes late; until then the page has
 * other bytes, so a store that ran early would keep these, and a load would be overwritten.
 */
#include "tests/lib/lib_gpu_raw.h"

enum { N = 4, OLD = 1, NEW = 2, CHAIN = 9, OTHER = 77 };

GPU_DAEMON_EACH(GPU_CONFIG("16M", "1M"));

/* Another client, which is served meanwhile. Its memory is made before a stream is held, and freed
 * after: a driver may wait for all streams of the process before it frees. */
static void another(struct gpu_raw *other)
{
	gpu_raw_open(other, d.socket, &gpu, &tiny_raw, N);
	gpu_raw_fill(other, OTHER, 0, N);
}

static void is_served(struct gpu_raw *other)
{
	assert_int_equal(gpu_raw_run(other, WIRE_OP_STORE, OTHER, 0, N).status, 0);
	assert_int_equal(gpu_raw_run(other, WIRE_OP_LOAD, OTHER, 0, N).status, 0);
}

static void order_and_register(struct gpu_raw *e)
{
	assert_int_equal(gpu_raw_order(e), 0);
	GPU(gpu_api()->cuMemHostRegister(e->words, sizeof(*e->words),
					 CU_MEMHOSTREGISTER_DEVICEMAP));
}

/* Its word is set already. */
static void comes_after(struct gpu_raw *e, struct wire_sqe *sqe, CUstream stream)
{
	CUdeviceptr words;

	GPU(gpu_api()->cuMemHostGetDevicePointer(&words, &e->words->ready[sqe->word - 1], 0));
	sqe->flags = WIRE_SQE_READY;
	GPU(gpu_api()->cuStreamWriteValue64(stream, words, sqe->op_id, 0));
}

/* The bytes of chain NEW come into pages 0.. by the stream, once the gate is open. */
static void *fill_late(struct gpu_raw *e, CUstream stream, struct gpu_gate *gate)
{
	const struct cuda_api *cu = gpu_api();
	const size_t bytes = N * e->page_bytes;
	void *pinned;

	gpu_raw_fill(e, NEW, 0, N);
	GPU(cu->cuMemHostAlloc(&pinned, bytes, 0));
	gpu_read(e->gpu, pinned, e->memory + e->offset, bytes);
	gpu_raw_fill(e, OLD, 0, N);
	gpu_gate_close(gate, stream);
	GPU(cu->cuMemcpyHtoDAsync(e->memory + e->offset, pinned, bytes, stream));
	return pinned;
}

TEST(a_store_waits_for_its_word)
{
	const struct cuda_api *cu = gpu_api();
	struct gpu_raw e, other;
	struct wire_sqe sqe;
	struct gpu_gate gate;
	CUstream stream;
	void *pinned;

	gpu_gate_make(&gate);
	GPU(cu->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
	gpu_raw_open(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	another(&other);
	order_and_register(&e);
	pinned = fill_late(&e, stream, &gate);
	sqe = gpu_raw_sqe(&e, WIRE_OP_STORE, CHAIN, 0, N);
	sqe.word = 5;
	comes_after(&e, &sqe, stream);
	gpu_raw_send(&e, &sqe);
	is_served(&other);
	assert_false(gpu_raw_completed(&e));
	assert_true(__atomic_load_n(&e.words->done[4], __ATOMIC_ACQUIRE) != sqe.op_id);
	gpu_gate_open(&gate);
	assert_int_equal(gpu_raw_await(&e).status, 0);
	assert_true(__atomic_load_n(&e.words->done[4], __ATOMIC_ACQUIRE) == sqe.op_id);
	GPU(cu->cuStreamSynchronize(stream));
	assert_int_equal(gpu_raw_run(&e, WIRE_OP_LOAD, CHAIN, N, N).status, 0);
	gpu_raw_all_hold(&e, NEW, N, N);
	GPU(cu->cuMemHostUnregister(e.words));
	gpu_raw_close_space(&e);
	gpu_raw_close(&other);
	gpu_raw_close(&e);
	GPU(cu->cuMemFreeHost(pinned));
	gpu_gate_free(&gate);
	GPU(cu->cuStreamDestroy(stream));
}

/* The engine uses the page's bytes until the word; the load must not come before. */
TEST(a_load_waits_for_its_word)
{
	const struct cuda_api *cu = gpu_api();
	struct gpu_raw e, other;
	struct wire_sqe sqe;
	struct gpu_gate gate;
	CUstream stream;
	void *pinned;

	gpu_gate_make(&gate);
	GPU(cu->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
	gpu_raw_open(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	another(&other);
	order_and_register(&e);
	gpu_raw_store(&e, CHAIN, N, N);
	pinned = fill_late(&e, stream, &gate);
	sqe = gpu_raw_sqe(&e, WIRE_OP_LOAD, CHAIN, 0, N);
	sqe.word = 1;
	comes_after(&e, &sqe, stream);
	gpu_raw_send(&e, &sqe);
	is_served(&other);
	assert_false(gpu_raw_completed(&e));
	gpu_gate_open(&gate);
	assert_int_equal(gpu_raw_await(&e).status, 0);
	gpu_raw_all_hold(&e, CHAIN, 0, N);
	GPU(cu->cuMemHostUnregister(e.words));
	gpu_raw_close_space(&e);
	gpu_raw_close(&other);
	gpu_raw_close(&e);
	GPU(cu->cuMemFreeHost(pinned));
	gpu_gate_free(&gate);
	GPU(cu->cuStreamDestroy(stream));
}

TEST(who_waits_can_be_cancelled)
{
	struct gpu_raw e, other;
	struct wire_sqe sqe, cancel = { .op = WIRE_OP_CANCEL, .op_id = 1 };

	gpu_raw_open(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	another(&other);
	assert_int_equal(gpu_raw_order(&e), 0);
	gpu_raw_store(&e, CHAIN, 0, N);
	gpu_raw_poison(&e, N, N);
	sqe = gpu_raw_sqe(&e, WIRE_OP_LOAD, CHAIN, N, N);
	sqe.word = 1;
	sqe.flags = WIRE_SQE_READY; /* and nobody writes it */
	gpu_raw_send(&e, &sqe);
	is_served(&other);
	cancel.target = sqe.op_id;
	raw_put(&e.raw, e.position, &cancel);
	raw_publish(&e.raw, e.position + 1);
	assert_int_equal(gpu_raw_await(&e).status, -ECANCELED);
	e.words->ready[0] = sqe.op_id;
	is_served(&other);
	gpu_raw_all_poison(&e, N, N);
	gpu_raw_close(&other);
	gpu_raw_close(&e);
}

TEST(there_is_one_order_for_a_device)
{
	struct gpu_raw e;

	gpu_raw_open(&e, d.socket, &gpu, &tiny_fp8, N);
	assert_int_equal(gpu_raw_order(&e), 0);
	assert_int_equal(gpu_raw_order(&e), -EEXIST);
	gpu_raw_close(&e);
}

TEST_FIRST(gpu_begin(argv, "null_stream=0 one_thread=1"));
