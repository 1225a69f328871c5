/* SPDX-License-Identifier: Apache-2.0 */
/* make: link=client.a (the library's inner names) */
/*
 * Goal: after a connection was given up, the right pages are lent, calls that name them are
 * refused, and the right events free them. Method: a fake daemon (fake_engine.h) that begins ops,
 * or does not, and neither answers nor hangs up; and lent.c by itself, with a socket pair for each
 * connection.
 */
#include <sys/eventfd.h>

#include "client/lib/base/lent.h"
#include "client/lib/base/process.h"
#include "tests/lib/fake_engine.h"
#include "tests/lib/test.h"

static const uint32_t some_pages[4] = { 5, 3, 5, 4 };
static uint64_t given_up; /* the op */

static int lent_now(void)
{
	return kvtier_lent(NULL, NULL, 0);
}

/* A load that the daemon took off the ring (or not), and then nothing. Returns the result of
 * closing the space. */
static int give_up(bool taken)
{
	struct kvtier_key keys[4];
	const uint32_t before = sole.peer.taken;

	fake_keys(&sole, 1, 4, keys);
	sole.peer.keep = taken;
	sole.peer.hold = !taken;
	assert_int_equal(kvtier_load(sole.space, keys, some_pages, 4, NULL, &given_up), 0);
	AWAIT(!taken || sole.peer.taken != before);
	sole.peer.deaf = true;
	return kvtier_space_close(sole.space);
}

TEST_FAKE(what_the_daemon_began_is_lent, false)
{
	struct kvtier_lent lent[4] = { { .size = sizeof(lent[0]) } };
	struct {
		uint32_t size, page;
	} old[4] = { { .size = sizeof(old[0]) } };
	char text[1024];
	struct stat st;

	assert_int_equal(give_up(true), 3);
	assert_int_equal(fstat(sole.fd, &st), 0);
	assert_int_equal(kvtier_lent(sole.client, lent, 4), 3);
	assert_int_equal(kvtier_lent(NULL, (struct kvtier_lent *)(void *)old, 2), 3);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(lent[i].page, 3 + i);
		assert_int_equal(lent[i].memory, st.st_ino);
		assert_int_equal(lent[i].offset, lent[i].page * PAGE_BYTES);
		assert_int_equal(lent[i].op, given_up);
		assert_int_equal(lent[i].daemon, getpid()); /* the fake daemon is a thread */
		assert_int_equal(lent[i].ended, 1);
		/* no more than asked for, in size and number */
		assert_int_equal(old[i].page, i < 2 ? 3 + i : 0);
	}
	assert_true(kvtier_status(sole.client, text, sizeof(text)) & KVTIER_WAITING);
	assert_non_null(
		strstr(text, "to answer or end: 3 pages are lent still over 1 cut connection "));
	assert_int_equal(kvtier_status(sole.client, text, 100), -ENOSPC);
	assert_true(kvtier_status(sole.client, NULL, 0) & KVTIER_WAITING);
	sole.peer.deaf = false; /* it sees the end, and hangs up */
	AWAIT(lent_now() == 0);
	assert_false(kvtier_status(sole.client, text, sizeof(text)) & KVTIER_WAITING);
	assert_null(strstr(text, "lent"));
}

TEST_FAKE(what_it_never_read_is_not, false)
{
	assert_int_equal(give_up(false), 0);
	assert_int_equal(lent_now(), 0);
}

TEST_FAKE(nor_are_staged_pages, true)
{
	assert_int_equal(give_up(true), 0);
	assert_int_equal(lent_now(), 0);
}

/* The daemon connects again with this as the fourth descriptor. */
static void give_fourth(int fd)
{
	sole.peer.pidfd = fd;
	sole.peer.hang_up = true;
	while (sole.peer.connections < 2) {
		assert_true(kvtier_poll(sole.client, NULL, 0) >= 0);
		(void)usleep(1000);
	}
	fake_store_again(&sole);
}

static pid_t a_process(int *ret_pidfd)
{
	const pid_t pid = fork();

	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a case that fails leaves it */
		for (;;)
			(void)pause();
	}
	*ret_pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	assert_true(pid > 0 && *ret_pidfd >= 0);
	return pid;
}

static void end_process(pid_t pid)
{
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

TEST(a_dead_daemon_has_let_go)
{
	struct kvtier_lent lent[4] = { { .size = sizeof(lent[0]) } };
	pid_t pid;
	int pidfd;

	pid = a_process(&pidfd);
	fake_open(&sole, false); /* after the fork: a child has no end of its sockets */
	give_fourth(pidfd);
	assert_int_equal(give_up(true), 3);
	assert_int_equal(kvtier_lent(NULL, lent, 4), 3);
	assert_int_equal(lent[0].daemon, pid);
	end_process(pid);
	assert_int_equal(lent_now(), 0); /* though nobody hung up */
	fake_close(&sole);
	(void)close(pidfd);
}

TEST_FAKE(what_is_no_pidfd_says_nothing, false)
{
	const int fd = eventfd(1, EFD_CLOEXEC); /* readable */

	give_fourth(fd);
	assert_int_equal(give_up(true), 3);
	assert_int_equal(lent_now(), 3); /* it polls readable, and is not believed */
	sole.peer.deaf = false;
	AWAIT(lent_now() == 0);
	(void)close(fd);
}

/* --- lent.c by itself --- */

static int memory_file(void)
{
	const int fd = memfd_create("pages", MFD_CLOEXEC);

	assert_true(fd >= 0 && !ftruncate(fd, 1 << 20));
	return fd;
}

static struct lent_layout *layout(const int *fds, size_t n, uint64_t offset, uint64_t stride)
{
	const struct wire_segment segment = { .kind = KVTIER_OPAQUE,
					      .page_stride = stride,
					      .length = stride };
	const struct kvtier_region regions[2] = { { .offset = offset, .length = 1 << 16 },
						  { .length = 1 << 16 } };
	struct lent_place places[2];
	struct lent_layout *ret;

	for (size_t i = 0; i < n; i++)
		assert_int_equal(lent_place_of(fds[i], &regions[i], &places[i]), 0);
	assert_int_equal(lent_layout_open(places, n, &segment, 1, &ret), 0);
	return ret;
}

/* Pages 3, 4, 5 of a layout are lent; the daemon's end of the socket. */
static int lend_to(struct lent_layout *of, int pidfd)
{
	struct orphan *orphan;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	assert_int_equal(orphan_open(8, pidfd, &orphan), 0);
	orphan_add(orphan, of, 77, some_pages, 4);
	assert_true(orphan_keep(orphan, pair[0]) > 0);
	return pair[1];
}

static int lend(struct lent_layout *of)
{
	return lend_to(of, -1);
}

static int check_one(const struct lent_layout *of, uint32_t page)
{
	return lent_check(of, &page, 1);
}

TEST(whom_they_are_refused)
{
	const int fds[2] = { memory_file(), memory_file() };
	struct lent_layout *a = layout(fds, 1, 0, 4096), *same = layout(fds, 1, 0, 4096);
	struct lent_layout *wider = layout(fds, 1, 0, 8192),
			   *beside = layout(fds, 1, 1 << 16, 4096);
	struct lent_layout *other = layout(&fds[1], 1, 0, 4096);
	const int end = lend(a);

	assert_int_equal(check_one(a, 4), -EBUSY);
	assert_int_equal(check_one(same, 4), -EBUSY);
	assert_non_null(strstr(kvtier_last_error(), "page 4 is lent still: kvtierd (pid"));
	assert_int_equal(check_one(same, 2), 0);
	assert_int_equal(check_one(same, 6), 0);
	assert_int_equal(check_one(wider, 9), -EBUSY); /* which bytes of it is not known */
	assert_int_equal(check_one(beside, 4), 0);
	assert_int_equal(check_one(other, 4), 0);
	assert_int_equal(lent_space(same), 3);
	assert_int_equal(lent_space(wider), 0);
	(void)close(end);
	assert_int_equal(check_one(a, 4), 0);
	assert_int_equal(lent_orphans, 0);
	lent_layout_close(a);
	lent_layout_close(same);
	lent_layout_close(wider);
	lent_layout_close(beside);
	lent_layout_close(other);
	(void)close(fds[0]);
	(void)close(fds[1]);
}

static struct lent_layout *gpu_layout(void)
{
	const struct wire_segment segment = { .kind = KVTIER_OPAQUE,
					      .page_stride = 4096,
					      .length = 4096 };
	const struct lent_place place = { LENT_CUDA, LENT_CUDA, 1ull << 40, 1 << 16 };
	struct lent_layout *ret;

	assert_int_equal(lent_layout_open(&place, 1, &segment, 1, &ret), 0);
	return ret;
}

TEST(a_hang_up_does_not_free_pages_of_a_gpu)
{
	struct lent_layout *of = gpu_layout();
	int pidfd, end;
	pid_t pid = a_process(&pidfd);

	end = lend_to(of, pidfd);
	(void)close(end);
	assert_int_equal(check_one(of, 4), -EBUSY);
	end_process(pid);
	assert_int_equal(check_one(of, 4), 0);
	assert_int_equal(lent_orphans, 0);
	lent_layout_close(of);
}

TEST(a_hang_up_after_bye_frees_them)
{
	const struct wire_head wake = { WIRE_MAGIC, WIRE_WAKE, 0, sizeof(wake), 0 };
	const struct wire_head bye = { WIRE_MAGIC, WIRE_BYE, 0, sizeof(bye), 0 };
	struct lent_layout *of = gpu_layout();
	int pidfd, end;
	const pid_t pid = a_process(&pidfd);

	end = lend_to(of, pidfd);
	assert_int_equal(send(end, &wake, sizeof(wake), MSG_NOSIGNAL), sizeof(wake));
	assert_int_equal(send(end, &bye, sizeof(bye), MSG_NOSIGNAL), sizeof(bye));
	assert_int_equal(check_one(of, 4), -EBUSY); /* its handles are not closed yet */
	(void)close(end);
	assert_int_equal(check_one(of, 4), 0);
	assert_int_equal(lent_orphans, 0);
	end_process(pid);
	lent_layout_close(of);
}

/* Pages that lie in two memories are lent until both were taken back. */
TEST(memory_taken_back_is_forgotten)
{
	const int fds[2] = { memory_file(), memory_file() };
	struct lent_layout *both = layout(fds, 2, 0, 4096);
	const int end = lend(both), again = lend(both);
	struct stat st[2];

	for (int i = 0; i < 2; i++) {
		assert_int_equal(fstat(fds[i], &st[i]), 0);
		assert_true(lent_memory_open(st[i].st_dev, st[i].st_ino));
	}
	lent_layout_close(both);
	assert_false(lent_memory_open(st[0].st_dev, st[0].st_ino));
	lent_forget(st[0].st_dev, st[0].st_ino);
	assert_int_equal(lent_now(), 6);
	lent_forget(st[1].st_dev, st[1].st_ino);
	assert_int_equal(lent_now(), 0);
	assert_int_equal(lent_orphans, 0);
	for (int i = 0; i < 2; i++)
		(void)close(fds[i]);
	(void)close(end);
	(void)close(again);
}

TEST(there_is_an_end_of_orphans)
{
	const int fd = memory_file();
	struct lent_layout *of = layout(&fd, 1, 0, 4096);
	const struct kvtier_options o = { .size = sizeof(o),
					  .socket_path = "/nonexistent/kvtier.sock" };
	struct kvtier_client *client;
	int ends[LENT_ORPHANS_MAX];

	for (int i = 0; i < LENT_ORPHANS_MAX; i++)
		ends[i] = lend(of);
	assert_int_equal(kvtier_connect(&o, &client), -EBUSY);
	assert_non_null(strstr(kvtier_last_error(), "64 connections"));
	for (int i = 0; i < LENT_ORPHANS_MAX; i++)
		(void)close(ends[i]);
	assert_int_equal(kvtier_connect(&o, &client), -ENOENT);
	assert_int_equal(lent_orphans, 0);
	lent_layout_close(of);
	(void)close(fd);
}

/* A child has nothing to wait for, and the daemon does not see its changes of its copies. */
TEST(a_child_forgets_them)
{
	const int fd = memory_file();
	struct lent_layout *of = layout(&fd, 1, 0, 4096);
	const int end = lend(of);
	int status;
	pid_t pid;

	(void)process_begin(); /* as a client does, before anything is lent */
	pid = fork();
	if (pid == 0)
		_exit(lent_now() != 0 || check_one(of, 4) != 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(lent_now(), 3);
	assert_int_equal(check_one(of, 4), -EBUSY);
	(void)close(end);
	assert_int_equal(lent_now(), 0);
	lent_layout_close(of);
	(void)close(fd);
}

/* --- memory --- */

TEST(memory_keeps_its_contents)
{
	const size_t pages = 64;
	struct kvtier_region region = { .size = sizeof(region) }, after = { .size = sizeof(after) };
	struct kvtier_memory *memory;
	struct lent_layout *of;
	uint8_t *base;

	assert_int_equal(kvtier_memory_alloc(0, NULL, &memory), -EINVAL);
	assert_int_equal(kvtier_memory_alloc(SIZE_MAX, NULL, &memory), -EINVAL);
	assert_int_equal(kvtier_memory_alloc(pages * 4096 - 1, "a name", &memory), 0);
	base = kvtier_memory_address(memory);
	for (size_t p = 0; p < pages; p += 3) /* with holes between */
		memset(base + p * 4096, (int)p + 1, 4096);
	assert_int_equal(kvtier_memory_region(memory, &region), 0);
	assert_int_equal(region.length, pages * 4096);
	assert_int_equal(fcntl(region.fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW);
	of = layout(&region.fd, 1, 0, 4096);
	assert_int_equal(kvtier_memory_take_back(memory), -EBUSY);
	lent_layout_close(of);
	assert_int_equal(kvtier_memory_take_back(memory), 0);
	assert_int_equal(kvtier_memory_region(memory, &after), 0);
	assert_ptr_equal(kvtier_memory_address(memory), base);
	assert_int_equal(fcntl(after.fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW);
	for (size_t p = 0; p < pages; p++)
		for (size_t i = 0; i < 4096; i++)
			assert_int_equal(base[p * 4096 + i], p % 3 ? 0 : (uint8_t)(p + 1));
	kvtier_memory_free(memory);
	kvtier_memory_free(NULL);
}

TEST_FIRST(fake_timeout_ms = 500);
