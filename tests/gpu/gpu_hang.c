/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait lane=wait (the test holds the clock) */
/*
 * gpu_hang - goal: no job stays with a GPU for ever: not one that comes when its context has just
 * gone, and not one that the GPU never ends. Method: the device alone, in a process of its own for
 * each case, with the memory of an engine in another process. The test is the core, so it can be
 * late: it hears of nothing until it runs its loop. The emulated driver breaks the context, or its
 * GPU stands still before its n-th operation, while the test lets time pass.
 */
#include "tests/lib/lib.h"
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/container_of.h"
#include "daemon/base/loop.h"
#include "daemon/cuda/device_cuda.h"

enum { LAYERS = 2, TOKENS = 16, DIM = 64, ROW = 2 * DIM, PLANE = ROW * TOKENS };
enum { PAGE = 2 * LAYERS * PLANE, IMAGE = 2 * PAGE, STAGING = 8 << 20, STEP_MS = 500 };

/* One job. */
struct own {
	struct device_job job;
	bool done;
};

static struct {
	struct cuda_driver driver;
	struct loop *loop;
	struct loop_poller poller;
	struct device *device;
	pid_t engine;
	int socket; /* to it */
	struct device_region region;
	struct page_piece pieces[2 * LAYERS];
	struct device_layout layout;
	uint8_t *images;
	struct own *awaited;
	uint32_t looks;
} b;

/* The engine: it has pages until the test closes its end. */
static int engine(void)
{
	CUipcMemHandle handle;
	CUdeviceptr memory;
	struct gpu gpu;
	char byte;

	gpu_open(&gpu, 0);
	GPU(gpu_api()->cuMemAlloc(&memory, PAGE));
	GPU(gpu_api()->cuIpcGetMemHandle(&handle, memory));
	if (send(STDIN_FILENO, &handle, sizeof(handle), 0) != sizeof(handle))
		return 1;
	(void)recv(STDIN_FILENO, &byte, 1, 0);
	GPU(gpu_api()->cuMemFree(memory));
	gpu_close(&gpu);
	return 0;
}

static void bring(void)
{
	struct region_desc desc = { .memory = WIRE_DEVICE_HANDLE, .fd = -1, .length = PAGE };
	char text[256];

	memcpy(desc.device, b.device->uuid, sizeof(desc.device));
	assert_int_equal(recv(b.socket, desc.handle, sizeof(desc.handle), 0), sizeof(desc.handle));
	if (device_import(b.device, &desc, &b.region, text, sizeof(text)))
		fail_msg("import: %s", text);
	for (uint32_t i = 0; i < 2 * LAYERS; i++)
		b.pieces[i] = (struct page_piece){
			.base = b.region.base + (size_t)i * PLANE,
			.page_stride = PAGE,
			.head_stride = ROW,
			.token_stride = ROW,
			.kind = i % 2 ? KIND_V : KIND_K,
			.layer = i / 2,
		};
	b.layout = (struct device_layout){
		.pages = { .geometry = { .dtype = DTYPE_BF16,
					 .layers = LAYERS,
					 .kv_heads = 1,
					 .head_dim_k = DIM,
					 .head_dim_v = DIM,
					 .block_tokens = TOKENS },
			   .n_pieces = 2 * LAYERS,
			   .pieces = b.pieces },
		.regions = &b.region,
		.n_regions = 1,
	};
	assert_int_equal(device_prepare(b.device, &b.layout), 0);
}

static void begin(void)
{
	const struct cuda_gpu_conf conf = {
		.max_ctas = 2,
		.workers = 1,
		.depth = 4,
		.staging_bytes = STAGING,
		.slab_bytes = STAGING,
		.kernels = codec_kernels(NULL),
	};
	char text[256];

	b.engine = gpu_spawn("engine", "", &b.socket);
	if (cuda_load(&b.driver, text, sizeof(text)))
		fail_msg("%s", text);
	assert_int_equal(loop_open(0, &b.loop), 0);
	assert_int_equal(device_cuda_open(&b.driver, &b.driver.found[0], &conf, b.loop, &b.device),
			 0);
	b.images = aligned_alloc(4096, 2 * IMAGE);
	assert_non_null(b.images);
	bring();
}

static void end(void)
{
	device_forget(b.device, &b.layout);
	device_release(&b.region);
	device_close(b.device);
	loop_close(b.loop);
	free(b.images);
	(void)close(b.socket);
	assert_int_equal(gpu_wait(b.engine), 0);
}

static void job_done(struct device_job *job)
{
	container_of(job, struct own, job)->done = true;
}

/* Stores the page. */
static void submit(struct own *own, uint32_t image)
{
	struct image_shape shape;

	assert_int_equal(image_shape(&b.layout.pages.geometry, CODEC_RAW, CODEC_RAW, &shape, NULL),
			 0);
	assert_true(shape.image_bytes <= IMAGE);
	*own = (struct own){ .job = {
				     .kind = DEVICE_ENCODE,
				     .codec_k = CODEC_RAW,
				     .codec_v = CODEC_RAW,
				     .layout = &b.layout,
				     .image = b.images + image * IMAGE,
				     .image_bytes = shape.image_bytes,
				     .client = 1,
				     .done = job_done,
			     } };
	assert_int_equal(device_submit(b.device, &own->job), 0);
	device_kick(b.device);
}

static struct device_note note(void)
{
	struct device_note ret;

	device_note(b.device, &ret);
	return ret;
}

/* So much time passes at each look that whatever has a deadline ends soon. False: it had enough. */
static bool pass(void)
{
	clock_pass_ms(STEP_MS);
	nap_ms(1);
	return ++b.looks < PATIENT_MS;
}

static bool look(struct loop_poller *poller)
{
	(void)poller;
	if (!pass() || b.awaited->done)
		loop_stop(b.loop);
	return true;
}

static void await(struct own *own)
{
	b.awaited = own;
	b.looks = 0;
	b.poller.poll = look;
	loop_poller_add(b.loop, &b.poller);
	assert_int_equal(loop_run(b.loop), 0);
	loop_poller_remove(b.loop, &b.poller);
	if (!own->done)
		fail_msg("the job has not ended");
	assert_int_equal(own->job.status, -EIO);
}

/* --- cases, each in a process --- */

static int late(void)
{
	static struct own first, second;

	begin();
	submit(&first, 0);
	for (int ms = 0; note().lost_total == 0; ms++) {
		assert_true(ms < PATIENT_MS);
		nap_ms(1);
	}
	submit(&second, 1);
	await(&first);
	await(&second);
	end();
	return 0;
}

static int still(void)
{
	static struct own own;

	begin();
	submit(&own, 0);
	await(&own);
	while (note().lost_total == 0 || !strstr(note().why, "has not ended what it was given"))
		assert_true(pass()); /* the job ended first */
	end();
	return 0;
}

static void ends_in_a_process(const char *role, const char *settings)
{
	assert_int_equal(gpu_wait(gpu_spawn(role, settings, NULL)), 0);
}

static void a_job_that_comes_when_its_context_has_gone(void **state)
{
	(void)state;
	ends_in_a_process("late", "sticky=cuLaunchKernel:1");
}

/* Staging is zeroed first. */
static void a_job_whose_layout_never_comes(void **state)
{
	(void)state;
	ends_in_a_process("still", "stall=2:3600000");
}

static void a_job_whose_kernel_never_runs(void **state)
{
	(void)state;
	ends_in_a_process("still", "stall=3:3600000");
}

static void a_job_whose_copy_never_ends(void **state)
{
	(void)state;
	ends_in_a_process("still", "stall=6:3600000");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_job_that_comes_when_its_context_has_gone),
		cmocka_unit_test(a_job_whose_layout_never_comes),
		cmocka_unit_test(a_job_whose_kernel_never_runs),
		cmocka_unit_test(a_job_whose_copy_never_ends),
	};

	gpu_begin(argv, "null_stream=0 one_thread=1");
	gpu_needs_emulation("its faults are settings of the emulated driver");
	if (argc > 1)
		return strcmp(argv[1], "engine") == 0 ? engine() :
		       strcmp(argv[1], "late") == 0   ? late() :
							still();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
