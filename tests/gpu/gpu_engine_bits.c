/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=2 */
/*
 * gpu_engine_bits - goal: in engine mode blocks are the same bits as in daemon mode; blocks that
 * fp8 does not hold are kept raw. An op that is lost or cancelled ends after its kernels. Method:
 * pages of random bits, compared bit for bit; an engine in a process of its own, whose kernels are
 * late. gpu_engine has all that needs no bits.
 */
#include "tests/lib/lib_gpu_engine.h"

enum { BLOCKS = 12 };

static const char config[] = HOST("16M", "2M") GPU_LINES "mode = engine\n";

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
	gpu_report_clean("gpu_engine_bits");
	return 0;
}

static void open_in(struct gpu_engine *ge, uint32_t mode, const struct kvtier_geometry *g)
{
	gpu_engine_mode(mode);
	gpu_engine_open(ge, &gpu, d.socket, g, 2 * BLOCKS, GPU_ALLOC);
	gpu_engine_reached(ge, mode == KVTIER_GPU_ENGINE ? "CUDA engine mode" : "CUDA IPC");
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
	struct random random = { .state = gpu_seed() }, again = random;
	struct kvtier_key keys[2][BLOCKS];
	uint8_t *found[2][2];
	struct gpu_engine ge[2];
	uint32_t pages[BLOCKS];

	pages_from(0, pages, BLOCKS);
	open_in(&ge[0], KVTIER_GPU_ENGINE, &large_fp8);
	open_in(&ge[1], KVTIER_GPU_DAEMON, &large_fp8);
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

enum { LATE_OPS = 4 };

/* Its kernels are late. The daemon has served its loads when the library looks at them first. They
 * are cancelled then; or the daemon is dead, and they end with the connection. Then all memory
 * goes. */
static int late_engine(const char *socket, bool cancels)
{
	struct kvtier_key keys[LATE_OPS];
	uint64_t ops[LATE_OPS];
	struct gpu_engine ge;
	struct gpu own;
	char byte = 1;

	gpu_open(&own, 0);
	gpu_engine_mode(KVTIER_GPU_ENGINE);
	gpu_engine_open(&ge, &own, socket, &large_fp8, LATE_OPS, GPU_ALLOC);
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
	gpu_report_clean("gpu_engine_bits");
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
