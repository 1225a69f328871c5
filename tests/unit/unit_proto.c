/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_proto.c - goal: each field of each message and ring entry is checked at its limits, and a
 * refusal has a sentence that names the field. Method: a good one, one field changed a time.
 * (fuzz_proto.c tries the rest.)
 */

#include "daemon/session/proto.h"
#include "tests/lib/lib_packet.h"
#include "tests/lib/test.h"

enum { ARENA = 1024 };

static char text[200];

static struct wire_head head(uint16_t type, size_t n)
{
	return (struct wire_head){
		.magic = WIRE_MAGIC, .type = type, .length = (uint32_t)n, .seq = 9
	};
}

TEST(head_gives_back_what_it_checked)
{
	const struct wire_head bell = head(WIRE_DOORBELL, sizeof(bell));
	struct wire_head got = { 0 };

	assert_int_equal(proto_head(&bell, sizeof(bell), &got, text, sizeof(text)), 0);
	assert_memory_equal(&bell, &got, sizeof(got));
}

TEST(head_is_untouched_on_refusal)
{
	struct wire_head bell = head(WIRE_DOORBELL, sizeof(bell)), got = { .seq = 77 };

	bell.magic = 0;
	assert_int_equal(proto_head(&bell, sizeof(bell), &got, text, sizeof(text)), -EPROTO);
	assert_int_equal(got.seq, 77);
}

/* Every length from nothing to a byte too many: only the right one passes. */
TEST(exact_sizes_of_every_type)
{
	static const size_t sizes[] = {
		[WIRE_HELLO] = sizeof(struct wire_hello),
		[WIRE_SPACE_CLOSE] = sizeof(struct wire_space_close),
		[WIRE_DOORBELL] = sizeof(struct wire_head),
	};
	uint8_t packet[256] = { 0 };

	for (uint16_t type = 0; type < sizeof(sizes) / sizeof(*sizes); type++)
		for (size_t n = 0; sizes[type] && n <= sizeof(packet); n++) {
			const struct wire_head h = head(type, n);
			struct wire_head got;

			memcpy(packet, &h, sizeof(h));
			assert_int_equal(proto_head(packet, n, &got, text, sizeof(text)),
					 n == sizes[type] ? 0 : -EPROTO);
		}
}

TEST(types_that_only_the_daemon_sends)
{
	static const uint16_t types[] = {
		0,         WIRE_HELLO_OK, WIRE_ERROR,     WIRE_SPACE_OK,      WIRE_SPACE_CLOSED,
		WIRE_WAKE, WIRE_ORDER_OK, WIRE_ALLOCS_OK, WIRE_ALLOCS_OK + 1, 0xffff
	};
	uint8_t packet[512] = { 0 };

	for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
		const struct wire_head h = head(types[i], sizeof(packet));
		struct wire_head got;

		memcpy(packet, &h, sizeof(h));
		assert_int_equal(proto_head(packet, sizeof(packet), &got, text, sizeof(text)),
				 -EPROTO);
		assert_non_null(strstr(text, "head.type"));
	}
}

/* --- HELLO --- */

static struct wire_hello hello(void)
{
	return packet_hello(9, ARENA, "unit");
}

static struct wire_hello greeted; /* what the daemon made of the last good one */
static uint32_t version;

static int check_hello(const struct wire_hello *h)
{
	return proto_hello(h, sizeof(*h), 256, 4096, &greeted, &version, text, sizeof(text));
}

TEST(version_ranges_that_meet)
{
	struct wire_hello h = hello();

	h.version_min = 0;
	h.version_max = 99;
	assert_int_equal(check_hello(&h), 0);
	assert_int_equal(version, WIRE_VERSION_MAX);
	h.version_max = WIRE_VERSION_MIN;
	assert_int_equal(check_hello(&h), 0);
	assert_int_equal(version, WIRE_VERSION_MIN);
}

TEST(version_ranges_that_do_not)
{
	static const uint32_t ranges[][2] = {
		{ WIRE_VERSION_MAX + 1, WIRE_VERSION_MAX + 5 },
		{ 0, WIRE_VERSION_MIN - 1 },
		{ 2, 1 },
		{ 0xffffffff, 0xffffffff },
	};

	for (size_t i = 0; i < sizeof(ranges) / sizeof(*ranges); i++) {
		struct wire_hello h = hello();

		h.version_min = ranges[i][0];
		h.version_max = ranges[i][1];
		assert_int_equal(check_hello(&h), -EPROTONOSUPPORT);
		assert_non_null(strstr(text, "hello.version"));
	}
}

TEST(each_struct_size)
{
	for (int i = 0; i < 5; i++) {
		struct wire_hello h = hello();
		uint16_t *const sizes[] = { &h.size_geometry, &h.size_region, &h.size_segment,
					    &h.size_sqe, &h.size_cqe };

		*sizes[i] = (uint16_t)(*sizes[i] + 8);
		assert_int_equal(check_hello(&h), -EPROTONOSUPPORT);
		assert_non_null(strstr(text, "hello.size_"));
	}
}

TEST(ring_sizes_become_powers_of_two_in_bounds)
{
	static const uint32_t wishes[][2] = {
		/* wish, given */
		{ 0, 8 },    { 7, 8 },     { 8, 8 },     { 9, 8 },
		{ 100, 64 }, { 256, 256 }, { 257, 256 }, { 0xffffffff, 256 },
	};

	for (size_t i = 0; i < sizeof(wishes) / sizeof(*wishes); i++) {
		struct wire_hello h = hello();

		h.sq_entries = wishes[i][0];
		h.arena_blocks = 0xffffffff;
		assert_int_equal(check_hello(&h), 0);
		assert_int_equal(greeted.sq_entries, wishes[i][1]);
		assert_int_equal(greeted.arena_blocks, 4096);
	}
}

TEST(name_is_made_printable)
{
	struct wire_hello h = hello();

	strcpy(h.name, "a\033[2Jb\xff\n");
	assert_int_equal(check_hello(&h), 0);
	assert_string_equal(greeted.name, "a?[2Jb??");
}

/* --- SPACE_OPEN --- */

struct space_message {
	struct wire_space_open open;
	struct wire_region regions[2];
	struct wire_segment segments[3];
};

static struct space_message space_message(void)
{
	return (struct space_message){
		.open = { .head = head(WIRE_SPACE_OPEN, sizeof(struct space_message)),
			  .n_regions = 2,
			  .n_segments = 3 },
		.regions = { { .memory = WIRE_MEMFD, .fd_index = 0 },
			     { .memory = WIRE_STAGED, .fd_index = 1 } },
	};
}

static struct proto_space_open opened; /* what the last good one said */
static uint32_t spoken = WIRE_VERSION_MAX;

/* The message came with so many descriptors; it is refused with this error and these words, or is
 * good: 0. */
static void space_open(const void *m, size_t n, uint32_t n_fds, int error, const char *words)
{
	text[0] = '\0';
	assert_int_equal(proto_space_open(m, n, n_fds, spoken, &opened, text, sizeof(text)), error);
	if (!strstr(text, words))
		fail_msg("\"%s\" does not say \"%s\"", text, words);
}

TEST(space_open_points_into_the_packet)
{
	const struct space_message m = space_message();

	space_open(&m, sizeof(m), 2, 0, "");
	assert_ptr_equal(opened.regions, m.regions);
	assert_ptr_equal(opened.segments, m.segments);
	assert_int_equal(opened.n_regions, 2);
	assert_int_equal(opened.n_segments, 3);
}

/* The regions of a version lie behind its words. A message of another version is no message. */
TEST(space_open_of_each_version)
{
	for (spoken = WIRE_VERSION_MIN; spoken <= WIRE_VERSION_MAX; spoken++) {
		const size_t fixed = wire_space_open_bytes(spoken);
		struct space_message m = space_message();
		const size_t less = sizeof(m.open) - fixed;

		strcpy(m.open.gpu_staged, "a reason");
		memmove((uint8_t *)&m + fixed, m.regions, sizeof(m) - sizeof(m.open));
		space_open(&m, sizeof(m) - less, 2, 0, "");
		assert_ptr_equal(opened.regions, (uint8_t *)&m + fixed);
		assert_string_equal(opened.gpu_staged, less > 0 ? "" : "a reason");
		for (uint32_t v = WIRE_VERSION_MIN; v <= WIRE_VERSION_MAX; v++)
			if (wire_space_open_bytes(v) != fixed)
				space_open(&m,
					   sizeof(m) - sizeof(m.open) + wire_space_open_bytes(v), 2,
					   -EPROTO, "2 regions and 3 segments make");
	}
	spoken = WIRE_VERSION_MAX;
}

TEST(counts_against_their_limits)
{
	static const uint32_t counts[][2] = {
		{ WIRE_MAX_REGIONS + 1, 3 }, { 0xffffffff, 3 }, { 2, WIRE_MAX_SEGMENTS + 1 },
		{ 2, 0xffffffff },           { 0, 3 },          { 2, 0 },
	};

	for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
		struct space_message m = space_message();

		m.open.n_regions = counts[i][0];
		m.open.n_segments = counts[i][1];
		space_open(&m, sizeof(m), 2, -EINVAL, "n_");
	}
}

TEST(counts_against_the_length)
{
	for (uint32_t regions = 1; regions < 5; regions++)
		for (uint32_t segments = 1; segments < 6; segments++) {
			struct space_message m = space_message();

			m.open.n_regions = regions;
			m.open.n_segments = segments;
			space_open(&m, sizeof(m), 2, regions == 2 && segments == 3 ? 0 : -EPROTO,
				   "");
		}
}

TEST(fd_index_against_the_fds_that_came)
{
	const struct space_message m = space_message();

	space_open(&m, sizeof(m), 1, -EINVAL, "regions[1].fd_index is 1");
	space_open(&m, sizeof(m), 0, -EINVAL, "");
}

/* Each kind of region carries the fields that it needs, and no others. */
TEST(what_a_region_carries)
{
	static const struct {
		uint32_t memory, fd_index;
		uint8_t device, handle;
		uint64_t reserved;
		const char *wrong; /* NULL: it is good */
	} rows[] = {
		{ WIRE_MEMFD, 0, 0, 0, 0, NULL },
		{ WIRE_STAGED, 0, 0, 0, 0, NULL },
		{ WIRE_DEVICE_HANDLE, 0, 1, 1, 0, NULL },
		{ WIRE_DEVICE_FD, 0, 1, 0, 0, NULL },
		{ 0, 0, 0, 0, 0, "memory is 0" },
		{ WIRE_MEMORIES, 0, 0, 0, 0, "memory is 8" },
		{ WIRE_DEVICE_FABRIC, 0, 1, 1, 0, NULL },
		{ WIRE_DEVICE_RANGE, WIRE_MAX_REGIONS - 1, 1, 0, 0, NULL },
		{ WIRE_DEVICE_RANGE, WIRE_MAX_REGIONS, 1, 0, 0, "fd_index is 64; a range's" },
		{ WIRE_DEVICE_RANGE, 0, 0, 0, 0, "needs a device's UUID" },
		{ WIRE_DEVICE_RANGE, 0, 1, 1, 0, "handle: a range has none" },
		{ WIRE_MEMFD, 1, 0, 0, 0, "fd_index is 1; the packet carries 1" },
		{ WIRE_DEVICE_FD, 1, 1, 0, 0, "fd_index is 1; the packet carries 1" },
		{ WIRE_DEVICE_HANDLE, 1, 1, 1, 0, "has no file descriptor" },
		{ WIRE_MEMFD, 0, 1, 0, 0, "a memfd has no device's UUID" },
		{ WIRE_STAGED, 0, 1, 0, 0, "a staged memfd has no device's UUID" },
		{ WIRE_DEVICE_FD, 0, 0, 0, 0, "needs a device's UUID" },
		{ WIRE_MEMFD, 0, 0, 1, 0, "handle: a memfd has none" },
		{ WIRE_DEVICE_FD, 0, 1, 1, 0, "handle: a device fd has none" },
		{ WIRE_DEVICE_HANDLE, 0, 1, 0, 0, "handle: a device handle needs one" },
		{ WIRE_MEMFD, 0, 0, 0, 1, "reserved is not 0" },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct {
			struct wire_space_open open;
			struct wire_region region;
			struct wire_segment segment;
		} m = {
			.open = { .head = head(WIRE_SPACE_OPEN, sizeof(m)),
				  .n_regions = 1,
				  .n_segments = 1 },
			.region = { .memory = rows[i].memory, .fd_index = rows[i].fd_index },
		};

		m.region.device[15] = rows[i].device;
		m.region.handle[0] = rows[i].handle;
		m.region.reserved[1] = rows[i].reserved;
		space_open(&m, sizeof(m), 1, rows[i].wrong ? -EINVAL : 0,
			   rows[i].wrong ? rows[i].wrong : "");
	}
}

/* Earlier clients ask so for kernels of their own, with words about them, and ask in another way
 * after this error. */
TEST(memory_for_kernels_of_the_client_is_refused)
{
	struct space_message m = space_message();

	memset(m.open.reserved, 'a', sizeof(m.open.reserved));
	space_open(&m, sizeof(m), 2, 0, "");
	m.regions[0] = (struct wire_region){ .memory = WIRE_DEVICE_ENGINE, .length = 1 << 20 };
	m.regions[0].device[0] = 1;
	space_open(&m, sizeof(m), 0, -EOPNOTSUPP, "regions[0].memory is 7, for kernels");
}

TEST(words_of_a_client_are_a_string)
{
	struct space_message m = space_message();

	memcpy(m.open.gpu_staged, "a\nb", 4);
	space_open(&m, sizeof(m), 2, 0, "");
	assert_string_equal(opened.gpu_staged, "a?b");
	memset(m.open.gpu_staged, 'a', sizeof(m.open.gpu_staged));
	space_open(&m, sizeof(m), 2, -EINVAL, "gpu_staged must be at most 159 bytes");
}

TEST(regions_of_two_devices)
{
	struct space_message m = space_message();

	for (int i = 0; i < 2; i++) {
		m.regions[i] = (struct wire_region){ .memory = WIRE_DEVICE_HANDLE };
		m.regions[i].device[0] = m.regions[i].handle[0] = 1;
	}
	space_open(&m, sizeof(m), 0, 0, "");
	m.regions[1].device[0] = 2;
	space_open(&m, sizeof(m), 0, -EINVAL, "regions[1].device is another");
}

TEST(space_close_handle)
{
	struct wire_space_close m = { .head = head(WIRE_SPACE_CLOSE, sizeof(m)),
				      .space = WIRE_MAX_SPACES - 1 };
	uint32_t space = 0;

	assert_int_equal(proto_space_close(&m, sizeof(m), &space, text, sizeof(text)), 0);
	assert_int_equal(space, WIRE_MAX_SPACES - 1);
	m.space = WIRE_MAX_SPACES;
	assert_int_equal(proto_space_close(&m, sizeof(m), &space, text, sizeof(text)), -EPROTO);
}

TEST(an_order_has_words_alone)
{
	struct {
		struct wire_order order;
		uint8_t handles[2][WIRE_HANDLE_BYTES];
	} m = { .order = { .head = head(WIRE_ORDER, sizeof(m.order)), .device = { 1 } } };
	const size_t n = sizeof(m.order);
	uint8_t device[WIRE_UUID_BYTES] = { 0 };

	assert_int_equal(proto_order(&m, n, 1, device, text, sizeof(text)), 0);
	assert_memory_equal(device, m.order.device, sizeof(device));
	assert_int_equal(proto_order(&m, n - 1, 1, device, text, sizeof(text)), -EPROTO);
	assert_int_equal(proto_order(&m, n, 0, device, text, sizeof(text)), -EINVAL);
	assert_int_equal(proto_order(&m, n, 2, device, text, sizeof(text)), -EINVAL);
	m.order.reserved = 1;
	assert_int_equal(proto_order(&m, n, 1, device, text, sizeof(text)), -EINVAL);
	m.order.reserved = 0;
	m.order.device[0] = 0;
	assert_int_equal(proto_order(&m, n, 1, device, text, sizeof(text)), -EINVAL);
	/* as a library of before sends it: it goes on without */
	m.order.device[0] = 1;
	m.order.n_events = 2;
	assert_int_equal(proto_order(&m, sizeof(m), 1, device, text, sizeof(text)), -EOPNOTSUPP);
}

/* --- ring entries --- */

static struct wire_sqe entry(uint8_t op)
{
	return (struct wire_sqe){ .op = op, .n = 1, .op_id = 1, .deadline_ns = 1 };
}

static int check_entry(const struct wire_sqe *e)
{
	return proto_sqe(e, ARENA, text, sizeof(text));
}

TEST(blocks_lie_in_the_arena)
{
	static const struct {
		uint32_t n, first;
		uint8_t flags;
		int result;
	} cases[] = {
		{ 1, ARENA - 1, 0, 0 },
		{ 1, ARENA, 0, -EPROTO },
		{ ARENA, 0, 0, 0 },
		{ ARENA, 1, 0, -EPROTO },
		{ ARENA + 1, 0, 0, -EPROTO },
		{ 0, 0, 0, -EPROTO },
		{ ARENA - 1, 0, 1, 0 },
		{ ARENA, 0, 1, -EPROTO },
		{ ARENA - 1, 1, 1, -EPROTO },
		{ 1, ARENA - 1, 1, -EPROTO },
		{ 0xffffffff, 1, 0, -EPROTO },
		{ 0xffffffff, 0, 1, -EPROTO },
		{ 1, 0xffffffff, 0, -EPROTO },
		{ 0x80000000, 0x80000000, 0, -EPROTO },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct wire_sqe e = entry(WIRE_OP_LOAD);

		e.n = cases[i].n;
		e.first = cases[i].first;
		e.flags = cases[i].flags;
		assert_int_equal(check_entry(&e), cases[i].result);
	}
}

TEST(zero_is_no_entry)
{
	const struct wire_sqe e = { 0 };

	assert_int_equal(check_entry(&e), -EPROTO);
}

TEST(ops_that_have_no_blocks)
{
	struct wire_sqe e = { .op = WIRE_OP_NOP, .op_id = 1 };

	assert_int_equal(check_entry(&e), 0);
	e.n = 1;
	assert_int_equal(check_entry(&e), -EPROTO);
	e = (struct wire_sqe){ .op = WIRE_OP_CANCEL, .op_id = 1, .target = 5 };
	assert_int_equal(check_entry(&e), 0);
	e.target = 0;
	assert_int_equal(check_entry(&e), -EPROTO);
}

TEST(priority_within_its_range)
{
	static const int32_t bad[] = { -101, 101, INT32_MIN, INT32_MAX };
	struct wire_sqe e = entry(WIRE_OP_STORE);

	for (size_t i = 0; i < 4; i++) {
		e.priority = bad[i];
		assert_int_equal(check_entry(&e), -EPROTO);
	}
	e.priority = -100;
	assert_int_equal(check_entry(&e), 0);
	e.priority = 100;
	assert_int_equal(check_entry(&e), 0);
}
