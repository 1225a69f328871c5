/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait seconds=17 */
/*
 * gpu_allocs - goal: memory in several allocations becomes one region, whose pages lie across their
 * borders. After a wrong ALLOCS, or an end between two of them, the daemon has nothing of the
 * range: no mapping, no addresses, no handle, no descriptor. Method: the wire by hand; the emulated
 * driver's report and its count of memory in use; the daemon's descriptors.
 */
#include "tests/lib/lib_gpu_range.h"

/* MESSAGE_ALLOCS: as libkvtier sends, so that an answer takes less than its 10 s everywhere. */
enum { N = 4, CHAIN = 3, ALLOCS = 6, MESSAGE_ALLOCS = 64 };

static const char config[] = HOST("32M", "1M") "[device]\nworkers = 2\n"
					       "[socket]\nmax_clients = %s\n" GPU_LINES;

static struct daemon d;
static struct gpu gpu;
static struct gpu_raw e;
static struct gpu_range range;

/* The pages lie across the border of the first two allocations. */
static void begin_with(const char *max_clients, uint32_t allocs)
{
	char text[512];

	gpu_open(&gpu, 0);
	(void)snprintf(text, sizeof(text), config, max_clients);
	daemon_start(&d, text);
	gpu_raw_dial(&e, d.socket, &gpu, &tiny_fp8, 2 * N);
	gpu_range_make(&gpu, WIRE_DEVICE_FD, allocs, &range);
	e.memory = range.base;
	e.offset = range.alloc_bytes - N * e.page_bytes - 512;
}

FIXTURE_DO(begin, begin_with("16", ALLOCS));

static void nothing_is_left(void)
{
	daemon_stat_becomes(&d, "gpu.regions", 0, PATIENT_MS);
}

FIXTURE(end)
{
	nothing_is_left();
	gpu_raw_close(&e);
	gpu_range_free(&range);
	return gpu_daemon_end(&d, &gpu);
}

TEST_EACH(begin, end);

static struct wire_region region_at(uint64_t offset)
{
	return gpu_range_region(&range, 0, offset, e.pages * e.page_bytes);
}

static void open_space(void)
{
	const struct wire_region region = region_at(e.offset);

	gpu_raw_space_open(&e, &region, 1, NULL, 0);
}

/* The range is good, after all that came before. */
static void the_range_serves(uint32_t step)
{
	gpu_range_send(&e.raw, &range, 0, step);
	open_space();
	gpu_raw_round_trip(&e, CHAIN, N);
	gpu_raw_close_space(&e);
	nothing_is_left();
}

TEST(pages_lie_across_allocations)
{
	uint64_t used;
	int fds;

	the_range_serves(ALLOCS);
	used = gpu_used(); /* the daemon's context is there */
	fds = daemon_fds_settled(&d);
	for (uint32_t step = 1; step < ALLOCS; step++)
		the_range_serves(step);
	daemon_fds_fall_to(&d, fds, PATIENT_MS);
	assert_true(gpu_used() <= used);
}

static void refused(struct gpu_allocs *allocs, int error, const char *words)
{
	char text[232] = "";
	const int r = gpu_allocs_send(&e.raw, allocs, text);

	if (r != error || !strstr(text, words))
		fail_msg("%d \"%s\"; expected %d with \"%s\"", r, text, error, words);
	nothing_is_left();
}

/* The first two allocations have been taken; the third comes wrongly. */
static void third(void (*spoil)(struct gpu_allocs *), int error, const char *words)
{
	struct gpu_allocs allocs;

	gpu_allocs_fill(&range, 0, 0, 2, &allocs);
	assert_int_equal(gpu_allocs_send(&e.raw, &allocs, NULL), 0);
	daemon_stat_becomes(&d, "gpu.regions", 1, PATIENT_MS);
	gpu_allocs_fill(&range, 0, 2, 2, &allocs);
	spoil(&allocs);
	refused(&allocs, error, words);
}

static void with_a_gap(struct gpu_allocs *p)
{
	p->m.at += range.alloc_bytes;
}

static void overlapping(struct gpu_allocs *p)
{
	p->m.at -= range.alloc_bytes;
}

static void of_another_length(struct gpu_allocs *p)
{
	p->m.range_bytes += range.alloc_bytes;
}

static void of_another_kind(struct gpu_allocs *p)
{
	p->m.memory = WIRE_DEVICE_FABRIC;
	p->allocs[0].handle[0] = p->allocs[1].handle[0] = 1;
	gpu_allocs_close(p);
}

static void too_large(struct gpu_allocs *p)
{
	p->allocs[0].bytes *= 2;
}

static void of_odd_size(struct gpu_allocs *p)
{
	p->allocs[0].bytes -= 4096;
}

static void too_few_descriptors(struct gpu_allocs *p)
{
	(void)close(p->fds[--p->n_fds]);
}

static void no_memory(struct gpu_allocs *p)
{
	(void)close(p->fds[1]);
	p->fds[1] = dup(STDIN_FILENO);
}

static void on_no_device(struct gpu_allocs *p)
{
	p->m.device[5] ^= 1;
}

static void none(struct gpu_allocs *p)
{
	gpu_allocs_close(p);
	p->m.n_allocs = 0;
}

TEST(wrong_parts_are_refused_and_nothing_is_left)
{
	const int fds = daemon_fds_settled(&d) + 8; /* a context's memory */

	third(with_a_gap, -EINVAL, "allocs.at");
	third(overlapping, -EINVAL, "allocs.at");
	third(of_another_length, -EINVAL, "allocs.range_bytes must be the same");
	third(of_another_kind, -EINVAL, "allocs.memory");
	third(too_large, -EOPNOTSUPP, "cuMemMap");
	third(of_odd_size, -EOPNOTSUPP, "cuMemMap");
	third(too_few_descriptors, -EINVAL, "file descriptors");
	third(no_memory, -EOPNOTSUPP, "cuMemImportFromShareableHandle");
	third(on_no_device, -ENODEV, "no such device");
	third(none, -EINVAL, "all else must be 0");
	daemon_fds_fall_to(&d, fds, PATIENT_MS);
	the_range_serves(2);
}

static void space_is_refused(uint64_t offset, const char *words)
{
	const struct wire_region region = region_at(offset);

	gpu_raw_space_refused(&e, &region, -1, -EINVAL, words);
	nothing_is_left();
}

TEST(a_space_takes_whole_ranges_once)
{
	struct wire_region two[2];
	struct gpu_allocs allocs;
	char text[232] = "";

	space_is_refused(e.offset, "no ALLOCS have brought range 0");
	gpu_allocs_fill(&range, 0, 0, ALLOCS - 1, &allocs);
	assert_int_equal(gpu_allocs_send(&e.raw, &allocs, NULL), 0);
	space_is_refused(e.offset, "bytes");
	gpu_range_send(&e.raw, &range, 1, ALLOCS);
	space_is_refused(e.offset, "no ALLOCS have brought range 0");
	gpu_range_send(&e.raw, &range, 0, ALLOCS);
	two[0] = two[1] = region_at(e.offset);
	assert_int_equal(gpu_raw_space(&e, two, 2, NULL, 0, text), -EINVAL);
	assert_non_null(strstr(text, "regions[1]: no ALLOCS"));
	nothing_is_left();
	gpu_range_send(&e.raw, &range, 0, ALLOCS);
	space_is_refused(ALLOCS * range.alloc_bytes - 4096, "must lie in the range's");
	the_range_serves(ALLOCS);
}

/* A range that no region names goes with the SPACE_OPEN, and with 0 allocations at once; one that
 * begins anew goes, too. */
TEST(ranges_are_given_back)
{
	struct gpu_allocs allocs;

	gpu_range_send(&e.raw, &range, 5, 1);
	daemon_stat_becomes(&d, "gpu.regions", 1, PATIENT_MS);
	gpu_range_send(&e.raw, &range, 0, ALLOCS);
	open_space();
	daemon_stat_becomes(&d, "gpu.regions", 1, PATIENT_MS);
	gpu_raw_close_space(&e);
	gpu_allocs_fill(&range, 3, 0, 2, &allocs);
	assert_int_equal(gpu_allocs_send(&e.raw, &allocs, NULL), 0);
	memset(&allocs, 0, sizeof(allocs));
	assert_int_equal(gpu_allocs_send(&e.raw, &allocs, NULL), 0);
	nothing_is_left();
	gpu_allocs_fill(&range, 0, 0, 2, &allocs);
	assert_int_equal(gpu_allocs_send(&e.raw, &allocs, NULL), 0);
	the_range_serves(ALLOCS);
}

/* In a process of its own, which waits to be killed with two allocations of six told. */
static int half(const char *socket)
{
	struct gpu_allocs allocs;
	struct gpu_range mine;
	struct raw r;

	gpu_open(&gpu, 0);
	raw_open(&r, socket);
	gpu_range_make(&gpu, WIRE_DEVICE_FD, ALLOCS, &mine);
	gpu_allocs_fill(&mine, 0, 0, 2, &allocs);
	assert_int_equal(gpu_allocs_send(&r, &allocs, NULL), 0);
	(void)!write(STDIN_FILENO, "x", 1);
	(void)pause();
	return 0;
}

TEST(an_engine_is_killed_between_messages)
{
	uint64_t used;
	pid_t child;
	int fds, socket;
	char byte;

	the_range_serves(ALLOCS);
	used = gpu_used();
	fds = daemon_fds_settled(&d);
	child = gpu_spawn(d.socket, "", &socket);
	assert_int_equal(read(socket, &byte, 1), 1);
	daemon_stat_becomes(&d, "gpu.regions", 1, PATIENT_MS);
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(gpu_wait(child), -SIGKILL);
	(void)close(socket);
	nothing_is_left();
	daemon_fds_fall_to(&d, fds, PATIENT_MS);
	gpu_used_falls_to(used);
}

/* As many in a message as the kernel lets through. */
FIXTURE_DO(begin_large, begin_with("16", 2 * WIRE_MAX_ALLOCS + 9));

TEST_WITH(hundreds_of_allocations, begin_large, end)
{
	int fds;

	the_range_serves(WIRE_MAX_ALLOCS);
	fds = daemon_fds_settled(&d);
	the_range_serves(WIRE_MAX_ALLOCS);
	daemon_fds_fall_to(&d, fds, PATIENT_MS);
}

TEST(fabric_handles_come_in_parts_too)
{
	if (!gpu_range_possible(&gpu, WIRE_DEVICE_FABRIC))
		skip();
	gpu_range_free(&range);
	gpu_range_make(&gpu, WIRE_DEVICE_FABRIC, ALLOCS, &range);
	e.memory = range.base;
	the_range_serves(ALLOCS);
	the_range_serves(1);
}

/* 4 Mi allocations for 4096 clients: 1024 each. */
FIXTURE_DO(begin_short, begin_with("4096", GPU_ALLOCS_MAX));

TEST_WITH(a_client_has_its_limit_of_allocations, begin_short, end)
{
	struct gpu_allocs allocs;

	gpu_range_send(&e.raw, &range, 0, MESSAGE_ALLOCS);
	gpu_allocs_fill(&range, 1, 0, 1, &allocs);
	refused(&allocs, -ENOSPC, "allocs: with these the client has 1025 allocations");
}

TEST_BEGIN
{
	gpu_begin(argv, "null_stream=0 one_thread=1 fabric=1 memory=8192");
	if (argc > 1)
		exit(half(argv[1]));
}
