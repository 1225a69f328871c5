/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_cuda.c - see device_cuda.h. Core thread, but for imports and releases.
 *
 *	submit --gathered--> kick --mailbox--> thread ... --mailbox, loop--> device_complete()
 */
#include "device_cuda.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "cuda_engine.h"
#include "cuda_events.h"
#include "cuda_layout.h"
#include "cuda_parts.h"
#include "cuda_path.h"
#include "cuda_thread.h"
#include "daemon/base/container_of.h"
#include "daemon/base/loop.h"

/* A turn of the thread that takes longer: a driver call hangs. */
static const uint64_t SILENT_NS = 5000000000u;

struct gpu {
	struct device base;
	struct cuda_gpu *gpu;
	struct loop_watch watch;
	struct loop_poller poller;
	struct mails gathered;
	bool watched;
};

static struct gpu *gpu_of(struct device *device)
{
	return (struct gpu *)(void *)device;
}

/* --- regions, events: helper threads --- */

static int gpu_import(struct device *device, const struct region_desc *desc,
		      struct device_region *ret, char *text, size_t n)
{
	struct cuda_region *region;
	int r;

	if (desc->memory < WIRE_DEVICE_HANDLE) {
		snprintf(text, n, "memory is %u: no memory of a GPU", (unsigned)desc->memory);
		return -EINVAL;
	}
	r = desc->memory == WIRE_DEVICE_ENGINE ?
		    cuda_engine_import(gpu_of(device)->gpu, desc, &region, text, n) :
		    cuda_region_import(gpu_of(device)->gpu, desc, &region, text, n);
	if (r == 0)
		*ret = (struct device_region){
			.device = device,
			.base = (uint8_t *)(uintptr_t)region->base,
			.length = desc->length,
			.generation = region->generation,
			.own = region,
			.made_bytes = region->made_bytes,
			.made_fd = region->made_fd,
		};
	return r;
}

static int gpu_import_parts(struct device *device, const struct region_parts *parts,
			    struct device_region *region, char *text, size_t n)
{
	struct cuda_region *own = region->own;
	const int r = cuda_region_import_parts(gpu_of(device)->gpu, parts, &own, text, n);

	*region = (struct device_region){ .device = device, .own = own };
	if (own) {
		region->base = (uint8_t *)(uintptr_t)own->base;
		region->length = parts->region_bytes;
		region->generation = own->generation;
	}
	return r;
}

static void gpu_release(struct device *device, struct device_region *region)
{
	cuda_region_release(gpu_of(device)->gpu, region->own);
	region->own = NULL;
}

static int gpu_import_events(struct device *device, const uint8_t (*handles)[WIRE_HANDLE_BYTES],
			     uint32_t n, struct device_events *ret, char *text, size_t text_bytes)
{
	struct cuda_events *events;
	const int r =
		cuda_events_import(gpu_of(device)->gpu, handles, n, &events, text, text_bytes);

	if (r == 0)
		*ret = (struct device_events){
			.device = device, .n = n, .generation = events->generation, .own = events
		};
	return r;
}

static void gpu_release_events(struct device *device, struct device_events *events)
{
	cuda_events_release(gpu_of(device)->gpu, events->own);
	events->own = NULL;
}

/* --- layouts, jobs --- */

static int gpu_prepare(struct device *device, struct device_layout *layout)
{
	struct cuda_layout *own;
	int r = 0;

	(void)device;
	if (layout->n_regions > 0)
		r = cuda_layout_make(layout, &own);
	if (r == 0 && layout->n_regions > 0)
		layout->prepared = own;
	return r;
}

static void gpu_forget(struct device *device, struct device_layout *layout)
{
	if (layout->prepared)
		cuda_layout_forget(gpu_of(device)->gpu, layout->prepared);
}

static int gpu_submit(struct device *device, struct device_job *job)
{
	struct gpu *g = gpu_of(device);
	enum cuda_way way = CUDA_STORE;

	/* VERIFY and COPY are the CPU's */
	assert(job->kind == DEVICE_ENCODE || job->kind == DEVICE_DECODE ||
	       job->kind == DEVICE_FETCH);
	if (job->kind != DEVICE_ENCODE)
		way = job->image_memory == IMAGE_OF_DEVICE ? CUDA_HIT : CUDA_LOAD;
	mails_append(&g->gathered, &cuda_path_submit(g->gpu->path, job, way)->mail);
	return 0;
}

static void gpu_kick(struct device *device)
{
	struct gpu *g = gpu_of(device);

	if (g->gathered.n > 0)
		mailbox_post(&g->gpu->in, &g->gathered);
}

static void tell_lost(struct gpu *g)
{
	const uint32_t was = g->base.generation;
	char why[200];
	bool ending;

	(void)pthread_mutex_lock(&g->gpu->lock);
	g->gpu->lost_sent = false;
	ending = g->gpu->view.ending;
	g->base.generation = g->gpu->view.generation;
	memcpy(why, g->gpu->view.why, sizeof(why));
	(void)pthread_mutex_unlock(&g->gpu->lock);
	if (g->base.lost && g->base.generation != was)
		g->base.lost(g->base.lost_arg, &g->base, why);
	if (ending && g->base.ending)
		g->base.ending(g->base.ending_arg, &g->base, why);
}

static void tell_memory(struct gpu *g)
{
	struct device_memory memory;

	(void)pthread_mutex_lock(&g->gpu->lock);
	g->gpu->tier_sent = false;
	memory = g->gpu->view.tier;
	(void)pthread_mutex_unlock(&g->gpu->lock);
	if (g->base.memory)
		g->base.memory(g->base.memory_arg, &g->base, &memory);
}

static bool take_ended(struct gpu *g)
{
	struct mails mails;
	struct mail *mail;
	bool any = false;

	mails_clear(&mails);
	mailbox_take(&g->gpu->out, &mails);
	while ((mail = mails_take(&mails)) != NULL) {
		if (mail == &g->gpu->lost_mail.mail)
			tell_lost(g);
		else if (mail == &g->gpu->tier_mail.mail)
			tell_memory(g);
		else
			device_complete(cuda_path_ended(g->gpu->path, mail));
		any = true;
	}
	return any;
}

static void on_ended(struct loop_watch *watch, uint32_t events)
{
	struct gpu *g = container_of(watch, struct gpu, watch);

	(void)events;
	mailbox_hear(&g->gpu->out);
	(void)take_ended(g);
}

static bool on_poll(struct loop_poller *poller)
{
	return take_ended(container_of(poller, struct gpu, poller));
}

/* --- for people --- */

static void gpu_note(const struct device *device, struct device_note *ret)
{
	static const char *const states[CUDA_STATES] = {
		[CUDA_NONE] = "idle", [CUDA_UP] = "up",         [CUDA_FAILING] = "failed",
		[CUDA_OUT] = "out",   [CUDA_ENDING] = "ending",
	};
	const struct gpu *g = (const struct gpu *)(const void *)device;
	const uint64_t turn = __atomic_load_n(&g->gpu->turn_ns, __ATOMIC_RELAXED);
	const uint64_t now = loop_now(device->loop);
	struct cuda_pin_view pinned;
	struct cuda_view view;

	cuda_gpu_view(g->gpu, &view);
	snprintf(ret->name, sizeof(ret->name), "%.63s", g->gpu->found->name);
	ret->state = states[view.state];
	snprintf(ret->why, sizeof(ret->why), "%s", view.why);
	ret->failed = view.state != CUDA_UP && view.why[0] != '\0';
	if (turn && now > turn + SILENT_NS) {
		ret->state = "silent";
		ret->failed = true;
		snprintf(ret->why, sizeof(ret->why), "a call of the driver has taken %llu s so far",
			 (unsigned long long)((now - turn) / 1000000000u));
	} else if (ret->failed && view.state == CUDA_NONE) {
		ret->state = "failed";
	}
	ret->mps = g->gpu->found->mps;
	ret->max_ctas = g->gpu->conf.max_ctas;
	ret->regions = view.regions;
	ret->bytes = view.bytes;
	ret->lent_regions = view.lent_regions;
	ret->lent_bytes = view.lent_bytes;
	ret->image_bytes = view.tier.bytes;
	ret->images_refused = view.tier_refused;
	ret->context_bytes = view.context_bytes;
	ret->copied_out_bytes_total = view.out_bytes;
	ret->copied_in_bytes_total = view.in_bytes;
	ret->batches_total = view.batches;
	ret->direct_out_bytes_total = view.direct_bytes[CUDA_STORE];
	ret->direct_in_bytes_total = view.direct_bytes[CUDA_LOAD];
	ret->bounced_out_bytes_total = view.bounced_bytes[CUDA_STORE];
	ret->bounced_in_bytes_total = view.bounced_bytes[CUDA_LOAD];
	cuda_pin_view(g->gpu->pin, &pinned);
	ret->pinned_bytes = pinned.bytes;
	memcpy(ret->pin_why, pinned.why, sizeof(ret->pin_why));
	ret->lost_total = view.lost;
}

/* --- open and close --- */

static void gpu_close(struct device *device)
{
	struct gpu *g = device ? gpu_of(device) : NULL;

	if (!g)
		return;
	if (g->watched) {
		loop_poller_remove(device->loop, &g->poller);
		loop_remove(device->loop, &g->watch);
		if (g->gpu->conf.pins)
			cuda_pins_stop(g->gpu->conf.pins);
	}
	cuda_thread_close(g->gpu);
	free(g);
}

static const struct device_ops device_cuda_ops = {
	.name = "cuda",
	.images = 1u << IMAGE_OF_HOST | 1u << IMAGE_OF_DEVICE,
	.close = gpu_close,
	.import = gpu_import,
	.release = gpu_release,
	.import_parts = gpu_import_parts,
	.import_events = gpu_import_events,
	.release_events = gpu_release_events,
	.prepare = gpu_prepare,
	.forget = gpu_forget,
	.submit = gpu_submit,
	.kick = gpu_kick,
	.note = gpu_note,
};

int device_cuda_open(const struct cuda_driver *driver, const struct cuda_found *found,
		     const struct cuda_gpu_conf *conf, struct loop *loop, struct device **ret)
{
	struct gpu *g = calloc(1, sizeof(*g));
	int r;

	if (!g)
		return -ENOMEM;
	g->base.ops = &device_cuda_ops;
	g->base.loop = loop;
	g->base.guarded = true; /* no page of a GPU is a hole */
	g->base.layered = true;
	g->base.depth = conf->depth;
	g->base.own_depth = DEVICE_FETCHES;
	g->base.numa_node = found->numa_node;
	memcpy(g->base.uuid, found->uuid, sizeof(g->base.uuid));
	mails_clear(&g->gathered);
	g->watch.ready = on_ended;
	g->poller.poll = on_poll;
	r = cuda_thread_open(driver, found, conf, &g->gpu);
	if (r == 0) {
		g->watch.fd = g->gpu->out.fd;
		r = loop_add(loop, &g->watch, EPOLLIN);
	}
	if (r) {
		gpu_close(&g->base);
		return r;
	}
	g->watched = true;
	loop_poller_add(loop, &g->poller);
	*ret = &g->base;
	return 0;
}
