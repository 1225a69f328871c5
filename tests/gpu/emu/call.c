/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call.c - the beginning and end of each call of the API, and how a program finds the calls.
 *
 * In this order: the process has called cuInit(), and is not a fork of one that has; the call is
 * counted, and delayed or failed when a fault is planted for it; then it takes emu.lock and looks
 * for the current context, which must be there and healthy where the call needs one.
 */
#include <time.h>

#include "emu.h"

struct emu emu = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.map_lock = PTHREAD_RWLOCK_INITIALIZER,
};

static pthread_once_t once = PTHREAD_ONCE_INIT;

static const struct entry {
	const char *name;
	int version;
	void *address;
} entries[] = {
#define ENTRY(name, version, arguments) { #name, version, (void *)(name) },
	CUDA_CALLS(ENTRY)
#undef ENTRY
};

const char *call_name(enum call_id id)
{
	return id < CALLS ? entries[id].name : "?";
}

static void prepare(void)
{
	pthread_condattr_t monotonic;

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&emu.changed, &monotonic);
	settings_read(&emu.settings);
	report_open();
	emu.random = emu.settings.seed;
}

/* Of a call that fails, when the settings name no error: CUDA_ERROR_UNKNOWN if it is not here. Of
 * one that gives something back. Of one that with waits=1 waits for all that its context has
 * queued. */
static const struct {
	CUresult usual;
	bool gives_back, waits;
} facts[CALLS] = {
	[CALL_cuMemAlloc] = { .usual = CUDA_ERROR_OUT_OF_MEMORY },
	[CALL_cuMemAllocAsync] = { .usual = CUDA_ERROR_OUT_OF_MEMORY },
	[CALL_cuMemAllocManaged] = { .usual = CUDA_ERROR_OUT_OF_MEMORY },
	[CALL_cuMemHostAlloc] = { .usual = CUDA_ERROR_OUT_OF_MEMORY },
	[CALL_cuMemHostRegister] = { .usual = CUDA_ERROR_OUT_OF_MEMORY },
	[CALL_cuMemCreate] = { .usual = CUDA_ERROR_OUT_OF_MEMORY },
	[CALL_cuMemAddressReserve] = { .usual = CUDA_ERROR_OUT_OF_MEMORY },
	[CALL_cuStreamCreateWithPriority] = { .usual = CUDA_ERROR_OUT_OF_MEMORY },
	[CALL_cuEventCreate] = { .usual = CUDA_ERROR_OUT_OF_MEMORY },
	[CALL_cuDevicePrimaryCtxRetain] = { .usual = CUDA_ERROR_OUT_OF_MEMORY },
	[CALL_cuCtxCreate] = { .usual = CUDA_ERROR_OUT_OF_MEMORY },
	[CALL_cuIpcOpenMemHandle] = { .usual = CUDA_ERROR_MAP_FAILED },
	[CALL_cuMemMap] = { .usual = CUDA_ERROR_MAP_FAILED },
	[CALL_cuMemFree] = { .gives_back = true, .waits = true },
	[CALL_cuMemFreeHost] = { .gives_back = true, .waits = true },
	[CALL_cuMemHostUnregister] = { .gives_back = true, .waits = true },
	[CALL_cuModuleLoadData] = { .waits = true },
	[CALL_cuModuleUnload] = { .gives_back = true, .waits = true },
	[CALL_cuMemUnmap] = { .gives_back = true },
	[CALL_cuMemRelease] = { .gives_back = true },
	[CALL_cuMemAddressFree] = { .gives_back = true },
	[CALL_cuIpcCloseMemHandle] = { .gives_back = true },
	[CALL_cuEventDestroy] = { .gives_back = true },
	[CALL_cuStreamDestroy] = { .gives_back = true },
	[CALL_cuCtxDestroy] = { .gives_back = true },
	[CALL_cuCtxPopCurrent] = { .gives_back = true },
	[CALL_cuDevicePrimaryCtxRelease] = { .gives_back = true },
};

/* Not CUDA_ERROR_UNKNOWN, of which a program may think that its context is lost. */
static CUresult fail_by_countdown(struct call *call)
{
	const CUresult usual = facts[call->id].usual,
		       result = usual ? usual : CUDA_ERROR_NOT_SUPPORTED;

	if (!facts[call->id].gives_back)
		return result;
	call->late = result;
	return CUDA_SUCCESS;
}

/* Without the lock: other threads go on. */
static void rest(uint32_t ms)
{
	const struct timespec nap = { ms / 1000, ms % 1000 * 1000000L };

	pthread_mutex_unlock(&emu.lock);
	(void)nanosleep(&nap, NULL);
	pthread_mutex_lock(&emu.lock);
}

bool may_go(void)
{
	const char *dir = getenv("KVTIER_EMU_DIR");
	char path[256];

	snprintf(path, sizeof(path), "%s/go", dir ? dir : ".");
	return access(path, F_OK) == 0;
}

static void hold(enum call_id id)
{
	note("%s is held", call_name(id));
	while (!may_go() && !emu.exiting)
		rest(1);
	note("%s goes on", call_name(id));
}

static bool is_hit(struct fault *f, const struct call *call)
{
	if (f->call != call->id)
		return false;
	if (emu.settings.faulty >= 0 &&
	    (!call->ctx || call->ctx->gpu->physical != (uint32_t)emu.settings.faulty))
		return false;
	return ++f->seen == f->nth || f->nth == 0;
}

static CUresult planted(struct call *call)
{
	emu.counts[call->id]++;
	if (countdown_takes(call->id, call->ctx))
		return fail_by_countdown(call);
	for (uint32_t i = 0; i < emu.settings.n_faults; i++) {
		struct fault *f = &emu.settings.faults[i];

		if (!is_hit(f, call))
			continue;
		if (f->slow_ms) {
			rest(f->slow_ms);
		} else if (f->held) {
			hold(call->id);
		} else if (f->sticky) {
			if (call->ctx)
				context_break(call->ctx,
					      f->result ? f->result : CUDA_ERROR_LAUNCH_FAILED,
					      "the settings say so");
		} else {
			return f->result            ? f->result :
			       facts[f->call].usual ? facts[f->call].usual :
						      CUDA_ERROR_UNKNOWN;
		}
	}
	return CUDA_SUCCESS;
}

static void check_thread(struct context *ctx, enum call_id id)
{
	if (!emu.settings.one_thread || id == CALL_cuMemHostRegister ||
	    id == CALL_cuMemHostUnregister)
		return;
	if (!ctx->thread)
		ctx->thread = gettid();
	if (ctx->thread != gettid())
		violation("%s: the context belongs to thread %d, thread %d called", call_name(id),
			  (int)ctx->thread, (int)gettid());
}

static CUresult check_context(struct call *call, enum needs needs)
{
	if (needs < NEEDS_CONTEXT)
		return CUDA_SUCCESS;
	if (!call->ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (call->ctx->dead) {
		violation("%s: the current context was destroyed", call_name(call->id));
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	}
	check_thread(call->ctx, call->id);
	return needs == NEEDS_CONTEXT ? call->ctx->sticky : CUDA_SUCCESS;
}

CUresult call_enter(struct call *call, enum needs needs)
{
	CUresult r;

	pthread_once(&once, prepare);
	if (needs != NEEDS_NOTHING && !emu.pid)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (emu.pid && !*emu.here) {
		violation("%s: called in a fork of the process that called cuInit()",
			  call_name(call->id));
		return CUDA_ERROR_NOT_INITIALIZED;
	}
	pthread_mutex_lock(&emu.lock);
	call->locked = true;
	call->ctx = context_current();
	r = planted(call);
	if (!r)
		r = check_context(call, needs);
	if (!r)
		r = capture_check(call->id);
	return !r && emu.settings.waits && facts[call->id].waits ? context_settle(call->ctx) : r;
}

void call_leave(struct call *call)
{
	if (call->locked)
		pthread_mutex_unlock(&emu.lock);
}

CUresult call_done(const struct call *call)
{
	return call->late;
}

/* --- errors --- */

struct word {
	CUresult result;
	const char *text;
};

static const struct word names[] = {
#define RESULT(name, value) { name, #name },
	CUDA_RESULTS(RESULT)
#undef RESULT
		{ 0, NULL },
};

/* Others have their names. */
static const struct word texts[] = {
	{ CUDA_SUCCESS, "no error" },
	{ CUDA_ERROR_INVALID_VALUE, "invalid argument" },
	{ CUDA_ERROR_OUT_OF_MEMORY, "out of memory" },
	{ CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected" },
	{ CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered" },
	{ CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure" },
	{ 0, NULL },
};

static const char *text_of(const struct word *word, CUresult result)
{
	while (word->text && word->result != result)
		word++;
	return word->text;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
	CALL(cuGetErrorName, NEEDS_NOTHING);
	*name = text_of(names, error);
	return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
	CALL(cuGetErrorString, NEEDS_NOTHING);
	*text = text_of(texts, error);
	if (!*text)
		*text = text_of(names, error);
	return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDriverGetVersion(int *version)
{
	CALL(cuDriverGetVersion, NEEDS_NOTHING);
	*version = emu.settings.version;
	return CUDA_SUCCESS;
}

/* A program that asks with another version than cuda_api.h's may get another prototype from a real
 * driver. */
static CUresult find_entry(const char *name, void **address, int version, cuuint64_t flags,
			   CUdriverProcAddressQueryResult *status)
{
	size_t i;

	pthread_once(&once, prepare);
	*address = NULL;
	*status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	if (flags != CU_GET_PROC_ADDRESS_DEFAULT)
		violation("cuGetProcAddress: %s with flags %#llx", name, (unsigned long long)flags);
	for (i = 0; i < CALLS && strcmp(entries[i].name, name); i++)
		;
	if (i == CALLS || entries[i].version > emu.settings.version)
		return CUDA_ERROR_NOT_FOUND;
	if (entries[i].version != version) {
		violation("cuGetProcAddress: %s at %d; the prototype was written for %d", name,
			  version, entries[i].version);
		*status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
		return CUDA_SUCCESS;
	}
	*address = entries[i].address;
	*status = CU_GET_PROC_ADDRESS_SUCCESS;
	return CUDA_SUCCESS;
}

__attribute__((visibility("default"))) CUresult
cuGetProcAddress_v2(const char *name, void **address, int version, cuuint64_t flags,
		    CUdriverProcAddressQueryResult *status);
CUresult cuGetProcAddress_v2(const char *name, void **address, int version, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *status)
{
	CUdriverProcAddressQueryResult unused;

	if (!name || !address)
		return CUDA_ERROR_INVALID_VALUE;
	return find_entry(name, address, version, flags, status ? status : &unused);
}
