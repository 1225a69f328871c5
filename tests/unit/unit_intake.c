/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_intake.c - goal: facts that the core thread relies on when it peeks at packets; the results
 * of helpers for packets and for a HELLO; helpers never wait for each other. Method: packets with
 * and without descriptors through a socket pair; a pipe tells whether its other end, which lies in
 * a packet, is still open. Jobs that block until they are let go, more and more of them.
 */

#include "daemon/conn/intake.h"
#include "base/loop.h"
#include "tests/lib/lib_packet.h"
#include "tests/lib/lib_refuse.h"
#include "tests/lib/test.h"

static void send_packet(int socket, const void *bytes, size_t n, const int *fds, size_t n_fds)
{
	assert_int_equal(packet_with_fds(socket, bytes, n, fds, n_fds), 0);
}

static bool writer_lives(int pipe_fd)
{
	char byte;

	return read(pipe_fd, &byte, 1) < 0; /* EAGAIN; else the end: 0 */
}

/* The kernel's part of it: a peek tells of descriptors and leaves them with the packet, however
 * often. */
TEST(a_peek_takes_no_descriptor)
{
	int pair[2], ends[2], many[INTAKE_MAX_FDS];
	bool fds = false;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
	assert_int_equal(intake_peek(pair[1], &fds), 0);
	send_packet(pair[0], "abc", 3, NULL, 0);
	send_packet(pair[0], "de", 2, &ends[1], 1);
	send_packet(pair[0], "", 0, &ends[1], 1);
	for (int i = 0; i < INTAKE_MAX_FDS; i++)
		many[i] = ends[1];
	send_packet(pair[0], "f", 1, many, INTAKE_MAX_FDS);
	(void)close(ends[1]);
	assert_int_equal(intake_peek(pair[1], &fds), 3);
	assert_false(fds);
	assert_int_equal(recv(pair[1], many, sizeof(many), 0), 3);
	for (int i = 0; i < 10; i++) {
		assert_int_equal(intake_peek(pair[1], &fds), 2);
		assert_true(fds);
	}
	assert_true(writer_lives(ends[0]));
	assert_int_equal(recv(pair[1], many, sizeof(many), 0), 2);
	/* an empty packet is not the end, if it has any */
	assert_true(intake_peek(pair[1], &fds) > 0);
	assert_true(fds);
	assert_int_equal(recv(pair[1], many, sizeof(many), 0), 0);
	assert_true(writer_lives(ends[0]));
	assert_int_equal(intake_peek(pair[1], &fds), 1);
	assert_true(fds);
	assert_int_equal(recv(pair[1], many, sizeof(many), 0), 1);
	assert_false(writer_lives(ends[0]));
	(void)close(pair[0]);
	assert_int_equal(intake_peek(pair[1], &fds), -ECONNRESET);
	(void)close(pair[1]);
	(void)close(ends[0]);
}

/* intake_run() with a packet of any content: all descriptors are taken and closed. */
static int intake_of(const void *bytes, size_t n, const int *fds, size_t n_fds, bool greeted,
		     char text[232])
{
	struct intake *in = calloc(1, sizeof(*in));
	int pair[2], status;

	assert_non_null(in);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	send_packet(pair[0], bytes, n, fds, n_fds);
	in->socket = pair[1];
	in->greeted = greeted;
	in->version = WIRE_VERSION_MAX;
	in->usage = (struct intake_usage){ .max_bytes = 1 << 20, .max_regions = 4, .clients = 1 };
	intake_run(&in->work, 0);
	status = in->status;
	memcpy(text, in->text, 232);
	assert_int_equal(in->n_fds, 0);
	assert_null(in->mount);
	intake_drop(in);
	assert_int_equal(in->state, INTAKE_IDLE);
	free(in);
	(void)close(pair[0]);
	(void)close(pair[1]);
	return status;
}

/* A SPACE_OPEN of one region, which has so many bytes. */
struct space_message {
	struct wire_space_open open;
	struct wire_region region;
	struct wire_segment segment;
};

static struct space_message space_of(uint64_t bytes)
{
	return (struct space_message){
		.open = { .head = packet_head(WIRE_SPACE_OPEN, sizeof(struct space_message), 0),
			  .n_regions = 1,
			  .n_segments = 1 },
		.region = { .memory = WIRE_MEMFD, .length = bytes },
	};
}

TEST(whatever_comes_is_closed)
{
	const struct wire_head bell = packet_head(WIRE_DOORBELL, sizeof(bell), 0);
	struct space_message m = space_of(2 << 20);
	int many[INTAKE_MAX_FDS];
	char text[232];
	const int before = descriptors_open();

	for (int i = 0; i < INTAKE_MAX_FDS; i++)
		many[i] = STDERR_FILENO;
	assert_int_equal(intake_of("x", 1, many, 1, true, text), -EPROTO);
	assert_int_equal(intake_of("x", 1, many, INTAKE_MAX_FDS, true, text), -EPROTO);
	m.open.n_regions = m.open.n_segments = 0;
	assert_int_equal(intake_of(&m, sizeof(m), many, WIRE_MAX_REGIONS + 1, true, text), -EPROTO);
	assert_non_null(strstr(text, "more than 64 file descriptors"));
	assert_int_equal(intake_of(&bell, sizeof(bell), many, 1, true, text), -EPROTO);
	assert_non_null(strstr(text, "takes none"));
	m = space_of(2 << 20);
	assert_int_equal(intake_of(&m, sizeof(m), many, 1, false, text), -EPROTO);
	assert_non_null(strstr(text, "HELLO"));
	assert_int_equal(intake_of(&m, sizeof(m), many, 1, true, text), -ENOSPC);
	assert_non_null(strstr(text, "max_clients"));
	m.region.fd_index = 1;
	assert_int_equal(intake_of(&m, sizeof(m), many, 1, true, text), -EINVAL);
	assert_int_equal(descriptors_open(), before);
}

/* Over its limits only while some of it waits to be unmapped: the packet and its descriptors are
 * kept. */
TEST(a_packet_waits_within_its_limits)
{
	const struct space_message m = space_of(1 << 20);
	struct intake *in = calloc(1, sizeof(*in));
	int pair[2], fd = STDERR_FILENO;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	send_packet(pair[0], &m, sizeof(m), &fd, 1);
	in->socket = pair[1];
	in->greeted = true;
	in->version = WIRE_VERSION_MAX;
	in->usage = (struct intake_usage){
		.bytes = 1 << 20, .max_bytes = 1 << 20, .max_regions = 4, .waits = true
	};
	intake_run(&in->work, 0);
	assert_int_equal(in->status, -EAGAIN);
	assert_int_equal(in->n_fds, 1);
	in->usage.waits = false;
	intake_run(&in->work, 0);
	assert_int_equal(in->status, -ENOSPC);
	assert_int_equal(in->n_fds, 0);
	intake_drop(in);
	free(in);
	(void)close(pair[0]);
	(void)close(pair[1]);
}

/* Rings for a HELLO: made, or a sentence says why not. No packet is touched; the next one may lie
 * there already. */
TEST(rings_are_made)
{
	struct intake *in = calloc(1, sizeof(*in));
	struct ring ring = { .submit_fd = -1, .complete_fd = -1 };
	struct rlimit before, none;
	char byte;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	send_packet(pair[0], "x", 1, NULL, 0);
	in->socket = pair[1];
	in->ring = &ring;
	in->ring_entries = 8;
	in->arena_blocks = 64;
	in->seq = 7;
	intake_run(&in->work, 0);
	assert_int_equal(in->status, 0);
	assert_int_equal(in->seq, 7);
	assert_int_equal(ring.complete->magic, WIRE_MAGIC);
	assert_int_equal(ring.entries, 8);
	assert_true(ring.submit_fd >= 0 && ring.complete_fd >= 0);
	ring_close(&ring);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	none = (struct rlimit){ .rlim_cur = 0, .rlim_max = before.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	intake_run(&in->work, 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_int_equal(in->status, -EMFILE);
	assert_non_null(strstr(in->text, "cannot make rings: Too many open files"));
	assert_null(ring.submit);
	assert_int_equal(recv(pair[1], &byte, 1, MSG_DONTWAIT), 1);
	intake_drop(in);
	assert_null(in->ring);
	free(in);
	(void)close(pair[0]);
	(void)close(pair[1]);
}

/* --- helpers --- */

enum { JOBS = 40 };

struct blocked {
	struct work work;
	int pipe[2];
	bool done;
};

static struct loop *loop;
static uint32_t n_done, n_wanted;

static enum work_end block(struct work *work, TEST_UNUSED uint32_t thread)
{
	char byte;

	(void)!read(((struct blocked *)(void *)work)->pipe[0], &byte, 1);
	return WORK_ENDED;
}

static void unblocked(struct work *work)
{
	((struct blocked *)(void *)work)->done = true;
	if (++n_done == n_wanted)
		loop_stop(loop);
}

/* Each of them blocks until its pipe is written; the last is let go first. */
TEST(none_waits_for_another)
{
	static struct blocked jobs[JOBS];
	struct workers *helpers = NULL;

	assert_int_equal(loop_open(0, &loop), 0);
	assert_int_equal(workers_open_helpers(loop, JOBS, &helpers), 0);
	for (int i = 0; i < JOBS; i++) {
		jobs[i].work = (struct work){ .run = block, .done = unblocked };
		assert_int_equal(pipe2(jobs[i].pipe, O_CLOEXEC), 0);
		workers_submit(helpers, &jobs[i].work);
	}
	assert_int_equal(workers_lent(helpers), JOBS);
	for (int i = JOBS; i-- > 0;) {
		n_wanted = n_done + 1;
		assert_int_equal(write(jobs[i].pipe[1], "x", 1), 1);
		assert_int_equal(loop_run(loop), 0);
		assert_true(jobs[i].done);
	}
	assert_int_equal(workers_lent(helpers), 0);
	for (int i = 0; i < JOBS; i++) {
		(void)close(jobs[i].pipe[0]);
		(void)close(jobs[i].pipe[1]);
	}
	workers_close(helpers);
	loop_close(loop);
}

static int nice_of_helper;

static enum work_end look_at_nice(TEST_UNUSED struct work *work, TEST_UNUSED uint32_t thread)
{
	nice_of_helper = getpriority(PRIO_PROCESS, 0);
	return WORK_ENDED;
}

static void over(TEST_UNUSED struct work *work)
{
	loop_stop(loop);
}

TEST(helpers_get_less_of_a_cpu_than_the_core)
{
	struct work job = { .run = look_at_nice, .done = over };
	const int own = getpriority(PRIO_PROCESS, 0);
	struct workers *helpers = NULL;

	assert_int_equal(loop_open(0, &loop), 0);
	assert_int_equal(workers_open_helpers(loop, 1, &helpers), 0);
	workers_submit(helpers, &job);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(nice_of_helper, own + 5 > 19 ? 19 : own + 5);
	assert_int_equal(getpriority(PRIO_PROCESS, 0), own);
	workers_close(helpers);
	loop_close(loop);
}
