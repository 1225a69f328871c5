/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_up.c - see cuda_up.h. */
#include "cuda_up.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "cuda_search.h"
#include "daemon/base/log.h"
#include "daemon/config/config_derive.h"
#include "device_cuda.h"

enum {
	WORKERS_MOST = 8, /* of a GPU: some 10 GB/s each */
	STAGING_BYTES_MPS = 32 << 20,
	STAGING_BYTES = 128 << 20,
};

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

/* The settings that are auto, for this GPU. */
static void choose(struct cuda_gpu_conf *conf, const struct cuda_found *found)
{
	if (conf->max_ctas == CONFIG_COUNT_AUTO)
		conf->max_ctas = found->mps || found->processors <= 0 ? DEVICE_CTAS_SHARED :
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
		struct cuda_gpu_conf conf = common;

		choose(&conf, found);
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
	    struct devices *devices, struct cuda_search **ret, char *text, size_t n)
{
	const bool required = config->gpu_devices == CONFIG_GPU_REQUIRED;
	const struct cuda_driver *driver;
	char *note = devices->gpu_note;

	if (config->gpu_devices == CONFIG_GPU_OFF) {
		snprintf(note, sizeof(devices->gpu_note), "[gpu] devices = off");
		return 0;
	}
	driver = cuda_search_open(required, ret, note, sizeof(devices->gpu_note));
	if (driver && serve_gpus(driver, config, host, loop, devices) == 0)
		return 0;
	if (required) {
		snprintf(text, n, "[gpu] devices = required: %s", note);
		return -ENODEV;
	}
	log_info("no GPU is served: %s", note);
	return 0;
}
