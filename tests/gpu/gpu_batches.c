/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=5 needs=kvtierd_tuned */
/*
 * gpu_batches - goal: blocks that wait together cross the wire in few large copies; at most two
 * batches of a direction are on the GPU, and two are; stores have the lowest priority and loads the
 * highest; a batch costs a handful of calls; a store queues no copy to the GPU, where it would wait
 * for the copies of loads; nothing waits for a whole context, and no callback of the host exists.
 * Method: the trace of the emulated driver. Ops of many blocks are held by a word, so that all
 * their blocks are ready at once. The GPU stands still until two batches are queued: a third one
 * would be queued, too, if it could.
 */
#include "tests/lib/lib_gpu_raw.h"

/* 31 pages of 128 KiB in a lane of 4 MiB: three lanes. */
enum { N = 93, CHAIN = 1, LANES = 3, WARMUP = 2 };

static const char config[] = HOST("16M", "2M") "[device]\nworkers = 2\n"
					       "[gpu]\ndevices = required\nstaging_bytes = 32M\n";

static struct daemon d;
static struct gpu gpu;
static struct gpu_raw e;

/* The daemon's operations, by the driver's trace. */
struct way {
	int copies, kernels;
	unsigned long long bytes;
	int priority;
	int running, most; /* kernels queued and not ended: now, and at most */
};

struct seen {
	struct way store, load;
	int copies_in_of_stores;
};

static void run_held(enum wire_op op, uint32_t first)
{
	const int before = gpu_reported("kvtierd", "note", "queued cuLaunchKernel");
	struct wire_sqe sqe = gpu_raw_sqe(&e, op, CHAIN, first, N);

	sqe.word = 1;
	sqe.flags = WIRE_SQE_READY;
	gpu_raw_send(&e, &sqe);
	gpu_devices_have(&d, "jobs", N);
	gpu_hold();
	__atomic_store_n(&e.words->ready[0], sqe.op_id, __ATOMIC_RELEASE);
	if (!gpu_is_real())
		gpu_report_has("queued cuLaunchKernel", before + 2);
	gpu_let_go();
	assert_int_equal(gpu_raw_await(&e).status, 0);
}

/* Only stores copy out. A small copy in is a layout of pages. */
static void look(void *arg, const char *said)
{
	unsigned long long ticket, stream, bytes;
	struct seen *seen = arg;
	struct way *way;
	char what[16], call[64];
	int priority;

	if (sscanf(said, "%15s %63s ticket %llu stream %llu priority %d bytes %llu", what, call,
		   &ticket, &stream, &priority, &bytes) != 6)
		return;
	way = priority < 0 ? &seen->load : &seen->store;
	if (!strcmp(call, "cuLaunchKernel")) {
		way->running += !strcmp(what, "queued") ? 1 : !strcmp(what, "ended") ? -1 : 0;
		way->most = way->running > way->most ? way->running : way->most;
		way->kernels += !strcmp(what, "queued");
	}
	if (strcmp(what, "queued") != 0 || strncmp(call, "cuMemcpy", 8) != 0)
		return;
	if (!strcmp(call, "cuMemcpyHtoDAsync")) {
		seen->copies_in_of_stores += way == &seen->store;
		if (bytes <= 65536)
			return;
	}
	way = !strcmp(call, "cuMemcpyDtoHAsync") ? &seen->store : &seen->load;
	way->priority = priority;
	way->copies++;
	way->bytes += bytes;
}

/* The word may come between two looks at jobs in a row: then there is one more lane. */
static void is_merged(const struct way *way, const char *name)
{
	if (way->copies > LANES + 1 || way->bytes / (unsigned)way->copies < 1 << 20)
		fail_msg("%d blocks were %s in %d copies of %llu bytes together", N, name,
			 way->copies, way->bytes);
	assert_int_equal(way->kernels, way->copies);
	if (way->most != 2)
		fail_msg("%d batches at a time were %s", way->most, name);
}

/* The first batches bring the layout of pages to the GPU, and wait for it. */
static void begin(void)
{
	gpu_let_go();
	gpu_open(&gpu, 0);
	daemon_tuned(NULL, 128);
	daemon_start(&d, config);
	gpu_raw_open(&e, d.socket, &gpu, &large_raw, 2 * N);
	assert_int_equal(gpu_raw_order(&e), 0);
	gpu_raw_store(&e, CHAIN + 1, 0, 1);
	gpu_raw_load(&e, CHAIN + 1, N, 1);
	gpu_report_clean("kvtierd");
	gpu_report_clear();
	gpu_raw_fill(&e, CHAIN, 0, N);
	gpu_raw_poison(&e, N, N);
}

TEST(blocks_that_wait_together_go_together)
{
	struct seen seen = { 0 };

	begin();
	run_held(WIRE_OP_STORE, 0);
	run_held(WIRE_OP_LOAD, N);
	gpu_raw_all_hold(&e, CHAIN, N, N);
	gpu_report_each("kvtierd", "note", look, &seen);
	if (!gpu_is_real())
		daemon_stat_becomes(&d, "devices:batches_total",
				    (uint64_t)(WARMUP + seen.store.copies + seen.load.copies),
				    PATIENT_MS);
	gpu_raw_close_all(&e);
	daemon_remove(&d);
	gpu_close(&gpu);
	gpu_report_clean("kvtierd");
	if (gpu_is_real())
		return;
	is_merged(&seen.store, "stored");
	is_merged(&seen.load, "loaded");
	assert_true(seen.load.priority < seen.store.priority);
	assert_int_equal(seen.copies_in_of_stores, 0);
	/* where the thread waits it looks: no call of it lasts as long as the GPU likes */
	assert_int_equal(gpu_reported("kvtierd", "note", "called cuCtxSynchronize"), 0);
	assert_int_equal(gpu_reported("kvtierd", "note", "called cuStreamSynchronize"), 0);
}

/* The daemon finds calls by this table alone. */
TEST(no_call_of_the_driver_can_call_back)
{
	static const char *const names[] = {
#define NAME(name, version, arguments) #name,
		CUDA_CALLS(NAME)
#undef NAME
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strstr(names[i], "HostFunc") || strstr(names[i], "Callback") ||
		    strstr(names[i], "BatchAsync"))
			fail_msg("%s is in the table of calls", names[i]);
}

TEST_FIRST(gpu_begin(argv, "null_stream=0 one_thread=1 trace=1 halts=1"));
