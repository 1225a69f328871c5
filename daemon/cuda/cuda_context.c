/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_context.c - see cuda_context.h. */
#include "cuda_context.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "base/vault.h"
#include "daemon/cuda/driver/cuda_tier.h"
#include "daemon/cuda/lane/cuda_lane.h"

static const uint64_t RETRY_NS = 5000000000u; /* after a context that could not be made */

static int make_streams(struct cuda_gpu *gpu)
{
	struct cuda_context *c = &gpu->in_context;
	int least = 0, greatest = 0;
	int r = CUDA_DO(gpu, cuCtxGetStreamPriorityRange, &least, &greatest);
	const struct {
		CUstream *stream;
		int priority;
	} all[] = {
		{ &c->kernels[CUDA_STORE], least },   { &c->wires[CUDA_STORE], least },
		{ &c->kernels[CUDA_LOAD], greatest }, { &c->wires[CUDA_LOAD], greatest },
		{ &c->kernels[CUDA_HIT], greatest },  { &c->aside, greatest },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all) && r == 0; i++)
		r = CUDA_DO(gpu, cuStreamCreateWithPriority, all[i].stream, CU_STREAM_NON_BLOCKING,
			    all[i].priority);
	return r;
}

static int load_kernels(struct cuda_gpu *gpu)
{
	struct cuda_context *c = &gpu->in_context;
	const struct {
		CUfunction *function;
		const char *name;
	} all[] = {
		{ &c->encode, "kvtier_encode" },
		{ &c->decode, "kvtier_decode" },
		{ &c->pack_lengths, "kvtier_pack_lengths" },
		{ &c->pack_encode, "kvtier_pack_encode" },
		{ &c->pack_decode, "kvtier_pack_decode" },
	};
	int r = cuda_check(gpu, cuda_kernels_load(gpu->api, gpu->found->kernels, &c->module),
			   "cuModuleLoadData", NULL, 0);

	for (size_t i = 0; i < sizeof(all) / sizeof(*all) && r == 0; i++)
		r = CUDA_DO(gpu, cuModuleGetFunction, all[i].function, c->module, all[i].name);
	return r;
}

static int make_memory(struct cuda_gpu *gpu)
{
	struct cuda_context *c = &gpu->in_context;
	const size_t bytes = gpu->conf.staging_bytes;
	int r = CUDA_DO(gpu, cuMemAlloc, &c->staging, bytes);

	if (r == 0)
		r = CUDA_DO(gpu, cuMemHostAlloc, (void **)&c->bounce, bytes + CUDA_FETCH_BYTES,
			    CU_MEMHOSTALLOC_PORTABLE);
	if (r == 0) {
		c->fetched = c->bounce + bytes;
		vault_hide(c->bounce, bytes + CUDA_FETCH_BYTES);
		r = cuda_zero(gpu, c->staging, bytes, NULL, 0); /* flags in it have no mark then */
	}
	return r;
}

/* Free bytes of the GPU's memory; 0: not known. */
static size_t free_bytes(const struct cuda_gpu *gpu)
{
	size_t some = 0, all = 0;

	return gpu->api->cuMemGetInfo(&some, &all) == CUDA_SUCCESS ? some : 0;
}

/* The difference includes memory that other processes take or give back meanwhile: no call tells
 * the two apart. */
static int retain_context(struct cuda_gpu *gpu)
{
	struct cuda_context *c = &gpu->in_context;
	const uint64_t before = cuda_used_bytes(gpu->driver, gpu->found->uuid);
	uint64_t after;
	int r = CUDA_DO(gpu, cuDevicePrimaryCtxRetain, &c->context, gpu->found->device);

	if (r == 0)
		r = CUDA_DO(gpu, cuCtxSetCurrent, c->context);
	after = r || !before ? 0 : cuda_used_bytes(gpu->driver, gpu->found->uuid);
	gpu->context_bytes = after > before ? after - before : 0;
	return r;
}

static int open_context(struct cuda_gpu *gpu)
{
	size_t before, after;
	int r = retain_context(gpu);

	before = r ? 0 : free_bytes(gpu);
	if (r == 0)
		r = load_kernels(gpu);
	if (r == 0)
		r = make_streams(gpu);
	if (r == 0)
		r = make_memory(gpu);
	if (r == 0)
		r = cuda_lanes_attach(gpu->path);
	if (r == 0)
		r = cuda_tier_open(gpu, gpu->generation + 1);
	after = r ? 0 : free_bytes(gpu);
	gpu->bytes = before > after ? before - after : gpu->conf.staging_bytes;
	return r;
}

/* A driver that gives a sick process no context never gives it one again (cuda.h: "the process must
 * be terminated and relaunched"); memory that others have taken meanwhile is no such refusal. A
 * first context that breaks is made anew. */
static int refused(struct cuda_gpu *gpu, int error, bool was_sick, const char *why)
{
	cuda_context_close(gpu, gpu->state == CUDA_FAILING);
	memcpy(gpu->why, why, sizeof(gpu->why));
	if (was_sick && error != -ENOMEM)
		gpu->state = CUDA_ENDING;
	if (gpu->state == CUDA_ENDING || (gpu->sick && !was_sick))
		return -EBUSY;
	gpu->retry_ns = clock_ns() + RETRY_NS;
	return -ENODEV;
}

int cuda_context_need(struct cuda_gpu *gpu, char *text, size_t n)
{
	const bool was_sick = gpu->sick;
	char why[sizeof(gpu->why)];
	int r;

	if (gpu->state == CUDA_UP)
		return 0;
	if (gpu->state != CUDA_NONE || clock_ns() < gpu->retry_ns) {
		r = gpu->state == CUDA_FAILING || gpu->state == CUDA_ENDING ? -EBUSY : -ENODEV;
		return text_fail(text, n, r, "%s cannot be used: %.150s", gpu->found->name,
				 gpu->why);
	}
	r = open_context(gpu);
	if (r == 0) {
		gpu->state = CUDA_UP;
		gpu->sick = false;
		gpu->generation++;
		gpu->why[0] = '\0';
		cuda_pin_on(gpu->pin, gpu->in_context.context);
		cuda_tier_tell(gpu); /* before the import is answered: its first op may use it */
		return 0;
	}
	memcpy(why, gpu->words, sizeof(why)); /* calls that close the context may fail, too */
	return text_fail(text, n, refused(gpu, r, was_sick, why), "%s cannot be used: %.150s",
			 gpu->found->name, why);
}

static void give_back(struct cuda_gpu *gpu)
{
	struct cuda_context *c = &gpu->in_context;

	for (int way = 0; way < CUDA_WAYS; way++)
		if (c->kernels[way])
			(void)CUDA_DO(gpu, cuStreamDestroy, c->kernels[way]);
	for (int way = 0; way < CUDA_WIRES; way++)
		if (c->wires[way])
			(void)CUDA_DO(gpu, cuStreamDestroy, c->wires[way]);
	if (c->aside)
		(void)CUDA_DO(gpu, cuStreamDestroy, c->aside);
	if (c->staging)
		(void)CUDA_DO(gpu, cuMemFree, c->staging);
	if (c->bounce)
		(void)CUDA_DO(gpu, cuMemFreeHost, c->bounce);
	if (c->module)
		(void)CUDA_DO(gpu, cuModuleUnload, c->module);
}

/* Queued work ends, and memory is freed; the reference stays. If this fails, only the end of the
 * process says when the work has ended. */
static void reset(struct cuda_gpu *gpu)
{
	const size_t last = CUDA_LOSSES_MAX - 1;
	char words[100];

	memmove(gpu->losses_ns, gpu->losses_ns + 1, last * sizeof(gpu->losses_ns[0]));
	gpu->losses_ns[last] = clock_ns();
	if (cuda_error(gpu->api, gpu->api->cuDevicePrimaryCtxReset(gpu->found->device),
		       "cuDevicePrimaryCtxReset", words, sizeof(words)) == 0)
		return;
	log_error("gpu_context", "%s: a context that broke cannot be reset: %s", gpu->found->name,
		  words);
	gpu->stuck = true;
	gpu->state = CUDA_ENDING;
}

void cuda_context_close(struct cuda_gpu *gpu, bool lost)
{
	const struct cuda_api *api = gpu->api;

	cuda_lanes_detach(gpu->path, lost);
	cuda_tier_close(gpu, lost);
	if (!lost)
		give_back(gpu);
	lost |= gpu->state == CUDA_FAILING; /* it broke meanwhile */
	gpu->state = CUDA_NONE;
	if (gpu->in_context.context) {
		(void)api->cuCtxSetCurrent(NULL);
		if (lost)
			reset(gpu);
		(void)api->cuDevicePrimaryCtxRelease(gpu->found->device);
	}
	cuda_pin_gone(gpu->pin);
	gpu->in_context = (struct cuda_context){ 0 };
	gpu->bytes = gpu->context_bytes = 0;
}
