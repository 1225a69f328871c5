/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_proto_parts - goal: each field of PARTS is checked at its limits, and a refusal has a
 * sentence that names the field. Method: a good one, one field changed a time.
 */
#include <errno.h>
#include <string.h>

#include "daemon/shared/proto.h"
#include "tests/lib/test.h"

enum { PARTS = 3, PART_BYTES = 2 << 20 };

struct message {
	struct wire_parts m;
	struct wire_part parts[PARTS];
};

static char text[200];

static struct message good(uint32_t memory)
{
	struct message ret = {
		.m = { .head = { .magic = WIRE_MAGIC, .type = WIRE_PARTS, .length = sizeof(ret) },
		       .device = { 1 },
		       .memory = memory,
		       .range = WIRE_MAX_REGIONS - 1,
		       .n_parts = PARTS,
		       .range_bytes = 4ull * PART_BYTES,
		       .at = PART_BYTES },
	};

	for (int i = 0; i < PARTS; i++) {
		ret.parts[i].bytes = PART_BYTES;
		ret.parts[i].handle[7] = memory == WIRE_DEVICE_FABRIC;
	}
	return ret;
}

static int check(const struct message *m, size_t n, uint32_t n_fds)
{
	struct proto_parts got;

	text[0] = '\0';
	return proto_parts(m, n, n_fds, &got, text, sizeof(text));
}

TEST(a_good_one_points_into_the_packet)
{
	const struct message m = good(WIRE_DEVICE_FD);
	struct proto_parts got;

	assert_int_equal(proto_parts(&m, sizeof(m), PARTS, &got, text, sizeof(text)), 0);
	assert_ptr_equal(got.parts, m.parts);
	assert_int_equal(got.n_parts, PARTS);
	assert_int_equal(got.range, WIRE_MAX_REGIONS - 1);
	assert_int_equal(got.at, PART_BYTES);
	assert_memory_equal(got.device, m.m.device, sizeof(got.device));
}

static void refused(struct message m, uint32_t n_fds, const char *words)
{
	assert_int_equal(check(&m, sizeof(m), n_fds), -EINVAL);
	if (!strstr(text, words))
		fail_msg("\"%s\" does not say \"%s\"", text, words);
}

TEST(descriptors_are_as_many_as_parts)
{
	struct message m = good(WIRE_DEVICE_FD);

	refused(m, PARTS - 1, "2 file descriptors; its 3 parts need 3");
	refused(m, PARTS + 1, "4 file descriptors; its 3 parts need 3");
	refused(m, 0, "0 file descriptors");
	m = good(WIRE_DEVICE_FABRIC);
	assert_int_equal(check(&m, sizeof(m), 0), 0);
	refused(m, PARTS, "need 0");
}

TEST(counts_against_limit_and_length)
{
	struct message m = good(WIRE_DEVICE_FD);

	m.m.n_parts = WIRE_MAX_PARTS + 1;
	refused(m, PARTS, "n_parts is 254");
	m.m.n_parts = UINT32_MAX;
	refused(m, PARTS, "n_parts is");
	m.m.n_parts = PARTS - 1;
	assert_int_equal(check(&m, sizeof(m), PARTS), -EPROTO);
	m.m.n_parts = PARTS;
	assert_int_equal(check(&m, sizeof(m) - 1, PARTS), -EPROTO);
}

TEST(places_against_the_range)
{
	struct message m = good(WIRE_DEVICE_FD);

	m.m.range = WIRE_MAX_REGIONS;
	refused(m, PARTS, "parts.range is 64");
	m = good(WIRE_DEVICE_FD);
	m.m.at = m.m.range_bytes;
	refused(m, PARTS, "parts.at");
	m.m.at = UINT64_MAX;
	refused(m, PARTS, "parts.at");
	m = good(WIRE_DEVICE_FD);
	m.m.range_bytes = WIRE_MAX_RANGE_BYTES + 1;
	refused(m, PARTS, "at most");
	m = good(WIRE_DEVICE_FD);
	m.m.range_bytes = 0;
	refused(m, PARTS, "parts.at");
	m = good(WIRE_DEVICE_FD);
	m.parts[2].bytes++;
	refused(m, PARTS, "parts[2].bytes");
	m.parts[2].bytes = UINT64_MAX;
	refused(m, PARTS, "parts[2].bytes");
	m.parts[2].bytes = 0;
	refused(m, PARTS, "parts[2].bytes");
}

TEST(kinds_have_what_is_theirs)
{
	struct message m = good(WIRE_DEVICE_FD);

	for (m.m.memory = 0; m.m.memory <= WIRE_MEMORIES; m.m.memory++)
		if (m.m.memory != WIRE_DEVICE_FD && m.m.memory != WIRE_DEVICE_FABRIC)
			refused(m, PARTS, "parts.memory");
	m = good(WIRE_DEVICE_FD);
	m.parts[1].handle[63] = 1;
	refused(m, PARTS, "parts[1].handle");
	m = good(WIRE_DEVICE_FABRIC);
	m.parts[1].handle[7] = 0;
	refused(m, 0, "parts[1].handle");
	m = good(WIRE_DEVICE_FD);
	m.m.device[0] = 0;
	refused(m, PARTS, "parts.device");
	m = good(WIRE_DEVICE_FD);
	m.m.reserved = 1;
	refused(m, PARTS, "parts.reserved");
}

TEST(no_parts_means_nothing_else)
{
	struct message m = { .m = { .head = { .type = WIRE_PARTS } } };
	struct proto_parts got;

	assert_int_equal(proto_parts(&m, sizeof(m.m), 0, &got, text, sizeof(text)), 0);
	assert_int_equal(got.n_parts, 0);
	assert_int_equal(proto_parts(&m, sizeof(m.m), 1, &got, text, sizeof(text)), -EINVAL);
	m.m.at = 1;
	assert_int_equal(proto_parts(&m, sizeof(m.m), 0, &got, text, sizeof(text)), -EINVAL);
	assert_non_null(strstr(text, "all else must be 0"));
}
