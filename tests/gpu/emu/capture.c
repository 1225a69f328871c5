/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture.c - streams that capture a graph instead of running their operations.
 *
 * G1. An operation that is queued in a stream that captures becomes a node of the graph, and does
 *     not run. An event that is recorded there is as it was for everybody else. A stream
 *     that waits for such an event joins the capture.
 * G2. While a stream captures, a call that no stream orders (it allocates, frees, asks, waits) is
 *     refused, and makes the capture void: in the thread that captures, and where the capture and
 *     the thread's mode are GLOBAL in each thread. A thread whose mode is RELAXED may make it.
 *     The manual calls these calls "potentially unsafe" and lists none: here it is each one that
 *     is_safe() does not name.
 * G3. The NULL stream cannot be used while a blocking stream of its context captures.
 *
 * Graphs are not launched. A stream that joined a capture leaves it when it ends.
 */

#include "emu.h"

enum { CAPTURES = 8 };

struct graph {
	struct object object;
	unsigned nodes;
};

static struct capture {
	uint64_t id; /* 0: none */
	CUstreamCaptureMode mode;
	pid_t thread;
	const struct stream *origin;
	bool is_void;
	unsigned nodes;
} captures[CAPTURES];

static unsigned n_captures;
static _Thread_local CUstreamCaptureMode mode_here; /* CU_STREAM_CAPTURE_MODE_GLOBAL */

static struct capture *find(uint64_t id)
{
	for (uint32_t i = 0; id && i < CAPTURES; i++)
		if (captures[i].id == id)
			return &captures[i];
	return NULL;
}

bool stream_captures(const struct stream *s)
{
	return find(s->capture) != NULL;
}

static void make_void(struct capture *c, enum call_id id, const char *why)
{
	if (c && !c->is_void)
		violation("%s: %s, which makes the capture of a graph void", call_name(id), why);
	if (c)
		c->is_void = true;
}

/* --- operations --- */

CUresult capture_take(struct stream *s, struct operation *op)
{
	struct capture *c = find(s->capture);

	operation_free(op);
	if (c->is_void)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	c->nodes++;
	return CUDA_SUCCESS;
}

CUresult capture_record(struct stream *s, struct event *e)
{
	struct capture *c = find(s->capture);

	if (c->is_void)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	e->captured = c->id;
	c->nodes++;
	return CUDA_SUCCESS;
}

bool capture_join(const struct call *call, struct stream *s, const struct event *e, CUresult *ret)
{
	struct capture *own = find(s->capture), *other = find(e->captured);

	if (!own && !e->captured)
		return false;
	if (!own && other) {
		s->capture = other->id;
		*ret = CUDA_SUCCESS;
	} else if (!own) {
		*ret = CUDA_ERROR_CAPTURED_EVENT; /* of a graph that is made */
	} else if (own == other) {
		own->nodes++;
		*ret = own->is_void ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
	} else {
		make_void(own, call->id, "the event is not of the graph");
		*ret = other ? CUDA_ERROR_STREAM_CAPTURE_MERGE :
			       CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	}
	return true;
}

CUresult capture_asks_event(const struct call *call, const struct event *e)
{
	if (!e->captured)
		return CUDA_SUCCESS;
	make_void(find(e->captured), call->id, "the event was recorded in a graph");
	return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult capture_asks_stream(const struct call *call, const struct stream *s)
{
	struct capture *c = find(s->capture);

	make_void(c, call->id, "the stream captures");
	return c ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult capture_asks_null(const struct call *call)
{
	const struct stream *s;

	for (s = call->ctx->gpu->streams; s && n_captures; s = s->next) {
		struct capture *c = find(s->capture);

		if (!c || s->object.ctx != call->ctx || s->flags & CU_STREAM_NON_BLOCKING)
			continue;
		if (call->id != CALL_cuStreamIsCapturing)
			make_void(c, call->id, "the NULL stream waits for a stream that captures");
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	return CUDA_SUCCESS;
}

/* --- calls of all threads --- */

/* It is put into a stream, or changes and awaits nothing. */
#define SAFE(name) [CALL_##name] = true
/* clang-format off */
static const bool safe[] = {
	SAFE(cuInit), SAFE(cuGetErrorName), SAFE(cuGetErrorString), SAFE(cuDriverGetVersion),
	SAFE(cuDeviceGetCount), SAFE(cuDeviceGet), SAFE(cuDeviceGetUuid),
	SAFE(cuDeviceGetName), SAFE(cuDeviceGetAttribute), SAFE(cuDeviceGetPCIBusId),
	SAFE(cuDeviceTotalMem), SAFE(cuDevicePrimaryCtxGetState), SAFE(cuCtxPushCurrent),
	SAFE(cuCtxPopCurrent), SAFE(cuCtxGetCurrent), SAFE(cuCtxSetCurrent),
	SAFE(cuCtxGetDevice), SAFE(cuCtxGetStreamPriorityRange), SAFE(cuFuncGetAttribute),
	SAFE(cuLaunchKernel), SAFE(cuMemAllocAsync), SAFE(cuMemFreeAsync), SAFE(cuMemGetInfo),
	SAFE(cuMemGetAddressRange), SAFE(cuPointerGetAttribute), SAFE(cuPointerGetAttributes),
	SAFE(cuMemcpyAsync), SAFE(cuMemcpyHtoDAsync), SAFE(cuMemcpyDtoHAsync),
	SAFE(cuMemcpyDtoDAsync), SAFE(cuMemcpy2DAsync), SAFE(cuMemsetD8Async),
	SAFE(cuStreamGetCtx), SAFE(cuStreamIsCapturing), SAFE(cuStreamBeginCapture),
	SAFE(cuStreamEndCapture), SAFE(cuStreamWaitEvent), SAFE(cuStreamWriteValue64),
	SAFE(cuStreamWaitValue64), SAFE(cuEventRecord), SAFE(cuGraphDestroy),
	SAFE(cuThreadExchangeStreamCaptureMode),
};
/* clang-format on */

static bool is_safe(enum call_id id)
{
	return (size_t)id < sizeof(safe) && safe[id];
}

/* The table in the manual of cuThreadExchangeStreamCaptureMode(). */
static bool forbids(const struct capture *c)
{
	if (!c->id || mode_here == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	if (c->thread == gettid())
		return c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
	return c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
	       mode_here == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult capture_check(enum call_id id)
{
	CUresult r = CUDA_SUCCESS;

	for (uint32_t i = 0; n_captures && i < CAPTURES && !is_safe(id); i++)
		if (forbids(&captures[i])) {
			make_void(&captures[i], id, "the thread is not relaxed");
			r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	return r;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	CUstreamCaptureMode was;

	CALL(cuThreadExchangeStreamCaptureMode, NEEDS_INIT);
	if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	was = mode_here;
	mode_here = *mode;
	*mode = was;
	return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	const struct capture *c;

	CALL_ON_STREAM(cuStreamIsCapturing, stream);
	c = find(s->capture);
	*status = !c         ? CU_STREAM_CAPTURE_STATUS_NONE :
		  c->is_void ? CU_STREAM_CAPTURE_STATUS_INVALIDATED :
			       CU_STREAM_CAPTURE_STATUS_ACTIVE;
	return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
{
	static uint64_t ids;
	uint32_t i;

	CALL_ON_STREAM(cuStreamBeginCapture, stream);
	if (s == call.ctx->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	for (i = 0; i < CAPTURES && captures[i].id; i++)
		;
	if (i == CAPTURES || stream_captures(s) || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	captures[i] =
		(struct capture){ .id = ++ids, .mode = mode, .thread = gettid(), .origin = s };
	s->capture = ids;
	n_captures++;
	return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	struct graph *g = NULL;
	struct capture *c;
	bool is_void;

	CALL_ON_STREAM(cuStreamEndCapture, stream);
	c = find(s->capture);
	if (!graph || !c || c->origin != s)
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread != gettid())
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	is_void = c->is_void;
	if (!is_void) {
		g = object_new(OBJECT_GRAPH, call.ctx, sizeof(*g));
		if (!g)
			return CUDA_ERROR_OUT_OF_MEMORY;
		g->nodes = c->nodes;
	}
	*graph = g ? (CUgraph)g->object.handle : NULL;
	*c = (struct capture){ 0 };
	n_captures--;
	return is_void ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph)
{
	struct object *g;

	CALL(cuGraphDestroy, NEEDS_INIT);
	g = object_find(OBJECT_GRAPH, (uint64_t)graph, call_name(call.id));
	if (!g)
		return CUDA_ERROR_INVALID_VALUE;
	object_free(g);
	return CUDA_SUCCESS;
}
