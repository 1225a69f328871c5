/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda.c - the CUDA driver of the engine's process. It is found and never loaded. Around each use
 * the context is pushed and popped, and the calling thread is relaxed, so that an engine may
 * capture graphs meanwhile. Results become -errno and a sentence.
 */
#include "cuda.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "client/lib/base/last_error.h"
#include "client/lib/base/process.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_api calls;
static _Atomic bool loaded;
static uint64_t loaded_in; /* process_ours(): a forked child has no use of the driver */

/* Lock held. */
static const char *load(void)
{
	static char why[160];
	const char *missing;
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
	int rc;

	if (!library)
		library = dlopen("libcuda.so", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
	if (!library)
		return "this process has not loaded the CUDA driver (libcuda.so.1)";
	rc = cuda_api_load(library, &calls, &missing);
	if (rc) {
		(void)dlclose(library);
		(void)snprintf(why, sizeof(why), "the CUDA driver has no %s: it is older than 12.0",
			       missing);
		return why;
	}
	loaded_in = process_begin();
	atomic_store(&loaded, true); /* never closed: its calls are in use */
	return NULL;
}

const struct cuda_api *cuda_driver(const char **ret_why)
{
	const char *why = NULL;

	if (!atomic_load(&loaded)) {
		(void)pthread_mutex_lock(&lock);
		if (!atomic_load(&loaded))
			why = load();
		(void)pthread_mutex_unlock(&lock);
	}
	*ret_why = why;
	return why ? NULL : &calls;
}

int driver_error(CUresult result, const char *what)
{
	const char *name = NULL, *text = NULL;

	if (calls.cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
		name = "an unknown result";
	if (calls.cuGetErrorString(result, &text) != CUDA_SUCCESS || !text)
		text = "no text";
	return error_set(cuda_errno(result), "%s: %s (%s)", what, name, text);
}

/* The engine's mode of this thread, while it is relaxed. */
static _Thread_local CUstreamCaptureMode capture_mode;
static _Thread_local unsigned relaxed;

void cuda_relax(const struct cuda_api *api)
{
	if (relaxed++ > 0)
		return;
	capture_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	/* After a failure the mode is as it was, and the capture at risk as without this call. */
	(void)api->cuThreadExchangeStreamCaptureMode(&capture_mode);
}

void cuda_unrelax(const struct cuda_api *api)
{
	if (--relaxed > 0)
		return;
	if (capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED)
		(void)api->cuThreadExchangeStreamCaptureMode(&capture_mode);
}

static int device_find(const struct cuda_api *api, CUdevice device, CUcontext context,
		       struct cuda_device *ret)
{
	struct cuda_device d = { .api = api, .device = device, .context = context };
	unsigned flags;
	CUuuid uuid;
	CUresult r = api->cuDeviceGetUuid(&uuid, device);
	int active = 0;

	if (r)
		return driver_error(r, "cuDeviceGetUuid");
	memcpy(d.uuid, uuid.bytes, sizeof(d.uuid));
	if (!context) {
		r = api->cuDevicePrimaryCtxGetState(device, &flags, &active);
		if (!r && !active)
			return error_set(-EINVAL,
					 "this process has no context on GPU %d: initialise CUDA "
					 "there first",
					 device);
		if (!r)
			r = api->cuDevicePrimaryCtxRetain(&d.context, device);
		if (r)
			return driver_error(r, "cuDevicePrimaryCtxRetain");
		d.retained = true;
	}
	*ret = d;
	return 0;
}

int cuda_device_open(const struct cuda_api *api, CUdevice device, CUcontext context,
		     struct cuda_device *ret)
{
	int rc;

	cuda_relax(api);
	rc = device_find(api, device, context, ret);
	cuda_unrelax(api);
	return rc;
}

void cuda_device_close(struct cuda_device *device)
{
	if (device->retained && process_ours(loaded_in)) {
		cuda_relax(device->api);
		(void)device->api->cuDevicePrimaryCtxRelease(device->device);
		cuda_unrelax(device->api);
	}
	device->retained = false;
}

int cuda_enter(const struct cuda_device *device)
{
	CUresult r;

	if (!process_ours(loaded_in))
		return process_refuse();
	cuda_relax(device->api);
	r = device->api->cuCtxPushCurrent(device->context);
	if (!r)
		return 0;
	cuda_unrelax(device->api);
	return driver_error(r, "cuCtxPushCurrent");
}

void cuda_leave(const struct cuda_device *device)
{
	CUcontext was;

	(void)device->api->cuCtxPopCurrent(&was);
	cuda_unrelax(device->api);
}

int cuda_enter_stream(const struct cuda_device *device, CUstream stream, const char *name)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	int rc = cuda_enter(device);
	CUresult r;

	if (rc)
		return rc;
	r = device->api->cuStreamIsCapturing(stream, &status);
	if (!r && status == CU_STREAM_CAPTURE_STATUS_NONE)
		return 0;
	cuda_leave(device);
	if (r && r != CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
		return driver_error(r, "cuStreamIsCapturing");
	return error_set(-EINVAL,
			 "%s captures a graph, which orders nothing now: call before the capture "
			 "begins, or after it has ended",
			 name);
}

bool cuda_busy_again(struct cuda_busy *busy, int error)
{
	const uint64_t now = clock_ns();

	if (error != -EBUSY)
		return false;
	if (!busy->since_ns)
		busy->since_ns = now;
	busy->retry_ns = now + ms_to_ns(CUDA_BUSY_STEP_MS);
	return now - busy->since_ns < ms_to_ns(CUDA_BUSY_MS);
}
