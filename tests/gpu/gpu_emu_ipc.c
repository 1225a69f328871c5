/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_emu_ipc - the emulated driver between processes: memory and events by handle.
 *
 * This process takes the daemon's part: it opens the memory and events that an engine, this program
 * again, exports. The engine obeys the packets on its socket.
 */
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/lib.h"
#include "tests/lib/lib_gpu.h"

enum { WORDS = 4096, BYTES = 4 * WORDS };

enum order { EXPORT, FILL, FILL_LATE, FREE, FREE_AND_ALLOC, EVENT_ANEW, OPEN_OWN, QUIT };

struct reply {
	CUdeviceptr ptr;
	CUipcMemHandle memory;
	CUipcEventHandle event;
	int32_t results[2];
};

static struct gpu gpu;
static const struct cuda_api *cu;

/* --- the engine --- */

static void fill(CUdeviceptr to, uint32_t value, CUstream stream)
{
	CUmodule module;
	CUfunction function;
	uint32_t n = WORDS;
	void *params[] = { &to, &value, &n };

	GPU(cu->cuModuleLoadData(&module, ""));
	GPU(cu->cuModuleGetFunction(&function, module, "emu_fill"));
	GPU(cu->cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}

static void obey(enum order order, struct reply *r, CUevent *event, CUdeviceptr never)
{
	CUdeviceptr own;
	CUevent own_event;

	switch (order) {
	case EXPORT:
		GPU(cu->cuIpcGetMemHandle(&r->memory, r->ptr));
		GPU(cu->cuIpcGetEventHandle(&r->event, *event));
		break;
	case FILL_LATE: /* waits for an event that never comes */
		GPU(cu->cuStreamWaitValue64(gpu.stream, never, 1, CU_STREAM_WAIT_VALUE_EQ));
		GPU(cu->cuEventRecord(*event, gpu.stream));
		break;
	case FILL:
		fill(r->ptr, 77, gpu.stream);
		GPU(cu->cuEventRecord(*event, gpu.stream));
		break;
	case FREE:
		GPU(cu->cuMemFree(r->ptr));
		break;
	case FREE_AND_ALLOC:
		own = r->ptr;
		GPU(cu->cuMemFree(r->ptr));
		GPU(cu->cuMemAlloc(&r->ptr, BYTES));
		assert_int_equal(r->ptr, own); /* reuse=1 */
		break;
	case EVENT_ANEW: /* the old one goes last: anything that they share stays */
		own_event = *event;
		GPU(cu->cuEventCreate(event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
		GPU(cu->cuEventDestroy(own_event));
		break;
	case OPEN_OWN:
		r->results[0] = (int32_t)cu->cuIpcOpenMemHandle(&own, r->memory,
								CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
		r->results[1] = (int32_t)cu->cuIpcOpenEventHandle(&own_event, r->event);
		break;
	case QUIT:
		break;
	}
}

static int engine(void)
{
	struct reply r = { 0 };
	enum order order = EXPORT;
	CUdeviceptr never;
	CUevent event;

	cu = gpu_api();
	gpu_open(&gpu, 0);
	GPU(cu->cuMemAlloc(&r.ptr, BYTES));
	GPU(cu->cuMemAlloc(&never, 8));
	GPU(cu->cuMemsetD8Async(never, 0, 8, gpu.stream));
	GPU(cu->cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	while (order != QUIT && recv(STDIN_FILENO, &order, sizeof(order), 0) == sizeof(order)) {
		obey(order, &r, &event, never);
		if (send(STDIN_FILENO, &r, sizeof(r), 0) != sizeof(r))
			break;
	}
	_exit(0);
}

/* --- this process --- */

struct peer {
	pid_t pid;
	int socket;
	struct reply reply;
};

static void tell(struct peer *p, enum order order)
{
	assert_int_equal(send(p->socket, &order, sizeof(order), 0), sizeof(order));
	assert_int_equal(recv(p->socket, &p->reply, sizeof(p->reply), 0), sizeof(p->reply));
}

static void start(struct peer *p)
{
	p->pid = gpu_spawn("engine", "reuse=1", &p->socket);
	tell(p, EXPORT);
}

static void stop(struct peer *p, int signal_number)
{
	(void)kill(p->pid, signal_number);
	assert_int_equal(gpu_wait(p->pid), -signal_number);
	close(p->socket);
}

static CUresult open_memory(const struct peer *p, CUdeviceptr *ret)
{
	return cu->cuIpcOpenMemHandle(ret, p->reply.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static bool holds(CUdeviceptr ptr, uint32_t value)
{
	static uint32_t words[WORDS];
	uint32_t i;

	gpu_read(&gpu, words, ptr, BYTES);
	for (i = 0; i < WORDS && words[i] == value; i++)
		;
	return i == WORDS;
}

static int setup(void **state)
{
	(void)state;
	cu = gpu_api();
	gpu_open(&gpu, 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	gpu_close(&gpu);
	return 0;
}

static void memory_and_its_order_reach_another_process(void **state)
{
	struct peer p;
	CUdeviceptr ptr;
	CUevent event;

	(void)state;
	start(&p);
	GPU(open_memory(&p, &ptr));
	assert_int_not_equal(ptr, p.reply.ptr);
	GPU(cu->cuIpcOpenEventHandle(&event, p.reply.event));
	GPU(cu->cuEventQuery(event));
	tell(&p, FILL);
	GPU(cu->cuStreamWaitEvent(gpu.stream, event, 0));
	assert_true(holds(ptr, 77));
	GPU(cu->cuEventQuery(event));
	GPU(cu->cuEventDestroy(event));
	GPU(cu->cuIpcCloseMemHandle(ptr));
	stop(&p, SIGKILL);
	gpu_report_clean("");
}

static void open_memory_outlives_its_process_and_is_given_back_at_the_close(void **state)
{
	const uint64_t before = gpu_used();
	CUdeviceptr ptr, again;
	struct peer p;

	(void)state;
	start(&p);
	GPU(open_memory(&p, &ptr));
	tell(&p, FILL);
	GPU(cu->cuMemcpyDtoDAsync(ptr, ptr, 4, gpu.stream));
	stop(&p, SIGKILL);
	assert_int_equal(gpu_used(), before + BYTES);
	(void)holds(ptr, 0); /* it can be read */
	assert_int_equal(open_memory(&p, &again), CUDA_ERROR_INVALID_VALUE);
	GPU(cu->cuIpcCloseMemHandle(ptr));
	assert_int_equal(gpu_used(), before);
}

static void memory_that_its_owner_frees_stays_while_it_is_open(void **state)
{
	CUdeviceptr ptr;
	CUevent event;
	struct peer p;

	(void)state;
	start(&p);
	GPU(open_memory(&p, &ptr));
	GPU(cu->cuIpcOpenEventHandle(&event, p.reply.event));
	tell(&p, FILL);
	GPU(cu->cuStreamWaitEvent(gpu.stream, event, 0));
	GPU(cu->cuStreamSynchronize(gpu.stream));
	tell(&p, FREE);
	assert_true(holds(ptr, 77));
	GPU(cu->cuIpcCloseMemHandle(ptr));
	GPU(cu->cuEventDestroy(event));
	stop(&p, SIGKILL);
}

static void a_handle_of_freed_memory_opens_nothing_not_even_what_came_after(void **state)
{
	CUdeviceptr ptr;
	struct peer p;

	(void)state;
	start(&p);
	tell(&p, FREE_AND_ALLOC);
	assert_int_equal(open_memory(&p, &ptr), CUDA_ERROR_INVALID_VALUE);
	tell(&p, EXPORT);
	GPU(open_memory(&p, &ptr));
	GPU(cu->cuIpcCloseMemHandle(ptr));
	stop(&p, SIGKILL);
}

static void a_handle_of_a_destroyed_event_opens_nothing_not_even_what_came_after(void **state)
{
	CUevent event, open;
	struct peer p;

	(void)state;
	start(&p);
	GPU(cu->cuIpcOpenEventHandle(&open, p.reply.event));
	tell(&p, EVENT_ANEW);
	assert_int_equal(cu->cuIpcOpenEventHandle(&event, p.reply.event), CUDA_ERROR_INVALID_VALUE);
	tell(&p, EXPORT);
	GPU(cu->cuIpcOpenEventHandle(&event, p.reply.event));
	tell(&p, FILL_LATE);
	assert_int_equal(cu->cuEventQuery(event), CUDA_ERROR_NOT_READY);
	GPU(cu->cuEventQuery(open)); /* it was never recorded, and has nothing of the new one */
	GPU(cu->cuEventDestroy(event));
	GPU(cu->cuEventDestroy(open));
	stop(&p, SIGKILL);
}

static void handles_do_not_open_in_their_own_process(void **state)
{
	struct peer p;

	(void)state;
	start(&p);
	tell(&p, OPEN_OWN);
	assert_int_equal(p.reply.results[0], CUDA_ERROR_INVALID_CONTEXT);
	assert_int_equal(p.reply.results[1], CUDA_ERROR_INVALID_CONTEXT);
	stop(&p, SIGKILL);
}

static void the_event_of_a_process_that_died_before_is_never_complete(void **state)
{
	struct peer p;
	CUevent event;

	(void)state;
	start(&p);
	GPU(cu->cuIpcOpenEventHandle(&event, p.reply.event));
	tell(&p, FILL_LATE);
	assert_int_equal(cu->cuEventQuery(event), CUDA_ERROR_NOT_READY);
	stop(&p, SIGKILL);
	nap_ms(20);
	assert_int_equal(cu->cuEventQuery(event), CUDA_ERROR_NOT_READY);
	GPU(cu->cuEventDestroy(event));
}

static void opening_twice_and_closing_twice_are_violations(void **state)
{
	CUdeviceptr ptr, again;
	struct peer p;

	(void)state;
	gpu_report_clean("");
	start(&p);
	GPU(open_memory(&p, &ptr));
	GPU(open_memory(&p, &again));
	assert_int_equal(again, ptr);
	assert_int_equal(gpu_reported("", "violation", "is open already"), 1);
	GPU(cu->cuIpcCloseMemHandle(ptr));
	(void)holds(ptr, 0); /* once is still open */
	GPU(cu->cuIpcCloseMemHandle(ptr));
	assert_int_equal(cu->cuIpcCloseMemHandle(ptr), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(gpu_reported("", "violation", "no handle is open there"), 1);
	stop(&p, SIGKILL);
	gpu_report_clear();
}

static void memory_used_after_its_handle_was_closed_is_a_violation(void **state)
{
	uint32_t word;
	CUdeviceptr ptr;
	struct peer p;

	(void)state;
	start(&p);
	GPU(open_memory(&p, &ptr));
	GPU(cu->cuIpcCloseMemHandle(ptr));
	assert_int_equal(cu->cuMemcpyDtoHAsync(&word, ptr, 4, gpu.stream),
			 CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(gpu_reported("", "violation", "there is no device memory"), 1);
	stop(&p, SIGKILL);
	gpu_report_clear();
}

static void a_handle_closed_under_queued_work_is_a_violation(void **state)
{
	static uint32_t *words;
	CUdeviceptr ptr;
	struct peer p;
	int tries = 0;

	(void)state;
	GPU(cu->cuMemHostAlloc((void **)&words, BYTES, 0));
	start(&p);
	GPU(open_memory(&p, &ptr));
	while (!gpu_reported("", "violation", "queued operations still use")) {
		assert_true(tries++ < 10000);
		GPU(cu->cuMemcpyDtoHAsync(words, ptr, BYTES, gpu.stream));
		GPU(cu->cuIpcCloseMemHandle(ptr));
		GPU(open_memory(&p, &ptr));
	}
	GPU(cu->cuIpcCloseMemHandle(ptr));
	GPU(cu->cuMemFreeHost(words));
	stop(&p, SIGKILL);
	gpu_report_clear();
}

static void a_handle_opens_on_its_own_gpu_only(void **state)
{
	struct gpu other;
	CUdeviceptr ptr;
	CUevent event;
	struct peer p;

	(void)state;
	start(&p);
	gpu_open(&other, 1);
	assert_int_equal(open_memory(&p, &ptr), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
	assert_int_equal(cu->cuIpcOpenEventHandle(&event, p.reply.event),
			 CUDA_ERROR_INVALID_DEVICE);
	gpu_close(&other);
	GPU(cu->cuCtxSetCurrent(gpu.context));
	stop(&p, SIGKILL);
	gpu_report_clean("");
}

static void bytes_that_are_no_handle_open_nothing(void **state)
{
	CUdeviceptr ptr;
	CUevent event;
	struct peer p;
	size_t i;

	(void)state;
	start(&p);
	for (i = 0; i < sizeof(p.reply.memory); i++) {
		p.reply.memory.reserved[i] ^= 1;
		p.reply.event.reserved[i] ^= 1;
		assert_int_equal(open_memory(&p, &ptr), CUDA_ERROR_INVALID_VALUE);
		assert_int_equal(cu->cuIpcOpenEventHandle(&event, p.reply.event),
				 CUDA_ERROR_INVALID_VALUE);
		p.reply.memory.reserved[i] ^= 1;
		p.reply.event.reserved[i] ^= 1;
	}
	assert_int_equal(cu->cuIpcOpenMemHandle(&ptr, p.reply.memory, 0), CUDA_ERROR_INVALID_VALUE);
	stop(&p, SIGKILL);
	gpu_report_clean("");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_and_its_order_reach_another_process),
		cmocka_unit_test(open_memory_outlives_its_process_and_is_given_back_at_the_close),
		cmocka_unit_test(memory_that_its_owner_frees_stays_while_it_is_open),
		cmocka_unit_test(a_handle_of_freed_memory_opens_nothing_not_even_what_came_after),
		cmocka_unit_test(
			a_handle_of_a_destroyed_event_opens_nothing_not_even_what_came_after),
		cmocka_unit_test(handles_do_not_open_in_their_own_process),
		cmocka_unit_test(the_event_of_a_process_that_died_before_is_never_complete),
		cmocka_unit_test(opening_twice_and_closing_twice_are_violations),
		cmocka_unit_test(memory_used_after_its_handle_was_closed_is_a_violation),
		cmocka_unit_test(a_handle_closed_under_queued_work_is_a_violation),
		cmocka_unit_test(a_handle_opens_on_its_own_gpu_only),
		cmocka_unit_test(bytes_that_are_no_handle_open_nothing),
	};
	int failed;

	gpu_begin(argv, "gpus=2");
	if (argc > 1)
		return engine();
	failed = cmocka_run_group_tests(tests, setup, teardown);
	gpu_report_clean("");
	return failed;
}
