/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_hostile_messages.c - goal: any message over the control socket ends at most its own
 * connection, with a sentence, and no other client notices. Method: raw sockets against the real
 * daemon while an honest engine stores and loads; after each case the witness goes on, and
 * protocol_errors_total grew by the number of offences.
 */
#include "tests/lib/lib_raw.h"

static const char config[] =
	"[host]\nbytes = 4M\nslab_bytes = 256K\nhuge_pages = no\nverify = always\n";

static void *dirty(size_t n)
{
	static uint8_t bytes[400 * 1024];
	struct random random = { .state = n };

	assert_true(n <= sizeof(bytes));
	for (size_t i = 0; i < n; i++)
		bytes[i] = (uint8_t)random_next(&random);
	return bytes;
}

static void greeting_of(struct attacked *w, const void *message, size_t n, const char *text)
{
	struct raw r;

	raw_dial(&r, w->d.socket);
	assert_int_equal(raw_send(&r, message, n, NULL, 0), 0);
	raw_expect_cut(&r, text);
	raw_close(&r);
}

TEST_EACH(attacked_before_case, attacked_after_case);

TEST(garbage)
{
	greeting_of(*state, dirty(300), 300, "head.magic");
}

TEST(shorter_than_a_head)
{
	greeting_of(*state, dirty(3), 3, "packet of 3 bytes");
}

TEST(larger_than_any_message)
{
	struct raw r;

	raw_dial(&r, ((struct attacked *)*state)->d.socket);
	assert_int_equal(raw_send(&r, dirty(WIRE_MAX_MESSAGE + 4096), WIRE_MAX_MESSAGE + 4096, NULL,
				  0),
			 0);
	raw_expect_cut(&r, "larger than 163840 bytes");
	raw_close(&r);
}

static void hello_with(struct attacked *w, void (*change)(struct wire_hello *), const char *text)
{
	struct raw r;
	struct wire_hello hello;

	raw_dial(&r, w->d.socket);
	hello = raw_hello_message(&r);
	change(&hello);
	assert_int_equal(raw_send(&r, &hello, sizeof(hello), NULL, 0), 0);
	raw_expect_cut(&r, text);
	raw_close(&r);
}

static void set_magic(struct wire_hello *h)
{
	h->head.magic++;
}
static void set_flags(struct wire_hello *h)
{
	h->head.flags = 4;
}
static void set_length(struct wire_hello *h)
{
	h->head.length = 0xffffffff;
}
static void set_type(struct wire_hello *h)
{
	h->head.type = 4711;
}
static void set_version(struct wire_hello *h)
{
	h->version_min = h->version_max = WIRE_VERSION_MAX + 1;
}
static void set_size(struct wire_hello *h)
{
	h->size_sqe = 128;
}
static void set_name(struct wire_hello *h)
{
	memset(h->name, 'x', sizeof(h->name));
}

TEST(wrong_magic)
{
	hello_with(*state, set_magic, "head.magic");
}

TEST(wrong_flags)
{
	hello_with(*state, set_flags, "head.flags is 0x4");
}

TEST(length_that_is_not_the_packets)
{
	hello_with(*state, set_length, "head.length is 4294967295 in a packet of 112 bytes");
}

TEST(unknown_type)
{
	hello_with(*state, set_type, "head.type is 4711");
}

TEST(version_of_tomorrow)
{
	hello_with(*state, set_version, "upgrade the older of libkvtier and kvtierd");
}

TEST(struct_size_of_another_build)
{
	hello_with(*state, set_size, "hello.size_sqe is 128; this daemon's is 64");
}

TEST(name_without_end)
{
	hello_with(*state, set_name, "hello.name");
}

TEST(truncated_hello)
{
	struct raw r = { 0 };
	struct wire_hello hello = raw_hello_message(&r);

	hello.head.length = sizeof(hello) - 8;
	greeting_of(*state, &hello, sizeof(hello) - 8, "HELLO of 104 bytes; must be 112");
}

TEST(second_hello)
{
	struct attacked *w = *state;
	struct wire_hello hello;
	struct raw r;

	raw_open(&r, w->d.socket);
	hello = raw_hello_message(&r);
	assert_int_equal(raw_send(&r, &hello, sizeof(hello), NULL, 0), 0);
	raw_expect_cut(&r, "a second HELLO");
	raw_close(&r);
}

TEST(space_before_hello)
{
	struct raw r = { 0 };
	struct raw_space space;

	raw_space_fill(&r, &space);
	greeting_of(*state, &space, sizeof(space), "first message must be HELLO");
}

TEST(truncated_space_open)
{
	struct attacked *w = *state;
	struct raw_space space;
	struct raw r;

	raw_open(&r, w->d.socket);
	raw_space_fill(&r, &space);
	space.open.head.length = sizeof(space) - 8;
	assert_int_equal(raw_send(&r, &space, sizeof(space) - 8, NULL, 0), 0);
	raw_expect_cut(&r, "SPACE_OPEN of");
	raw_close(&r);
}

/* 2^25 + 1 regions of 128 bytes are, in 32 bits, as long as one. Refused, not cut: as any count
 * over its limit. */
TEST(counts_that_overflow)
{
	struct attacked *w = *state;
	struct raw_space space;
	struct raw r;

	raw_open(&r, w->d.socket);
	raw_space_fill(&r, &space);
	space.open.n_regions = (1u << 25) + 1;
	assert_int_equal(raw_send(&r, &space, sizeof(space), NULL, 0), 0);
	raw_expect_refused(&r, -EINVAL, "n_regions is 33554433; must be at most 64");
	raw_space_fill(&r, &space);
	space.open.n_segments = 0xffffffff;
	assert_int_equal(raw_send(&r, &space, sizeof(space), NULL, 0), 0);
	raw_expect_refused(&r, -EINVAL, "n_segments is 4294967295; must be at most 2048");
	raw_close(&r);
	w->errors--;
}

TEST(closing_a_space_that_is_not_open)
{
	struct attacked *w = *state;
	struct wire_space_close close_message;
	struct raw r;

	raw_open(&r, w->d.socket);
	close_message = (struct wire_space_close){
		.head = raw_head(&r, WIRE_SPACE_CLOSE, sizeof(close_message)),
		.space = 3,
	};
	assert_int_equal(raw_send(&r, &close_message, sizeof(close_message), NULL, 0), 0);
	raw_expect_cut(&r, "space 3 is not open");
	raw_close(&r);
}

TEST(fds_with_a_doorbell)
{
	struct attacked *w = *state;
	const int fd = memfd_make(4096, F_SEAL_SHRINK);
	struct wire_head bell;
	struct raw r;

	raw_open(&r, w->d.socket);
	bell = raw_head(&r, WIRE_DOORBELL, sizeof(bell));
	assert_int_equal(raw_send(&r, &bell, sizeof(bell), &fd, 1), 0);
	raw_expect_cut(&r, "file descriptors came with a message that takes none");
	raw_close(&r);
	(void)close(fd);
}

/* Again and again, more than fit: nothing of them may stay in the daemon. */
TEST(flood_of_fds)
{
	struct attacked *w = *state;
	const int before = daemon_fds_settled(&w->d), fd = memfd_make(4096, F_SEAL_SHRINK);
	struct raw_space space;
	int fds[200];

	for (size_t i = 0; i < 200; i++)
		fds[i] = fd;
	for (int i = 0; i < 20; i++) {
		struct raw r;

		raw_open(&r, w->d.socket);
		raw_space_fill(&r, &space);
		assert_int_equal(raw_send(&r, &space, sizeof(space), fds, 200), 0);
		raw_expect_cut(&r, "more than 64 file descriptors");
		raw_close(&r);
	}
	(void)close(fd);
	daemon_stat_becomes(&w->d, "clients", 1, PATIENT_MS);
	daemon_fds_fall_to(&w->d, before, PATIENT_MS);
	w->errors += 19;
}

TEST(silence_instead_of_hello)
{
	struct attacked *w = *state;
	struct raw r;

	raw_dial(&r, w->d.socket);
	raw_expect_cut(&r, "no HELLO came within 5 s");
	raw_close(&r);
}

/* Each refusal is a reply that stays in the socket, until no more fit. */
TEST(replies_that_nobody_reads)
{
	struct attacked *w = *state;
	struct raw_space space;
	struct raw r;
	int i;

	raw_open(&r, w->d.socket);
	raw_space_fill(&r, &space);
	space.open.geometry.layers = 0;
	for (i = 0; i < 100000; i++)
		if (raw_send(&r, &space, sizeof(space), NULL, 0))
			break;
	assert_true(i < 100000); /* it was cut */
	raw_close(&r);
	w->errors--; /* slow is no lie */
}

TEST(doorbells_without_end)
{
	struct attacked *w = *state;
	struct wire_head bell;
	struct wire_sqe nop;
	struct raw r;

	raw_open(&r, w->d.socket);
	bell = raw_head(&r, WIRE_DOORBELL, sizeof(bell));
	for (int i = 0; i < 20000; i++)
		assert_int_equal(raw_send(&r, &bell, sizeof(bell), NULL, 0), 0);
	nop = raw_sqe(WIRE_OP_NOP, 0);
	raw_put(&r, 0, &nop);
	raw_publish(&r, 1);
	raw_await(&r, 1);
	raw_close(&r);
	w->errors--;
}

TEST(empty_packet)
{
	struct attacked *w = *state;
	struct raw r;
	char c;

	raw_open(&r, w->d.socket);
	assert_int_equal(raw_send(&r, "", 0, NULL, 0), 0); /* cannot be told from a hang-up */
	assert_int_equal(raw_receive(&r, &c, 1), 0);
	raw_close(&r);
	w->errors--;
}

/* --- the world around each case --- */

FIXTURE(begin)
{
	static struct attacked a;

	attacked_begin(&a, config, false);
	*state = &a;
	return 0;
}

TEST_GROUP(begin, attacked_end);
