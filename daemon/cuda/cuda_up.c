/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_up.c - see cuda_up.h. */
#include "cuda_up.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device_cuda.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/text.h"
#include "daemon/config/config.h"

/* --- the driver is looked for --- */

enum {
	/* for a first answer: eight GPUs without a persistence daemon take half a minute */
	ANSWER_S = 60,
	READY_S = 4, /* for a driver that is not ready, at the start */
	PAUSE_MOST_S = 60,
};

/* Whoever comes last, the thread or its asker, frees it. Once found, the driver stays for ever: its
 * library does, too. */
struct cuda_search {
	struct cuda_driver driver; /* the thread's, until it has ended */
	/* Guards the fields below. Take no locks while holding it. */
	pthread_mutex_t lock;
	pthread_cond_t news;
	bool ended, left;
	uint32_t answers;
	int status; /* of the last answer */
	bool gpus;  /* after it: the driver may be ready later, and there are GPUs */
	char text[200];
};

/* For ever, like the library itself: a GPU's thread that a call of the driver holds is left behind
 * at a stop, and may return to these pointers. Volatile, so that the address is kept, too: a leak
 * checker looks for it. */
static const struct cuda_search *volatile kept;

static struct timespec after(uint32_t seconds)
{
	return clock_timespec(clock_ns() + seconds * 1000000000ull);
}

/* That kvtierd can use. */
static bool has_gpus(const struct cuda_driver *driver)
{
	for (uint32_t i = 0; i < driver->n; i++)
		if (!driver->found[i].why[0])
			return true;
	return false;
}

/* With the lock held: an answer has come. */
static bool goes_on(struct cuda_search *s, int status, const char *text)
{
	s->answers++;
	s->status = status;
	s->gpus = status && s->driver.later && !s->driver.none;
	snprintf(s->text, sizeof(s->text), "%s", text);
	(void)pthread_cond_broadcast(&s->news);
	return status && s->driver.later && !s->left;
}

static void *look(void *arg)
{
	struct cuda_search *s = arg;
	uint32_t pause_s = 1;
	char text[sizeof(s->text)];
	bool left;
	int r = cuda_load(&s->driver, text, sizeof(text));

	(void)pthread_mutex_lock(&s->lock);
	while (goes_on(s, r, text)) {
		const struct timespec until = after(pause_s);

		while (!s->left && pthread_cond_timedwait(&s->news, &s->lock, &until) == 0)
			;
		pause_s = pause_s < PAUSE_MOST_S / 2 ? 2 * pause_s : PAUSE_MOST_S;
		if (s->left)
			break;
		(void)pthread_mutex_unlock(&s->lock);
		r = cuda_load(&s->driver, text, sizeof(text));
		(void)pthread_mutex_lock(&s->lock);
	}
	s->ended = true;
	left = s->left;
	(void)pthread_cond_broadcast(&s->news);
	(void)pthread_mutex_unlock(&s->lock);
	if (left)
		free(s);
	return NULL;
}

/* With the lock held: until it has ended, or `answers` have come and no more is to be expected from
 * waiting on. */
static void wait_for_answers(struct cuda_search *s, bool required)
{
	struct timespec until = after(ANSWER_S);

	while (!s->ended && s->answers == 0 &&
	       pthread_cond_timedwait(&s->news, &s->lock, &until) == 0)
		;
	if (s->answers == 0 || (!s->gpus && !required))
		return;
	until = after(required ? ANSWER_S : READY_S);
	while (!s->ended && pthread_cond_timedwait(&s->news, &s->lock, &until) == 0)
		;
}

/* Waits for the driver's first answer, and some seconds more for a driver that is not ready; if a
 * GPU is `required`, as long for each answer. Returns the driver, which stays for ever; or NULL
 * with text, and then *ret, unless it is NULL, is still looking. */
static const struct cuda_driver *search(bool required, struct cuda_search **ret, char *text,
					size_t n)
{
	struct cuda_search *s = calloc(1, sizeof(*s));
	bool ended, answered;
	int r;

	*ret = NULL;
	if (!s) {
		snprintf(text, n, "out of memory");
		return NULL;
	}
	(void)pthread_mutex_init(&s->lock, NULL);
	thread_cond_open(&s->news);
	r = thread_start(NULL, 0, look, s);
	if (r) {
		snprintf(text, n, "no thread can be made: %s", strerror(-r));
		free(s);
		return NULL;
	}
	(void)pthread_mutex_lock(&s->lock);
	wait_for_answers(s, required);
	ended = s->ended;
	answered = s->answers > 0;
	snprintf(text, n, "%s", s->text);
	(void)pthread_mutex_unlock(&s->lock);
	if (ended && s->status == 0) {
		kept = s;
		return &kept->driver;
	}
	if (!answered)
		snprintf(text, n,
			 "the CUDA driver did not answer within %d s (nvidia-persistenced "
			 "makes it faster)",
			 ANSWER_S);
	if (ended || !answered)
		cuda_search_close(s);
	else
		*ret = s;
	return NULL;
}

enum cuda_search_news cuda_search_look(struct cuda_search *s, char *text, size_t n)
{
	enum cuda_search_news ret = CUDA_SEARCH_NONE;

	if (!s)
		return ret;
	(void)pthread_mutex_lock(&s->lock);
	if (s->ended && s->status == 0 && has_gpus(&s->driver))
		ret = CUDA_SEARCH_READY;
	else if (s->gpus)
		ret = CUDA_SEARCH_WAITS;
	if (ret == CUDA_SEARCH_READY)
		snprintf(text, n, "the CUDA driver is ready now: a new kvtierd can serve its GPUs");
	else if (s->ended)
		snprintf(text, n, "%s", s->text);
	else
		snprintf(text, n, "%.180s; the driver is asked again and again", s->text);
	(void)pthread_mutex_unlock(&s->lock);
	return ret;
}

void cuda_search_close(struct cuda_search *s)
{
	bool ended;

	if (!s)
		return;
	(void)pthread_mutex_lock(&s->lock);
	ended = s->ended;
	s->left = true;
	(void)pthread_cond_broadcast(&s->news);
	(void)pthread_mutex_unlock(&s->lock);
	if (ended)
		free(s);
}

/* --- the GPUs --- */

enum {
	WORKERS_MOST = 8, /* of a GPU: some 10 GB/s each */
	CTAS_MPS = 8,     /* of a kernel beside an engine's: several times a wire's speed */
	STAGING_BYTES_MPS = 32 << 20,
	STAGING_BYTES = 128 << 20,
};

static uint32_t workers_of(const struct config *config)
{
	const uint32_t n = config->device_workers ? config->device_workers : thread_cpus();

	return n < WORKERS_MOST ? n : WORKERS_MOST;
}

static void say_driver(uint32_t i, const struct cuda_found *found)
{
	const struct cuda_kernels_for *k = &found->kernels;
	const int least = cuda_binaries_driver(cuda_binaries, k->capability);

	log_info("gpu_up",
		 "GPU %u (%.63s), compute capability %d.%d: CUDA driver %d.%d; the kernels inside "
		 "need %d.%d or later",
		 i, found->name, k->capability / 10, k->capability % 10, k->driver / 1000,
		 k->driver % 1000 / 10, least / 1000, least % 1000 / 10);
}

/* The settings that are auto, for this GPU. */
static void choose(struct cuda_gpu_conf *conf, const struct cuda_found *found)
{
	if (conf->max_ctas == CONFIG_COUNT_AUTO)
		conf->max_ctas = found->mps || found->processors <= 0 ? CTAS_MPS :
									(uint32_t)found->processors;
	if (conf->staging_bytes == CONFIG_AUTO)
		conf->staging_bytes = found->mps ? STAGING_BYTES_MPS : STAGING_BYTES;
}

static int add_gpus(const struct cuda_driver *driver, const struct config *config,
		    struct cuda_pins *pins, struct loop *loop, struct devices *devices)
{
	const struct cuda_gpu_conf common = {
		.pins = pins,
		.state_dir = config->daemon_state_dir,
		.max_ctas = config->gpu_max_ctas,
		.workers = workers_of(config),
		.depth = config_device_depth(),
		.staging_bytes = config->gpu_staging_bytes,
		.tier_bytes = config->gpu_bytes,
		.slab_bytes = config->host_slab_bytes,
		.kernels = codec_kernels(NULL),
	};
	const uint32_t before = devices->n;
	char *note = devices->gpu_note;
	struct device *device;
	int r = 0;

	for (uint32_t i = 0; i < driver->n && r == 0; i++) {
		const struct cuda_found *found = &driver->found[i];
		struct cuda_gpu_conf conf = common;

		choose(&conf, found);
		if (found->why[0] || devices_find(devices, found->uuid)) {
			snprintf(note, sizeof(devices->gpu_note), "GPU %u (%.63s): %s", i,
				 found->name,
				 found->why[0] ? found->why : "another GPU has the same UUID");
			devices->gpu_unused = true;
			log_warning("gpu_left_out", "%s", note);
			continue;
		}
		r = device_cuda_open(driver, found, &conf, loop, &device);
		if (r == 0)
			r = devices_add(devices, device);
		if (r == 0)
			say_driver(i, found);
	}
	if (r)
		snprintf(note, sizeof(devices->gpu_note), "a GPU cannot be served: %s",
			 strerror(-r));
	return devices->n > before ? 0 : -ENODEV;
}

/* With the parts that they share. */
static int serve_gpus(const struct cuda_driver *driver, const struct config *config,
		      struct tier *host, struct loop *loop, struct devices *devices)
{
	struct cuda_pins *pins = NULL;
	int r = config->host_pin ? cuda_pins_open(host, &pins) : 0;

	if (r)
		snprintf(devices->gpu_note, sizeof(devices->gpu_note), "out of memory");
	else
		r = add_gpus(driver, config, pins, loop, devices);
	cuda_pins_close(pins);
	return r;
}

int cuda_up(const struct config *config, struct tier *host, struct loop *loop,
	    struct devices *devices, struct cuda_search **ret, char *text, size_t n)
{
	const bool required = config->gpu_devices == CONFIG_GPU_REQUIRED;
	const struct cuda_driver *driver;
	char *note = devices->gpu_note;

	if (config->gpu_devices == CONFIG_GPU_OFF) {
		snprintf(note, sizeof(devices->gpu_note), "[gpu] devices = off");
		return 0;
	}
	driver = search(required, ret, note, sizeof(devices->gpu_note));
	if (driver && serve_gpus(driver, config, host, loop, devices) == 0)
		return 0;
	if (required)
		return text_fail(text, n, -ENODEV, "[gpu] devices = required: %s", note);
	log_info("no_gpu", "no GPU is served: %s", note);
	return 0;
}
