/* SPDX-License-Identifier: Apache-2.0 */

#include "kernels/cuda/binaries.h"
#include "lib.h"
#include "lib_gpu.h"
#include "lib_scratch.h"

struct gpu gpu; /* lib_gpu_emu.h, lib_gpu_served.h */
static char **arguments;
static void *library;
static char base[512]; /* settings of every process */

bool gpu_is_real(void)
{
	return env_number("KVTIER_REAL_GPU", 0) != 0;
}

uint64_t gpu_seed(void)
{
	return env_number("SEED", 1);
}

static void report_path(char *ret, size_t n)
{
	snprintf(ret, n, "%s/report", getenv("KVTIER_EMU_DIR"));
}

static void remove_dir(void)
{
	if ((pid_t)env_number("KVTIER_EMU_OWNER", 0) == getpid())
		scratch_remove(getenv("KVTIER_EMU_DIR"));
}

static void set_number(const char *variable, uint64_t value)
{
	char text[32];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	setenv(variable, text, 1);
}

static const char *driver(void)
{
	static char absolute[4096];
	char path[1024];

	snprintf(path, sizeof(path), "%s/tests/emu/libcuda.so.1", build_dir());
	if (!realpath(path, absolute))
		fail_msg("%s: %m", path);
	return absolute;
}

/* The first life of the process: makes the machine, and starts the second one. */
static void make_machine(char **argv)
{
	const struct random random = random_seeded(program_invocation_short_name);
	char dir[SCRATCH_BYTES], path[1024];
	const char *before = getenv("LD_LIBRARY_PATH");

	scratch_make("/tmp", dir, sizeof(dir));
	setenv("KVTIER_EMU_DIR", dir, 1);
	set_number("KVTIER_EMU_OWNER", (uint64_t)getpid());
	set_number("SEED", random.state);
	snprintf(path, sizeof(path), "%s/libnvidia-ml.so.1", dir);
	if (symlink(driver(), path))
		fail_msg("%s: %m", path);
	snprintf(path, sizeof(path), "%s/tests/emu:%s%s%s", build_dir(), dir, before ? ":" : "",
		 before ? before : "");
	setenv("LD_LIBRARY_PATH", path, 1);
	setenv("KVTIER_EMU_USER", getenv("KVTIER_EMU") ? getenv("KVTIER_EMU") : "", 1);
	execv("/proc/self/exe", argv);
	perror("/proc/self/exe");
	exit(1);
}

void gpu_begin(char **argv, const char *settings)
{
	char report[128];

	arguments = argv;
	if (gpu_is_real() && !strncmp(program_invocation_short_name, "gpu_emu_", 8)) {
		printf("a test of the emulated driver itself\n");
		exit(77);
	}
	if (gpu_is_real() && !argv[1])
		set_number("SEED", random_seeded(program_invocation_short_name).state);
	if (gpu_is_real())
		return;
	if (!cuda_binaries[0].data && strncmp(program_invocation_short_name, "gpu_emu_", 8)) {
		printf("there are no CUDA kernels inside: no compiler for them was here\n");
		exit(77);
	}
	if (!getenv("KVTIER_EMU_DIR"))
		make_machine(argv);
	report_path(report, sizeof(report));
	if (argv[1]) { /* gpu_spawn() has said which settings */
		snprintf(base, sizeof(base), "%s", getenv("KVTIER_EMU"));
		return;
	}
	snprintf(base, sizeof(base), "seed=%llu log=%s %s %s", (unsigned long long)gpu_seed(),
		 report, settings, getenv("KVTIER_EMU_USER"));
	setenv("KVTIER_EMU", base, 1);
	atexit(remove_dir);
}

void gpu_settings(const char *format, ...)
{
	char text[1024];
	size_t n = (size_t)snprintf(text, sizeof(text), "%s ", base);
	va_list list;

	va_start(list, format);
	vsnprintf(text + n, sizeof(text) - n, format, list);
	va_end(list);
	setenv("KVTIER_EMU", text, 1);
}

/* --- processes --- */

pid_t gpu_spawn(const char *role, const char *settings, int *ret_socket)
{
	char *const again[] = { arguments[0], (char *)(uintptr_t)role, NULL };
	char text[1024];
	int sockets[2];
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets))
		fail_msg("socketpair: %m");
	child = fork();
	if (child < 0)
		fail_msg("fork: %m");
	if (child == 0) {
		snprintf(text, sizeof(text), "%s %s", base, settings);
		setenv("KVTIER_EMU", text, 1);
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)dup2(sockets[1], STDIN_FILENO);
		execv("/proc/self/exe", again);
		_exit(127);
	}
	close(sockets[1]);
	if (ret_socket)
		*ret_socket = sockets[0];
	else
		close(sockets[0]);
	return child;
}

int gpu_wait(pid_t child)
{
	int status;

	if (waitpid(child, &status, 0) != child)
		fail_msg("waitpid: %m");
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

/* --- the driver --- */

const struct cuda_api *gpu_api(void)
{
	static struct cuda_api api;
	static bool loaded;
	const char *missing;

	if (loaded)
		return &api;
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library && gpu_is_real()) {
		printf("no driver: %s\n", dlerror());
		exit(77);
	}
	if (!library)
		fail_msg("%s", dlerror());
	if (cuda_api_load(library, &api, &missing))
		fail_msg("the driver has no %s", missing);
	loaded = true;
	return &api;
}

void gpu_ok(CUresult result, const char *call, const char *file, int line)
{
	const char *name = NULL;

	if (result == CUDA_SUCCESS)
		return;
	(void)gpu_api()->cuGetErrorName(result, &name);
	fail_msg("%s:%d: %s is %d (%s)", file, line, call, (int)result, name ? name : "?");
}

void gpu_open(struct gpu *g, int ordinal)
{
	const struct cuda_api *cu = gpu_api();

	GPU(cu->cuInit(0));
	GPU(cu->cuDeviceGet(&g->device, ordinal));
	GPU(cu->cuDevicePrimaryCtxRetain(&g->context, g->device));
	GPU(cu->cuCtxSetCurrent(g->context));
	GPU(cu->cuStreamCreateWithPriority(&g->stream, CU_STREAM_NON_BLOCKING, 0));
}

void gpu_close(struct gpu *g)
{
	const struct cuda_api *cu = gpu_api();

	GPU(cu->cuCtxSetCurrent(g->context));
	GPU(cu->cuStreamDestroy(g->stream));
	GPU(cu->cuCtxSetCurrent(NULL));
	GPU(cu->cuDevicePrimaryCtxRelease(g->device));
}

uint64_t gpu_used(void)
{
	size_t free_bytes, total;

	GPU(gpu_api()->cuMemGetInfo(&free_bytes, &total));
	return total - free_bytes;
}

void gpu_used_falls_to(uint64_t bytes)
{
	const uint64_t before = gpu_used();

	print_message("%llu bytes of the GPU are in use, %llu before\n", (unsigned long long)before,
		      (unsigned long long)bytes);
	AWAIT(gpu_used() <= bytes);
}

void gpu_write(const struct gpu *g, CUdeviceptr to, const void *from, size_t bytes)
{
	GPU(gpu_api()->cuMemcpyHtoDAsync(to, from, bytes, g->stream));
	GPU(gpu_api()->cuStreamSynchronize(g->stream));
}

void gpu_read(const struct gpu *g, void *to, CUdeviceptr from, size_t bytes)
{
	GPU(gpu_api()->cuMemcpyDtoHAsync(to, from, bytes, g->stream));
	GPU(gpu_api()->cuStreamSynchronize(g->stream));
}

static CUmemAllocationProp prop_of(const struct gpu *g, CUmemAllocationHandleType type)
{
	return (CUmemAllocationProp){ .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				      .requestedHandleTypes = type,
				      .location = { CU_MEM_LOCATION_TYPE_DEVICE, g->device } };
}

size_t gpu_granule(const struct gpu *g, CUmemAllocationHandleType type)
{
	const CUmemAllocationProp prop = prop_of(g, type);
	size_t ret;

	GPU(gpu_api()->cuMemGetAllocationGranularity(&ret, &prop,
						     CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	return ret;
}

CUdeviceptr gpu_map(const struct gpu *g, CUmemAllocationHandleType type, size_t each, size_t n,
		    CUmemGenericAllocationHandle *ret_handles)
{
	const struct cuda_api *cu = gpu_api();
	const CUmemAllocationProp prop = prop_of(g, type);
	const CUmemAccessDesc access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUdeviceptr ret;

	GPU(cu->cuMemAddressReserve(&ret, n * each, 0, 0, 0));
	for (size_t i = 0; i < n; i++) {
		GPU(cu->cuMemCreate(&ret_handles[i], each, &prop, 0));
		GPU(cu->cuMemMap(ret + i * each, each, 0, ret_handles[i], 0));
	}
	GPU(cu->cuMemSetAccess(ret, n * each, &access, 1));
	return ret;
}

void gpu_unmap(CUdeviceptr at, size_t each, size_t n, const CUmemGenericAllocationHandle *handles)
{
	const struct cuda_api *cu = gpu_api();

	GPU(cu->cuMemUnmap(at, n * each));
	for (size_t i = 0; i < n; i++)
		GPU(cu->cuMemRelease(handles[i]));
	GPU(cu->cuMemAddressFree(at, n * each));
}

void gpu_gate_make(struct gpu_gate *g)
{
	const struct cuda_api *cu = gpu_api();

	GPU(cu->cuMemHostAlloc((void **)&g->word, sizeof(*g->word), CU_MEMHOSTALLOC_DEVICEMAP));
	GPU(cu->cuMemHostGetDevicePointer(&g->at, g->word, 0));
	gpu_gate_open(g);
}

void gpu_gate_close(struct gpu_gate *g, CUstream stream)
{
	__atomic_store_n(g->word, 0, __ATOMIC_RELEASE);
	GPU(gpu_api()->cuStreamWaitValue64(stream, g->at, 1, CU_STREAM_WAIT_VALUE_EQ));
}

void gpu_gate_open(struct gpu_gate *g)
{
	__atomic_store_n(g->word, 1, __ATOMIC_RELEASE);
}

void gpu_gate_free(struct gpu_gate *g)
{
	GPU(gpu_api()->cuMemFreeHost(g->word));
}

int gpu_count(void)
{
	int n = 0;

	GPU(gpu_api()->cuInit(0));
	GPU(gpu_api()->cuDeviceGetCount(&n));
	return n;
}

/* --- the emulated driver's own calls --- */

void gpu_needs_emulation(const char *why)
{
	if (!gpu_is_real())
		return;
	printf("%s\n", why);
	exit(77);
}

static void *own_call(const char *name)
{
	void *ret;

	(void)gpu_api();
	ret = dlsym(library, name);
	if (!ret)
		fail_msg("%s", dlerror());
	return ret;
}

uint64_t gpu_countdown(uint64_t n)
{
	return ((uint64_t(*)(uint64_t))own_call("kvtier_emu_countdown"))(n);
}

const char *gpu_failed(void)
{
	return ((const char *(*)(void))own_call("kvtier_emu_failed"))();
}

uint64_t gpu_live(void)
{
	return ((uint64_t(*)(void))own_call("kvtier_emu_live"))();
}

/* --- the report --- */

static bool line_is(const char *line, const char *program, const char *kind, const char *text)
{
	const char *bracket = strchr(line, '['), *said = bracket ? strstr(bracket, "] ") : NULL;

	return said &&
	       (!*program ||
		(!strncmp(line, program, strlen(program)) && line + strlen(program) == bracket)) &&
	       !strncmp(said + 2, kind, strlen(kind)) && strstr(said, text);
}

void gpu_report_each(const char *program, const char *kind,
		     void (*each)(void *arg, const char *said), void *arg)
{
	char path[128], line[1024];
	FILE *report;

	report_path(path, sizeof(path));
	report = fopen(path, "r");
	while (report && fgets(line, sizeof(line), report))
		if (line_is(line, program, kind, ""))
			each(arg, strstr(strchr(line, '['), ": ") + 2);
	if (report)
		(void)fclose(report);
}

struct counted {
	const char *text;
	int n;
};

static void count_line(void *arg, const char *said)
{
	struct counted *c = arg;

	c->n += strstr(said, c->text) != NULL;
}

int gpu_reported(const char *program, const char *kind, const char *text)
{
	struct counted c = { .text = text };

	gpu_report_each(program, kind, count_line, &c);
	return c.n;
}

void gpu_report_clean(const char *program)
{
	const int bad = gpu_reported(program, "violation", "") + gpu_reported(program, "leak", "");
	char path[128], line[1024];
	FILE *report;

	if (gpu_is_real() || bad == 0)
		return;
	report_path(path, sizeof(path));
	report = fopen(path, "r");
	while (report && fgets(line, sizeof(line), report))
		if (line_is(line, program, "", ""))
			fputs(line, stderr);
	if (report)
		(void)fclose(report);
	fail_msg("the driver's report has %d complaints", bad);
}

/* The plan of a layout is a few hundred bytes of the heap. */
static void look_for_pageable(void *arg, const char *said)
{
	const char *bytes = strstr(said, ": ");

	if (strstr(said, "pageable") && (!bytes || strtoull(bytes + 2, NULL, 10) > 65536))
		fail_msg("%s copies to or from pageable memory: %s", (char *)arg, said);
}

void gpu_report_copies_pinned(char *program)
{
	gpu_report_each(program, "note", look_for_pageable, program);
}

void gpu_report_clear(void)
{
	char path[128];

	if (gpu_is_real())
		return;
	report_path(path, sizeof(path));
	if (truncate(path, 0))
		fail_msg("%s: %m", path);
}

void gpu_report_has(const char *text, int n)
{
	AWAIT(gpu_reported("kvtierd", "note", text) >= n);
}

static void go_path(char *ret, size_t n)
{
	snprintf(ret, n, "%s/go", getenv("KVTIER_EMU_DIR"));
}

void gpu_hold(void)
{
	char path[128];

	if (gpu_is_real())
		return;
	go_path(path, sizeof(path));
	(void)unlink(path);
}

void gpu_let_go(void)
{
	char path[128];

	go_path(path, sizeof(path));
	(void)close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
}

void gpu_expect(CUresult result, CUresult wanted, const char *said)
{
	assert_int_equal(result, wanted);
	if (gpu_reported("", "violation", said) != 1)
		fail_msg("the report does not say once '%s'", said);
	gpu_report_clear();
}
