/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_events.c - see cuda_events.h. */
#include "cuda_events.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_context.h"
#include "daemon/base/container_of.h"

static const uint64_t IMPORT_NS = 10000000000u, RELEASE_NS = 5000000000u;

static struct cuda_events *events_of(struct cuda_request *request)
{
	return container_of(request, struct cuda_events, request);
}

/* --- on the GPU's thread --- */

static void close_events(struct cuda_gpu *gpu, struct cuda_events *e)
{
	for (uint32_t i = 0; i < e->n; i++)
		if (e->events[i] && gpu->state == CUDA_UP)
			(void)CUDA_CALL(gpu, cuEventDestroy, NULL, 0, e->events[i]);
}

static void import_now(struct cuda_gpu *gpu, struct cuda_request *request)
{
	struct cuda_events *e = events_of(request);
	CUipcEventHandle handle;

	e->status = cuda_context_need(gpu, e->text, sizeof(e->text));
	for (uint32_t i = 0; i < e->n && e->status == 0; i++) {
		memcpy(&handle, e->handles[i], sizeof(handle));
		e->status = CUDA_CALL(gpu, cuIpcOpenEventHandle, e->text, sizeof(e->text),
				      &e->events[i], handle);
		if (e->status && gpu->state != CUDA_FAILING)
			e->status = -EOPNOTSUPP;
	}
	if (e->status) {
		if (gpu->state == CUDA_FAILING)
			e->status = -EBUSY; /* it comes back: asking again is worth while */
		close_events(gpu, e);
		return;
	}
	e->generation = gpu->generation;
	gpu->users++;
}

static void release_now(struct cuda_gpu *gpu, struct cuda_request *request)
{
	struct cuda_events *e = events_of(request);

	if (e->status || e->generation != gpu->generation || gpu->users == 0)
		return;
	gpu->users--;
	close_events(gpu, e);
}

static void import_left(struct cuda_gpu *gpu, struct cuda_request *request)
{
	release_now(gpu, request);
	free(events_of(request));
}

static void release_left(struct cuda_gpu *gpu, struct cuda_request *request)
{
	(void)gpu;
	free(events_of(request));
}

/* --- on helper threads --- */

int cuda_events_import(struct cuda_gpu *gpu, const uint8_t (*handles)[WIRE_HANDLE_BYTES],
		       uint32_t n, struct cuda_events **ret, char *text, size_t text_bytes)
{
	struct cuda_events *e = calloc(1, sizeof(*e));
	int error;

	if (!e) {
		snprintf(text, text_bytes, "out of memory for events");
		return -ENOMEM;
	}
	e->request.work = import_now;
	e->request.left = import_left;
	e->n = n;
	memcpy(e->handles, handles, (size_t)n * WIRE_HANDLE_BYTES);
	error = cuda_gpu_ask(gpu, &e->request, IMPORT_NS, text, text_bytes);
	if (error == -ETIMEDOUT)
		return error;
	if (error == 0 && e->status) {
		error = e->status;
		snprintf(text, text_bytes, "%s", e->text);
	}
	if (error)
		free(e);
	else
		*ret = e;
	return error == -EAGAIN ? -EBUSY : error; /* as in cuda_region_import() */
}

void cuda_events_release(struct cuda_gpu *gpu, struct cuda_events *e)
{
	int error;

	e->request.work = release_now;
	e->request.left = release_left;
	error = cuda_gpu_ask(gpu, &e->request, RELEASE_NS, NULL, 0);
	if (error == -EBUSY || error == -EAGAIN)
		error = cuda_gpu_ask(gpu, &e->request, 0, NULL, 0);
	if (error == 0)
		free(e);
}
