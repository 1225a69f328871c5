/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_emu_capture - the emulated driver's streams capture graphs: what is captured does not run, an
 * event that is recorded there is not recorded for others, and calls that no stream orders make the
 * capture void, as the manual of cuThreadExchangeStreamCaptureMode() says.
 */

#include "tests/lib/lib_gpu_emu.h"

enum { WORDS = 1024, BYTES = 4 * WORDS };

static CUstream stream, other, blocking;
static CUevent event;
static CUdeviceptr memory;
static uint32_t *host;

FIXTURE(setup)
{
	(void)emu_begin(state);
	DO(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
	DO(cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, 0));
	DO(cuStreamCreateWithPriority(&blocking, CU_STREAM_DEFAULT, 0));
	DO(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	memory = emu_alloc(BYTES);
	DO(cuMemHostAlloc((void **)&host, BYTES, 0));
	return 0;
}

FIXTURE(teardown)
{
	DO(cuMemFreeHost(host));
	DO(cuMemFree(memory));
	DO(cuEventDestroy(event));
	DO(cuStreamDestroy(blocking));
	DO(cuStreamDestroy(other));
	DO(cuStreamDestroy(stream));
	return emu_end(state);
}

TEST_EACH(setup, teardown);

static CUstreamCaptureStatus status_of(CUstream s)
{
	CUstreamCaptureStatus status;

	DO(cuStreamIsCapturing(s, &status));
	return status;
}

static void begin(CUstreamCaptureMode mode)
{
	assert_int_equal(status_of(stream), CU_STREAM_CAPTURE_STATUS_NONE);
	DO(cuStreamBeginCapture(stream, mode));
	assert_int_equal(status_of(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

static void end_good(void)
{
	CUgraph graph;

	assert_int_equal(status_of(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
	DO(cuStreamEndCapture(stream, &graph));
	assert_non_null(graph);
	DO(cuGraphDestroy(graph));
	assert_int_equal(status_of(stream), CU_STREAM_CAPTURE_STATUS_NONE);
}

static void end_void(const char *said)
{
	CUgraph graph;

	assert_int_equal(status_of(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
	BREAKS(cuStreamEndCapture(stream, &graph), STREAM_CAPTURE_INVALIDATED, said);
	assert_null(graph);
	assert_int_equal(status_of(stream), CU_STREAM_CAPTURE_STATUS_NONE);
}

TEST(captured_operations_do_not_run)
{
	memset(host, 1, BYTES);
	gpu_write(&gpu, memory, host, BYTES);
	begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
	DO(cuMemsetD8Async(memory, 2, BYTES, stream));
	end_good();
	DO(cuStreamSynchronize(stream));
	gpu_read(&gpu, host, memory, BYTES);
	assert_int_equal(host[0], 0x01010101);
}

/* The event stays as it was: done, though work before it never ran. */
TEST(a_captured_event_is_not_recorded)
{
	begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
	DO(cuEventRecord(event, stream));
	DO(cuStreamWaitEvent(other, event, 0));
	assert_int_equal(status_of(other), CU_STREAM_CAPTURE_STATUS_ACTIVE);
	end_good();
	assert_int_equal(status_of(other), CU_STREAM_CAPTURE_STATUS_NONE);
	GIVES(cuEventQuery(event), CAPTURED_EVENT);
	GIVES(cuStreamWaitEvent(other, event, 0), CAPTURED_EVENT);
	DO(cuEventRecord(event, stream));
	DO(cuEventSynchronize(event));
}

TEST(an_event_from_outside_ends_a_capture)
{
	DO(cuEventRecord(event, other));
	begin(CU_STREAM_CAPTURE_MODE_RELAXED);
	GIVES(cuStreamWaitEvent(stream, event, 0), STREAM_CAPTURE_ISOLATION);
	end_void("the event is not of the graph");
}

TEST(a_stream_that_captures_cannot_be_awaited)
{
	begin(CU_STREAM_CAPTURE_MODE_RELAXED);
	GIVES(cuStreamSynchronize(stream), STREAM_CAPTURE_UNSUPPORTED);
	end_void("the stream captures");
}

TEST(the_null_stream_waits_for_blocking_streams_that_capture)
{
	CUstreamCaptureStatus status;
	CUgraph graph;

	DO(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
	GIVES(cuStreamIsCapturing(CU_STREAM_LEGACY, &status), STREAM_CAPTURE_IMPLICIT);
	assert_int_equal(status_of(blocking), CU_STREAM_CAPTURE_STATUS_ACTIVE);
	GIVES(cuEventRecord(event, CU_STREAM_LEGACY), STREAM_CAPTURE_IMPLICIT);
	BREAKS(cuStreamEndCapture(blocking, &graph), STREAM_CAPTURE_INVALIDATED,
	       "the NULL stream waits");
}

static CUstreamCaptureMode exchange(CUstreamCaptureMode mode)
{
	DO(cuThreadExchangeStreamCaptureMode(&mode));
	return mode;
}

/* A thread of this mode asks for an event: the result. */
static void *ask(void *argument)
{
	static CUresult result;

	DO(cuCtxSetCurrent(gpu.context));
	assert_int_equal(exchange(*(CUstreamCaptureMode *)argument), CU_STREAM_CAPTURE_MODE_GLOBAL);
	result = cu->cuEventQuery(event);
	return &result;
}

static CUresult asked_elsewhere(CUstreamCaptureMode mode)
{
	pthread_t thread;
	void *ret;

	assert_int_equal(pthread_create(&thread, NULL, ask, &mode), 0);
	assert_int_equal(pthread_join(thread, &ret), 0);
	return *(CUresult *)ret;
}

/* The manual's table: the capture's mode, the mode of the thread that asks, the same thread. */
TEST(calls_are_forbidden_as_the_manual_says)
{
	const CUresult no = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;

	DO(cuEventRecord(event, other));
	DO(cuEventSynchronize(event));
	for (unsigned capture = 0; capture < 3; capture++)
		for (unsigned thread = 0; thread < 3; thread++)
			for (int same = 0; same < 2; same++) {
				const bool relaxed = thread == CU_STREAM_CAPTURE_MODE_RELAXED;
				const bool forbidden =
					same ? !relaxed &&
							capture != CU_STREAM_CAPTURE_MODE_RELAXED :
					       thread == CU_STREAM_CAPTURE_MODE_GLOBAL &&
							capture == CU_STREAM_CAPTURE_MODE_GLOBAL;
				CUresult r;

				begin(capture);
				if (same) {
					assert_int_equal(exchange(thread), 0);
					r = cu->cuEventQuery(event);
					assert_int_equal(exchange(0), thread);
				} else {
					r = asked_elsewhere(thread);
				}
				assert_int_equal(r, forbidden ? no : CUDA_SUCCESS);
				if (forbidden)
					end_void("the thread is not relaxed");
				else
					end_good();
			}
}

TEST_FIRST(gpu_begin(argv, ""); gpu_needs_emulation("it asks what the emulated driver forbids"));
