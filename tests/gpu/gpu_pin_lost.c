/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=20 */
/*
 * gpu_pin_lost - goal: a context that is lost takes its registrations along, and no block: all is
 * served, by way of the buffer, until the memory is registered again, by the GPU's next context or
 * by another GPU. A GPU that copies directly where another one has registered is not harmed by
 * that one's end: nothing is taken from under a copy. Two GPUs that are lost at the same time, each
 * of them with copies in the other one's memory, both come back. A context that breaks just before
 * the daemon stops is closed, too. Method: the emulated driver breaks
 * contexts, and reports memory that goes while a copy uses it.
 */
#include "tests/lib/lib_gpu_engine.h"

enum { GPUS = 2, ENOUGH = 2000 };
enum { PIN_MIB = 32 /* of the host tier, in as many pieces */, PIN_BLOCKS = 5 };

static struct daemon d;
static struct gpu gpu;

/* --- pinned host memory --- */

/* An FP8 image of the least size that goes directly. */
static struct kvtier_geometry pin_geometry(void)
{
	struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);

	g.layers = 8;
	g.kv_heads = 4;
	g.head_dim_k = g.head_dim_v = 128;
	g.block_tokens = 32;
	return g;
}

static void pin_start(const char *settings)
{
	gpu_hold();
	gpu_report_clear();
	gpu_settings("%s", settings);
	daemon_start(&d, GPU_CONFIG("32M", "1M"));
	gpu_settings("%s", "");
}

static void pin_stop(void)
{
	daemon_stat_becomes(&d, "ops.outstanding", 0, PATIENT_MS);
	daemon_remove(&d);
	gpu_report_copies_pinned("kvtierd");
	gpu_report_clean("kvtierd");
}

static void pin_becomes(uint64_t mib)
{
	daemon_stat_becomes(&d, "tiers.host.pinned_bytes", mib << 20, PATIENT_MS);
}

static void use(const struct gpu *on)
{
	GPU(gpu_api()->cuCtxSetCurrent(on->context));
}

static void pin_open(struct gpu_engine *ge, const struct gpu *on, const char *socket)
{
	const struct kvtier_geometry g = pin_geometry();

	use(on);
	gpu_engine_open(ge, on, socket, &g, 2 * PIN_BLOCKS, GPU_ALLOC);
	gpu_engine_reached(ge, "CUDA IPC");
}

static void pin_store(struct gpu_engine *ge, uint64_t chain)
{
	struct kvtier_key keys[PIN_BLOCKS];

	use(ge->gpu);
	chain_keys(&ge->e, chain, PIN_BLOCKS, keys);
	assert_int_equal(gpu_chain_store(ge, keys, 0, PIN_BLOCKS), 0);
}

static void pin_load(struct gpu_engine *ge, uint64_t chain)
{
	struct kvtier_key keys[PIN_BLOCKS];

	use(ge->gpu);
	chain_keys(&ge->e, chain, PIN_BLOCKS, keys);
	assert_int_equal(gpu_chain_load(ge, keys, PIN_BLOCKS, PIN_BLOCKS), PIN_BLOCKS);
}

static void pin_close(struct gpu_engine *ge)
{
	use(ge->gpu);
	gpu_engine_close(ge);
}

/* --- an engine of the other GPU: loads a chain until it is told to end, so that nearly all the
 * time one of its copies is under way --- */

static void told(TEST_UNUSED void **state)
{
	const bool may_be_cut = getenv("KVTIER_TEST_CUT") != NULL;
	struct kvtier_key keys[PIN_BLOCKS];
	uint32_t pages[PIN_BLOCKS], rounds = 0;
	struct gpu_engine ge;
	struct gpu own;
	char byte;

	gpu_open(&own, 1);
	pin_open(&ge, &own, getenv("KVTIER_TEST_SOCKET"));
	pin_store(&ge, 7);
	chain_keys(&ge.e, 7, PIN_BLOCKS, keys);
	pages_from(0, pages, PIN_BLOCKS);
	assert_int_equal(write(STDIN_FILENO, "", 1), 1);
	while (recv(STDIN_FILENO, &byte, 1, MSG_DONTWAIT) < 0) {
		int32_t blocks[PIN_BLOCKS] = { 0 };

		(void)engine_load(&ge.e, keys, pages, PIN_BLOCKS, blocks);
		for (uint32_t i = 0; i < PIN_BLOCKS && !may_be_cut; i++)
			assert_int_equal(blocks[i], 0);
		rounds++;
	}
	if (!may_be_cut)
		pin_load(&ge, 7);
	print_message("%u loads\n", rounds);
	pin_close(&ge);
	gpu_close(&own);
}

static pid_t loader;
static int loader_socket;

static void loader_start(void)
{
	char byte;

	setenv("KVTIER_TEST_SOCKET", d.socket, 1);
	loader = gpu_spawn("engine", "", &loader_socket);
	if (read(loader_socket, &byte, 1) != 1)
		fail_msg("the engine has ended: its output is above");
}

static void loader_stop(void)
{
	assert_int_equal(write(loader_socket, "", 1), 1);
	assert_int_equal(gpu_wait(loader), 0);
	(void)close(loader_socket);
}

/* --- the test --- */

static void open_all(const char *settings)
{
	gpu_open(&gpu, 0);
	pin_start(settings);
}

static void close_all(void)
{
	pin_stop();
	GPU(gpu_api()->cuCtxSetCurrent(gpu.context));
	gpu_close(&gpu);
}

/* Until the daemon has lost a context so often: what an op ends with does not matter. That takes a
 * number of ops, however long they take. */
static void store_until_lost(struct gpu_engine *ge, uint64_t times)
{
	const uint64_t until = now_ns() + PATIENT_MS * 1000000ull;
	struct kvtier_key keys[PIN_BLOCKS];
	uint32_t pages[PIN_BLOCKS];

	chain_keys(&ge->e, 9, PIN_BLOCKS, keys);
	pages_from(0, pages, PIN_BLOCKS);
	for (uint32_t ops = 0; daemon_stat(&d, "gpu.lost_total") < times; ops++) {
		if (ops > ENOUGH && now_ns() > until)
			fail_msg("no context was lost");
		(void)engine_store(&ge->e, keys, pages, PIN_BLOCKS, NULL, NULL);
		(void)engine_load(&ge->e, keys, pages, PIN_BLOCKS, NULL);
	}
}

TEST(what_a_context_had_the_next_one_registers)
{
	struct gpu_engine ge;

	open_all("late=3 sticky=cuLaunchKernel:8");
	pin_open(&ge, &gpu, d.socket);
	pin_becomes(PIN_MIB);
	pin_store(&ge, 1);
	store_until_lost(&ge, 1);
	pin_close(&ge);
	pin_open(&ge, &gpu, d.socket);
	pin_becomes(PIN_MIB);
	pin_load(&ge, 1);
	pin_store(&ge, 2);
	pin_load(&ge, 2);
	pin_close(&ge);
	close_all();
}

/* The context is lost when the call that is held has returned: the ops wait for that. */
static void *let_go_when_broken(void *unused)
{
	const uint64_t until = now_ns() + PATIENT_MS * 1000000ull;

	(void)unused;
	while (gpu_reported("kvtierd", "note", "is broken from now on") == 0 && now_ns() < until)
		nap_ms(1);
	gpu_let_go();
	return NULL;
}

/* In the middle of it: some pieces are registered, one is on its way. */
TEST(a_context_is_lost_while_memory_is_registered)
{
	struct gpu_engine ge;
	pthread_t thread;

	open_all("late=3 sticky=cuLaunchKernel:8 held=cuMemHostRegister:4");
	pin_open(&ge, &gpu, d.socket);
	pin_store(&ge, 1);
	gpu_report_has("is held", 1);
	pin_becomes(3);
	assert_int_equal(pthread_create(&thread, NULL, let_go_when_broken, NULL), 0);
	store_until_lost(&ge, 1);
	assert_int_equal(pthread_join(thread, NULL), 0);
	pin_close(&ge);
	pin_open(&ge, &gpu, d.socket);
	pin_becomes(PIN_MIB);
	pin_load(&ge, 1);
	pin_close(&ge);
	close_all();
}

/* GPU 0 has registered all, before the other one comes. */
TEST(another_gpus_copies_end_before_its_memory_goes)
{
	struct gpu_engine ge;

	if (gpu_count() < GPUS)
		skip();
	open_all("late=10 faulty=0 sticky=cuLaunchKernel:30");
	pin_open(&ge, &gpu, d.socket);
	pin_becomes(PIN_MIB);
	loader_start();
	store_until_lost(&ge, 1);
	pin_becomes(PIN_MIB); /* the other one has it now */
	pin_close(&ge);
	pin_open(&ge, &gpu, d.socket);
	pin_load(&ge, 7);
	pin_store(&ge, 1);
	pin_load(&ge, 1);
	loader_stop();
	assert_int_equal(daemon_stat(&d, "gpu.lost_total"), 1);
	pin_close(&ge);
	close_all();
}

/* Two launches in a row break their contexts: mostly one of each GPU, as both have launches all the
 * time, with copies in what the other one registered. */
TEST(two_gpus_that_are_lost_do_not_wait_for_each_other)
{
	struct gpu_engine ge;

	if (gpu_count() < GPUS)
		skip();
	open_all("late=10 slow=cuMemHostRegister:10 sticky=cuLaunchKernel:60 "
		 "sticky=cuLaunchKernel:61");
	setenv("KVTIER_TEST_CUT", "1", 1);
	pin_open(&ge, &gpu, d.socket);
	loader_start();
	pin_becomes(PIN_MIB);
	store_until_lost(&ge, 2);
	loader_stop();
	unsetenv("KVTIER_TEST_CUT");
	pin_close(&ge);
	pin_open(&ge, &gpu, d.socket);
	pin_becomes(PIN_MIB);
	pin_load(&ge, 7);
	pin_close(&ge);
	close_all();
}

/* By the release of a region, where the stop comes while a piece of memory is being registered; and
 * by the stop itself, where memory is unregistered. */
TEST(a_context_that_breaks_last_of_all_is_closed_at_the_stop)
{
	static const char *const settings[] = {
		"sticky=cuIpcCloseMemHandle slow=cuMemHostRegister:300",
		"sticky=cuMemHostUnregister:2",
	};
	struct gpu_engine ge;

	for (int i = 0; i < 2; i++) {
		open_all(settings[i]);
		pin_open(&ge, &gpu, d.socket);
		daemon_stat_reaches(&d, "tiers.host.pinned_bytes", i == 0 ? 0 : PIN_MIB << 20);
		pin_close(&ge);
		close_all();
	}
}

TEST_BEGIN
{
	gpu_begin(argv, "gpus=2 null_stream=0 one_thread=1");
	if (argc > 1)
		test_only(told);
	gpu_needs_emulation("its faults are settings of the emulated driver");
}
