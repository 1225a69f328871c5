/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_tier.c - see cuda_tier.h. */
#include "cuda_tier.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "cuda_span.h"
#include "daemon/base/log.h"

enum { AUTO_SHARE = 4 }; /* of the free memory, one part in so many */

/* Whole slabs; 0: none. */
static uint64_t bytes_wanted(struct cuda_gpu *gpu)
{
	uint64_t bytes = gpu->conf.tier_bytes;
	size_t some = 0, all = 0;

	if (bytes == CUDA_TIER_AUTO)
		bytes = gpu->api->cuMemGetInfo(&some, &all) == CUDA_SUCCESS ? some / AUTO_SHARE : 0;
	return bytes / gpu->conf.slab_bytes * gpu->conf.slab_bytes;
}

/* The thread waits: nobody has anything in this memory yet, or any more. */
static int zero(struct cuda_gpu *gpu, CUdeviceptr at, uint64_t bytes, char *text, size_t n)
{
	int r = CUDA_CALL(gpu, cuMemsetD8Async, text, n, at, 0, bytes, gpu->in_context.aside);

	return r ? r : cuda_wait(gpu, gpu->in_context.aside, text, n);
}

/* --- memory that outlives the process --- */

static void set_fd(struct cuda_gpu *gpu, int fd)
{
	int old;

	(void)pthread_mutex_lock(&gpu->lock);
	old = gpu->tier_fd;
	gpu->tier_fd = fd;
	(void)pthread_mutex_unlock(&gpu->lock);
	if (old >= 0)
		(void)close(old);
}

/* Takes over the memory of the process before as in_context.span, if it has just so many bytes.
 * Once. False: it is of no use, or there is none. */
static bool adopt(struct cuda_gpu *gpu, uint64_t bytes, char *text, size_t n)
{
	struct cuda_span *span = &gpu->in_context.span;
	const int fd = gpu->parked_fd;

	if (fd < 0)
		return false;
	gpu->parked_fd = -1;
	if (cuda_span_adopt(gpu, fd, gpu->parked_bytes, span, text, n))
		log_info("%s: the parked memory cannot be mapped again, and is dropped: %.120s",
			 gpu->found->name, text);
	(void)close(fd);
	gpu->parked_refused = !span->at;
	if (!span->at || gpu->parked_bytes == bytes)
		return span->at != 0;
	log_info("%s: the parked memory is of %llu MiB, and %llu are wanted: it is dropped",
		 gpu->found->name, (unsigned long long)(gpu->parked_bytes >> 20),
		 (unsigned long long)(bytes >> 20));
	(void)zero(gpu, span->at, span->bytes, NULL, 0);
	cuda_span_free(gpu, span);
	return false;
}

static int make_span(struct cuda_gpu *gpu, uint64_t bytes, char *text, size_t n)
{
	struct cuda_span *span = &gpu->in_context.span;
	int fd = -1;
	int r = cuda_span_make(gpu, bytes, span, &fd, text, n);

	if (r == 0)
		r = zero(gpu, span->at, span->bytes, text, n);
	if (r == 0)
		set_fd(gpu, fd);
	else if (fd >= 0)
		(void)close(fd);
	return r;
}

/* --- any --- */

static int make_plain(struct cuda_gpu *gpu, uint64_t bytes, char *text, size_t n)
{
	CUdeviceptr *at = &gpu->in_context.tier;
	int r = CUDA_CALL(gpu, cuMemAlloc, text, n, at, bytes + IMAGE_ALIGN);

	if (r == 0)
		r = zero(gpu, *at, bytes + IMAGE_ALIGN, text, n);
	return r;
}

static void free_memory(struct cuda_gpu *gpu)
{
	struct cuda_context *c = &gpu->in_context;

	cuda_span_free(gpu, &c->span);
	if (c->tier)
		(void)CUDA_CALL(gpu, cuMemFree, NULL, 0, c->tier);
	c->tier = 0;
}

static int refused(struct cuda_gpu *gpu, uint64_t bytes, int error, const char *text)
{
	if (gpu->state == CUDA_FAILING)
		return error;
	free_memory(gpu);
	snprintf(gpu->tier_why, sizeof(gpu->tier_why),
		 "[gpu] bytes: %llu MiB cannot be had, no image is kept on this GPU: %.60s",
		 (unsigned long long)(bytes >> 20), text);
	log_warning("%s: %s", gpu->found->name, gpu->tier_why);
	return gpu->state == CUDA_FAILING ? error : 0;
}

int cuda_tier_open(struct cuda_gpu *gpu, uint32_t generation, char *text, size_t n)
{
	const bool as_parked = gpu->conf.tier_bytes == CUDA_TIER_AUTO && gpu->parked_fd >= 0;
	const uint64_t bytes = as_parked ? gpu->parked_bytes : bytes_wanted(gpu);
	struct cuda_context *c = &gpu->in_context;
	bool parked;
	int r = 0;

	gpu->tier = (struct device_memory){ 0 };
	gpu->tier_why[0] = '\0';
	if (gpu->conf.tier_bytes == 0)
		return 0;
	if (bytes == 0) {
		snprintf(
			gpu->tier_why, sizeof(gpu->tier_why),
			"[gpu] bytes: its share is less than [host] slab_bytes = %llu, no image is "
			"kept on this GPU",
			(unsigned long long)gpu->conf.slab_bytes);
		return 0;
	}
	parked = adopt(gpu, bytes, text, n);
	if (gpu->state == CUDA_FAILING)
		return -EIO;
	if (!parked)
		r = gpu->outlive ? make_span(gpu, bytes, text, n) : -EOPNOTSUPP;
	if (r && gpu->state != CUDA_FAILING) {
		free_memory(gpu); /* memory of the other kind may be had */
		r = make_plain(gpu, bytes, text, n);
	}
	if (r)
		return refused(gpu, bytes, r, text);
	gpu->tier = (struct device_memory){
		.base = c->span.at ? c->span.at :
				     (c->tier + IMAGE_ALIGN - 1) / IMAGE_ALIGN * IMAGE_ALIGN,
		.bytes = bytes,
		.generation = generation,
		.parked = parked,
	};
	return 0;
}

void cuda_tier_close(struct cuda_gpu *gpu, bool lost)
{
	const struct device_memory tier = gpu->tier;
	const bool stays =
		gpu->in_context.span.at && __atomic_load_n(&gpu->leaving, __ATOMIC_RELAXED) != 0;

	gpu->tier = (struct device_memory){ 0 };
	set_fd(gpu, -1);
	if (lost)
		return;
	if (tier.generation && !stays)
		(void)zero(gpu, tier.base, tier.bytes, NULL, 0);
	if (gpu->state != CUDA_FAILING) /* else it goes as that of a lost context */
		free_memory(gpu);
}

void cuda_tier_tell(struct cuda_gpu *gpu)
{
	struct mails one;
	bool send;

	(void)pthread_mutex_lock(&gpu->lock);
	send = (gpu->view.tier.generation != gpu->tier.generation || gpu->parked_refused) &&
	       !gpu->tier_sent;
	gpu->parked_refused = false;
	gpu->tier_sent |= send;
	gpu->view.tier = gpu->tier;
	(void)pthread_mutex_unlock(&gpu->lock);
	if (!send)
		return;
	mails_clear(&one);
	mails_append(&one, &gpu->tier_mail.mail);
	mailbox_post(&gpu->out, &one);
}

bool cuda_tier_has(const struct cuda_gpu *gpu, uint32_t generation, uint64_t address,
		   uint64_t bytes)
{
	const struct device_memory *m = &gpu->tier;

	return m->generation && generation == m->generation && address >= m->base &&
	       bytes <= m->bytes && address - m->base <= m->bytes - bytes;
}
