/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=6 */
/*
 * gpu_engine - goal: in engine mode blocks are the same bytes as in daemon mode, with storers and
 * loaders of either mode. Blocks that fp8 does not hold are kept raw. People see which mode a
 * client has, and why not the other. Method: engines in both modes, and one on the CPU, through
 * libkvtier and a real daemon; pages of random bits, compared bit for bit.
 */
#include "tests/lib/lib_gpu_engine.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 12 };

static const char config[] = "[host]\nbytes = 64M\nslab_bytes = 2M\nhuge_pages = no\n"
			     "[gpu]\ndevices = required\nstaging_bytes = 8M\nmode = engine\n";
static const char small[] = "[host]\nbytes = 64M\nslab_bytes = 2M\nhuge_pages = no\n"
			    "[gpu]\ndevices = required\nstaging_bytes = 8M\nmode = engine\n"
			    "engine_bytes = 16M\n";

static const char keeping[] = "[host]\nbytes = 64M\nslab_bytes = 2M\nhuge_pages = no\n"
			      "[gpu]\ndevices = required\nstaging_bytes = 8M\nmode = engine\n"
			      "bytes = 16M\n";

static struct daemon d;
static struct gpu gpu;

FIXTURE(begin)
{
	gpu_open(&gpu, 0);
	gpu_engine_mode(KVTIER_GPU_DEFAULT);
	daemon_start(&d, *state);
	return 0;
}

FIXTURE(end)
{
	daemon_remove(&d);
	gpu_close(&gpu);
	gpu_report_clean("kvtierd");
	gpu_report_clean("gpu_engine");
	return 0;
}

static void clients_say(const char *words, bool said)
{
	char text[8192];

	assert_int_equal(daemon_ctl(&d, "clients --json", text, sizeof(text)), 0);
	if (!!strstr(text, words) != said)
		fail_msg("'%s' is %s: %s", words, said ? "missing" : "there", text);
}

static void open_in(struct gpu_engine *ge, uint32_t mode, const struct kvtier_geometry *g)
{
	gpu_engine_mode(mode);
	gpu_engine_open(ge, &gpu, d.socket, g, 2 * BLOCKS, GPU_ALLOC);
	gpu_engine_reached(ge, mode == KVTIER_GPU_ENGINE ? "CUDA engine mode" : "CUDA IPC");
}

/* Each stores blocks that all load. */
static void goes(const struct kvtier_geometry *g)
{
	struct kvtier_key keys[3][BLOCKS];
	struct gpu_engine ge[2];
	struct engine cpu;

	open_in(&ge[0], KVTIER_GPU_ENGINE, g);
	open_in(&ge[1], KVTIER_GPU_DAEMON, g);
	engine_open(&cpu, d.socket, "cpu", g, BLOCKS);
	for (uint64_t i = 0; i < 3; i++)
		chain_keys(&cpu, i, BLOCKS, keys[i]);
	assert_int_equal(gpu_chain_store(&ge[0], keys[0], 0, BLOCKS), 0);
	assert_int_equal(gpu_chain_store(&ge[1], keys[1], 0, BLOCKS), 0);
	assert_int_equal(chain_store(&cpu, keys[2], 0, BLOCKS), 0);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(gpu_chain_load(&ge[0], keys[i], BLOCKS, BLOCKS), BLOCKS);
		assert_int_equal(gpu_chain_load(&ge[1], keys[i], BLOCKS, BLOCKS), BLOCKS);
		assert_int_equal(chain_load(&cpu, keys[i], 0, BLOCKS), BLOCKS);
	}
	engine_close(&cpu);
	gpu_engine_close(&ge[0]);
	gpu_engine_close(&ge[1]);
}

TEST_GIVEN(fp8_blocks_go_both_ways, begin, end, config)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);

	goes(&g);
}

TEST_GIVEN(raw_blocks_go_both_ways, begin, end, config)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_RAW);

	goes(&g);
}

TEST_GIVEN(tiny_blocks_go_both_ways, begin, end, config)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);

	goes(&g);
}

/* Values of all kinds, and in every third page one that fp8 does not hold. */
static void fill(struct gpu_engine *ge, struct random *random)
{
	for (uint32_t page = 0; page < BLOCKS; page++) {
		uint16_t *values = (uint16_t *)(void *)(ge->e.memory + page * ge->e.page_bytes);

		for (size_t i = 0; i < ge->e.page_bytes / 2; i++) /* BF16, 2^-8 to 2^8 */
			values[i] = (uint16_t)(random_below(random, 2) << 15 |
					       (119 + random_below(random, 16)) << 7 |
					       random_below(random, 128));
		if (page % 3 == 2)
			values[random_below(random, (uint32_t)ge->e.page_bytes / 2)] =
				0x7fc0; /* NaN */
	}
	gpu_pages_push(ge, 0, BLOCKS);
}

static uint8_t *loaded(struct gpu_engine *ge, const struct kvtier_key *keys)
{
	const size_t bytes = BLOCKS * ge->e.page_bytes;
	uint8_t *ret = malloc(bytes);
	uint32_t pages[BLOCKS];

	assert_non_null(ret);
	pages_from(BLOCKS, pages, BLOCKS);
	memset(ge->e.memory + bytes, 0xee, bytes);
	gpu_pages_push(ge, BLOCKS, BLOCKS);
	assert_int_equal(engine_load(&ge->e, keys, pages, BLOCKS, NULL), 0);
	gpu_pages_pull(ge, BLOCKS, BLOCKS);
	memcpy(ret, ge->e.memory + bytes, bytes);
	return ret;
}

/* The same pages are stored in both modes, and the blocks are loaded in both. */
TEST_GIVEN(random_bits_are_the_same, begin, end, config)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	struct random random = { .state = gpu_seed() }, again = random;
	struct kvtier_key keys[2][BLOCKS];
	uint8_t *found[2][2];
	struct gpu_engine ge[2];
	uint32_t pages[BLOCKS];

	pages_from(0, pages, BLOCKS);
	open_in(&ge[0], KVTIER_GPU_ENGINE, &g);
	open_in(&ge[1], KVTIER_GPU_DAEMON, &g);
	fill(&ge[0], &random);
	fill(&ge[1], &again);
	for (int i = 0; i < 2; i++) {
		chain_keys(&ge[i].e, (uint64_t)i, BLOCKS, keys[i]);
		assert_int_equal(engine_store(&ge[i].e, keys[i], pages, BLOCKS, NULL, NULL), 0);
		assert_int_equal(daemon_stat(&d, "store.raw_blocks_total"),
				 (uint64_t)(i + 1) * (BLOCKS / 3));
	}
	for (int i = 0; i < 4; i++)
		found[i / 2][i % 2] = loaded(&ge[i / 2], keys[i % 2]);
	for (int i = 1; i < 4; i++)
		assert_memory_equal(found[0][0], found[i / 2][i % 2], BLOCKS * ge[0].e.page_bytes);
	for (uint32_t page = 2; page < BLOCKS; page += 3) /* raw: as they were */
		assert_memory_equal(found[0][0] + page * ge[0].e.page_bytes,
				    ge[0].e.memory + page * ge[0].e.page_bytes, ge[0].e.page_bytes);
	for (int i = 0; i < 4; i++)
		free(found[i / 2][i % 2]);
	gpu_engine_close(&ge[0]);
	gpu_engine_close(&ge[1]);
}

TEST_GIVEN(the_mode_is_told, begin, end, config)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);
	struct gpu_engine ge[2];

	gpu_engine_open(&ge[0], &gpu, d.socket, &g, 2 * BLOCKS, GPU_ALLOC);
	gpu_engine_reached(&ge[0], "CUDA engine mode");
	clients_say("\"path\":\"cuda-engine\",\"gpu_mode\":\"engine\"", true);
	clients_say("\"gpu_mode\":\"daemon\"", false);
	open_in(&ge[1], KVTIER_GPU_DAEMON, &g);
	clients_say("\"path\":\"cuda-ipc\",\"gpu_mode\":\"daemon\"", true);
	gpu_engine_close(&ge[0]);
	gpu_engine_close(&ge[1]);
}

/* The second one's memory is more than is left. */
TEST_GIVEN(who_finds_no_room_is_served_by_the_daemon, begin, end, small)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	struct kvtier_key keys[BLOCKS];
	struct gpu_engine ge[2];

	gpu_engine_open(&ge[0], &gpu, d.socket, &g, 600, GPU_ALLOC);
	gpu_engine_reached(&ge[0], "CUDA engine mode");
	gpu_engine_open(&ge[1], &gpu, d.socket, &g, 600, GPU_ALLOC);
	gpu_engine_reached(&ge[1], "CUDA IPC; not in engine mode: regions[0]: length ");
	clients_say("\"not_engine\":\"regions[0]: length ", true);
	chain_keys(&ge[1].e, 1, BLOCKS, keys);
	assert_int_equal(gpu_chain_store(&ge[1], keys, 0, BLOCKS), 0);
	assert_int_equal(gpu_chain_load(&ge[0], keys, BLOCKS, BLOCKS), BLOCKS);
	assert_int_equal(gpu_chain_load(&ge[1], keys, BLOCKS, BLOCKS), BLOCKS);
	gpu_engine_close(&ge[0]);
	gpu_engine_open(&ge[0], &gpu, d.socket, &g, 600, GPU_ALLOC);
	gpu_engine_reached(&ge[0], "CUDA engine mode");
	gpu_engine_close(&ge[0]);
	gpu_engine_close(&ge[1]);
}

static uint64_t gpu_hits(void)
{
	return daemon_stat(&d, "tiers.gpu.hit_blocks_total");
}

/* Blocks that one stores or loads are kept on the GPU, and the other is served from there. */
TEST_GIVEN(a_gpu_keeps_images_of_both_modes, begin, end, keeping)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	struct kvtier_key keys[2][BLOCKS];
	struct gpu_engine ge[2];
	uint64_t hits = 0;
	char text[4096];

	open_in(&ge[0], KVTIER_GPU_ENGINE, &g);
	open_in(&ge[1], KVTIER_GPU_DAEMON, &g);
	for (int i = 0; i < 2; i++) {
		chain_keys(&ge[i].e, (uint64_t)i, BLOCKS, keys[i]);
		assert_int_equal(gpu_chain_store(&ge[i], keys[i], 0, BLOCKS), 0);
	}
	for (int i = 0; i < 4; i++) {
		assert_int_equal(gpu_chain_load(&ge[i / 2], keys[i % 2], BLOCKS, BLOCKS), BLOCKS);
		assert_int_equal(gpu_hits(), hits += BLOCKS);
	}
	for (int i = 0; i < 2; i++) { /* one brings it, the other finds it there */
		assert_int_equal(daemon_ctl(&d, "evict --all --tier gpu", text, sizeof(text)), 0);
		daemon_stat_becomes(&d, "tiers.gpu.blocks", 0, PATIENT_MS);
		assert_int_equal(gpu_chain_load(&ge[i], keys[0], BLOCKS, BLOCKS), BLOCKS);
		assert_int_equal(gpu_hits(), hits);
		assert_int_equal(gpu_chain_load(&ge[1 - i], keys[0], BLOCKS, BLOCKS), BLOCKS);
		assert_int_equal(gpu_hits(), hits += BLOCKS);
	}
	gpu_engine_close(&ge[0]);
	gpu_engine_close(&ge[1]);
}

/* Of a space that fills its staging memory many times over, in one op. */
TEST_GIVEN(an_op_takes_several_turns, begin, end, config)
{
	enum { MANY = 300 };
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	static struct kvtier_key keys[MANY];
	struct gpu_engine ge;

	gpu_engine_open(&ge, &gpu, d.socket, &g, 2 * MANY, GPU_ALLOC);
	gpu_engine_reached(&ge, "CUDA engine mode");
	chain_keys(&ge.e, 1, MANY, keys);
	assert_int_equal(gpu_chain_store(&ge, keys, 0, MANY), 0);
	assert_int_equal(gpu_chain_load(&ge, keys, MANY, MANY), MANY);
	gpu_engine_close(&ge);
}

/* kvtierd's own report says which calls it made. */
TEST_GIVEN(the_daemon_launches_no_kernel, NULL, NULL, config)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	struct kvtier_key keys[BLOCKS];
	struct gpu_engine ge;

	if (gpu_is_real())
		skip();
	for (uint32_t mode = KVTIER_GPU_DAEMON; mode <= KVTIER_GPU_ENGINE; mode++) {
		gpu_report_clear();
		gpu_open(&gpu, 0);
		gpu_settings("trace=1");
		daemon_start(&d, *state);
		open_in(&ge, mode, &g);
		chain_keys(&ge.e, 1, BLOCKS, keys);
		assert_int_equal(gpu_chain_store(&ge, keys, 0, BLOCKS), 0);
		assert_int_equal(gpu_chain_load(&ge, keys, BLOCKS, BLOCKS), BLOCKS);
		gpu_engine_close(&ge);
		daemon_remove(&d);
		gpu_close(&gpu);
		assert_int_equal(gpu_reported("kvtierd", "note", "queued cuLaunchKernel") > 0,
				 mode == KVTIER_GPU_DAEMON);
		assert_true(gpu_reported("kvtierd", "note", "queued cuMemcpyDtoHAsync") > 0);
	}
	gpu_settings("%s", "");
}

enum { LATE_OPS = 4 };

/* Its kernels are late. The daemon has served its loads when the library looks at them first. They
 * are cancelled then; or the daemon is dead, and they end with the connection. Then all memory
 * goes. */
static int late_engine(const char *socket, bool cancels)
{
	const struct kvtier_geometry g = large_geometry(KVTIER_CODEC_FP8);
	struct kvtier_key keys[LATE_OPS];
	uint64_t ops[LATE_OPS];
	struct gpu_engine ge;
	struct gpu own;
	char byte = 1;

	gpu_open(&own, 0);
	gpu_engine_mode(KVTIER_GPU_ENGINE);
	gpu_engine_open(&ge, &own, socket, &g, LATE_OPS, GPU_ALLOC);
	chain_keys(&ge.e, 1, LATE_OPS, keys);
	if (gpu_chain_store(&ge, keys, 0, LATE_OPS))
		return 1;
	for (uint32_t i = 0; i < LATE_OPS; i++)
		if (kvtier_load(ge.e.space, &keys[i], &i, 1, NULL, &ops[i]))
			return 2;
	if (write(STDIN_FILENO, &byte, 1) != 1 || read(STDIN_FILENO, &byte, 1) != 1)
		return 3;
	for (uint32_t i = 0; i < LATE_OPS; i++)
		if (cancels ? kvtier_cancel(ge.e.client, ops[i], -1) :
			      kvtier_wait(ge.e.client, ops[i], -1, NULL))
			return 4;
	gpu_engine_close(&ge);
	gpu_close(&own);
	return 0;
}

static void ends_after_its_kernels(const char *conf, bool cancels)
{
	pid_t engine;
	int socket;
	char byte;

	if (gpu_is_real())
		skip();
	gpu_report_clear();
	gpu_settings("%s", "");
	gpu_open(&gpu, 0);
	daemon_start(&d, conf);
	setenv("KVTIER_TEST_SOCKET", d.socket, 1);
	engine = gpu_spawn(cancels ? "cancels" : "waits", "late=40", &socket);
	assert_int_equal(read(socket, &byte, 1), 1);
	daemon_stat_becomes(&d, "load.blocks_total", LATE_OPS, PATIENT_MS);
	if (!cancels)
		daemon_signal(&d, SIGKILL);
	assert_int_equal(write(socket, &byte, 1), 1);
	assert_int_equal(gpu_wait(engine), 0);
	(void)close(socket);
	if (!cancels)
		daemon_restart(&d);
	daemon_remove(&d);
	gpu_close(&gpu);
	gpu_report_clean("gpu_engine");
}

TEST_GIVEN(a_lost_op_ends_after_its_kernels, NULL, NULL, config)
{
	ends_after_its_kernels(*state, false);
}

TEST_GIVEN(a_cancelled_op_ends_after_its_kernels, NULL, NULL, config)
{
	ends_after_its_kernels(*state, true);
}

TEST_BEGIN
{
	gpu_begin(argv, "null_stream=0");
	if (argc > 1)
		exit(late_engine(getenv("KVTIER_TEST_SOCKET"), !strcmp(argv[1], "cancels")));
}
