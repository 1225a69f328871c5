/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait lane=wait (the test holds the clock) */
/*
 * gpu_hang - goal: no job and no import stays with a GPU for ever: not one that comes when its
 * context has just gone, or when another one has taken its place, and not one that the GPU never
 * ends. A GPU that goes on afterwards serves again, in a new context, and a second GPU serves all
 * the while. Method: the device alone, in a process of its own for each case, with the memory of an
 * engine in another process. The test is the core, so it can be late: it hears of nothing until it
 * runs its loop. The emulated driver breaks the context, or its GPU stands still, before its n-th
 * operation or from the test's word on, while the test lets time pass.
 */
#include "tests/lib/lib.h"
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_gpu.h"

#include "base/list.h"
#include "base/loop.h"
#include "daemon/cuda/device_cuda.h"

enum { LAYERS = 2, TOKENS = 16, DIM = 64, ROW = 2 * DIM, PLANE = ROW * TOKENS };
enum { PAGE = 2 * LAYERS * PLANE, IMAGE = 2 * PAGE, STAGING = 8 << 20, STEP_MS = 500 };
enum { GPUS = 2, RETRY_MS = 5000, HOUR_MS = 3600000 };

/* One job. */
struct own {
	struct device_job job;
	bool done;
};

static struct {
	struct cuda_driver driver;
	struct loop *loop;
	struct loop_poller poller;
	struct device *device, *other; /* other: NULL where there is one GPU */
	struct device_memory tier;     /* of device */
	bool has_tier;
	pid_t engine;
	int socket;                               /* to it */
	uint8_t handles[GPUS][WIRE_HANDLE_BYTES]; /* of the engine's memory on each GPU */
	struct device_region region;
	struct page_piece pieces[2 * LAYERS];
	struct device_layout layout;
	uint8_t *images;
	const bool *awaited;
	bool time_passes;
	uint32_t looks;
} b;

static struct cuda_gpu_conf conf = {
	.max_ctas = 2,
	.workers = 1,
	.depth = 4,
	.staging_bytes = STAGING,
	.slab_bytes = STAGING,
};

/* The engine: it has pages until the test closes its end. */
static int engine(void)
{
	CUipcMemHandle handles[GPUS] = { 0 };
	CUdeviceptr memory[GPUS];
	struct gpu gpus[GPUS];
	const int n = gpu_count() < GPUS ? gpu_count() : GPUS;
	char byte;

	for (int i = 0; i < n; i++) {
		gpu_open(&gpus[i], i);
		GPU(gpu_api()->cuMemAlloc(&memory[i], PAGE));
		GPU(gpu_api()->cuIpcGetMemHandle(&handles[i], memory[i]));
	}
	if (send(STDIN_FILENO, handles, sizeof(handles), 0) != sizeof(handles))
		return 1;
	(void)recv(STDIN_FILENO, &byte, 1, 0);
	for (int i = 0; i < n; i++) {
		GPU(gpu_api()->cuCtxSetCurrent(gpus[i].context));
		GPU(gpu_api()->cuMemFree(memory[i]));
		gpu_close(&gpus[i]);
	}
	return 0;
}

static int import_from(struct device *device, uint32_t gpu, struct device_region *ret, char *text,
		       size_t n)
{
	struct region_desc desc = { .memory = WIRE_DEVICE_HANDLE, .fd = -1, .length = PAGE };

	memcpy(desc.device, device->uuid, sizeof(desc.device));
	memcpy(desc.handle, b.handles[gpu], sizeof(desc.handle));
	return device_import(device, &desc, ret, text, n);
}

static void bring(void)
{
	char text[256];

	if (import_from(b.device, 0, &b.region, text, sizeof(text)))
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

static void leave(void)
{
	device_forget(b.device, &b.layout);
	device_release(&b.region);
}

static void on_memory(void *arg, struct device *device, const struct device_memory *memory)
{
	(void)arg;
	(void)device;
	b.tier = *memory;
	b.has_tier = true;
}

static const struct device_hooks hooks = { .memory = on_memory };

static void open_devices(void)
{
	char text[256];

	conf.kernels = codec_kernels(NULL);
	b.engine = gpu_spawn("engine", "", &b.socket);
	if (cuda_load(&b.driver, text, sizeof(text)))
		fail_msg("%s", text);
	assert_int_equal(loop_open(0, &b.loop), 0);
	assert_int_equal(device_cuda_open(&b.driver, &b.driver.found[0], &conf, b.loop, &b.device),
			 0);
	if (b.driver.n > 1)
		assert_int_equal(device_cuda_open(&b.driver, &b.driver.found[1], &conf, b.loop,
						  &b.other),
				 0);
	b.device->hooks = &hooks;
	b.images = aligned_alloc(4096, 2 * IMAGE);
	assert_non_null(b.images);
	assert_int_equal(recv(b.socket, b.handles, sizeof(b.handles), 0), sizeof(b.handles));
}

static void begin(void)
{
	open_devices();
	bring();
}

static void end(void)
{
	leave();
	device_close(b.device);
	device_close(b.other);
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
	if (!b.time_passes)
		nap_ms(1);
	if ((b.time_passes ? !pass() : ++b.looks >= PATIENT_MS) || *b.awaited)
		loop_stop(b.loop);
	return true;
}

/* The loop runs until this is so. */
static void run_until(const bool *awaited, bool time_passes)
{
	b.awaited = awaited;
	b.time_passes = time_passes;
	b.looks = 0;
	b.poller.poll = look;
	loop_poller_add(b.loop, &b.poller);
	assert_int_equal(loop_run(b.loop), 0);
	loop_poller_remove(b.loop, &b.poller);
	assert_true(*awaited);
}

static void await(struct own *own)
{
	run_until(&own->done, true);
	assert_int_equal(own->job.status, -EIO);
}

/* --- from the test's word on --- */

/* The thread has given the GPU so many of them: it waits, or is about to. */
static void await_queued(const char *call, int n)
{
	char words[64];

	(void)snprintf(words, sizeof(words), "queued %s", call);
	AWAIT(gpu_reported("gpu_hang", "note", words) >= n);
}

static void the_other_gpu_serves(void)
{
	struct device_region region;
	char text[256];

	assert_int_equal(import_from(b.other, 1, &region, text, sizeof(text)), 0);
	device_release(&region);
}

static void await_lost(void)
{
	while (note().lost_total == 0 || !strstr(note().why, "has not ended what it was given"))
		assert_true(pass()); /* the job ended first */
}

/* The GPU goes on, and serves in a new context. No time passes: that would be the GPU's. */
static void serves_again(void)
{
	static struct own own;

	gpu_let_go();
	leave();
	bring();
	submit(&own, 1);
	run_until(&own.done, false);
	assert_int_equal(own.job.status, 0);
	assert_int_equal(note().lost_total, 1);
}

/* --- cases, each in a process --- */

static int late(void)
{
	static struct own first, second;

	begin();
	submit(&first, 0);
	AWAIT(note().lost_total > 0);
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
	await_lost();
	end();
	return 0;
}

/* As `kvtierctl verify` asks for it: the first image in this memory. */
static void submit_fetch(struct own *own, const struct device_memory *memory)
{
	static struct device_copy copy;

	copy = (struct device_copy){ .to = b.images, .bytes = IMAGE };
	*own = (struct own){ .job = {
				     .kind = DEVICE_FETCH,
				     .image_memory = IMAGE_OF_DEVICE,
				     .image = (uint8_t *)(uintptr_t)memory->base,
				     .image_bytes = IMAGE,
				     .generation = memory->generation,
				     .copies = &copy,
				     .n_copies = 1,
				     .done = job_done,
			     } };
	assert_int_equal(device_submit(b.device, &own->job), 0);
	device_kick(b.device);
}

static int fetch(void)
{
	static struct own own;

	gpu_let_go();
	conf.tier_bytes = STAGING;
	begin();
	run_until(&b.has_tier, false);
	gpu_hold();
	submit_fetch(&own, &b.tier);
	await_queued("cuMemcpyDtoHAsync", 1);
	the_other_gpu_serves();
	await(&own);
	await_lost();
	serves_again();
	end();
	return 0;
}

/* Jobs that lie in the thread's mailbox while one context goes and another one comes: layout and
 * slot are of the old one, and the new one has other things at the same addresses. */
static int over(void)
{
	static struct own first, store, read;
	struct device_memory old;

	gpu_let_go();
	conf.tier_bytes = STAGING;
	begin();
	run_until(&b.has_tier, false);
	old = b.tier;
	gpu_hold();
	submit(&first, 0);
	AWAIT(gpu_reported("gpu_hang", "note", "cuDevicePrimaryCtxRetain is held") > 0);
	submit(&store, 1);
	submit_fetch(&read, &old);
	gpu_let_go();
	run_until(&first.done, false); /* no time passes, while the new context is made */
	run_until(&store.done, false);
	run_until(&read.done, false);
	assert_int_equal(first.job.status, -EIO);
	assert_int_equal(store.job.status, -EIO);
	assert_int_equal(read.job.status, -ESTALE);
	assert_int_equal(b.tier.generation, old.generation + 1);
	assert_int_equal(b.tier.base, old.base);
	serves_again();
	end();
	gpu_report_clean("gpu_hang");
	return 0;
}

static struct {
	char text[256];
	int result;
	atomic_bool done;
} asked;

static void *ask(void *arg)
{
	(void)arg;
	asked.result = import_from(b.device, 0, &b.region, asked.text, sizeof(asked.text));
	atomic_store(&asked.done, true);
	return NULL;
}

/* The first import makes the context, whose buffers are zeroed. An import has a deadline, for which
 * the machine's clock is asked: it is an hour away. */
static int import(void)
{
	pthread_t helper;
	int zeroed;

	clock_pass_ms(HOUR_MS);
	gpu_let_go();
	open_devices();
	the_other_gpu_serves();
	zeroed = gpu_reported("gpu_hang", "note", "queued cuMemsetD8Async");
	gpu_hold();
	assert_int_equal(pthread_create(&helper, NULL, ask, NULL), 0);
	await_queued("cuMemsetD8Async", zeroed + 1);
	the_other_gpu_serves();
	while (!atomic_load(&asked.done))
		assert_true(pass());
	assert_int_equal(pthread_join(helper, NULL), 0);
	assert_int_equal(asked.result, -ENODEV);
	assert_non_null(strstr(asked.text, "has not ended what it was given"));
	gpu_let_go();
	clock_pass_ms(RETRY_MS);
	bring();
	end();
	return 0;
}

static void ends_in_a_process(const char *role, const char *settings)
{
	assert_int_equal(gpu_wait(gpu_spawn(role, settings, NULL)), 0);
}

TEST_DO(a_job_that_comes_when_its_context_has_gone,
	ends_in_a_process("late", "sticky=cuLaunchKernel:1"));
TEST_DO(jobs_that_a_new_context_finds_in_the_mailbox,
	ends_in_a_process("over",
			  "reuse=1 sticky=cuLaunchKernel:1 held=cuDevicePrimaryCtxRetain:2"));

/* Staging is zeroed first. */
TEST_DO(a_job_whose_layout_never_comes, ends_in_a_process("still", "stall=2:3600000"));
TEST_DO(a_job_whose_kernel_never_runs, ends_in_a_process("still", "stall=3:3600000"));
TEST_DO(a_job_whose_copy_never_ends, ends_in_a_process("still", "stall=6:3600000"));

static const char stands_still[] = "gpus=2 halts=1 faulty=0 trace=1";

TEST_DO(an_image_that_is_read_back_from_a_gpu_that_stands_still,
	ends_in_a_process("fetch", stands_still));
TEST_DO(a_first_import_by_a_gpu_that_stands_still, ends_in_a_process("import", stands_still));

static int run_role(const char *role)
{
	static const struct {
		const char *role;
		int (*run)(void);
	} roles[] = {
		{ "engine", engine }, { "late", late },     { "still", still },
		{ "fetch", fetch },   { "import", import }, { "over", over },
	};

	for (size_t i = 0; i < sizeof(roles) / sizeof(*roles); i++)
		if (strcmp(role, roles[i].role) == 0)
			return roles[i].run();
	return 1;
}

TEST_BEGIN
{
	gpu_begin(argv, "null_stream=0 one_thread=1");
	gpu_needs_emulation("its faults are settings of the emulated driver");
	if (argc > 1)
		exit(run_role(argv[1]));
}
