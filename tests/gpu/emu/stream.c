/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c - streams, and the calls that queue operations in them.
 *
 * S1. Operations of one stream run one after the other, in the order of the calls.
 * S2. Operations of different streams run in any order, with one exception: the NULL stream. Its
 *     operation waits for all operations that were queued before it in the blocking streams of its
 *     context, and later ones there wait for it. Streams with CU_STREAM_NON_BLOCKING take no part
 *     in this.
 * S3. A call checks addresses as a driver does, from what it knows of them; when the operation runs
 *     they are checked again, and a mistake then breaks the context.
 * S4. Pinned host memory is read and written when the operation runs, not before. Pageable memory
 *     is copied in the call: to the device after the stream has run dry, from it while the caller
 *     waits.
 */

#include "emu.h"

/* --- operations --- */

static struct operation *operation_new(const struct operation *like)
{
	struct operation *op = malloc(sizeof(*op));

	if (!op) {
		free(like->params);
		free(like->staged);
		return NULL;
	}
	*op = *like;
	op->height += !op->height;
	if (op->event)
		op->event->refs++;
	if (op->function) {
		op->function->refs++;
		op->function->queued++;
	}
	return op;
}

void operation_free(struct operation *op)
{
	if (op->event)
		event_release(op->event);
	if (op->function) {
		op->function->queued--;
		function_release(op->function);
	}
	free(op->params);
	free(op->staged);
	free(op);
}

/* --- streams --- */

static struct stream *make(struct context *ctx, unsigned flags)
{
	struct stream *s = object_new(OBJECT_STREAM, ctx, sizeof(*s));

	if (!s)
		return NULL;
	s->flags = flags;
	s->last = &s->first;
	s->next = ctx->gpu->streams;
	ctx->gpu->streams = s;
	return s;
}

/* Once its handle is gone, nothing is queued and nobody waits. */
static void reap(struct stream *s)
{
	struct stream **at = &s->object.ctx->gpu->streams;

	if (!s->destroyed || s->first || s->waiters || s->busy)
		return;
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	free(s);
}

/* All but the operation that the executor is at. */
static void drop_queued(struct stream *s)
{
	struct operation **at = s->busy ? &s->first->next : &s->first, *op;

	while ((op = *at) != NULL) {
		s->done = op->ticket;
		*at = op->next;
		operation_free(op);
	}
	s->last = at;
	changed();
}

void stream_free(struct stream *s)
{
	object_remove(&s->object);
	s->destroyed = true;
	drop_queued(s);
	reap(s);
}

void stream_pop(struct stream *s)
{
	struct operation *op = s->first;

	s->first = op->next;
	if (!s->first)
		s->last = &s->first;
	s->done = op->ticket;
	operation_free(op);
	changed();
	reap(s);
}

void streams_void(struct context *ctx)
{
	struct stream *s, *next;

	for (s = ctx->gpu->streams; s; s = next) {
		next = s->next;
		if (s->object.ctx == ctx) {
			drop_queued(s);
			reap(s);
		}
	}
	changed();
}

unsigned streams_using(const struct range *range)
{
	const struct operation *op;
	const struct stream *s;
	unsigned n = 0;
	uint32_t gpu;

	for (gpu = 0; gpu < emu.n_gpus; gpu++)
		for (s = emu.gpus[gpu].streams; s; s = s->next)
			for (op = s->object.ctx->sticky ? NULL : s->first; op; op = op->next)
				n += operation_uses(op, range);
	return n;
}

bool stream_idle(const struct stream *s)
{
	return !s->first;
}

static CUresult find_null(const struct call *call, struct stream **ret)
{
	struct context *ctx = call->ctx;
	const CUresult r = capture_asks_null(call);

	if (r)
		return r;
	if (!emu.settings.null_stream && call->id != CALL_cuStreamIsCapturing)
		violation("%s: uses the NULL stream", call_name(call->id));
	if (!ctx->legacy)
		ctx->legacy = make(ctx, CU_STREAM_DEFAULT);
	*ret = ctx->legacy;
	return ctx->legacy ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult stream_find(const struct call *call, CUstream handle, struct stream **ret)
{
	struct stream *s;

	if (!handle || handle == CU_STREAM_LEGACY)
		return find_null(call, ret);
	s = (struct stream *)object_find(OBJECT_STREAM, (uint64_t)handle, call_name(call->id));
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	if (s->object.ctx != call->ctx) {
		violation("%s: the stream is of another context than the current one",
			  call_name(call->id));
		return CUDA_ERROR_INVALID_HANDLE;
	}
	*ret = s;
	return CUDA_SUCCESS;
}

CUresult stream_queue(struct stream *s, const struct operation *like, uint64_t *ret_ticket)
{
	struct operation *op = operation_new(like);

	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (stream_captures(s))
		return capture_take(s, op);
	op->ticket = ++emu.tickets;
	if (ret_ticket)
		*ret_ticket = op->ticket;
	if (!s->first)
		s->not_before_ns = lateness(s->object.ctx->gpu);
	*s->last = op;
	s->last = &op->next;
	trace("queued", s, op);
	changed();
	return CUDA_SUCCESS;
}

CUresult stream_wait(struct stream *s, uint64_t ticket)
{
	const struct context *ctx = s->object.ctx;

	s->waiters++;
	changed();
	while (s->first && s->first->ticket <= ticket && !ctx->sticky && !ctx->dead)
		pthread_cond_wait(&emu.changed, &emu.lock);
	s->waiters--;
	reap(s);
	return ctx->dead ? CUDA_ERROR_CONTEXT_IS_DESTROYED : ctx->sticky;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
	struct stream *s;

	CALL(cuStreamCreateWithPriority, NEEDS_CONTEXT);
	if (!stream || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	s = make(call.ctx, flags);
	if (!s)
		return CUDA_ERROR_OUT_OF_MEMORY;
	s->priority = priority; /* the executor has no use for it: any order is legal */
	*stream = (CUstream)s->object.handle;
	return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream)
{
	struct stream *s;
	CUresult r;

	CALL(cuStreamDestroy, NEEDS_ANY_CONTEXT);
	r = stream_find(&call, stream, &s);
	if (r || s == call.ctx->legacy)
		return CUDA_ERROR_INVALID_HANDLE;
	object_remove(&s->object);
	s->destroyed = true;
	if (s->first)
		note("%s: operations are queued in the stream", call_name(call.id));
	reap(s);
	return call_done(&call);
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
	const struct object *s;

	CALL(cuStreamGetCtx, NEEDS_INIT);
	if (!context)
		return CUDA_ERROR_INVALID_VALUE;
	if (!stream || stream == CU_STREAM_LEGACY) {
		if (!call.ctx)
			return CUDA_ERROR_INVALID_CONTEXT;
		*context = (CUcontext)call.ctx->object.handle;
		return CUDA_SUCCESS;
	}
	s = object_find(OBJECT_STREAM, (uint64_t)stream, call_name(call.id));
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	*context = (CUcontext)s->ctx->object.handle;
	return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream stream)
{
	CUresult r;

	CALL_ON_STREAM(cuStreamQuery, stream);
	r = capture_asks_stream(&call, s);
	return r ? r : stream_idle(s) ? CUDA_SUCCESS : not_ready(s->object.handle);
}

CUresult cuStreamSynchronize(CUstream stream)
{
	CUresult r;

	CALL_ON_STREAM(cuStreamSynchronize, stream);
	r = capture_asks_stream(&call, s);
	return r ? r : stream_wait(s, emu.tickets);
}

/* --- words --- */

static CUresult word(const struct call *call, enum operation_kind kind, CUstream stream,
		     CUdeviceptr at, uint64_t value, unsigned flags)
{
	const struct operation op = {
		.kind = kind, .call = call->id, .to = at, .width = 8, .value = value, .flags = flags
	};
	struct stream *s;
	const struct range *range;
	CUresult r = stream_find(call, stream, &s);

	if (r)
		return r;
	range = range_at(at);
	if (!range || at % 8 || at + 8 > range->base + range->bytes)
		return CUDA_ERROR_INVALID_VALUE;
	return stream_queue(s, &op, NULL);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
	CALL(cuStreamWriteValue64, NEEDS_CONTEXT);
	if (flags & ~(unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
		return CUDA_ERROR_INVALID_VALUE;
	return word(&call, OPERATION_WRITE_WORD, stream, at, value, flags);
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
	CALL(cuStreamWaitValue64, NEEDS_CONTEXT);
	if ((flags & ~(unsigned)CU_STREAM_WAIT_VALUE_FLUSH) > CU_STREAM_WAIT_VALUE_NOR)
		return CUDA_ERROR_INVALID_VALUE;
	return word(&call, OPERATION_WAIT_WORD, stream, at, value, flags);
}
