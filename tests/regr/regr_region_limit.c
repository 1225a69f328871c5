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

/* A SPACE_OPEN with as many regions as there may be; only the first holds pages. */
struct many_regions {
	struct wire_space_open open;
	struct wire_region regions[WIRE_MAX_REGIONS];
	struct wire_segment segments[4];
};

/* Opens spaces until one is refused; returns how many were not. */
static uint32_t hoard(struct raw *r, int fd)
{
	struct many_regions m;
	struct raw_space space;
	struct wire_error reply = { 0 };
	uint32_t opened = 0;

	raw_space_fill(r, &space);
	m.open = space.open;
	m.open.n_regions = WIRE_MAX_REGIONS;
	for (size_t i = 0; i < 4; i++)
		m.segments[i] = space.segments[i];
	for (uint64_t i = 0; i < WIRE_MAX_REGIONS; i++)
		m.regions[i] = (struct wire_region){ .memory = WIRE_MEMFD,
						     .offset = i % 2 * 4096,
						     .length = raw_region_bytes() };
	for (; opened < WIRE_MAX_SPACES; opened++) {
		m.open.head = raw_head(r, WIRE_SPACE_OPEN, sizeof(m));
		assert_int_equal(raw_send(r, &m, sizeof(m), &fd, 1), 0);
		assert_true(raw_receive(r, &reply, sizeof(reply)) > 0);
		if (reply.head.type == WIRE_ERROR)
			break;
	}
	return opened;
}

TEST(hoarders_of_regions_leave_some_to_others)
{
	const int fd = memfd_make(raw_region_bytes() + 4096, F_SEAL_SHRINK);
	static struct raw r[HOARDERS];

	for (int i = 0; i < HOARDERS; i++) {
		raw_open(&r[i], d.socket);
		assert_true(hoard(&r[i], fd) < WIRE_MAX_SPACES);
	}
	engine_works(d.socket);
	for (int i = 0; i < HOARDERS; i++)
		raw_close(&r[i]);
	(void)close(fd);
}
