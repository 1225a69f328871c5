/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_hostile_messages.c - goal: any message over the control socket ends at most its own
 * connection, with a sentence, and no other client notices. Method: raw sockets against the real
 * daemon while an honest engine stores and loads; after each case the witness goes on, and
 * protocol_errors_total grew by the number of offences.
 */
#include "tests/lib/lib_raw.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

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

static void garbage(void **state)
{
	greeting_of(*state, dirty(300), 300, "head.magic");
}

static void shorter_than_a_head(void **state)
{
	greeting_of(*state, dirty(3), 3, "packet of 3 bytes");
}

static void larger_than_any_message(void **state)
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

static void wrong_magic(void **state)
{
	hello_with(*state, set_magic, "head.magic");
}

static void wrong_flags(void **state)
{
	hello_with(*state, set_flags, "head.flags is 0x4");
}

static void length_that_is_not_the_packets(void **state)
{
	hello_with(*state, set_length, "head.length is 4294967295 in a packet of 112 bytes");
}

static void unknown_type(void **state)
{
	hello_with(*state, set_type, "head.type is 4711");
}

static void version_of_tomorrow(void **state)
{
	hello_with(*state, set_version, "upgrade the older of libkvtier and kvtierd");
}

static void struct_size_of_another_build(void **state)
{
	hello_with(*state, set_size, "hello.size_sqe is 128; this daemon's is 64");
}

static void name_without_end(void **state)
{
	hello_with(*state, set_name, "hello.name");
}

static void truncated_hello(void **state)
{
	struct raw r = { 0 };
	struct wire_hello hello = raw_hello_message(&r);

	hello.head.length = sizeof(hello) - 8;
	greeting_of(*state, &hello, sizeof(hello) - 8, "HELLO of 104 bytes; must be 112");
}

static void second_hello(void **state)
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

static void space_before_hello(void **state)
{
	struct raw r = { 0 };
	struct raw_space space;

	raw_space_fill(&r, &space);
	greeting_of(*state, &space, sizeof(space), "first message must be HELLO");
}

static void truncated_space_open(void **state)
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
static void counts_that_overflow(void **state)
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

static void closing_a_space_that_is_not_open(void **state)
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

static void fds_with_a_doorbell(void **state)
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
static void flood_of_fds(void **state)
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

static void silence_instead_of_hello(void **state)
{
	struct attacked *w = *state;
	struct raw r;

	raw_dial(&r, w->d.socket);
	raw_expect_cut(&r, "no HELLO came within 5 s");
	raw_close(&r);
}

/* Each refusal is a reply that stays in the socket, until no more fit. */
static void replies_that_nobody_reads(void **state)
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

static void doorbells_without_end(void **state)
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

static void empty_packet(void **state)
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

static int begin(void **state)
{
	static struct attacked a;

	attacked_begin(&a, config, false);
	*state = &a;
	return 0;
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, attacked_before_case, attacked_after_case)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(garbage),
		CASE(shorter_than_a_head),
		CASE(larger_than_any_message),
		CASE(wrong_magic),
		CASE(wrong_flags),
		CASE(length_that_is_not_the_packets),
		CASE(unknown_type),
		CASE(version_of_tomorrow),
		CASE(struct_size_of_another_build),
		CASE(name_without_end),
		CASE(truncated_hello),
		CASE(second_hello),
		CASE(space_before_hello),
		CASE(truncated_space_open),
		CASE(counts_that_overflow),
		CASE(closing_a_space_that_is_not_open),
		CASE(fds_with_a_doorbell),
		CASE(flood_of_fds),
		CASE(silence_instead_of_hello),
		CASE(replies_that_nobody_reads),
		CASE(doorbells_without_end),
		CASE(empty_packet),
	};

	return cmocka_run_group_tests(tests, begin, attacked_end);
}
