/* SPDX-License-Identifier: Apache-2.0 */
/*
 * regr_region_limit.c - goal: no client can take the address space or the mappings
 * (vm.max_map_count) that the daemon needs for another's regions. Method: clients with a sparse
 * memfd of 100 TiB, which costs its owner nothing, or with all the regions that 34 connections can
 * name; after each an honest engine that opens a space, stores and loads.
 */
#include "tests/lib/lib_raw.h"

enum { HOARDERS = 34 };

DAEMON_EACH(d, SMALL_HOST);

TEST(a_huge_sparse_region_is_refused)
{
	const uint64_t bytes = 100ull << 40;
	const int fd = memfd_make(bytes, F_SEAL_SHRINK);
	struct raw_space space;
	struct raw r;

	raw_open(&r, d.socket);
	raw_space_fill(&r, &space);
	space.region.length = bytes;
	assert_int_equal(raw_send(&r, &space, sizeof(space), &fd, 1), 0);
	raw_expect_refused(&r, -ENOSPC, "[socket] max_clients");
	engine_works(d.socket);
	raw_close(&r);
	(void)close(fd);
}

TEST(hoarders_of_regions_leave_some_to_others)
{
	static struct raw r[HOARDERS];
	int error;

	for (int i = 0; i < HOARDERS; i++) {
		raw_open(&r[i], d.socket);
		assert_true(raw_hoard(&r[i], &error) < WIRE_MAX_SPACES);
	}
	engine_works(d.socket);
	for (int i = 0; i < HOARDERS; i++)
		raw_close(&r[i]);
}
