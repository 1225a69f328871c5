/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=4 needs=kvtierd_nodes */
/*
 * gpu_nodes - goal: blocks of a GPU get slots on that GPU's NUMA node while there are some, from
 * whichever side they come, an engine's store, NVMe or Redis; then on the other node, where they
 * are as good; and the counters say which. Blocks of the CPU are not counted. Method: a kvtierd on
 * a machine of several nodes (kvtierd_nodes.c), two GPUs of two nodes, memory of both by node.
 */
#include "tests/lib/lib_gpu_engine.h"
#include "tests/lib/lib_redis.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* FEW of each of both GPUs are more than one node has slots for. */
enum { GPUS = 2, FEW = 18, MANY = 48, SLABS = 2, SLAB = 1 << 20 };

static const char config_format[] = "[host]\nbytes = 0:2M,1:2M\nslab_bytes = 1M\nhuge_pages = no\n"
				    "[gpu]\ndevices = required\nstaging_bytes = 8M\n"
				    "[nvme]\nbytes = 64M\nsegment_bytes = 1M\n"
				    "[redis]\nendpoints = %s\ntimeout_ms = 20000\n";

static struct daemon d;
static struct gpu gpus[GPUS];
static struct redis_server redis;
static char log_path[64];

static void tell(const char *command)
{
	char text[1024];

	if (daemon_ctl(&d, command, text, sizeof(text)) != 0)
		fail_msg("kvtierctl %s: %s", command, text);
}

static void slots_are(uint64_t near, uint64_t far)
{
	daemon_stat_becomes(&d, "tiers.host.near_slots_total", near, PATIENT_MS);
	assert_int_equal(daemon_stat(&d, "tiers.host.far_slots_total"), far);
}

FIXTURE(begin)
{
	char config[1024];

	redis_start(&redis, NULL);
	(void)snprintf(config, sizeof(config), config_format, redis.address);
	gpu_needs_emulation("the nodes of GPUs are a setting of the emulated driver");
	(void)snprintf(log_path, sizeof(log_path), "/tmp/kvtier-nodes-XXXXXX");
	(void)close(mkstemp(log_path));
	setenv("KVTIER_TEST_NODES", log_path, 1);
	for (uint32_t i = 0; i < GPUS; i++)
		gpu_open(&gpus[i], (int)i);
	daemon_place(&d, true);
	d.program = "tests/kvtierd_nodes";
	daemon_configure(&d, config);
	daemon_restart(&d);
	return 0;
}

FIXTURE(end)
{
	daemon_remove(&d);
	for (uint32_t i = 0; i < GPUS; i++)
		gpu_close(&gpus[i]);
	redis_stop(&redis);
	(void)unlink(log_path);
	return 0;
}

TEST(memory_is_bound_to_the_nodes_named)
{
	const char *const wanted[] = { "0 2097152 bound\n", "1 2097152 bound\n" };
	char line[128];
	FILE *f = fopen(log_path, "re");

	assert_non_null(f);
	for (int i = 0; i < 2; i++) {
		assert_non_null(fgets(line, sizeof(line), f));
		assert_string_equal(line, wanted[i]);
	}
	assert_null(fgets(line, sizeof(line), f));
	(void)fclose(f);
}

static void use(const struct gpu_engine *ge)
{
	GPU(gpu_api()->cuCtxSetCurrent(ge->gpu->context));
}

static void store(struct gpu_engine *ge, uint64_t chain, uint32_t n)
{
	struct kvtier_key keys[MANY];

	use(ge);
	chain_keys(&ge->e, chain, n, keys);
	assert_int_equal(gpu_chain_store(ge, keys, 0, n), 0);
}

static void load(struct gpu_engine *ge, uint64_t chain, uint32_t n)
{
	struct kvtier_key keys[MANY];

	use(ge);
	chain_keys(&ge->e, chain, n, keys);
	assert_int_equal(gpu_chain_load(ge, keys, 0, n), n);
}

TEST(each_gpu_has_slots_on_its_own_node)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	struct kvtier_key keys[FEW];
	struct gpu_engine ge[GPUS];
	struct engine cpu;

	for (uint32_t i = 0; i < GPUS; i++) {
		GPU(gpu_api()->cuCtxSetCurrent(gpus[i].context));
		gpu_engine_open(&ge[i], &gpus[i], d.socket, &g, FEW, GPU_ALLOC);
	}
	for (uint32_t i = 0; i < GPUS; i++)
		store(&ge[i], i, FEW);
	slots_are(2 * FEW, 0);
	engine_open(&cpu, d.socket, "cpu", &g, FEW);
	chain_keys(&cpu, 7, FEW, keys);
	assert_int_equal(chain_store(&cpu, keys, 0, FEW), 0);
	daemon_stat_becomes(&d, "tiers.host.blocks", 3 * FEW, PATIENT_MS);
	slots_are(2 * FEW, 0);
	/* and so blocks that come back from NVMe, of any engine */
	tell("flush");
	tell("evict --all");
	load(&ge[1], 0, FEW);
	slots_are(3 * FEW, 0);
	load(&ge[0], 7, FEW);
	slots_are(4 * FEW, 0);
	/* and from Redis */
	daemon_stat_becomes(&d, "tiers.redis.written_blocks_total", 3 * FEW, PATIENT_MS);
	tell("purge --tenant default");
	daemon_stat_becomes(&d, "tiers.host.blocks", 0, PATIENT_MS);
	load(&ge[1], 1, FEW);
	slots_are(5 * FEW, 0);
	engine_close(&cpu);
	for (uint32_t i = 0; i < GPUS; i++) {
		use(&ge[i]);
		gpu_engine_close(&ge[i]);
	}
	tell("purge --tenant default");
	daemon_stat_becomes(&d, "tiers.host.blocks", 0, PATIENT_MS);
}

TEST(then_on_the_other_node)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	const uint64_t near = daemon_stat(&d, "tiers.host.near_slots_total");
	struct gpu_engine ge;
	uint64_t slot, a_node;

	GPU(gpu_api()->cuCtxSetCurrent(gpus[1].context));
	gpu_engine_open(&ge, &gpus[1], d.socket, &g, MANY, GPU_ALLOC);
	store(&ge, 1, FEW);
	daemon_stat_becomes(&d, "tiers.host.blocks", FEW, PATIENT_MS);
	slot = daemon_stat(&d, "tiers.host.used_bytes") / FEW;
	a_node = SLABS * (SLAB / slot);
	assert_in_range(a_node, FEW, MANY);
	store(&ge, 1, MANY);
	slots_are(near + a_node, MANY - a_node);
	daemon_stat_becomes(&d, "tiers.host.blocks", MANY, PATIENT_MS);
	load(&ge, 1, MANY);
	gpu_engine_close(&ge);
	assert_int_equal(gpu_reported("", "violation", ""), 0);
}

TEST_GROUP(begin, end);

TEST_BEGIN
{
	gpu_begin(argv, "gpus=2 nodes=2");
	redis_needed();
}
