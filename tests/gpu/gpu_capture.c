/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=6 */
/*
 * gpu_capture - goal: an engine may capture graphs while libkvtier works: no call of the library
 * ends a capture, in the capturing thread or in another one, and the thread's mode stays the
 * engine's. A stream that captures is refused with a sentence, since what is put there comes after
 * nothing of its earlier work. Method: captures around all that a client does, over each way
 * of reaching pages; the emulated driver makes a capture void at each call that its manual forbids.
 */
#include "tests/lib/lib_gpu_served.h"

enum { BLOCKS = 4 };

static struct kvtier_key keys[2][BLOCKS];
static CUstream capturing, plain, blocking;

static void begin_with(enum gpu_memory_kind kind, const char *words)
{
	gpu_served_begin(GPU_CONFIG("64M", "2M"), &large_fp8, 2 * BLOCKS, kind, words);
	GPU(gpu_api()->cuStreamCreateWithPriority(&capturing, CU_STREAM_NON_BLOCKING, 0));
	GPU(gpu_api()->cuStreamCreateWithPriority(&plain, CU_STREAM_NON_BLOCKING, 0));
	GPU(gpu_api()->cuStreamCreateWithPriority(&blocking, CU_STREAM_DEFAULT, 0));
	for (uint64_t i = 0; i < 2; i++)
		chain_keys(&ge.e, i, BLOCKS, keys[i]);
	for (uint32_t page = 0; page < 2 * BLOCKS; page++)
		page_fill(&ge.e, page, &keys[page / BLOCKS][page % BLOCKS], 0);
	gpu_pages_push(&ge, 0, 2 * BLOCKS);
}

static bool is_capturing(CUstream stream)
{
	CUstreamCaptureStatus status;

	GPU(gpu_api()->cuStreamIsCapturing(stream, &status));
	return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

FIXTURE(end)
{
	CUgraph graph;

	if (is_capturing(capturing)) /* a case failed */
		(void)gpu_api()->cuStreamEndCapture(capturing, &graph);
	GPU(gpu_api()->cuStreamDestroy(blocking));
	GPU(gpu_api()->cuStreamDestroy(plain));
	GPU(gpu_api()->cuStreamDestroy(capturing));
	return gpu_served_end(state);
}

static void capture_end(CUstream stream)
{
	CUgraph graph = NULL;

	GPU(gpu_api()->cuStreamEndCapture(stream, &graph));
	assert_non_null(graph);
	GPU(gpu_api()->cuGraphDestroy(graph));
}

/* The thread's mode is still this one. */
static void mode_is(CUstreamCaptureMode mode)
{
	CUstreamCaptureMode was = mode;

	GPU(gpu_api()->cuThreadExchangeStreamCaptureMode(&was));
	assert_int_equal(was, mode);
}

static _Atomic bool stop;

static void *poll_often(void *argument)
{
	(void)argument;
	while (!stop) {
		assert_true(kvtier_poll(ge.e.client, NULL, 0) <= 0);
		nap_ms(1);
	}
	return NULL;
}

/* Stores, a load, a daemon that goes and comes, a space that closes and opens again. */
static void client_works(void)
{
	const struct kvtier_op o = { .size = sizeof(o), .stream = plain };
	uint32_t pages[BLOCKS];
	uint64_t op;

	pages_from(BLOCKS, pages, BLOCKS);
	assert_int_equal(gpu_op_result(gpu_store_op(keys[0], 0, BLOCKS, &o)).ok, BLOCKS);
	assert_int_equal(kvtier_space_close(ge.e.space), 0);
	assert_int_equal(gpu_engine_space(&ge), 0);
	daemon_signal(&d, SIGTERM);
	daemon_restart(&d);
	AWAIT(kvtier_store(ge.e.space, keys[1], pages, BLOCKS, &o, &op) == 0);
	assert_int_equal(gpu_op_result(op).ok, BLOCKS);
	assert_int_equal(gpu_op_result(gpu_load_op(keys[1], 0, BLOCKS, &o)).ok, BLOCKS);
}

static void captures_go_on(void)
{
	pthread_t thread;

	GPU(gpu_api()->cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL));
	stop = false;
	assert_int_equal(pthread_create(&thread, NULL, poll_often, NULL), 0);
	client_works();
	stop = true;
	assert_int_equal(pthread_join(thread, NULL), 0);
	capture_end(capturing);
	mode_is(CU_STREAM_CAPTURE_MODE_GLOBAL);
	gpu_pages_pull(&ge, 0, BLOCKS);
	gpu_pages_are(keys[1], BLOCKS);
}

TEST_DO(a_capture_goes_on_beside_shared_pages, begin_with(GPU_ALLOC, "CUDA IPC"); captures_go_on());
TEST_DO(a_capture_goes_on_beside_pages_by_descriptor, begin_with(GPU_VMM_FD, "CUDA descriptor");
	captures_go_on());

TEST_DO(a_capture_goes_on_beside_staged_pages, begin_with(GPU_POOL, "CUDA staged");
	captures_go_on());

TEST(the_threads_mode_stays_the_engines)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

	begin_with(GPU_POOL, "CUDA staged");
	GPU(gpu_api()->cuThreadExchangeStreamCaptureMode(&mode));
	assert_int_equal(gpu_op_result(gpu_store_op(keys[0], 0, BLOCKS, NULL)).ok, BLOCKS);
	GPU(gpu_api()->cuThreadExchangeStreamCaptureMode(&mode));
	assert_int_equal(mode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

static void is_refused(int result)
{
	assert_int_equal(result, -EINVAL);
	if (!strstr(kvtier_last_error(), "stream captures a graph"))
		fail_msg("it says: %s", kvtier_last_error());
}

/* The blocks are new, so the op waits for its layers. */
static void stream_is_refused(CUstream stream, const struct kvtier_key *new)
{
	struct kvtier_op o = { .size = sizeof(o), .stream = stream };
	uint32_t pages[BLOCKS];
	uint64_t op;

	pages_from(0, pages, BLOCKS);
	is_refused(kvtier_store(ge.e.space, new, pages, BLOCKS, &o, &op));
	is_refused(kvtier_load(ge.e.space, new, pages, BLOCKS, &o, &op));
	o.stream = NULL;
	o.layer_groups = 2;
	op = gpu_store_op(new, 0, BLOCKS, &o);
	is_refused(kvtier_stream_wait(ge.e.client, op, KVTIER_ALL, stream));
	is_refused(kvtier_store_layers(ge.e.client, op, 2, stream));
	assert_int_equal(kvtier_store_layers(ge.e.client, op, 2, NULL), 0);
	assert_int_equal(gpu_op_result(op).ok, BLOCKS);
}

TEST(a_stream_that_captures_is_refused)
{
	begin_with(GPU_ALLOC, "CUDA IPC");
	GPU(gpu_api()->cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL));
	stream_is_refused(capturing, keys[0]);
	capture_end(capturing);
	GPU(gpu_api()->cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL));
	/* it would wait for the stream that captures */
	stream_is_refused(CU_STREAM_LEGACY, keys[1]);
	capture_end(blocking);
}

TEST_EACH(NULL, end);

TEST_FIRST(gpu_begin(argv, ""));
