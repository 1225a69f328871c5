/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_emu_order - the emulated driver runs the operations in streams late and in any legal order.
 *
 * Each case has a program with a mistake in its order, run until the mistake shows as wrong bytes;
 * and the same program without the mistake, run as often, which never shows any.
 */
/* make: no=thread (its mistakes are races: ThreadSanitizer sees them) */
#include <stdatomic.h>
#include <string.h>

#include "tests/lib/lib.h"
#include "tests/lib/lib_gpu.h"

enum { WORDS = 1024, BYTES = 4 * WORDS, ROUNDS = 200 };

static struct gpu gpu;
static const struct cuda_api *cu;
static CUstream first, second;
static CUevent event;
static CUdeviceptr a, b;
static uint32_t *host;
static CUmodule module;
static CUfunction fill, add;

static int setup(void **state)
{
	(void)state;
	cu = gpu_api();
	gpu_open(&gpu, 0);
	GPU(cu->cuStreamCreateWithPriority(&first, CU_STREAM_NON_BLOCKING, 0));
	GPU(cu->cuStreamCreateWithPriority(&second, CU_STREAM_NON_BLOCKING, 0));
	GPU(cu->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	GPU(cu->cuMemAlloc(&a, BYTES));
	GPU(cu->cuMemAlloc(&b, BYTES));
	GPU(cu->cuMemHostAlloc((void **)&host, BYTES, 0));
	GPU(cu->cuModuleLoadData(&module, ""));
	GPU(cu->cuModuleGetFunction(&fill, module, "emu_fill"));
	GPU(cu->cuModuleGetFunction(&add, module, "emu_add"));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	GPU(cu->cuModuleUnload(module));
	GPU(cu->cuMemFreeHost(host));
	GPU(cu->cuMemFree(b));
	GPU(cu->cuMemFree(a));
	GPU(cu->cuEventDestroy(event));
	GPU(cu->cuStreamDestroy(second));
	GPU(cu->cuStreamDestroy(first));
	gpu_close(&gpu);
	return 0;
}

static void launch_fill(CUdeviceptr to, uint32_t value, CUstream stream)
{
	uint32_t n = WORDS;
	void *params[] = { &to, &value, &n };

	GPU(cu->cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}

static void launch_add(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
	uint32_t n = WORDS;
	void *params[] = { &to, &from, &n };

	GPU(cu->cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}

static bool all_are(const uint32_t *words, uint32_t value)
{
	uint32_t i;

	for (i = 0; i < WORDS && words[i] == value; i++)
		;
	return i == WORDS;
}

/* a = round in one stream, b = a + 1 in the other; whether b came out right. */
static bool two_streams(uint32_t round, bool wait)
{
	launch_fill(a, round, first);
	GPU(cu->cuEventRecord(event, first));
	if (wait)
		GPU(cu->cuStreamWaitEvent(second, event, 0));
	launch_add(b, a, second);
	GPU(cu->cuMemcpyDtoHAsync(host, b, BYTES, second));
	GPU(cu->cuStreamSynchronize(second));
	GPU(cu->cuStreamSynchronize(first));
	return all_are(host, round + 1);
}

static void a_missing_wait_for_an_event_shows_and_a_wait_does_not(void **state)
{
	uint32_t round, wrong = 0;

	(void)state;
	for (round = 1; round <= ROUNDS; round++)
		wrong += !two_streams(round, false);
	assert_in_range(wrong, 1, ROUNDS - 1);
	for (; round <= 2 * ROUNDS; round++)
		assert_true(two_streams(round, true));
}

/* The host takes the bytes when the event is complete, or at once. */
static bool copy_out(uint32_t round, bool wait)
{
	bool right;

	launch_fill(a, round, first);
	GPU(cu->cuMemcpyDtoHAsync(host, a, BYTES, first));
	GPU(cu->cuEventRecord(event, first));
	while (wait && cu->cuEventQuery(event) == CUDA_ERROR_NOT_READY)
		nap_ms(0);
	right = all_are(host, round);
	GPU(cu->cuStreamSynchronize(first));
	return right;
}

static void bytes_taken_before_the_copy_is_complete_are_wrong(void **state)
{
	uint32_t round, wrong = 0;

	(void)state;
	for (round = 1; round <= ROUNDS; round++)
		wrong += !copy_out(round, false);
	assert_true(wrong > ROUNDS / 2);
	for (; round <= 2 * ROUNDS; round++)
		assert_true(copy_out(round, true));
}

/* The host changes the bytes behind a copy from them. */
static bool copy_in(uint32_t round, bool wait)
{
	uint32_t i;

	for (i = 0; i < WORDS; i++)
		host[i] = round;
	GPU(cu->cuMemcpyHtoDAsync(a, host, BYTES, first));
	if (wait)
		GPU(cu->cuStreamSynchronize(first));
	for (i = 0; i < WORDS; i++)
		host[i] = 0;
	GPU(cu->cuMemcpyDtoHAsync(host, a, BYTES, first));
	GPU(cu->cuStreamSynchronize(first));
	return all_are(host, round);
}

static void pinned_memory_changed_before_the_copy_is_complete_arrives_changed(void **state)
{
	uint32_t round, wrong = 0;

	(void)state;
	for (round = 1; round <= ROUNDS; round++)
		wrong += !copy_in(round, false);
	assert_true(wrong > ROUNDS / 2);
	for (; round <= 2 * ROUNDS; round++)
		assert_true(copy_in(round, true));
}

static void a_wait_takes_the_record_of_the_time_of_its_call(void **state)
{
	uint32_t round;

	(void)state;
	for (round = 1; round <= ROUNDS; round++) {
		launch_fill(a, round, first);
		GPU(cu->cuEventRecord(event, first));
		GPU(cu->cuStreamWaitEvent(second, event, 0));
		/* A later record, of a stream that never gets there before the second one has. */
		launch_add(b, a, second);
		GPU(cu->cuStreamSynchronize(second));
		GPU(cu->cuEventRecord(event, second));
		GPU(cu->cuMemcpyDtoHAsync(host, b, BYTES, second));
		GPU(cu->cuStreamSynchronize(second));
		assert_true(all_are(host, round + 1));
	}
}

static void an_event_that_was_never_recorded_is_complete(void **state)
{
	CUevent fresh;

	(void)state;
	GPU(cu->cuEventCreate(&fresh, CU_EVENT_DISABLE_TIMING));
	GPU(cu->cuEventQuery(fresh));
	GPU(cu->cuStreamWaitEvent(first, fresh, 0));
	GPU(cu->cuStreamSynchronize(first));
	GPU(cu->cuEventDestroy(fresh));
}

/* Blocking streams and the NULL stream wait for each other; a non-blocking one does not. */
static void the_null_stream_orders_blocking_streams_only(void **state)
{
	CUstream blocking;
	uint32_t round;

	(void)state;
	GPU(cu->cuStreamCreateWithPriority(&blocking, CU_STREAM_DEFAULT, 0));
	for (round = 1; round <= ROUNDS; round++) {
		launch_fill(a, round, blocking);
		launch_add(b, a, NULL);
		launch_add(a, b, blocking);
		GPU(cu->cuMemcpyDtoHAsync(host, a, BYTES, blocking));
		GPU(cu->cuStreamSynchronize(blocking));
		assert_true(all_are(host, round + 2));
	}
	GPU(cu->cuStreamDestroy(blocking));
}

static void words_in_memory_order_streams(void **state)
{
	_Atomic uint64_t *word;
	uint32_t round;

	(void)state;
	GPU(cu->cuMemHostAlloc((void **)&word, 8, 0));
	*word = 0;
	for (round = 1; round <= ROUNDS / 4; round++) {
		GPU(cu->cuStreamWaitValue64(second, (CUdeviceptr)word, round,
					    CU_STREAM_WAIT_VALUE_GEQ));
		launch_add(b, a, second);
		GPU(cu->cuMemcpyDtoHAsync(host, b, BYTES, second));
		launch_fill(a, round, first);
		GPU(cu->cuStreamWriteValue64(first, (CUdeviceptr)word, round, 0));
		GPU(cu->cuStreamSynchronize(second));
		assert_true(all_are(host, round + 1));
	}
	GPU(cu->cuStreamSynchronize(first));
	GPU(cu->cuMemFreeHost((void *)(uintptr_t)word));
}

static void work_goes_on_without_further_calls(void **state)
{
	_Atomic uint64_t *word;
	int tries;

	(void)state;
	GPU(cu->cuMemHostAlloc((void **)&word, 8, 0));
	*word = 0;
	launch_fill(a, 1, first);
	GPU(cu->cuStreamWriteValue64(first, (CUdeviceptr)word, 1, 0));
	for (tries = 0; *word == 0 && tries < 20000; tries++)
		nap_ms(1);
	assert_int_equal(*word, 1);
	GPU(cu->cuStreamSynchronize(first));
	GPU(cu->cuMemFreeHost((void *)(uintptr_t)word));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_missing_wait_for_an_event_shows_and_a_wait_does_not),
		cmocka_unit_test(bytes_taken_before_the_copy_is_complete_are_wrong),
		cmocka_unit_test(pinned_memory_changed_before_the_copy_is_complete_arrives_changed),
		cmocka_unit_test(a_wait_takes_the_record_of_the_time_of_its_call),
		cmocka_unit_test(an_event_that_was_never_recorded_is_complete),
		cmocka_unit_test(the_null_stream_orders_blocking_streams_only),
		cmocka_unit_test(words_in_memory_order_streams),
		cmocka_unit_test(work_goes_on_without_further_calls),
	};
	int failed;

	(void)argc;
	gpu_begin(argv, "");
	failed = cmocka_run_group_tests(tests, setup, teardown);
	gpu_report_clean("");
	return failed;
}
