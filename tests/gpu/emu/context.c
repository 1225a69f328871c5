/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.c - contexts, and the current context of a thread.
 *
 *	(none) -- Retain, Create --> healthy -- a kernel that faults, sticky= --> broken
 *	  healthy or broken -- Release of the last, Reset, Destroy --> dead
 *
 * A broken context answers every call with its error and runs nothing any more. A dead context
 * takes all with it that was made in it: its memory, its imports, its handles. Things that a
 * healthy context still had at its death are leaks. The struct stays, because a thread may still
 * have it as its current context. Each thread has a stack of its own.
 */

#include "emu.h"

static _Thread_local struct context *stack[EMU_STACK];
static _Thread_local unsigned depth;
static struct context *dead_ones;

struct context *context_current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

static CUcontext handle_of(const struct context *ctx)
{
	return ctx ? (CUcontext)ctx->object.handle : NULL;
}

static struct context *find(CUcontext handle, enum call_id id)
{
	return (struct context *)object_find(OBJECT_CONTEXT, (uint64_t)handle, call_name(id));
}

/* heals=0: "the process must be terminated and relaunched" (cuda.h). */
static CUresult broken;

void context_break(struct context *ctx, CUresult result, const char *why)
{
	if (ctx->sticky)
		return;
	note("a context of GPU %u is broken from now on (%d): %s", ctx->gpu->physical, (int)result,
	     why);
	ctx->sticky = result;
	if (!emu.settings.heals)
		broken = result;
	streams_void(ctx);
}

/* Among all processes of the machine, where the inodes of memory are names, too. */
static uint64_t name_of(const struct context *ctx)
{
	return 1ULL << 63 | (uint64_t)getpid() << 32 | (ctx->object.handle & 0xffffffff);
}

static struct context *make(struct device *gpu, bool primary)
{
	struct context *ctx = object_new(OBJECT_CONTEXT, NULL, sizeof(*ctx));

	if (!ctx)
		return NULL;
	ctx->gpu = gpu;
	ctx->primary = primary;
	if (hbm_take(gpu->physical, name_of(ctx), emu.settings.context_bytes, &ctx->row) &&
	    executor_start(gpu))
		return ctx;
	object_free(ctx);
	return NULL;
}

static const char *range_name(const struct range *range)
{
	static const char *const names[] = {
		[RANGE_ALLOC] = "memory",
		[RANGE_POOL] = "memory of a pool",
		[RANGE_IMPORT] = "imported memory",
		[RANGE_VMM] = "mapped memory",
		[RANGE_MANAGED] = "managed memory",
		[RANGE_PINNED] = "pinned host memory",
		[RANGE_REGISTERED] = "registered host memory",
	};

	return names[range->kind];
}

static void say_leaks(const struct context *ctx)
{
	struct object *object;
	struct range *range;
	uint32_t at = 0;

	if (ctx->sticky)
		return;
	while ((object = object_next(ctx, &at)) != NULL)
		if (object->kind != OBJECT_FUNCTION && (struct stream *)object != ctx->legacy)
			leak("%s was left in its context", object_kind_name(object->kind));
	at = 0;
	while ((range = range_next(&at)) != NULL)
		if (range->ctx == ctx && !range->stays)
			leak("%zu bytes of %s were left in their context", range->bytes,
			     range_name(range));
}

/* Its own operations are gone: these are of other contexts. */
static void say_used(const struct range *range)
{
	const unsigned n = range_is_host(range) ? streams_using(range) : 0;

	if (n)
		violation("a context goes with %s at %#llx that %u operations of others use",
			  range_name(range), range->base, n);
}

/* Memory that is not freed goes, too; operations first, because they name the rest. */
static void take_down(struct context *ctx)
{
	static const enum object_kind order[] = { OBJECT_STREAM, OBJECT_EVENT, OBJECT_FUNCTION,
						  OBJECT_MODULE, OBJECT_GRAPH };
	struct object *object;
	struct range *range;
	uint32_t at, i;

	for (i = 0; i < sizeof(order) / sizeof(*order); i++)
		for (at = 0; (object = object_next(ctx, &at)) != NULL;) {
			if (object->kind != order[i])
				continue;
			if (order[i] == OBJECT_STREAM)
				stream_free((struct stream *)object);
			else if (order[i] == OBJECT_EVENT)
				event_remove((struct event *)object);
			else if (order[i] == OBJECT_FUNCTION)
				function_remove((struct function *)object);
			else
				object_free(object);
		}
	for (at = 0; (range = range_next(&at)) != NULL;)
		if (range->ctx == ctx) {
			say_used(range);
			range_drop(range);
			at--;
		}
}

static void destroy(struct context *ctx)
{
	ctx->dead = true;
	executor_rest(ctx);
	take_down(ctx);
	hbm_give(ctx->row);
	object_remove(&ctx->object);
	if (ctx->primary)
		ctx->gpu->primary = NULL;
	ctx->next_dead = dead_ones;
	dead_ones = ctx;
}

void context_at_exit(void)
{
	struct object *object;
	uint32_t at = 0;

	while ((object = object_next(NULL, &at)) != NULL) {
		const struct context *ctx = (const struct context *)object;

		if (object->kind != OBJECT_CONTEXT)
			continue;
		say_leaks(ctx);
		leak("a context of GPU %u was left", ctx->gpu->physical);
	}
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	CALL_ON_DEVICE(cuDevicePrimaryCtxRetain, device);
	if (!gpu->primary && broken)
		return broken;
	if (!gpu->primary)
		gpu->primary = make(gpu, true);
	if (!gpu->primary)
		return CUDA_ERROR_OUT_OF_MEMORY;
	gpu->retains++;
	*context = handle_of(gpu->primary);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	CALL_ON_DEVICE(cuDevicePrimaryCtxRelease, device);
	if (!gpu->retains) {
		violation("%s: the primary context is not retained", call_name(call.id));
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	if (--gpu->retains == 0 && gpu->primary) {
		say_leaks(gpu->primary);
		destroy(gpu->primary);
	}
	return call_done(&call);
}

/* It does not release: a program that retained the context still has to. */
CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
	CALL_ON_DEVICE(cuDevicePrimaryCtxReset, device);
	if (gpu->primary) {
		note("%s: a context goes, with all that is in it", call_name(call.id));
		destroy(gpu->primary);
	}
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
	CALL_ON_DEVICE(cuDevicePrimaryCtxGetState, device);
	*flags = CU_CTX_SCHED_AUTO;
	*active = !!emu.gpus[device].primary;
	return CUDA_SUCCESS;
}

static CUresult push(struct context *ctx)
{
	if (depth == EMU_STACK)
		return CUDA_ERROR_INVALID_CONTEXT;
	stack[depth++] = ctx;
	return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
	struct context *ctx;

	CALL(cuCtxCreate, NEEDS_INIT);
	(void)flags;
	if (!device_find(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (broken)
		return broken;
	ctx = make(&emu.gpus[device], false);
	if (!ctx)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*context = handle_of(ctx);
	return push(ctx);
}

CUresult cuCtxDestroy(CUcontext context)
{
	struct context *ctx;

	CALL(cuCtxDestroy, NEEDS_INIT);
	ctx = find(context, call.id);
	if (!ctx || ctx->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (context_current() == ctx)
		depth--;
	say_leaks(ctx);
	destroy(ctx);
	return call_done(&call);
}

CUresult cuCtxPushCurrent(CUcontext context)
{
	struct context *ctx;

	CALL(cuCtxPushCurrent, NEEDS_INIT);
	ctx = find(context, call.id);
	return ctx ? push(ctx) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
	CALL(cuCtxPopCurrent, NEEDS_INIT);
	if (!depth) {
		violation("%s: the thread has no current context", call_name(call.id));
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	depth--;
	if (context)
		*context = handle_of(stack[depth]);
	return call_done(&call);
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
	CALL(cuCtxGetCurrent, NEEDS_INIT);
	*context = handle_of(context_current());
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	struct context *ctx;

	CALL(cuCtxSetCurrent, NEEDS_INIT);
	if (!context) {
		depth -= depth > 0;
		return CUDA_SUCCESS;
	}
	ctx = find(context, call.id);
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!depth)
		return push(ctx);
	stack[depth - 1] = ctx;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	CALL(cuCtxGetDevice, NEEDS_ANY_CONTEXT);
	*device = call.ctx->gpu->ordinal;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	CALL(cuCtxGetStreamPriorityRange, NEEDS_CONTEXT);
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

CUresult context_settle(struct context *ctx)
{
	struct object *object;
	uint32_t at = 0;
	CUresult r = CUDA_SUCCESS;

	while (!r && (object = object_next(ctx, &at)) != NULL)
		if (object->kind == OBJECT_STREAM)
			r = stream_wait((struct stream *)object, emu.tickets);
	return r ? r : ctx->sticky;
}

CUresult cuCtxSynchronize(void)
{
	CALL(cuCtxSynchronize, NEEDS_CONTEXT);
	note("%s: waits for all that its context has queued", call_name(call.id));
	return context_settle(call.ctx);
}
