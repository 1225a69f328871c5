/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_cuda.c - see device_cuda.h: the thread of a GPU, and the core's side of it.
 *
 *	core: submit --gathered--> kick --mailbox--> thread ... --mailbox, loop--> device_complete()
 */
#include "device_cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "cuda_context.h"
#include "cuda_region.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/thread.h"
#include "daemon/cuda/driver/cuda_tier.h"
#include "daemon/cuda/lane/cuda_lane.h"
#include "daemon/cuda/lane/cuda_path.h"

enum {
	SLACK_NS = 1000,
	PIN_LOOK_NS = 100000000, /* at a stop: while the pin thread is not off */
};
/* At a stop, for a thread that a driver call holds. */
static const uint64_t JOIN_NS = 5000000000u;
/* A context that has no users gives its memory back after this. */
static const uint64_t UNUSED_NS = 10000000000u;
/* CUDA_LOSSES_MAX losses within this keep a GPU out. */
static const uint64_t WITHIN_NS = 60000000000u;
/* An iteration of the thread that takes longer: a driver call hangs. */
static const uint64_t SILENT_NS = 5000000000u;

/* --- the thread: when its contexts broke ---
 *
 * The times are left in a file for the next kvtierd, if this one ends because of the GPU: a GPU
 * that breaks each new process stays out, too. CUDA_LOSSES_MAX numbers, a line each. */

/* The oldest of the last losses is less than a minute ago. */
static bool losses_are_many(const struct cuda_gpu *gpu, uint64_t now_ns)
{
	return gpu->losses_ns[0] && now_ns - gpu->losses_ns[0] < WITHIN_NS;
}

/* False: there is no such directory, or its name is too long. */
static bool path_of(const struct cuda_gpu *gpu, char *ret, size_t n)
{
	const char *state_dir = gpu->conf.state_dir;
	size_t at = state_dir ? (size_t)snprintf(ret, n, "%s/gpu-", state_dir) : n;

	for (int i = 0; i < WIRE_UUID_BYTES && at < n; i++)
		at += (size_t)snprintf(ret + at, n - at, "%02x", gpu->found->uuid[i]);
	if (at < n)
		at += (size_t)snprintf(ret + at, n - at, ".losses");
	return at < n;
}

/* Times of another boot, or that cannot be read, are ignored. */
static void load_losses(struct cuda_gpu *gpu, uint64_t now_ns)
{
	char path[4200], text[128];
	uint64_t at[CUDA_LOSSES_MAX];
	ssize_t n;
	int fd;

	if (!path_of(gpu, path, sizeof(path)))
		return;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return;
	n = read(fd, text, sizeof(text) - 1);
	(void)close(fd);
	text[n > 0 ? n : 0] = '\0';
	if (sscanf(text, "%" SCNu64 " %" SCNu64 " %" SCNu64, &at[0], &at[1], &at[2]) !=
		    CUDA_LOSSES_MAX ||
	    at[0] > at[1] || at[1] > at[2] || at[2] > now_ns)
		return;
	memcpy(gpu->losses_ns, at, sizeof(at));
}

static int save_losses(const struct cuda_gpu *gpu)
{
	const uint64_t *at = gpu->losses_ns;
	char path[4200];
	int fd, r = 0;

	if (!path_of(gpu, path, sizeof(path)))
		return -ENAMETOOLONG;
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (fd < 0)
		return -errno;
	if (dprintf(fd, "%" PRIu64 "\n%" PRIu64 "\n%" PRIu64 "\n", at[0], at[1], at[2]) < 0)
		r = -errno;
	(void)close(fd);
	return r;
}

/* --- news for others --- */

static void show(struct cuda_gpu *gpu)
{
	static const char *const states[CUDA_STATES] = {
		[CUDA_NONE] = "idle", [CUDA_UP] = "up",         [CUDA_FAILING] = "failed",
		[CUDA_OUT] = "out",   [CUDA_ENDING] = "ending",
	};
	const struct cuda_path *path = gpu->path;
	const bool images_why = !gpu->why[0] && gpu->state == CUDA_UP;
	struct device_note note = {
		.state = states[gpu->state],
		.regions = gpu->regions,
		.bytes = gpu->bytes,
		.image_bytes = gpu->tier.bytes,
		.images_refused = gpu->state == CUDA_UP && gpu->tier_why[0] != '\0',
		.context_bytes = gpu->context_bytes,
		.copied_out_bytes_total = path->out_bytes,
		.copied_in_bytes_total = path->in_bytes,
		.batches_total = path->batches,
		.busy_out_us_total = path->busy_ns[CUDA_STORE] / 1000,
		.busy_in_us_total = path->busy_ns[CUDA_LOAD] / 1000,
		.direct_out_bytes_total = path->direct_bytes[CUDA_STORE],
		.direct_in_bytes_total = path->direct_bytes[CUDA_LOAD],
		.bounced_out_bytes_total = path->bounced_bytes[CUDA_STORE],
		.bounced_in_bytes_total = path->bounced_bytes[CUDA_LOAD],
	};

	cuda_tier_tell(gpu);
	snprintf(note.why, sizeof(note.why), "%s", images_why ? gpu->tier_why : gpu->why);
	(void)pthread_mutex_lock(&gpu->lock);
	note.lost_total = gpu->view.note.lost_total;
	gpu->view.note = note;
	gpu->view.state = gpu->state;
	(void)pthread_mutex_unlock(&gpu->lock);
}

/* Tells the core that all imports are void, or that the GPU is ENDING. */
static void tell(struct cuda_gpu *gpu, bool ending)
{
	(void)pthread_mutex_lock(&gpu->lock);
	if (!ending) {
		gpu->view.note.lost_total++;
		gpu->view.generation = gpu->generation + 1;
	}
	gpu->view.ending = ending;
	memcpy(gpu->view.note.why, gpu->why, sizeof(gpu->view.note.why));
	(void)pthread_mutex_unlock(&gpu->lock);
	cuda_gpu_tell(gpu);
}

/* A process that has had a sticky error is asked at once whether the driver gives it another
 * context, and not when the next engine comes: an MPS server that waits for the end of all its
 * clients lets no engine in. */
static bool try_again(struct cuda_gpu *gpu)
{
	char text[200];

	if (gpu->state != CUDA_NONE || !gpu->sick || clock_ns() < gpu->retry_ns)
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
	if (gpu->state == CUDA_NONE && losses_are_many(gpu, clock_ns()))
		gpu->state = CUDA_OUT;
	cuda_tier_tell(gpu);
	tell(gpu, false); /* before the jobs: a client that hears of its job knows why */
	if (!gpu->stuck)
		cuda_path_lost(gpu->path);
}

/* Asks once for the end of the process, since only a new one can use the GPU. The new one is told
 * when the GPU broke. */
static void ask_for_the_end(struct cuda_gpu *gpu)
{
	int r;

	if (gpu->view.ending)
		return;
	r = save_losses(gpu);
	if (r)
		log_warning("state_dir",
			    "[daemon] state_dir: when %s failed cannot be written there: %s",
			    gpu->found->name, strerror(-r));
	tell(gpu, true);
}

static void begin(struct cuda_gpu *gpu)
{
	const uint64_t now = clock_ns();

	load_losses(gpu, now);
	if (!losses_are_many(gpu, now))
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
				 { .fd = workers_fd(gpu->path->workers), .events = POLLIN } };
	const struct timespec wait = { .tv_nsec = (long)wait_ns };

	__atomic_store_n(&gpu->iteration_ns, 0, __ATOMIC_RELAXED);
	if (ppoll(fds, 2, wait_ns ? &wait : NULL, NULL) > 0) {
		if (fds[0].revents)
			mailbox_hear(&gpu->in);
		if (fds[1].revents)
			workers_hear(gpu->path->workers);
	}
	__atomic_store_n(&gpu->iteration_ns, clock_ns(), __ATOMIC_RELAXED);
}

static bool ends(struct cuda_gpu *gpu)
{
	bool stopping;

	(void)pthread_mutex_lock(&gpu->lock);
	stopping = gpu->stopping;
	(void)pthread_mutex_unlock(&gpu->lock);
	return stopping && gpu->path->n_jobs == 0;
}

/* True: the context was closed. */
static bool close_unused(struct cuda_gpu *gpu)
{
	if (gpu->state != CUDA_UP)
		return false;
	if (gpu->users > 0 || gpu->path->n_jobs > 0) {
		if (gpu->idle_ns)
			cuda_pin_on(gpu->pin, gpu->in_context.context); /* it may be leaving */
		gpu->idle_ns = 0;
		return false;
	}
	if (gpu->idle_ns == 0)
		gpu->idle_ns = clock_ns();
	if (clock_ns() - gpu->idle_ns < UNUSED_NS || !cuda_pin_off(gpu->pin, false) ||
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
	__atomic_store_n(&gpu->iteration_ns, clock_ns(), __ATOMIC_RELAXED);
	begin(gpu);
	while (!ends(gpu)) {
		bool worked = take_mail(gpu);

		look_at_pin(gpu);
		worked |= cuda_path_poll(gpu->path);
		if (gpu->state == CUDA_FAILING && gpu->path->lent == 0 &&
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

/* --- its begin and its end --- */

/* From the pin thread. */
static void on_pin(void *arg)
{
	mailbox_ring(&((struct cuda_gpu *)arg)->in);
}

/* Unregistering takes long where there is much memory: it is waited for while it makes progress. */
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

/* --- the core's side --- */

static int gpu_submit(struct device *device, struct device_job *job)
{
	struct cuda_gpu *gpu = cuda_gpu_of(device);
	enum cuda_way way = CUDA_STORE;

	/* VERIFY and COPY are the CPU's */
	assert(job->kind == DEVICE_ENCODE || job->kind == DEVICE_DECODE ||
	       job->kind == DEVICE_FETCH);
	if (job->kind != DEVICE_ENCODE)
		way = job->image_memory == IMAGE_OF_DEVICE ? CUDA_HIT : CUDA_LOAD;
	mails_append(&gpu->gathered, &cuda_path_submit(gpu->path, job, way)->mail);
	return 0;
}

static void gpu_kick(struct device *device)
{
	struct cuda_gpu *gpu = cuda_gpu_of(device);

	if (gpu->gathered.n > 0)
		mailbox_post(&gpu->in, &gpu->gathered);
}

static void take_news(struct cuda_gpu *gpu)
{
	struct device *device = &gpu->base;
	const struct device_hooks none = { 0 }, *hooks = device->hooks ? device->hooks : &none;
	struct device_memory memory;
	uint32_t generation;
	char why[200];
	bool ending;

	(void)pthread_mutex_lock(&gpu->lock);
	gpu->news_sent = false;
	ending = gpu->view.ending && !gpu->told_ending;
	generation = gpu->view.generation;
	memory = gpu->view.tier;
	memcpy(why, gpu->view.note.why, sizeof(why));
	(void)pthread_mutex_unlock(&gpu->lock);
	if (memory.generation != gpu->told_memory && hooks->memory)
		hooks->memory(hooks->memory_arg, device, &memory);
	gpu->told_memory = memory.generation;
	if (generation != device->generation) {
		device->generation = generation;
		if (hooks->lost)
			hooks->lost(hooks->lost_arg, device, why);
	}
	gpu->told_ending |= ending;
	if (ending && hooks->ending)
		hooks->ending(hooks->ending_arg, device, why);
}

static bool take_ended(struct cuda_gpu *gpu)
{
	struct mails mails;
	struct mail *mail;
	bool any = false;

	mails_clear(&mails);
	mailbox_take(&gpu->out, &mails);
	while ((mail = mails_take(&mails)) != NULL) {
		if (mail == &gpu->news.mail)
			take_news(gpu);
		else
			device_complete(cuda_path_ended(gpu->path, mail));
		any = true;
	}
	return any;
}

static void on_ended(struct loop_watch *watch, uint32_t events)
{
	struct cuda_gpu *gpu = container_of(watch, struct cuda_gpu, watch);

	(void)events;
	mailbox_hear(&gpu->out);
	(void)take_ended(gpu);
}

static bool on_poll(struct loop_poller *poller)
{
	return take_ended(container_of(poller, struct cuda_gpu, poller));
}

/* --- for people --- */

static void gpu_note(const struct device *device, struct device_note *ret)
{
	struct cuda_gpu *gpu = (struct cuda_gpu *)(uintptr_t)device;
	const uint64_t begun = __atomic_load_n(&gpu->iteration_ns, __ATOMIC_RELAXED);
	const uint64_t now = loop_now(device->loop);
	enum cuda_state state;

	(void)pthread_mutex_lock(&gpu->lock);
	*ret = gpu->view.note;
	state = gpu->view.state;
	(void)pthread_mutex_unlock(&gpu->lock);
	ret->failed = state != CUDA_UP && ret->why[0] != '\0';
	if (begun && now > begun + SILENT_NS) {
		ret->state = "silent";
		ret->failed = true;
		snprintf(ret->why, sizeof(ret->why), "a call of the driver has taken %llu s so far",
			 (unsigned long long)((now - begun) / 1000000000u));
	} else if (ret->failed && state == CUDA_NONE) {
		ret->state = "failed";
	} else if (state == CUDA_NONE) {
		ret->state = "idle"; /* before the thread has shown more, too */
	}
	snprintf(ret->name, sizeof(ret->name), "%.63s", gpu->found->name);
	ret->mps = gpu->found->mps;
	ret->max_ctas = gpu->conf.max_ctas;
	ret->pinned_bytes = cuda_pin_bytes(gpu->pin, ret->pin_why, sizeof(ret->pin_why));
}

/* --- open and close --- */

/* A thread that does not end is left behind, with its GPU. */
static void gpu_close(struct device *device)
{
	struct cuda_gpu *gpu = cuda_gpu_of(device);

	if (gpu->watched) {
		loop_poller_remove(device->loop, &gpu->poller);
		loop_remove(device->loop, &gpu->watch);
		if (gpu->conf.pins)
			cuda_pins_stop(gpu->conf.pins);
	}
	if (!end_thread(gpu))
		return;
	cuda_pin_close(gpu->pin);
	cuda_path_close(gpu->path);
	cuda_gpu_close(gpu);
}

static const struct device_ops device_cuda_ops = {
	.name = "cuda",
	.close = gpu_close,
	.import = cuda_region_import,
	.release = cuda_region_release,
	.import_allocs = cuda_region_import_allocs,
	.prepare = cuda_layout_make,
	.forget = cuda_layout_forget,
	.submit = gpu_submit,
	.kick = gpu_kick,
	.note = gpu_note,
};

int device_cuda_open(const struct cuda_driver *driver, const struct cuda_found *found,
		     const struct cuda_gpu_conf *conf, struct loop *loop, struct device **ret)
{
	struct cuda_gpu *gpu = NULL;
	int r = cuda_gpu_open(driver, found, conf, &gpu);

	if (r)
		return r;
	gpu->base = (struct device){
		.ops = &device_cuda_ops,
		.loop = loop,
		.guarded = true, /* no page of a GPU is a hole */
		.layered = true,
		.depth = conf->depth,
		.own_depth = DEVICE_FETCHES,
		.numa_node = found->numa_node,
	};
	memcpy(gpu->base.uuid, found->uuid, sizeof(gpu->base.uuid));
	mails_clear(&gpu->gathered);
	gpu->watch.ready = on_ended;
	gpu->watch.fd = gpu->out.fd;
	gpu->poller.poll = on_poll;
	gpu->start = start;
	r = cuda_path_open(gpu, &gpu->path);
	if (r == 0 && conf->pins)
		r = cuda_pin_open(conf->pins, &driver->api, on_pin, gpu, &gpu->pin);
	if (r == 0)
		r = loop_add(loop, &gpu->watch, EPOLLIN);
	if (r) {
		gpu_close(&gpu->base);
		return r;
	}
	gpu->watched = true;
	loop_poller_add(loop, &gpu->poller);
	*ret = &gpu->base;
	return 0;
}
