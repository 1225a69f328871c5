/* SPDX-License-Identifier: Apache-2.0 */
/*
 * countdown.c - one call fails: the n-th of all calls from now on. Some calls are not counted:
 * calls that a program repeats while it waits (cuEventQuery, cuStreamQuery), and calls that ask
 * about an error. So a count means the same call in each run of a program that does one thing after
 * the other. cuCtxPushCurrent is not counted, either: a context that cannot be entered is gone,
 * with everything in it, which one failed call does not imitate; nor is
 * cuThreadExchangeStreamCaptureMode, which comes with each, and whose failure changes nothing.
 *
 * A call that gives something back fails and gives it back all the same, as a driver's call that
 * reports an earlier error. Things that the program leaves in spite of that are its own leaks. Such
 * a call returns call_done() when it has done its work. Guarded by emu.lock.
 *
 * A test in the same process arms it around the calls of libkvtier, with the three functions that
 * this library shows besides cuGetProcAddress_v2 (lib_gpu.h: gpu_countdown()).
 */

#include "emu.h"

static uint64_t left; /* calls until then; 0: none fails */
static bool breaks;
static enum call_id failed = CALLS;

void countdown_set(uint64_t n, bool breaks_context)
{
	left = n;
	breaks = breaks_context;
}

static bool is_counted(enum call_id id)
{
	switch (id) {
	case CALL_cuEventQuery:
	case CALL_cuStreamQuery:
	case CALL_cuGetErrorName:
	case CALL_cuGetErrorString:
	case CALL_cuCtxPushCurrent:
	case CALL_cuThreadExchangeStreamCaptureMode:
		return false;
	default:
		return true;
	}
}

bool countdown_takes(enum call_id id, struct context *ctx)
{
	if (left == 0 || !is_counted(id) || --left > 0)
		return false;
	failed = id;
	note("%s: fails, by countdown", call_name(id));
	if (breaks && ctx)
		context_break(ctx, CUDA_ERROR_LAUNCH_FAILED, "the settings say so");
	return !breaks || !ctx;
}

/* --- for tests --- */

#define FOR_TESTS __attribute__((visibility("default")))

FOR_TESTS uint64_t kvtier_emu_countdown(uint64_t n);
FOR_TESTS const char *kvtier_emu_failed(void);
FOR_TESTS uint64_t kvtier_emu_live(void);

/* The n-th call from now on fails; 0: none. Returns the rest of the countdown before. */
uint64_t kvtier_emu_countdown(uint64_t n)
{
	uint64_t was;

	pthread_mutex_lock(&emu.lock);
	was = left;
	left = n;
	if (n)
		failed = CALLS;
	pthread_mutex_unlock(&emu.lock);
	return was;
}

/* The call that failed since the countdown was set; NULL: none. */
const char *kvtier_emu_failed(void)
{
	const char *ret;

	pthread_mutex_lock(&emu.lock);
	ret = failed < CALLS ? call_name(failed) : NULL;
	pthread_mutex_unlock(&emu.lock);
	return ret;
}

/* Handles, pieces of memory and uses of primary contexts that this process has, less memory that
 * may stay. */
uint64_t kvtier_emu_live(void)
{
	const struct range *r;
	uint64_t n = 0;
	uint32_t at = 0;

	pthread_mutex_lock(&emu.lock);
	while (object_next(NULL, &at))
		n++;
	for (at = 0; (r = range_next(&at)) != NULL;)
		n += !r->stays;
	for (uint32_t i = 0; i < emu.n_gpus; i++)
		n += emu.gpus[i].retains;
	pthread_mutex_unlock(&emu.lock);
	return n;
}
