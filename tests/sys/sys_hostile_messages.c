/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_hostile_messages.c - goal: any message over the control socket ends at most its own
 * connection, with a sentence, and no other client notices. Method: raw sockets against the real
 * daemon while an honest engine stores and loads; after each case the witness goes on, and
 * protocol_errors_total grew by the number of offences.
 */
#include "tests/lib/lib_packet.h"
#include "tests/lib/lib_raw.h"

static struct attacked w;

FIXTURE_DO(begin, attacked_begin(&w, SMALL_HOST "verify = always\n", false); *state = &w);

TEST_GROUP(begin, attacked_end);
TEST_EACH(attacked_before_case, attacked_after_case);

static void *dirty(size_t n)
{
	static uint8_t bytes[400 * 1024];
	struct random random = { .state = n };

	assert_true(n <= sizeof(bytes));
	for (size_t i = 0; i < n; i++)
		bytes[i] = (uint8_t)random_next(&random);
	return bytes;
}

static void cut_after(struct raw *r, const void *message, size_t n, const char *text)
{
	assert_int_equal(raw_send(r, message, n, NULL, 0), 0);
	raw_expect_cut(r, text);
	raw_close(r);
}

/* --- greetings --- */

static void greeting_of(const void *message, size_t n, const char *text)
{
	struct raw r;

	raw_dial(&r, w.d.socket);
	cut_after(&r, message, n, text);
}

TEST_DO(garbage, greeting_of(dirty(300), 300, "head.magic"));
TEST_DO(shorter_than_a_head, greeting_of(dirty(3), 3, "packet of 3 bytes"));
TEST_DO(larger_than_any_message, greeting_of(dirty(WIRE_MAX_MESSAGE + 4096),
					     WIRE_MAX_MESSAGE + 4096, "larger than 163840 bytes"));

#define HELLO_CASE(name, change, text)                              \
	TEST(name)                                                  \
	{                                                           \
		struct wire_hello h = packet_hello(1, 1024, "raw"); \
                                                                    \
		change;                                             \
		greeting_of(&h, sizeof(h), text);                   \
	}

HELLO_CASE(wrong_magic, h.head.magic++, "head.magic")
HELLO_CASE(wrong_flags, h.head.flags = 4, "head.flags is 0x4")
HELLO_CASE(length_that_is_not_the_packets, h.head.length = 0xffffffff,
	   "head.length is 4294967295 in a packet of 112 bytes")
HELLO_CASE(unknown_type, h.head.type = 4711, "head.type is 4711")
HELLO_CASE(version_of_tomorrow, h.version_min = h.version_max = WIRE_VERSION_MAX + 1,
	   "upgrade the older of libkvtier and kvtierd")
HELLO_CASE(struct_size_of_another_build, h.size_sqe = 128,
	   "hello.size_sqe is 128; this daemon's is 64")
HELLO_CASE(name_without_end, memset(h.name, 'x', sizeof(h.name)), "hello.name")

TEST(truncated_hello)
{
	struct wire_hello hello = packet_hello(1, 1024, "raw");

	hello.head.length = sizeof(hello) - 8;
	greeting_of(&hello, sizeof(hello) - 8, "HELLO of 104 bytes; must be 112");
}

TEST(space_before_hello)
{
	struct raw r = { 0 };
	struct raw_space space;

	raw_space_fill(&r, &space);
	greeting_of(&space, sizeof(space), "first message must be HELLO");
}

TEST(silence_instead_of_hello)
{
	struct raw r;

	raw_dial(&r, w.d.socket);
	raw_expect_cut(&r, "no HELLO came within 5 s");
	raw_close(&r);
}

/* --- after it --- */

TEST(second_hello)
{
	struct wire_hello hello;
	struct raw r;

	raw_open(&r, w.d.socket);
	hello = raw_hello_message(&r);
	cut_after(&r, &hello, sizeof(hello), "a second HELLO");
}

TEST(truncated_space_open)
{
	struct raw_space space;
	struct raw r;

	raw_open(&r, w.d.socket);
	raw_space_fill(&r, &space);
	space.open.head.length = sizeof(space) - 8;
	cut_after(&r, &space, sizeof(space) - 8, "SPACE_OPEN of");
}

/* 2^25 + 1 regions of 128 bytes are, in 32 bits, as long as one. Refused, not cut: as any count
 * over its limit. */
TEST(counts_that_overflow)
{
	struct raw_space space;
	struct raw r;

	raw_open(&r, w.d.socket);
	raw_space_fill(&r, &space);
	space.open.n_regions = (1u << 25) + 1;
	assert_int_equal(raw_send(&r, &space, sizeof(space), NULL, 0), 0);
	raw_expect_refused(&r, -EINVAL, "n_regions is 33554433; must be at most 64");
	raw_space_fill(&r, &space);
	space.open.n_segments = 0xffffffff;
	assert_int_equal(raw_send(&r, &space, sizeof(space), NULL, 0), 0);
	raw_expect_refused(&r, -EINVAL, "n_segments is 4294967295; must be at most 2048");
	raw_close(&r);
	w.errors--;
}

TEST(closing_a_space_that_is_not_open)
{
	struct wire_space_close close_message;
	struct raw r;

	raw_open(&r, w.d.socket);
	close_message = (struct wire_space_close){
		.head = raw_head(&r, WIRE_SPACE_CLOSE, sizeof(close_message)),
		.space = 3,
	};
	cut_after(&r, &close_message, sizeof(close_message), "space 3 is not open");
}

TEST(fds_with_a_doorbell)
{
	const int fd = memfd_make(4096, F_SEAL_SHRINK);
	struct wire_head bell;
	struct raw r;

	raw_open(&r, w.d.socket);
	bell = raw_head(&r, WIRE_DOORBELL, sizeof(bell));
	assert_int_equal(raw_send(&r, &bell, sizeof(bell), &fd, 1), 0);
	raw_expect_cut(&r, "file descriptors came with a message that takes none");
	raw_close(&r);
	(void)close(fd);
}

/* Again and again, more than fit: nothing of them may stay in the daemon. */
TEST(flood_of_fds)
{
	const int before = daemon_fds_settled(&w.d), fd = memfd_make(4096, F_SEAL_SHRINK);
	struct raw_space space;
	int fds[200];

	for (size_t i = 0; i < 200; i++)
		fds[i] = fd;
	for (int i = 0; i < 20; i++) {
		struct raw r;

		raw_open(&r, w.d.socket);
		raw_space_fill(&r, &space);
		assert_int_equal(raw_send(&r, &space, sizeof(space), fds, 200), 0);
		raw_expect_cut(&r, "more than 64 file descriptors");
		raw_close(&r);
	}
	(void)close(fd);
	daemon_stat_becomes(&w.d, "clients", 1, PATIENT_MS);
	daemon_fds_fall_to(&w.d, before, PATIENT_MS);
	w.errors += 19;
}

/* Each refusal is a reply that stays in the socket, until no more fit. */
TEST(replies_that_nobody_reads)
{
	struct raw_space space;
	struct raw r;
	int i;

	raw_open(&r, w.d.socket);
	raw_space_fill(&r, &space);
	space.open.geometry.layers = 0;
	for (i = 0; i < 100000; i++)
		if (raw_send(&r, &space, sizeof(space), NULL, 0))
			break;
	assert_true(i < 100000); /* it was cut */
	raw_close(&r);
	w.errors--; /* slow is no lie */
}

TEST(doorbells_without_end)
{
	struct wire_head bell;
	struct wire_sqe nop;
	struct raw r;

	raw_open(&r, w.d.socket);
	bell = raw_head(&r, WIRE_DOORBELL, sizeof(bell));
	for (int i = 0; i < 20000; i++)
		assert_int_equal(raw_send(&r, &bell, sizeof(bell), NULL, 0), 0);
	nop = raw_sqe(WIRE_OP_NOP, 0);
	raw_run(&r, 0, &nop);
	raw_close(&r);
	w.errors--;
}

TEST(empty_packet)
{
	struct raw r;
	char c;

	raw_open(&r, w.d.socket);
	assert_int_equal(raw_send(&r, "", 0, NULL, 0), 0); /* cannot be told from a hang-up */
	assert_int_equal(raw_receive(&r, &c, 1), 0);
	raw_close(&r);
	w.errors--;
}
