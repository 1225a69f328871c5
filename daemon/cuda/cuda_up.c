/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_up.c - see cuda_up.h. */
#include "cuda_up.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/base/log.h"
#include "daemon/base/thread.h"
#include "daemon/config/config_derive.h"
#include "device_cuda.h"

enum {
	ANSWER_S = 20,    /* for the driver, until the daemon starts without it */
	WORKERS_MOST = 8, /* of a GPU: some 10 GB/s each */
};

/* The driver is looked for. Whoever comes last, the thread or its asker, frees it. Once found, the
 * driver stays for ever: its library does, too. */
struct driver_search {
	struct cuda_driver driver;
	pthread_mutex_t lock;
	pthread_cond_t found;
	bool done, left;
	int status;
	char text[200];
};

/* For ever, like the library itself: a GPU's thread that a call of the driver holds is left behind
 * at a stop, and may return to these pointers. Volatile, so that the address is kept, too: a leak
 * checker looks for it. */
static const struct driver_search *volatile kept;

static void *look(void *arg)
{
	struct driver_search *s = arg;
	bool left;

	s->status = cuda_load(&s->driver, s->text, sizeof(s->text));
	(void)pthread_mutex_lock(&s->lock);
	s->done = true;
	left = s->left;
	(void)pthread_cond_signal(&s->found);
	(void)pthread_mutex_unlock(&s->lock);
	if (left)
		free(s);
	return NULL;
}

/* NULL, with text: there is no driver, or it does not answer. */
static const struct cuda_driver *find_driver(char *text, size_t n)
{
	struct driver_search *s = calloc(1, sizeof(*s));
	struct timespec until;
	bool done;
	int r;

	if (!s) {
		snprintf(text, n, "out of memory");
		return NULL;
	}
	(void)pthread_mutex_init(&s->lock, NULL);
	thread_cond_open(&s->found);
	r = thread_start(NULL, 0, look, s);
	if (r) {
		snprintf(text, n, "no thread can be made: %s", strerror(-r));
		free(s);
		return NULL;
	}
	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += ANSWER_S;
	(void)pthread_mutex_lock(&s->lock);
	while (!s->done && pthread_cond_timedwait(&s->found, &s->lock, &until) == 0)
		;
	done = s->done;
	s->left = !done;
	(void)pthread_mutex_unlock(&s->lock);
	if (done && s->status == 0) {
		kept = s;
		return &kept->driver;
	}
	if (done) {
		snprintf(text, n, "%s", s->text);
		free(s);
	} else {
		snprintf(text, n, "the CUDA driver did not answer within %d s", ANSWER_S);
	}
	return NULL;
}

static uint32_t usable_cpus(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? 1 : (uint32_t)CPU_COUNT(&set);
}

static uint32_t workers_of(const struct config *config)
{
	const uint32_t n = config->device_workers ? config->device_workers : usable_cpus();

	return n < WORKERS_MOST ? n : WORKERS_MOST;
}

static void say_driver(uint32_t i, const struct cuda_found *found)
{
	const struct cuda_kernels_for *k = &found->kernels;
	const int least = cuda_binaries_driver(cuda_binaries, k->capability);

	log_info("GPU %u (%.63s), compute capability %d.%d: CUDA driver %d.%d; the kernels inside "
		 "need %d.%d or later",
		 i, found->name, k->capability / 10, k->capability % 10, k->driver / 1000,
		 k->driver % 1000 / 10, least / 1000, least % 1000 / 10);
}

static int add_gpus(const struct cuda_driver *driver, const struct config *config,
		    struct cuda_pins *pins, struct loop *loop, struct devices *devices)
{
	const struct cuda_gpu_conf conf = {
		.pins = pins,
		.state_dir = config->daemon_state_dir,
		.max_ctas = config->gpu_max_ctas,
		.workers = workers_of(config),
		.depth = config->device_depth,
		.staging_bytes = config->gpu_staging_bytes,
		.tier_bytes = config->gpu_bytes,
		.slab_bytes = config->host_slab_bytes,
		.engine_bytes = config->gpu_engine_bytes,
		.kernels = codec_kernels(config_kernels_name(config)),
	};
	const uint32_t before = devices->n;
	char *note = devices->gpu_note;
	struct device *device;
	int r = 0;

	for (uint32_t i = 0; i < driver->n && r == 0; i++) {
		const struct cuda_found *found = &driver->found[i];

		if (found->why[0] || devices_find(devices, found->uuid)) {
			snprintf(note, sizeof(devices->gpu_note), "GPU %u (%.63s): %s", i,
				 found->name,
				 found->why[0] ? found->why : "its UUID is not its own");
			devices->gpu_unused = true;
			log_warning("%s", note);
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
	int r = config->host_pin ? cuda_pins_open(host, config->host_pin_bytes, &pins) : 0;

	if (r)
		snprintf(devices->gpu_note, sizeof(devices->gpu_note), "out of memory");
	else
		r = add_gpus(driver, config, pins, loop, devices);
	cuda_pins_close(pins);
	return r;
}

int cuda_up(const struct config *config, struct tier *host, struct loop *loop,
	    struct devices *devices, char *text, size_t n)
{
	const struct cuda_driver *driver;
	char *note = devices->gpu_note;

	if (config->gpu_devices == CONFIG_GPU_OFF) {
		snprintf(note, sizeof(devices->gpu_note), "[gpu] devices = off");
		return 0;
	}
	driver = find_driver(note, sizeof(devices->gpu_note));
	if (driver && serve_gpus(driver, config, host, loop, devices) == 0)
		return 0;
	if (config->gpu_devices == CONFIG_GPU_REQUIRED) {
		snprintf(text, n, "[gpu] devices = required: %s", note);
		return -ENODEV;
	}
	log_info("no GPU is served: %s", note);
	return 0;
}
