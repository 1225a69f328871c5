/* SPDX-License-Identifier: Apache-2.0 */
/*
 * event.c - events of one process and of several.
 *
 * Each record of an event has a number, given when it is queued: `recorded` is the last one. When a
 * stream gets to a record it writes the number into done[number % EMU_MARKS]. So
 *	- an event is complete when its last record is done, or there was none;
 *	- a wait takes the number of the last record at the time of the call, and waits for that:
 *	  neither an earlier nor a later record ends it (of more than EMU_MARKS at once, a later
 *	  one may).
 * All of it lies in shared memory when the event is one of several processes. When a process dies
 * before its stream has got to the record, the event is never complete.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "emu.h"

#define MARKS_MAGIC 0x6b766576656e7431ULL

bool event_done(const struct event *event, uint64_t number)
{
	return !number || atomic_load(&event->marks->done[number % EMU_MARKS]) >= number;
}

void event_mark(struct event *event, uint64_t number)
{
	atomic_store(&event->marks->done[number % EMU_MARKS], number);
}

struct event *event_make(struct context *ctx, unsigned flags, struct marks *marks, int fd)
{
	struct event *event = calloc(1, sizeof(*event));

	if (!event)
		return NULL;
	event->flags = flags;
	event->marks = marks;
	event->fd = fd;
	event->refs = 1;
	if (object_add(&event->object, OBJECT_EVENT, ctx))
		return event;
	free(event);
	return NULL;
}

static void marks_free(struct marks *marks, unsigned flags, int fd)
{
	if (flags & CU_EVENT_INTERPROCESS)
		munmap(marks, sizeof(*marks));
	else
		free(marks);
	if (fd >= 0)
		close(fd);
}

void event_release(struct event *event)
{
	if (--event->refs)
		return;
	marks_free(event->marks, event->flags, event->fd);
	free(event);
}

void event_remove(struct event *event)
{
	object_remove(&event->object);
	event_release(event);
}

static struct event *find(const struct call *call, CUevent handle)
{
	return (struct event *)object_find(OBJECT_EVENT, (uint64_t)handle, call_name(call->id));
}

static struct marks *make_shared(int *ret_fd)
{
	struct marks *marks = NULL;
	const int fd = memfd_create("kvtier-emu:event", MFD_CLOEXEC);

	if (fd < 0)
		return NULL;
	if (!ftruncate(fd, sizeof(*marks)))
		marks = mmap(NULL, sizeof(*marks), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (!marks || marks == MAP_FAILED) {
		close(fd);
		return NULL;
	}
	marks->magic = MARKS_MAGIC;
	*ret_fd = fd;
	return marks;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
	const unsigned both = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
	struct marks *marks;
	struct event *made;
	int fd = -1;

	CALL(cuEventCreate, NEEDS_CONTEXT);
	if (!event || flags & ~7u || ((flags & CU_EVENT_INTERPROCESS) && (flags & both) != both))
		return CUDA_ERROR_INVALID_VALUE;
	marks = flags & CU_EVENT_INTERPROCESS ? make_shared(&fd) : calloc(1, sizeof(*marks));
	if (!marks)
		return CUDA_ERROR_OUT_OF_MEMORY;
	made = event_make(call.ctx, flags, marks, fd);
	if (!made) {
		marks_free(marks, flags, fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*event = (CUevent)made->object.handle;
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event)
{
	struct event *e;

	CALL(cuEventDestroy, NEEDS_ANY_CONTEXT);
	e = find(&call, event);
	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	event_remove(e);
	return call_done(&call);
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	struct operation *op;
	struct stream *s;
	struct event *e;
	CUresult r;

	CALL(cuEventRecord, NEEDS_CONTEXT);
	r = stream_find(&call, stream, &s);
	e = find(&call, event);
	if (r || !e)
		return r ? r : CUDA_ERROR_INVALID_HANDLE;
	if (e->object.ctx != s->object.ctx) {
		violation("%s: the event is of another context than the stream",
			  call_name(call.id));
		return CUDA_ERROR_INVALID_HANDLE;
	}
	op = operation_new(OPERATION_RECORD, call.id);
	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->refs++;
	op->event = e;
	op->number = atomic_fetch_add(&e->marks->recorded, 1) + 1;
	return stream_queue(s, op, NULL);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
	struct operation *op;
	struct stream *s;
	struct event *e;
	CUresult r;

	CALL(cuStreamWaitEvent, NEEDS_CONTEXT);
	r = stream_find(&call, stream, &s);
	e = find(&call, event);
	if (r || !e || flags)
		return r ? r : e ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
	op = operation_new(OPERATION_WAIT_EVENT, call.id);
	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->refs++;
	op->event = e;
	op->number = e->marks->recorded;
	return stream_queue(s, op, NULL);
}

CUresult cuEventQuery(CUevent event)
{
	const struct event *e;

	CALL(cuEventQuery, NEEDS_CONTEXT);
	e = find(&call, event);
	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	return event_done(e, e->marks->recorded) ? CUDA_SUCCESS : not_ready(e->object.handle);
}

CUresult cuEventSynchronize(CUevent event)
{
	struct event *e;
	uint64_t number;

	CALL(cuEventSynchronize, NEEDS_CONTEXT);
	e = find(&call, event);
	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	e->refs++;
	number = e->marks->recorded;
	while (!event_done(e, number) && !call.ctx->sticky && !call.ctx->dead)
		changed_wait(now_ns() + 500000);
	event_release(e);
	return call.ctx->dead ? CUDA_ERROR_CONTEXT_IS_DESTROYED : call.ctx->sticky;
}

/* --- between processes --- */

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
	const struct event *e;

	CALL(cuIpcGetEventHandle, NEEDS_CONTEXT);
	e = find(&call, event);
	if (!e || !handle || !(e->flags & CU_EVENT_INTERPROCESS) || e->fd < 0)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!emu.settings.ipc_events)
		return CUDA_ERROR_NOT_SUPPORTED;
	ticket_make(TICKET_EVENT, e->fd, call.ctx->gpu->physical, NULL, handle);
	return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle)
{
	struct marks *marks;
	struct event *made;
	struct ticket ticket;
	int fd;

	CALL(cuIpcOpenEventHandle, NEEDS_CONTEXT);
	if (!emu.settings.ipc_events)
		return CUDA_ERROR_NOT_SUPPORTED;
	fd = ticket_open(TICKET_EVENT, &handle, &ticket);
	if (fd < 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (ticket.pid == getpid() || ticket.gpu != call.ctx->gpu->physical) {
		close(fd);
		return ticket.pid == getpid() ? CUDA_ERROR_INVALID_CONTEXT :
						CUDA_ERROR_INVALID_DEVICE;
	}
	marks = mmap(NULL, sizeof(*marks), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (marks == MAP_FAILED)
		return CUDA_ERROR_MAP_FAILED;
	made = event_make(call.ctx, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING, marks, -1);
	if (!made) {
		munmap(marks, sizeof(*marks));
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*event = (CUevent)made->object.handle;
	return CUDA_SUCCESS;
}
