/* SPDX-License-Identifier: Apache-2.0 */
/* lib_gpu_pin.c - see lib_gpu_pin.h. */
#include "lib_gpu_pin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kvtier_geometry pin_geometry(uint32_t codec, uint32_t layers)
{
	struct kvtier_geometry g = tiny_geometry(codec);

	g.model = "pinned@1";
	g.layers = layers;
	g.kv_heads = 4;
	g.head_dim_k = g.head_dim_v = 128;
	g.block_tokens = 32;
	return g;
}

void pin_start_placed(struct daemon *d, const char *settings, const char *host)
{
	char config[512];

	snprintf(config, sizeof(config),
		 "[host]\nbytes = %dM\n%s%shuge_pages = no\n%s\n"
		 "[device]\nworkers = 2\ndepth = 16\n"
		 "[gpu]\ndevices = required\nstaging_bytes = 8M\n",
		 (int)PIN_MIB, strstr(host, "slab_bytes") ? "" : "slab_bytes = 1M\n",
		 strstr(host, "pin_bytes") ? "" : "pin_bytes = 1M\n", host);
	gpu_hold();
	gpu_report_clear();
	gpu_settings("%s", settings);
	daemon_configure(d, config);
	daemon_restart(d);
	gpu_settings("%s", "");
}

void pin_start(struct daemon *d, const char *settings, const char *host)
{
	daemon_place(d, strstr(host, "[nvme]") != NULL);
	pin_start_placed(d, settings, host);
}

/* The plan of a layout is a few hundred bytes of the heap. */
static void look_for_pageable(void *arg, const char *said)
{
	const char *bytes = strstr(said, ": ");

	(void)arg;
	if (strstr(said, "pageable") && (!bytes || strtoull(bytes + 2, NULL, 10) > 65536))
		fail_msg("kvtierd copies to or from pageable memory: %s", said);
}

void pin_clean(void)
{
	gpu_report_each("kvtierd", "note", look_for_pageable, NULL);
	gpu_report_clean("kvtierd");
}

void pin_stop(struct daemon *d)
{
	daemon_stat_becomes(d, "ops.outstanding", 0, PATIENT_MS);
	daemon_remove(d);
	pin_clean();
}

void pin_becomes(const struct daemon *d, uint64_t mib)
{
	daemon_stat_becomes(d, "tiers.host.pinned_bytes", mib << 20, PATIENT_MS);
}

void pin_copied(const struct daemon *d, uint64_t direct_out, uint64_t direct_in,
		uint64_t bounced_out, uint64_t bounced_in)
{
	const struct {
		const char *path;
		uint64_t kib;
	} all[] = {
		{ "gpu.direct_out_bytes_total", direct_out },
		{ "gpu.direct_in_bytes_total", direct_in },
		{ "gpu.bounced_out_bytes_total", bounced_out },
		{ "gpu.bounced_in_bytes_total", bounced_in },
	};

	for (int i = 0; i < 4; i++)
		daemon_stat_becomes(d, all[i].path, all[i].kib << 10, PATIENT_MS);
	for (int i = 0; i < 4; i++)
		assert_int_equal(daemon_stat(d, all[i].path), all[i].kib << 10);
}

static void use(const struct gpu *gpu)
{
	GPU(gpu_api()->cuCtxSetCurrent(gpu->context));
}

void pin_open(struct gpu_engine *ge, const struct gpu *gpu, const char *socket,
	      const struct kvtier_geometry *g)
{
	use(gpu);
	gpu_engine_open(ge, gpu, socket, g, PIN_PAGES, GPU_ALLOC);
	gpu_engine_reached(ge, "CUDA IPC");
}

void pin_store(struct gpu_engine *ge, uint64_t chain)
{
	struct kvtier_key keys[PIN_BLOCKS];

	use(ge->gpu);
	chain_keys(&ge->e, chain, PIN_BLOCKS, keys);
	assert_int_equal(gpu_chain_store(ge, keys, 0, PIN_BLOCKS), 0);
}

void pin_load(struct gpu_engine *ge, uint64_t chain)
{
	struct kvtier_key keys[PIN_BLOCKS];

	use(ge->gpu);
	chain_keys(&ge->e, chain, PIN_BLOCKS, keys);
	assert_int_equal(gpu_chain_load(ge, keys, PIN_BLOCKS, PIN_BLOCKS), PIN_BLOCKS);
}

void pin_close(struct gpu_engine *ge)
{
	use(ge->gpu);
	gpu_engine_close(ge);
}
