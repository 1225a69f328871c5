/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_client_probe - goal: a pointer that is not all of one GPU's memory is refused by libkvtier in
 * a sentence that names the region, before a daemon sees it; the caller's context stays current.
 * Method: pointers of each wrong kind, on two GPUs.
 */
#include "tests/lib/lib_gpu_engine.h"

enum { BYTES = 1 << 20 };

static struct daemon d;
static struct gpu gpus[2];
static struct kvtier_client *client;

FIXTURE(begin)
{
	const struct kvtier_options o = { .size = sizeof(o) };
	struct kvtier_options options = o;

	daemon_start(&d, HOST("16M", "2M"));
	if (gpu_count() > 1)
		gpu_open(&gpus[1], 1);
	gpu_open(&gpus[0], 0);
	options.socket_path = d.socket;
	assert_int_equal(kvtier_connect(&options, &client), 0);
	return 0;
}

FIXTURE(end)
{
	kvtier_close(client);
	daemon_remove(&d);
	gpu_close(&gpus[0]);
	if (gpu_count() > 1)
		gpu_close(&gpus[1]);
	gpu_report_clean("");
	return 0;
}

static char reached[256]; /* how try()'s pages were */

/* A page has 8 KiB: all of the first region's lie in it. */
static int try(const CUdeviceptr *bases, const uint64_t *lengths, size_t n)
{
	static struct kvtier_segment segments[KVTIER_MAX_SEGMENTS];
	const size_t n_segments = engine_segments(&tiny_raw, segments, KVTIER_MAX_SEGMENTS);
	struct kvtier_region regions[2];
	struct kvtier_space *space;
	CUcontext before, after;
	int r;

	for (size_t i = 0; i < n; i++)
		regions[i] = (struct kvtier_region){ .size = sizeof(regions[i]),
						     .memory = KVTIER_CUDA,
						     .fd = -1,
						     .length = lengths[i],
						     .base = (void *)(uintptr_t)bases[i] };
	GPU(gpu_api()->cuCtxGetCurrent(&before));
	r = kvtier_space_open(client, &tiny_raw, regions, n, segments, n_segments, &space);
	GPU(gpu_api()->cuCtxGetCurrent(&after));
	assert_ptr_equal(before, after);
	if (r == 0) {
		assert_true(kvtier_space_memory(space, reached, sizeof(reached)) > 0);
		assert_int_equal(kvtier_space_close(space), 0);
	}
	return r;
}

static void refused(CUdeviceptr base, uint64_t length, const char *words)
{
	assert_int_equal(try(&base, &length, 1), -EINVAL);
	if (!strstr(kvtier_last_error(), words))
		fail_msg("\"%s\" does not say \"%s\"", kvtier_last_error(), words);
}

TEST(memory_of_the_host_is_refused)
{
	static uint8_t bytes[BYTES];
	void *pinned;

	refused((uintptr_t)bytes, BYTES, "regions[0].base is 0x");
	GPU(gpu_api()->cuMemHostAlloc(&pinned, BYTES, CU_MEMHOSTALLOC_PORTABLE));
	refused((uintptr_t)pinned, BYTES, "no address of a GPU's memory");
	GPU(gpu_api()->cuMemFreeHost(pinned));
}

TEST(managed_memory_is_refused)
{
	CUdeviceptr managed;

	GPU(gpu_api()->cuMemAllocManaged(&managed, BYTES, CU_MEM_ATTACH_GLOBAL));
	refused(managed, BYTES, "managed memory");
	GPU(gpu_api()->cuMemFree(managed));
}

TEST(freed_memory_is_refused)
{
	CUdeviceptr base;

	GPU(gpu_api()->cuMemAlloc(&base, BYTES));
	GPU(gpu_api()->cuMemFree(base));
	refused(base, BYTES, "no address of a GPU's memory");
}

TEST(more_than_the_allocation_is_refused)
{
	CUdeviceptr base;

	GPU(gpu_api()->cuMemAlloc(&base, BYTES));
	refused(base + 4096, BYTES, "the allocation at its base has 1044480 bytes");
	refused(base, UINT64_MAX, "regions[0].length");
	GPU(gpu_api()->cuMemFree(base));
}

TEST(a_part_of_an_allocation_is_taken)
{
	const uint64_t length = BYTES - 512;
	CUdeviceptr base;

	GPU(gpu_api()->cuMemAlloc(&base, BYTES));
	base += 512;
	assert_int_equal(try(&base, &length, 1), 0);
	GPU(gpu_api()->cuMemFree(base - 512));
}

TEST(two_gpus_in_a_space_are_refused)
{
	const uint64_t lengths[2] = { BYTES, BYTES };
	CUdeviceptr bases[2];

	if (gpu_count() < 2)
		skip();
	GPU(gpu_api()->cuMemAlloc(&bases[0], BYTES));
	GPU(gpu_api()->cuCtxPushCurrent(gpus[1].context));
	GPU(gpu_api()->cuMemAlloc(&bases[1], BYTES));
	assert_int_equal(try(bases, lengths, 2), -EINVAL);
	assert_non_null(strstr(kvtier_last_error(), "regions[1] is of GPU 1, regions[0] of GPU 0"));
	GPU(gpu_api()->cuMemFree(bases[1]));
	GPU(gpu_api()->cuCtxPopCurrent(NULL));
	GPU(gpu_api()->cuMemFree(bases[0]));
}

/* The calling thread has no context at all: the memory's own is used. */
TEST(a_thread_without_a_context_opens_and_closes)
{
	const uint64_t length = BYTES;
	CUdeviceptr base;

	GPU(gpu_api()->cuMemAlloc(&base, BYTES));
	GPU(gpu_api()->cuCtxSetCurrent(NULL));
	assert_int_equal(try(&base, &length, 1), 0);
	GPU(gpu_api()->cuCtxSetCurrent(gpus[0].context));
	GPU(gpu_api()->cuMemFree(base));
}

/* Two allocations of cudaMalloc(), wherever the second one lies: none is a part of the other. */
TEST(two_allocations_are_no_region)
{
	CUdeviceptr a, b;
	char words[64];

	GPU(gpu_api()->cuMemAlloc(&a, BYTES));
	GPU(gpu_api()->cuMemAlloc(&b, BYTES));
	(void)snprintf(words, sizeof(words), "to %#llx; what follows is no part of it", a + BYTES);
	refused(a, 2 * BYTES, words);
	if (b > a)
		refused(a, b + BYTES - a, words);
	GPU(gpu_api()->cuMemFree(b));
	GPU(gpu_api()->cuMemFree(a));
}

/* Mapped memory, with nothing mapped behind it. */
TEST(a_gap_behind_a_mapping_is_refused)
{
	struct gpu_memory m;

	gpu_memory_make(&gpus[0], GPU_VMM_MANY, 3 * BYTES, &m);
	refused(m.base + BYTES, m.bytes, "what follows is no part of it");
	gpu_memory_free(&gpus[0], &m);
}

/* The engine's own second context: its memory goes like any other. */
TEST(memory_of_another_context_is_taken)
{
	const uint64_t length = BYTES;
	CUcontext other;
	CUdeviceptr base;

	GPU(gpu_api()->cuCtxCreate(&other, 0, gpus[0].device));
	GPU(gpu_api()->cuMemAlloc(&base, BYTES));
	GPU(gpu_api()->cuCtxPopCurrent(NULL));
	assert_int_equal(try(&base, &length, 1), 0);
	assert_non_null(strstr(reached, "CUDA IPC"));
	GPU(gpu_api()->cuCtxPushCurrent(other));
	GPU(gpu_api()->cuMemFree(base));
	GPU(gpu_api()->cuCtxDestroy(other));
	GPU(gpu_api()->cuCtxSetCurrent(gpus[0].context));
}

/* This program again: it has memory, and gives its handle away. */
static int owner(void)
{
	CUipcMemHandle handle;
	CUdeviceptr base;
	struct gpu g;
	char byte;

	gpu_open(&g, 0);
	GPU(gpu_api()->cuMemAlloc(&base, BYTES));
	GPU(gpu_api()->cuIpcGetMemHandle(&handle, base));
	assert_int_equal(write(STDIN_FILENO, &handle, sizeof(handle)), sizeof(handle));
	(void)!read(STDIN_FILENO, &byte, 1);
	GPU(gpu_api()->cuMemFree(base));
	gpu_close(&g);
	return 0;
}

/* A driver exports only memory that it has allocated. */
TEST(imported_memory_is_staged)
{
	const uint64_t length = BYTES;
	CUipcMemHandle handle;
	CUdeviceptr base;
	pid_t child;
	int socket;

	child = gpu_spawn("owner", "", &socket);
	assert_int_equal(read(socket, &handle, sizeof(handle)), sizeof(handle));
	GPU(gpu_api()->cuIpcOpenMemHandle(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	assert_int_equal(try(&base, &length, 1), 0);
	assert_non_null(strstr(reached, "CUDA staged: its driver makes no IPC handle of it"));
	GPU(gpu_api()->cuIpcCloseMemHandle(base));
	(void)close(socket);
	assert_int_equal(gpu_wait(child), 0);
}

TEST_GROUP(begin, end);

TEST_BEGIN
{
	gpu_begin(argv, "gpus=2 reuse=0 null_stream=0");
	if (argc > 1)
		exit(owner());
}
