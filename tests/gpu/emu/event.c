/* SPDX-License-Identifier: Apache-2.0 */
/*
 * event.c - events.
 *
 * Each record of an event has a number, given when it is queued: `recorded` is the last one. When a
 * stream gets to a record it writes the number into done[number % EMU_MARKS]. So
 *	- an event is complete when its last record is done, or there was none;
 *	- a wait takes the number of the last record at the time of the call, and waits for that:
 *	  neither an earlier nor a later record ends it (of more than EMU_MARKS at once, a later
 *	  one may).
 */

#include "emu.h"

bool event_done(const struct event *event, uint64_t number)
{
	return !number || atomic_load(&event->done[number % EMU_MARKS]) >= number;
}

void event_mark(struct event *event, uint64_t number)
{
	atomic_store(&event->done[number % EMU_MARKS], number);
}

void event_release(struct event *event)
{
	if (--event->refs)
		return;
	free(event);
}

void event_remove(struct event *event)
{
	object_remove(&event->object);
	event_release(event);
}

struct event *event_find(enum call_id id, CUevent handle)
{
	return (struct event *)object_find(OBJECT_EVENT, (uint64_t)handle, call_name(id));
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
	struct event *e;

	CALL(cuEventCreate, NEEDS_CONTEXT);
	if (!event || flags & ~3u)
		return CUDA_ERROR_INVALID_VALUE;
	e = object_new(OBJECT_EVENT, call.ctx, sizeof(*e));
	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->refs = 1;
	*event = (CUevent)e->object.handle;
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event)
{
	CALL_ON_EVENT(cuEventDestroy, NEEDS_ANY_CONTEXT, event);
	event_remove(e);
	return call_done(&call);
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	struct event *e;

	CALL_ON_STREAM(cuEventRecord, stream);
	e = event_find(call.id, event);
	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	if (e->object.ctx != s->object.ctx) {
		violation("%s: the event is of another context than the stream",
			  call_name(call.id));
		return CUDA_ERROR_INVALID_HANDLE;
	}
	if (stream_captures(s))
		return capture_record(s, e);
	e->captured = 0;
	return stream_queue(s,
			    &(struct operation){ .kind = OPERATION_RECORD,
						 .call = call.id,
						 .event = e,
						 .number = ++e->recorded },
			    NULL);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
	struct event *e;
	CUresult r;

	CALL_ON_STREAM(cuStreamWaitEvent, stream);
	e = event_find(call.id, event);
	if (!e || flags)
		return e ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
	if (capture_join(&call, s, e, &r))
		return r;
	return stream_queue(s,
			    &(struct operation){ .kind = OPERATION_WAIT_EVENT,
						 .call = call.id,
						 .event = e,
						 .number = e->recorded },
			    NULL);
}

CUresult cuEventQuery(CUevent event)
{
	CUresult r;

	CALL_ON_EVENT(cuEventQuery, NEEDS_CONTEXT, event);
	r = capture_asks_event(&call, e);
	if (r)
		return r;
	return event_done(e, e->recorded) ? CUDA_SUCCESS : not_ready(e->object.handle);
}

CUresult cuEventSynchronize(CUevent event)
{
	uint64_t number;
	CUresult r;

	CALL_ON_EVENT(cuEventSynchronize, NEEDS_CONTEXT, event);
	r = capture_asks_event(&call, e);
	if (r)
		return r;
	e->refs++;
	number = e->recorded;
	while (!event_done(e, number) && !call.ctx->sticky && !call.ctx->dead)
		changed_wait(now_ns() + 500000);
	event_release(e);
	return call.ctx->dead ? CUDA_ERROR_CONTEXT_IS_DESTROYED : call.ctx->sticky;
}
