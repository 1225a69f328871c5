/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_emu_order - the emulated driver runs the operations in streams late and in any legal order.
 *
 * Each case has a program with a mistake in its order, run until the mistake shows as wrong bytes;
 * and the same program without the mistake, run as often, which never shows any.
 */
/* make: no=thread (its mistakes are races: ThreadSanitizer sees them) */
#include "tests/lib/lib_gpu_emu.h"

enum { WORDS = 1024, BYTES = 4 * WORDS, ROUNDS = 200 };

static CUstream first, second;
static CUevent event;
static CUdeviceptr a, b;
static uint32_t *host;
static CUfunction fill, add;

FIXTURE(setup)
{
	(void)emu_begin(state);
	DO(cuStreamCreateWithPriority(&first, CU_STREAM_NON_BLOCKING, 0));
	DO(cuStreamCreateWithPriority(&second, CU_STREAM_NON_BLOCKING, 0));
	DO(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	a = emu_alloc(BYTES);
	b = emu_alloc(BYTES);
	DO(cuMemHostAlloc((void **)&host, BYTES, 0));
	fill = emu_function("emu_fill");
	add = emu_function("emu_add");
	return 0;
}

FIXTURE(teardown)
{
	DO(cuMemFreeHost(host));
	DO(cuMemFree(b));
	DO(cuMemFree(a));
	DO(cuEventDestroy(event));
	DO(cuStreamDestroy(second));
	DO(cuStreamDestroy(first));
	return emu_end(state);
}

static void launch_add(CUdeviceptr to, CUdeviceptr from, CUstream stream)
{
	uint32_t n = WORDS;
	void *params[] = { &to, &from, &n };

	DO(cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}

/* So many rounds are wrong without the wait, and no round with it. */
static void shows_and_does_not(bool (*right)(uint32_t, bool), uint32_t least, uint32_t most)
{
	uint32_t round, wrong = 0;

	for (round = 1; round <= ROUNDS; round++)
		wrong += !right(round, false);
	assert_in_range(wrong, least, most);
	for (; round <= 2 * ROUNDS; round++)
		assert_true(right(round, true));
}

/* a = round in one stream, b = a + 1 in the other; whether b came out right. */
static bool two_streams(uint32_t round, bool wait)
{
	emu_fill(fill, a, round, WORDS, first);
	DO(cuEventRecord(event, first));
	if (wait)
		DO(cuStreamWaitEvent(second, event, 0));
	launch_add(b, a, second);
	DO(cuMemcpyDtoHAsync(host, b, BYTES, second));
	DO(cuStreamSynchronize(second));
	DO(cuStreamSynchronize(first));
	return emu_words_are(host, WORDS, round + 1);
}

TEST_DO(a_missing_wait_for_an_event_shows_and_a_wait_does_not,
	shows_and_does_not(two_streams, 1, ROUNDS - 1));

/* The host takes the bytes when the event is complete, or at once. */
static bool copy_out(uint32_t round, bool wait)
{
	bool right;

	emu_fill(fill, a, round, WORDS, first);
	DO(cuMemcpyDtoHAsync(host, a, BYTES, first));
	DO(cuEventRecord(event, first));
	while (wait && cu->cuEventQuery(event) == CUDA_ERROR_NOT_READY)
		nap_ms(0);
	right = emu_words_are(host, WORDS, round);
	DO(cuStreamSynchronize(first));
	return right;
}

TEST_DO(bytes_taken_before_the_copy_is_complete_are_wrong,
	shows_and_does_not(copy_out, ROUNDS / 2 + 1, ROUNDS));

/* The host changes the bytes behind a copy from them. */
static bool copy_in(uint32_t round, bool wait)
{
	for (uint32_t i = 0; i < WORDS; i++)
		host[i] = round;
	DO(cuMemcpyHtoDAsync(a, host, BYTES, first));
	if (wait)
		DO(cuStreamSynchronize(first));
	for (uint32_t i = 0; i < WORDS; i++)
		host[i] = 0;
	DO(cuMemcpyDtoHAsync(host, a, BYTES, first));
	DO(cuStreamSynchronize(first));
	return emu_words_are(host, WORDS, round);
}

TEST_DO(pinned_memory_changed_before_the_copy_is_complete_arrives_changed,
	shows_and_does_not(copy_in, ROUNDS / 2 + 1, ROUNDS));

TEST(a_wait_takes_the_record_of_the_time_of_its_call)
{
	for (uint32_t round = 1; round <= ROUNDS; round++) {
		emu_fill(fill, a, round, WORDS, first);
		DO(cuEventRecord(event, first));
		DO(cuStreamWaitEvent(second, event, 0));
		/* A later record, of a stream that never gets there before the second one has. */
		launch_add(b, a, second);
		DO(cuStreamSynchronize(second));
		DO(cuEventRecord(event, second));
		DO(cuMemcpyDtoHAsync(host, b, BYTES, second));
		DO(cuStreamSynchronize(second));
		assert_true(emu_words_are(host, WORDS, round + 1));
	}
}

TEST(an_event_that_was_never_recorded_is_complete)
{
	CUevent fresh;

	DO(cuEventCreate(&fresh, CU_EVENT_DISABLE_TIMING));
	DO(cuEventQuery(fresh));
	DO(cuStreamWaitEvent(first, fresh, 0));
	DO(cuStreamSynchronize(first));
	DO(cuEventDestroy(fresh));
}

/* Blocking streams and the NULL stream wait for each other; a non-blocking one does not. */
TEST(the_null_stream_orders_blocking_streams_only)
{
	CUstream blocking;

	DO(cuStreamCreateWithPriority(&blocking, CU_STREAM_DEFAULT, 0));
	for (uint32_t round = 1; round <= ROUNDS; round++) {
		emu_fill(fill, a, round, WORDS, blocking);
		launch_add(b, a, NULL);
		launch_add(a, b, blocking);
		DO(cuMemcpyDtoHAsync(host, a, BYTES, blocking));
		DO(cuStreamSynchronize(blocking));
		assert_true(emu_words_are(host, WORDS, round + 2));
	}
	DO(cuStreamDestroy(blocking));
}

TEST(words_in_memory_order_streams)
{
	_Atomic uint64_t *word;

	DO(cuMemHostAlloc((void **)&word, 8, 0));
	*word = 0;
	for (uint32_t round = 1; round <= ROUNDS / 4; round++) {
		DO(cuStreamWaitValue64(second, (CUdeviceptr)word, round, CU_STREAM_WAIT_VALUE_GEQ));
		launch_add(b, a, second);
		DO(cuMemcpyDtoHAsync(host, b, BYTES, second));
		emu_fill(fill, a, round, WORDS, first);
		DO(cuStreamWriteValue64(first, (CUdeviceptr)word, round, 0));
		DO(cuStreamSynchronize(second));
		assert_true(emu_words_are(host, WORDS, round + 1));
	}
	DO(cuStreamSynchronize(first));
	DO(cuMemFreeHost((void *)(uintptr_t)word));
}

TEST(work_goes_on_without_further_calls)
{
	_Atomic uint64_t *word;
	int tries;

	DO(cuMemHostAlloc((void **)&word, 8, 0));
	*word = 0;
	emu_fill(fill, a, 1, WORDS, first);
	DO(cuStreamWriteValue64(first, (CUdeviceptr)word, 1, 0));
	for (tries = 0; *word == 0 && tries < 20000; tries++)
		nap_ms(1);
	assert_int_equal(*word, 1);
	DO(cuStreamSynchronize(first));
	DO(cuMemFreeHost((void *)(uintptr_t)word));
}

TEST_GROUP(setup, teardown);
TEST_FIRST(gpu_begin(argv, ""));
