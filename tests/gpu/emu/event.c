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
 *
 * The events that a process shares lie in sheets: a page for each event, many pages in one memfd. A
 * page is never used twice, so a handle of an event that is gone finds no magic there. The sheet
 * goes with the last event in it.
 */

#include "emu.h"

#define MARKS_MAGIC 0x6b766576656e7431ULL
enum { PAGE = 4096, SHEET_PAGES = 256 };
static_assert(sizeof(struct marks) <= PAGE, "other processes map the page of one event");

struct sheet {
	int fd;
	uint8_t *at;
	uint32_t taken, live; /* pages that were given out; and whose event is still there */
};

static struct sheet *current; /* the next event's; NULL: a new one */

bool event_done(const struct event *event, uint64_t number)
{
	return !number || atomic_load(&event->marks->done[number % EMU_MARKS]) >= number;
}

void event_mark(struct event *event, uint64_t number)
{
	atomic_store(&event->marks->done[number % EMU_MARKS], number);
}

static void sheet_drop(struct sheet *sheet)
{
	if (sheet == current)
		current = NULL;
	if (sheet->at != MAP_FAILED)
		munmap(sheet->at, SHEET_PAGES * PAGE);
	if (sheet->fd >= 0)
		close(sheet->fd);
	free(sheet);
}

static struct sheet *sheet_make(void)
{
	struct sheet *sheet = malloc(sizeof(*sheet));

	if (!sheet)
		return NULL;
	*sheet = (struct sheet){ .fd = memfd_create("kvtier-emu:event", MFD_CLOEXEC),
				 .at = MAP_FAILED };
	if (sheet->fd >= 0 && !ftruncate(sheet->fd, SHEET_PAGES * PAGE))
		sheet->at = mmap(NULL, SHEET_PAGES * PAGE, PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_POPULATE, sheet->fd, 0);
	if (sheet->at != MAP_FAILED)
		return sheet;
	sheet_drop(sheet);
	return NULL;
}

static struct marks *make_shared(struct sheet **ret_sheet)
{
	struct marks *marks;

	if (!current)
		current = sheet_make();
	if (!current)
		return NULL;
	marks = (struct marks *)(current->at + (size_t)current->taken++ * PAGE);
	marks->magic = MARKS_MAGIC;
	current->live++;
	*ret_sheet = current;
	if (current->taken == SHEET_PAGES)
		current = NULL;
	return marks;
}

static void marks_free(struct marks *marks, unsigned flags, struct sheet *sheet)
{
	if (!(flags & CU_EVENT_INTERPROCESS)) {
		free(marks);
	} else if (!sheet) {
		munmap(marks, sizeof(*marks));
	} else {
		marks->magic = 0;
		if (!--sheet->live)
			sheet_drop(sheet);
	}
}

/* Takes the marks. */
static CUresult make(struct context *ctx, unsigned flags, struct marks *marks, struct sheet *sheet,
		     CUevent *ret)
{
	struct event *event = object_new(OBJECT_EVENT, ctx, sizeof(*event));

	if (!event) {
		marks_free(marks, flags, sheet);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	event->flags = flags;
	event->marks = marks;
	event->sheet = sheet;
	event->refs = 1;
	*ret = (CUevent)event->object.handle;
	return CUDA_SUCCESS;
}

void event_release(struct event *event)
{
	if (--event->refs)
		return;
	marks_free(event->marks, event->flags, event->sheet);
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
	const unsigned both = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
	struct marks *marks;
	struct sheet *sheet = NULL;

	CALL(cuEventCreate, NEEDS_CONTEXT);
	if (!event || flags & ~7u || ((flags & CU_EVENT_INTERPROCESS) && (flags & both) != both))
		return CUDA_ERROR_INVALID_VALUE;
	marks = flags & CU_EVENT_INTERPROCESS ? make_shared(&sheet) : calloc(1, sizeof(*marks));
	return marks ? make(call.ctx, flags, marks, sheet, event) : CUDA_ERROR_OUT_OF_MEMORY;
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
						 .number = ++e->marks->recorded },
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
						 .number = e->marks->recorded },
			    NULL);
}

CUresult cuEventQuery(CUevent event)
{
	CUresult r;

	CALL_ON_EVENT(cuEventQuery, NEEDS_CONTEXT, event);
	r = capture_asks_event(&call, e);
	if (r)
		return r;
	return event_done(e, e->marks->recorded) ? CUDA_SUCCESS : not_ready(e->object.handle);
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
	number = e->marks->recorded;
	while (!event_done(e, number) && !call.ctx->sticky && !call.ctx->dead)
		changed_wait(now_ns() + 500000);
	event_release(e);
	return call.ctx->dead ? CUDA_ERROR_CONTEXT_IS_DESTROYED : call.ctx->sticky;
}

/* --- between processes --- */

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
	CALL_ON_EVENT(cuIpcGetEventHandle, NEEDS_CONTEXT, event);
	if (!handle || !(e->flags & CU_EVENT_INTERPROCESS) || !e->sheet)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!emu.settings.ipc_events)
		return CUDA_ERROR_NOT_SUPPORTED;
	ticket_make(TICKET_EVENT, e->sheet->fd, call.ctx->gpu->physical,
		    (uint64_t)((uint8_t *)e->marks - e->sheet->at), NULL, handle);
	return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle)
{
	struct marks *marks;
	struct ticket ticket;
	int fd;

	CALL(cuIpcOpenEventHandle, NEEDS_CONTEXT);
	if (!emu.settings.ipc_events)
		return CUDA_ERROR_NOT_SUPPORTED;
	fd = ticket_open(TICKET_EVENT, &handle, &ticket);
	if (fd < 0)
		return ticket_refused(fd);
	if (ticket.pid == getpid() || ticket.gpu != call.ctx->gpu->physical) {
		close(fd);
		return ticket.pid == getpid() ? CUDA_ERROR_INVALID_CONTEXT :
						CUDA_ERROR_INVALID_DEVICE;
	}
	marks = mmap(NULL, sizeof(*marks), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		     (off_t)ticket.at);
	close(fd);
	if (marks == MAP_FAILED)
		return CUDA_ERROR_MAP_FAILED;
	if (marks->magic != MARKS_MAGIC) {
		munmap(marks, sizeof(*marks));
		return CUDA_ERROR_INVALID_VALUE;
	}
	return make(call.ctx, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING, marks, NULL, event);
}
