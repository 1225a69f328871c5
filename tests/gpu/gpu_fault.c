/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=15 */
/*
 * gpu_fault - goal: whichever call of the driver fails, once, at whatever point: the engine gets an
 * error or its bytes, never wrong ones; nothing hangs, and the daemon stops cleanly. Method: each
 * call that the daemon makes fails at its first, second and third time.
 */
#include "tests/lib/lib_gpu_raw.h"

#include <sys/socket.h>

enum { N = 4, CHAIN = 2, TIMES = 3 };

static const char config[] = "[host]\nbytes = 8M\nslab_bytes = 1M\nhuge_pages = no\n"
			     "[device]\nworkers = 1\ndepth = 16\n"
			     "[gpu]\nstaging_bytes = 8M\n";

static const char *const calls[] = {
	"cuInit",
	"cuDeviceGetCount",
	"cuDeviceGetUuid",
	"cuDevicePrimaryCtxRetain",
	"cuCtxSetCurrent",
	"cuModuleLoadData",
	"cuModuleGetFunction",
	"cuCtxGetStreamPriorityRange",
	"cuStreamCreateWithPriority",
	"cuMemAlloc",
	"cuMemHostAlloc",
	"cuEventCreate",
	"cuIpcOpenMemHandle",
	"cuPointerGetAttribute",
	"cuMemGetAddressRange",
	"cuStreamSynchronize",
	"cuMemcpyHtoDAsync",
	"cuLaunchKernel",
	"cuMemcpyDtoHAsync",
	"cuEventRecord",
	"cuEventQuery",
	"cuIpcCloseMemHandle",
	"cuMemFree",
};

static struct gpu gpu;

/* The connection may be cut on the way: then there is no completion. */
static bool run(struct gpu_raw *e, enum wire_op op, uint32_t first, struct wire_cqe *ret)
{
	const struct wire_sqe sqe = gpu_raw_sqe(e, op, CHAIN, first, N);
	struct wire_error error;

	gpu_raw_send(e, &sqe);
	for (int ms = 0; ms < 20000; ms++) {
		if (__atomic_load_n(&e->raw.complete->cq_tail, __ATOMIC_ACQUIRE) == e->position) {
			*ret = gpu_raw_await(e);
			return true;
		}
		if (ms % 100 == 99 &&
		    recv(e->raw.fd, &error, sizeof(error), MSG_DONTWAIT | MSG_PEEK) >= 0)
			return false;
		nap_ms(1);
	}
	fail_msg("neither a completion nor the end of the connection");
	return false;
}

static void use(const struct daemon *d, const struct kvtier_geometry *g)
{
	struct wire_region region;
	struct wire_cqe cqe;
	struct gpu_raw e;

	gpu_raw_dial(&e, d->socket, &gpu, g, 2 * N);
	gpu_raw_region(&gpu, e.memory, e.offset, e.pages * e.page_bytes, &region);
	if (gpu_raw_space(&e, &region, 1, NULL, 0, NULL) == 0) {
		gpu_raw_fill(&e, CHAIN, 0, N);
		gpu_raw_poison(&e, N, N);
		if (run(&e, WIRE_OP_STORE, 0, &cqe) && run(&e, WIRE_OP_LOAD, N, &cqe))
			for (uint32_t i = 0; i < cqe.prefix; i++)
				assert_true(gpu_raw_holds(&e, CHAIN, i, N + i));
	}
	gpu_raw_close(&e);
}

static void each_call_may_fail(void **state)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);

	(void)state;
	gpu_open(&gpu, 0);
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		for (int nth = 1; nth <= TIMES; nth++) {
			struct daemon d;

			gpu_settings("fail=%s:%d:%d", calls[i], nth, nth % 2 ? 1 : 2);
			daemon_start(&d, config);
			use(&d, &g);
			use(&d, &g);
			daemon_stat_becomes(&d, "ops.outstanding", 0, 20000);
			daemon_stat_becomes(&d, "gpu.regions", 0, 20000);
			daemon_remove(&d);
			if (gpu_reported("kvtierd", "violation", "") > 0) {
				print_message("after %s failed, time %d\n", calls[i], nth);
				gpu_report_clean("kvtierd");
			}
		}
	gpu_close(&gpu);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_call_may_fail),
	};

	(void)argc;
	gpu_begin(argv, "null_stream=0");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
