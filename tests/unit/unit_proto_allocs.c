/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_proto_allocs - goal: each field of ALLOCS is checked at its limits, and a refusal has a
 * sentence that names the field. Method: a good one, one field changed a time.
 */

#include "daemon/session/proto.h"
#include "tests/lib/test.h"

enum { ALLOCS = 3, ALLOC_BYTES = 2 << 20 };

struct message {
	struct wire_allocs m;
	struct wire_alloc allocs[ALLOCS];
};

static char text[200];

static struct message good(uint32_t memory)
{
	struct message ret = {
		.m = { .head = { .magic = WIRE_MAGIC, .type = WIRE_ALLOCS, .length = sizeof(ret) },
		       .device = { 1 },
		       .memory = memory,
		       .range = WIRE_MAX_REGIONS - 1,
		       .n_allocs = ALLOCS,
		       .range_bytes = 4ull * ALLOC_BYTES,
		       .at = ALLOC_BYTES },
	};

	for (int i = 0; i < ALLOCS; i++) {
		ret.allocs[i].bytes = ALLOC_BYTES;
		ret.allocs[i].handle[7] = memory == WIRE_DEVICE_FABRIC;
	}
	return ret;
}

static int check(const struct message *m, size_t n, uint32_t n_fds)
{
	struct proto_allocs got;

	text[0] = '\0';
	return proto_allocs(m, n, n_fds, &got, text, sizeof(text));
}

TEST(a_good_one_points_into_the_packet)
{
	const struct message m = good(WIRE_DEVICE_FD);
	struct proto_allocs got;

	assert_int_equal(proto_allocs(&m, sizeof(m), ALLOCS, &got, text, sizeof(text)), 0);
	assert_ptr_equal(got.allocs, m.allocs);
	assert_int_equal(got.n_allocs, ALLOCS);
	assert_int_equal(got.range, WIRE_MAX_REGIONS - 1);
	assert_int_equal(got.at, ALLOC_BYTES);
	assert_memory_equal(got.device, m.m.device, sizeof(got.device));
}

static void refused(struct message m, uint32_t n_fds, const char *words)
{
	assert_int_equal(check(&m, sizeof(m), n_fds), -EINVAL);
	if (!strstr(text, words))
		fail_msg("\"%s\" does not say \"%s\"", text, words);
}

/* A good one, but for this. */
#define WRONG(memory, change, words)                                          \
	do {                                                                  \
		struct message wrong = good(memory);                          \
		wrong.change;                                                 \
		refused(wrong, memory == WIRE_DEVICE_FD ? ALLOCS : 0, words); \
	} while (0)

TEST(descriptors_are_as_many_as_allocations)
{
	struct message m = good(WIRE_DEVICE_FD);

	refused(m, ALLOCS - 1, "2 file descriptors; its 3 allocations need 3");
	refused(m, ALLOCS + 1, "4 file descriptors; its 3 allocations need 3");
	refused(m, 0, "0 file descriptors");
	m = good(WIRE_DEVICE_FABRIC);
	assert_int_equal(check(&m, sizeof(m), 0), 0);
	refused(m, ALLOCS, "need 0");
}

TEST(counts_against_limit_and_length)
{
	struct message m = good(WIRE_DEVICE_FD);

	WRONG(WIRE_DEVICE_FD, m.n_allocs = WIRE_MAX_ALLOCS + 1, "n_allocs is 254");
	WRONG(WIRE_DEVICE_FD, m.n_allocs = UINT32_MAX, "n_allocs is");
	m.m.n_allocs = ALLOCS - 1;
	assert_int_equal(check(&m, sizeof(m), ALLOCS), -EPROTO);
	m.m.n_allocs = ALLOCS;
	assert_int_equal(check(&m, sizeof(m) - 1, ALLOCS), -EPROTO);
}

TEST(places_against_the_range)
{
	WRONG(WIRE_DEVICE_FD, m.range = WIRE_MAX_REGIONS, "allocs.range is 64");
	WRONG(WIRE_DEVICE_FD, m.at = wrong.m.range_bytes, "allocs.at");
	WRONG(WIRE_DEVICE_FD, m.at = UINT64_MAX, "allocs.at");
	WRONG(WIRE_DEVICE_FD, m.range_bytes = WIRE_MAX_RANGE_BYTES + 1, "at most");
	WRONG(WIRE_DEVICE_FD, m.range_bytes = 0, "allocs.at");
	WRONG(WIRE_DEVICE_FD, allocs[2].bytes++, "allocs[2].bytes");
	WRONG(WIRE_DEVICE_FD, allocs[2].bytes = UINT64_MAX, "allocs[2].bytes");
	WRONG(WIRE_DEVICE_FD, allocs[2].bytes = 0, "allocs[2].bytes");
}

TEST(kinds_have_what_is_theirs)
{
	struct message m = good(WIRE_DEVICE_FD);

	for (m.m.memory = 0; m.m.memory <= WIRE_MEMORIES; m.m.memory++)
		if (m.m.memory != WIRE_DEVICE_FD && m.m.memory != WIRE_DEVICE_FABRIC)
			refused(m, ALLOCS, "allocs.memory");
	WRONG(WIRE_DEVICE_FD, allocs[1].handle[63] = 1, "allocs[1].handle");
	WRONG(WIRE_DEVICE_FABRIC, allocs[1].handle[7] = 0, "allocs[1].handle");
	WRONG(WIRE_DEVICE_FD, m.device[0] = 0, "allocs.device");
	WRONG(WIRE_DEVICE_FD, m.reserved = 1, "allocs.reserved");
}

TEST(no_parts_means_nothing_else)
{
	struct message m = { .m = { .head = { .type = WIRE_ALLOCS } } };
	struct proto_allocs got;

	assert_int_equal(proto_allocs(&m, sizeof(m.m), 0, &got, text, sizeof(text)), 0);
	assert_int_equal(got.n_allocs, 0);
	assert_int_equal(proto_allocs(&m, sizeof(m.m), 1, &got, text, sizeof(text)), -EINVAL);
	m.m.at = 1;
	assert_int_equal(proto_allocs(&m, sizeof(m.m), 0, &got, text, sizeof(text)), -EINVAL);
	assert_non_null(strstr(text, "all else must be 0"));
}
