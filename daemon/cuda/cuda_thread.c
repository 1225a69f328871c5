/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_thread.c - the thread of a GPU. See cuda_thread.h and cuda_gpu.h. */
#include "cuda_thread.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "cuda_context.h"
#include "cuda_path.h"
#include "cuda_region.h"
#include "cuda_tier.h"
#include "daemon/base/container_of.h"
#include "daemon/base/log.h"
#include "daemon/base/thread.h"

enum {
	SLACK_NS = 1000,
	PIN_LOOK_NS = 100000000, /* at a stop: while the pin thread is not off */
};
/* At a stop, for a thread that a driver call holds. */
static const uint64_t JOIN_NS = 5000000000u;
/* A context that nobody uses gives its memory back after this. */
static const uint64_t UNUSED_NS = 10000000000u;

static void show(struct cuda_gpu *gpu)
{
	struct cuda_view view = {
		.state = gpu->state,
		.regions = gpu->regions,
		.bytes = gpu->bytes + gpu->lent_bytes,
		.lent_regions = gpu->lent_regions,
		.lent_bytes = gpu->lent_bytes,
		.context_bytes = gpu->context_bytes,
		.tier = gpu->tier,
	};

	cuda_tier_tell(gpu);
	if (gpu->why[0] || gpu->state != CUDA_UP)
		memcpy(view.why, gpu->why, sizeof(view.why));
	else
		snprintf(view.why, sizeof(view.why), "%s", gpu->tier_why);
	view.tier_refused = gpu->state == CUDA_UP && gpu->tier_why[0] != '\0';
	cuda_path_count(gpu->path, &view);
	(void)pthread_mutex_lock(&gpu->lock);
	view.lost = gpu->view.lost;
	view.generation = gpu->view.generation;
	view.ending = gpu->view.ending;
	gpu->view = view;
	(void)pthread_mutex_unlock(&gpu->lock);
}

/* What was imported is void; or, later, the GPU is ENDING. */
static void tell(struct cuda_gpu *gpu, bool ending)
{
	bool send;

	(void)pthread_mutex_lock(&gpu->lock);
	if (!ending) {
		gpu->view.lost++;
		gpu->view.generation = gpu->generation + 1;
	}
	gpu->view.ending = ending;
	memcpy(gpu->view.why, gpu->why, sizeof(gpu->view.why));
	send = !gpu->lost_sent;
	gpu->lost_sent = true;
	(void)pthread_mutex_unlock(&gpu->lock);
	if (send) {
		struct mails one;

		mails_clear(&one);
		mails_append(&one, &gpu->lost_mail.mail);
		mailbox_post(&gpu->out, &one);
	}
}

/* A process that has had a sticky error is asked at once whether the driver gives it another
 * context, and not when the next engine comes: an MPS server that waits for the end of all its
 * clients lets no engine in. */
static bool try_again(struct cuda_gpu *gpu)
{
	char text[200];

	if (gpu->state != CUDA_NONE || !gpu->sick || cuda_now() < gpu->retry_ns)
		return false;
	(void)cuda_context_need(gpu, text, sizeof(text));
	return true;
}

/* The context is gone, and no worker looks at its pinned memory: jobs that were in flight end. If
 * it could not be reset, the GPU may still touch their pages, and they end with the process. */
static void lose(struct cuda_gpu *gpu)
{
	cuda_context_close(gpu, true);
	cuda_regions_lost(gpu);
	if (gpu->state == CUDA_NONE && cuda_losses_are_many(&gpu->losses, cuda_now()))
		gpu->state = CUDA_OUT;
	cuda_tier_tell(gpu);
	tell(gpu, false); /* before the jobs: a client that hears of its job knows why */
	if (!gpu->stuck)
		cuda_path_lost(gpu->path);
}

/* Once: only a new process can use the GPU. It is told when the GPU broke. */
static void ask_for_the_end(struct cuda_gpu *gpu)
{
	int r;

	if (gpu->view.ending)
		return;
	r = cuda_losses_save(&gpu->losses, gpu->conf.state_dir, gpu->found->uuid);
	if (r)
		log_warning("[daemon] state_dir: when %s failed cannot be written there: %s",
			    gpu->found->name, strerror(-r));
	tell(gpu, true);
}

static void begin(struct cuda_gpu *gpu)
{
	const uint64_t now = cuda_now();

	cuda_losses_load(&gpu->losses, gpu->conf.state_dir, gpu->found->uuid, now);
	if (!cuda_losses_are_many(&gpu->losses, now))
		return;
	gpu->state = CUDA_OUT;
	snprintf(gpu->why, sizeof(gpu->why),
		 "it failed %d times within a minute, and the kvtierd before this one ended "
		 "because of it: repair it, then systemctl restart kvtierd",
		 CUDA_LOSSES_MAX);
}

static bool take_mail(struct cuda_gpu *gpu)
{
	struct mails mails;
	struct mail *mail;
	bool any = false;

	mails_clear(&mails);
	mailbox_take(&gpu->in, &mails);
	while ((mail = mails_take(&mails)) != NULL) {
		struct cuda_mail *m = container_of(mail, struct cuda_mail, mail);

		m->run(gpu, m);
		any = true;
	}
	return any;
}

static void sleep_until_news(struct cuda_gpu *gpu, uint64_t wait_ns)
{
	struct pollfd fds[2] = { { .fd = gpu->in.fd, .events = POLLIN },
				 { .fd = cuda_path_fd(gpu->path), .events = POLLIN } };
	const struct timespec wait = { .tv_nsec = (long)wait_ns };

	__atomic_store_n(&gpu->turn_ns, 0, __ATOMIC_RELAXED);
	if (ppoll(fds, 2, wait_ns ? &wait : NULL, NULL) > 0) {
		if (fds[0].revents)
			mailbox_hear(&gpu->in);
		if (fds[1].revents)
			cuda_path_hear(gpu->path);
	}
	__atomic_store_n(&gpu->turn_ns, cuda_now(), __ATOMIC_RELAXED);
}

static bool ends(struct cuda_gpu *gpu)
{
	bool stopping;

	(void)pthread_mutex_lock(&gpu->lock);
	stopping = gpu->stopping;
	(void)pthread_mutex_unlock(&gpu->lock);
	return stopping && cuda_path_idle(gpu->path);
}

/* True: the context was closed. */
static bool close_unused(struct cuda_gpu *gpu)
{
	if (gpu->state != CUDA_UP)
		return false;
	if (gpu->users > 0 || !cuda_path_idle(gpu->path)) {
		if (gpu->idle_ns)
			cuda_pin_on(gpu->pin, gpu->in_context.context); /* it may be leaving */
		gpu->idle_ns = 0;
		return false;
	}
	if (gpu->idle_ns == 0)
		gpu->idle_ns = cuda_now();
	if (cuda_now() - gpu->idle_ns < UNUSED_NS || !cuda_pin_off(gpu->pin, false) ||
	    cuda_pin_broken(gpu->pin))
		return false;
	gpu->idle_ns = 0;
	cuda_context_close(gpu, false);
	return true;
}

/* A call of the pin thread has found the context broken. */
static void look_at_pin(struct cuda_gpu *gpu)
{
	const CUresult result = cuda_pin_broken(gpu->pin);

	if (gpu->state == CUDA_UP && result)
		(void)cuda_check(gpu, result, "cuMemHostRegister", NULL, 0);
}

static void end(struct cuda_gpu *gpu)
{
	(void)take_mail(gpu); /* mail may have come between the last look and the word to stop */
	while (!cuda_pin_off(gpu->pin, gpu->state != CUDA_UP)) {
		sleep_until_news(gpu, PIN_LOOK_NS);
		look_at_pin(gpu);
	}
	look_at_pin(gpu);
	if (gpu->state == CUDA_UP || gpu->state == CUDA_FAILING) /* a context may break last */
		cuda_context_close(gpu, gpu->state == CUDA_FAILING);
	cuda_regions_lost(gpu);
}

static void *run(void *arg)
{
	struct cuda_gpu *gpu = arg;

	(void)prctl(PR_SET_NAME, "kvtier-gpu");
	(void)prctl(PR_SET_TIMERSLACK, SLACK_NS);
	__atomic_store_n(&gpu->turn_ns, cuda_now(), __ATOMIC_RELAXED);
	begin(gpu);
	while (!ends(gpu)) {
		bool worked = take_mail(gpu);

		look_at_pin(gpu);
		worked |= cuda_path_turn(gpu->path);
		if (gpu->state == CUDA_FAILING && cuda_path_quiet(gpu->path) &&
		    cuda_pin_off(gpu->pin, true)) {
			lose(gpu);
			worked = true;
		}
		worked |= close_unused(gpu);
		worked |= try_again(gpu);
		if (gpu->state == CUDA_ENDING)
			ask_for_the_end(gpu);
		show(gpu);
		if (!worked)
			sleep_until_news(gpu, cuda_path_wait_ns(gpu->path));
	}
	end(gpu);
	return NULL;
}

/* With the lock held. */
static int start(struct cuda_gpu *gpu)
{
	int r = cuda_path_start(gpu->path);

	if (r == 0)
		r = thread_start(&gpu->thread, 0, run, gpu);
	gpu->started = r == 0;
	return r;
}

/* --- open and close --- */

/* From the pin thread. */
static void on_pin(void *arg)
{
	mailbox_ring(&((struct cuda_gpu *)arg)->in);
}

int cuda_thread_open(const struct cuda_driver *driver, const struct cuda_found *found,
		     const struct cuda_gpu_conf *conf, struct cuda_gpu **ret)
{
	struct cuda_gpu *gpu = NULL;
	int r = cuda_gpu_open(driver, found, conf, &gpu);

	if (r)
		return r;
	gpu->start = start;
	r = cuda_path_open(gpu, &gpu->path);
	if (r == 0 && conf->pins)
		r = cuda_pin_open(conf->pins, &driver->api, on_pin, gpu, &gpu->pin);
	if (r) {
		cuda_path_close(gpu->path);
		cuda_gpu_close(gpu);
	} else {
		*ret = gpu;
	}
	return r;
}

/* To unregister memory takes as long as there is memory: it is waited for while it goes on. */
static bool end_thread(struct cuda_gpu *gpu)
{
	uint64_t calls;
	int r = 0;

	(void)pthread_mutex_lock(&gpu->lock);
	gpu->stopping = true;
	(void)pthread_mutex_unlock(&gpu->lock);
	mailbox_ring(&gpu->in);
	do {
		calls = cuda_pin_calls(gpu->pin);
		r = gpu->started ? thread_join_within(gpu->thread, JOIN_NS) : 0;
	} while (r && cuda_pin_calls(gpu->pin) != calls);
	return r == 0;
}

void cuda_thread_close(struct cuda_gpu *gpu)
{
	if (!gpu || !end_thread(gpu))
		return;
	cuda_pin_close(gpu->pin);
	cuda_path_close(gpu->path);
	cuda_gpu_close(gpu);
}
