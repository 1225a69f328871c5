/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=8 needs=kvtierd_clock link=client.a */
/* make: wrap=clock_gettime,epoll_wait,cuda_busy_again (it holds the clock, and sees -EBUSY) */
/*
 * gpu_return - goal: a GPU that fails or hangs while memory of it is being registered comes back,
 * and pages are reached as well as before: the daemon says -EBUSY for as long as it is to come
 * back, and libkvtier asks again; pages are not staged for good. Those of a GPU that always fails
 * are staged in the end. What the daemon had mapped goes when the context is lost, and nothing of
 * it is left at the daemon's end. Method: the emulated driver breaks the daemon's context at the
 * n-th call of those that open memory, or makes it slow; through libkvtier, and by hand, with
 * several registrations at once.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_gpu_engine.h"
#include "tests/lib/lib_gpu_raw.h"
#include "tests/lib/wrap.h"

#include "client/lib/memory/cuda.h"

enum { BLOCKS = 12, N = 4, TRIES = 10, IMPORT_MS = 10000 };

static struct daemon d;
static struct gpu gpu;

static void start(const char *settings)
{
	gpu_open(&gpu, 0);
	gpu_settings("%s", settings);
	clock_daemon_start(&d, HOST("16M", "2M") GPU_LINES);
}

static void stop(void)
{
	daemon_stat_becomes(&d, "gpu.regions", 0, PATIENT_MS);
	daemon_remove(&d);
	gpu_settings("%s", "");
	gpu_close(&gpu);
}

/* --- through libkvtier --- */

static void is_reached(enum gpu_memory_kind kind, const char *words)
{
	gpu_engine_goes(&gpu, d.socket, kind, BLOCKS, words);
}

static void comes_back(const char *settings, enum gpu_memory_kind kind, const char *words)
{
	start(settings);
	is_reached(kind, words);
	daemon_stat_becomes(&d, "gpu.lost_total", 1, PATIENT_MS);
	stop();
}

TEST_DO(a_context_breaks_at_a_handle,
	comes_back("sticky=cuIpcOpenMemHandle:1", GPU_ALLOC, "CUDA IPC"));
TEST_DO(a_context_breaks_at_a_descriptor,
	comes_back("sticky=cuMemGetAddressRange:1", GPU_VMM_FD, "CUDA descriptor"));

/* Three times, and the GPU stays out. */
TEST(a_gpu_that_always_breaks_is_done_without)
{
	start("sticky=cuIpcOpenMemHandle:0");
	is_reached(GPU_ALLOC, "CUDA staged: ");
	stop();
}

/* A mapping is no context's. */
TEST(what_was_mapped_goes_after_its_context)
{
	struct kvtier_key keys[BLOCKS];
	struct gpu_engine ge;

	gpu_report_clear();
	start("sticky=cuMemcpyDtoHAsync:1");
	gpu_engine_open(&ge, &gpu, d.socket, &large_fp8, 2 * BLOCKS, GPU_VMM_FD);
	gpu_engine_reached(&ge, "CUDA descriptor");
	chain_keys(&ge.e, 1, BLOCKS, keys);
	assert_int_not_equal(gpu_chain_store(&ge, keys, 0, BLOCKS), 0);
	daemon_stat_becomes(&d, "gpu.lost_total", 1, PATIENT_MS);
	gpu_engine_close(&ge);
	is_reached(GPU_VMM_FD, "CUDA descriptor");
	stop();
	gpu_report_clean("kvtierd");
}

/* --- by hand --- */

struct caller {
	pthread_t thread;
	struct gpu_raw e;
	struct wire_region region;
	char text[232];
	int result;
};

static void *call(void *arg)
{
	struct caller *c = arg;

	c->result = gpu_raw_space(&c->e, &c->region, 1, NULL, 0, c->text);
	return NULL;
}

static void dial(struct caller *c, const struct kvtier_geometry *g)
{
	gpu_raw_dial(&c->e, d.socket, &gpu, g, 2 * N);
	c->region = gpu_raw_region(&c->e);
}

/* The first import is held. The two that come meanwhile are mostly taken in one iteration of the
 * GPU's thread: one breaks the context, and the other one finds it broken. How many were told
 * so. */
static int three_imports(void)
{
	struct caller callers[3];
	int busy = 0;

	gpu_hold();
	gpu_report_clear();
	start("held=cuIpcOpenMemHandle:1 sticky=cuIpcOpenMemHandle:2");
	for (int i = 0; i < 3; i++) {
		dial(&callers[i], &tiny_fp8);
		assert_int_equal(pthread_create(&callers[i].thread, NULL, call, &callers[i]), 0);
		gpu_report_has("is held", 1);
	}
	nap_ms(200);
	gpu_let_go();
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_join(callers[i].thread, NULL), 0);
	for (int i = 0; i < 3; i++) {
		busy += callers[i].result == -EBUSY;
		if (callers[i].result != 0 && callers[i].result != -EBUSY)
			fail_msg("%d: %s", callers[i].result, callers[i].text);
	}
	assert_in_range(busy, 1, 2);
	daemon_stat_becomes(&d, "gpu.lost_total", 1, PATIENT_MS);
	for (int i = 0; i < 3; i++) {
		if (callers[i].result == -EBUSY) /* else it was cut, as it had memory there */
			assert_int_equal(gpu_raw_space(&callers[i].e, &callers[i].region, 1, NULL,
						       0, NULL),
					 0);
		gpu_raw_close(&callers[i].e);
	}
	stop();
	return busy;
}

TEST(an_import_between_failure_and_recovery_is_told_to_come_again)
{
	int tries = 1;

	while (three_imports() < 2)
		assert_true(tries++ < TRIES);
}

static bool held_until_busy;

/* libkvtier was told -EBUSY: the call of the driver goes on only now. */
REAL(bool, cuda_busy_again, (struct cuda_busy * busy, int error))
{
	if (error == -EBUSY && held_until_busy) {
		held_until_busy = false;
		gpu_let_go();
	}
	return __real_cuda_busy_again(busy, error);
}

/* Longer than an import is waited for: until the call returns, others are told so. */
TEST(a_driver_that_hangs_is_waited_for)
{
	struct caller c;

	gpu_hold();
	gpu_report_clear();
	start("held=cuIpcOpenMemHandle:1");
	dial(&c, &tiny_fp8);
	assert_int_equal(pthread_create(&c.thread, NULL, call, &c), 0);
	gpu_report_has("is held", 1);
	clock_pass_ms(IMPORT_MS);
	assert_int_equal(pthread_join(c.thread, NULL), 0);
	assert_int_equal(c.result, -ETIMEDOUT);
	held_until_busy = true;
	is_reached(GPU_ALLOC, "CUDA IPC");
	assert_false(held_until_busy);
	gpu_raw_close(&c.e);
	stop();
	gpu_report_clean("kvtierd");
}

TEST_FIRST(gpu_begin(argv, "null_stream=0");
	   gpu_needs_emulation("its faults are settings of the emulated driver"));
