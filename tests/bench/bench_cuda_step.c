/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_cuda_step.c - the cost of stores and loads at full rate for an engine on the same GPU.
 *
 *	cuda.traffic	stores (gather+encode, copy down) and loads (copy up, decode+scatter) at
 *			the same time, 16 blocks each, on streams of lowest and of highest
 *			priority: bytes on the wire, of plain copies both ways
 *	cuda.step	a stand-in for a step of decoding, alone and beside cuda.traffic in another
 *			process: the 99th percentile of its time
 *
 * A step is PASSES passes that stream HBM through all of the GPU, and a wait. An engine's step
 * has other kernels; the stand-in stands for its share of HBM and of the SMs. Processes take turns
 * on a GPU without MPS, so cuda.step is to be run twice, without MPS and with it; its note says
 * which. bench_cuda_served.c has the same step beside stores and loads of a client.
 */
#include "bench_cuda_step.h"

#include <poll.h>
#include <sys/socket.h>

#include "bench_cuda.h"

#define UNTIL "KVTIER_BENCH_CUDA_UNTIL" /* cuda.traffic runs until this descriptor hangs up */

enum { RUNS = 5, STEPS = 200, PASSES = 32, CTAS = 16, WHOLE_GPU = 65535 };

static int runs(const struct rig *r)
{
	return r->bytes < RIG_SMALL ? 1 : RUNS;
}

/* --- traffic --- */

/* Bytes that crossed the wire. */
static uint64_t store_and_load(struct rig *stores, struct rig *loads)
{
	rig_launch(stores, stores->encode, CTAS);
	rig_cross(stores, DOWN);
	rig_cross(loads, UP);
	rig_launch(loads, loads->decode, CTAS);
	rig_wait(stores);
	rig_wait(loads);
	return 2 * stores->blocks * stores->image_bytes;
}

static int until(void)
{
	const char *given = getenv(UNTIL);

	return given ? (int)strtol(given, NULL, 10) : -1;
}

/* The other side hears when the first bytes have crossed. */
static void run_until_it_hangs_up(struct rig *stores, struct rig *loads, int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	bool told = false;

	while (poll(&p, 1, 0) == 0) {
		(void)store_and_load(stores, loads);
		if (!told)
			(void)!write(fd, "r", 1);
		told = true;
	}
}

static void run_traffic(const struct bench_case *self, struct bench_result *ret)
{
	struct rig *stores = bench_alloc(sizeof(*stores)), *loads = bench_alloc(sizeof(*loads));

	(void)self;
	rig_open(stores, RIG_STORES, 2, ret);
	rig_plan(stores, CODEC_FP8);
	rig_open(loads, RIG_LOADS, 2, ret);
	rig_plan(loads, CODEC_FP8);
	if (until() >= 0)
		run_until_it_hangs_up(stores, loads, until());
	for (int i = 0; i < runs(stores); i++) {
		const uint64_t start = bench_now_ns(), bytes = store_and_load(stores, loads);
		const double seconds = (double)(bench_now_ns() - start) / 1e9;

		/* rig_copy(BOTH) copies as many bytes each way as it is asked for */
		bench_add(ret, (double)bytes / 1e9 / seconds,
			  2 * (double)stores->bytes / 1e9 /
				  rig_copy(stores, BOTH, stores->bytes, RIG_SMALL));
	}
}

/* --- steps --- */

static double step_p99(struct rig *r)
{
	const bool small = r->bytes < RIG_SMALL;
	const uint32_t n = small ? 1 : STEPS;
	double us[STEPS];

	for (uint32_t i = 0; i < n; i++) {
		const uint64_t start = bench_now_ns();

		for (int k = 0; k < (small ? 1 : PASSES); k++)
			rig_launch(r, r->encode, WHOLE_GPU);
		rig_wait(r);
		us[i] = (double)(bench_now_ns() - start) / 1e3;
	}
	return bench_percentile(us, n, 99);
}

void step_run(const struct step_beside *b, struct bench_result *ret)
{
	struct rig *r = bench_alloc(sizeof(*r));
	int mps = 0;

	rig_open(r, RIG_NORMAL, 1, ret);
	if (r->api.cuDeviceGetAttribute(&mps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, r->device) == 0)
		bench_note(ret, "%s; %s", ret->note,
			   mps ? "with MPS" : "without MPS: processes take turns");
	rig_plan(r, CODEC_FP8);
	for (int i = 0; i < runs(r); i++) {
		const double alone = step_p99(r);
		double beside;

		b->start(b->arg);
		beside = step_p99(r);
		b->stop(b->arg);
		bench_add(ret, beside, alone);
	}
}

/* --- the step beside cuda.traffic --- */

struct other {
	pid_t pid;
	int fd;
};

/* This program again, as the other process. */
static void start_traffic(void *arg)
{
	struct other *other = arg;
	int fds[2], nowhere;
	char number[16], byte;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
		bench_must(-errno);
	pid = fork();
	if (pid == 0) {
		const int kept = fcntl(fds[1], F_DUPFD, 3); /* without CLOEXEC */

		(void)snprintf(number, sizeof(number), "%d", kept);
		(void)setenv(UNTIL, number, 1);
		nowhere = open("/dev/null", O_WRONLY);
		(void)dup2(nowhere, STDOUT_FILENO);
		(void)execl("/proc/self/exe", "kvtier-bench", "cuda.traffic", (char *)NULL);
		_exit(127);
	}
	(void)close(fds[1]);
	*other = (struct other){ .pid = pid, .fd = fds[0] };
	bench_must(pid > 0 && read(fds[0], &byte, 1) == 1 ? 0 : -ECHILD);
}

/* It hears of the end, and has ended: its status. */
static int end_other(struct other *other)
{
	int status = 0;

	if (other->pid <= 0)
		return 0;
	(void)close(other->fd);
	(void)waitpid(other->pid, &status, 0);
	other->pid = 0;
	return status;
}

static void stop_traffic(void *arg)
{
	bench_must(end_other(arg) ? -ECHILD : 0);
}

static void leave_none(void *arg)
{
	(void)end_other(arg);
}

static void run_step(const struct bench_case *self, struct bench_result *ret)
{
	struct other *other = bench_alloc(sizeof(*other));

	(void)self;
	bench_defer(leave_none, other);
	step_run(&(struct step_beside){ start_traffic, stop_traffic, other }, ret);
}

const struct bench_case bench_cuda_step_cases[] = {
	{ "cuda.traffic", run_traffic, "stores and loads at once, of plain copies both ways", 0,
	  BENCH_MORE, "GB/s", NULL },
	{ "cuda.step", run_step, "p99 of a decode stand-in beside cuda.traffic, of it alone",
	  1 / 1.05, BENCH_LESS, "us", NULL },
	{ 0 },
};
