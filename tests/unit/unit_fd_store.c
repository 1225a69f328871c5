/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_fd_store - goal: a descriptor reaches the service manager with its name. A descriptor that
 * the manager gives to the next process is found by its name, once. A descriptor that no part takes
 * is closed here and dropped there. A descriptor of another process, or without a name, is not
 * taken for ours. Method: a datagram socket of our own as $NOTIFY_SOCKET; children that begin with
 * descriptors from 3 on.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/fd_store.h"
#include "daemon/base/notify.h"

static int listener;
static struct notify notify;

static int set_up(void **state)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char name[64];

	(void)state;
	(void)snprintf(name, sizeof(name), "@unit_fd_store.%d", (int)getpid());
	listener = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	memcpy(address.sun_path, name, strlen(name));
	address.sun_path[0] = '\0';
	assert_int_equal(bind(listener, (const struct sockaddr *)&address,
			      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))),
			 0);
	assert_int_equal(setenv("NOTIFY_SOCKET", name, 1), 0);
	return notify_open(&notify);
}

static int tear_down(void **state)
{
	(void)state;
	notify_close(&notify);
	(void)close(listener);
	return 0;
}

/* The next message, and the descriptor that came with it; -1: none did. */
static int hear(char *text, size_t n)
{
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec to = { text, n - 1 };
	struct msghdr m = { .msg_iov = &to,
			    .msg_iovlen = 1,
			    .msg_control = &control,
			    .msg_controllen = sizeof(control) };
	const ssize_t got = recvmsg(listener, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	int fd = -1;

	text[got > 0 ? got : 0] = '\0';
	if (got > 0 && CMSG_FIRSTHDR(&m))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
	return fd;
}

static ino_t inode(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return st.st_ino;
}

static void what_is_kept_reaches_the_manager(void **state)
{
	const int mine = memfd_create("mine", MFD_CLOEXEC);
	struct fd_store store;
	char text[128];
	int fd;

	(void)state;
	fd_store_open(&store, &notify);
	assert_true(fd_store_can_keep(&store));
	assert_int_equal(fd_store_keep(&store, "a-name", mine), 0);
	fd = hear(text, sizeof(text));
	assert_string_equal(text, "FDSTORE=1\nFDPOLL=0\nFDNAME=a-name");
	assert_true(fd >= 0);
	assert_int_equal(inode(fd), inode(mine));
	(void)close(fd);
	fd_store_drop(&store, "a-name");
	assert_int_equal(hear(text, sizeof(text)), -1);
	assert_string_equal(text, "FDSTOREREMOVE=1\nFDNAME=a-name");
	(void)close(mine);
}

static void without_a_manager_nothing_is_kept(void **state)
{
	const struct notify nobody = { .fd = -1 };
	struct fd_store store;

	(void)state;
	fd_store_open(&store, &nobody);
	assert_false(fd_store_can_keep(&store));
}

/* Runs check() in a process that begins with n descriptors from 3 on. */
static void begun_with(int n, const char *fds, const char *names, bool ours,
		       void (*check)(struct fd_store *store))
{
	const pid_t child = fork();
	struct fd_store store;
	int status = -1;
	char pid[16];

	assert_true(child >= 0);
	if (child > 0) {
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_int_equal(status, 0);
		return;
	}
	if (dup2(notify.fd, 40) < 0) /* out of the way */
		_exit(1);
	notify.fd = 40;
	for (int i = 0; i < n; i++)
		if (dup2(memfd_create("given", MFD_CLOEXEC), 3 + i) < 0)
			_exit(1);
	(void)close(3 + n);
	(void)snprintf(pid, sizeof(pid), "%d", (int)getpid() + !ours);
	(void)setenv("LISTEN_PID", pid, 1);
	(void)setenv("LISTEN_FDS", fds, 1);
	(void)setenv("LISTEN_FDNAMES", names, 1);
	fd_store_open(&store, &notify);
	if (getenv("LISTEN_PID") || getenv("LISTEN_FDS") || getenv("LISTEN_FDNAMES"))
		_exit(2);
	check(&store);
	_exit(0);
}

/* In a child. */
#define IS(true_there)                             \
	do {                                       \
		if (!(true_there))                 \
			_exit(__LINE__ % 250 + 3); \
	} while (0)

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

static void by_name_and_once(struct fd_store *store)
{
	IS(fd_store_take(store, "two") == 4);
	IS(fd_store_take(store, "two") == -1);
	IS(fd_store_take(store, "on") == -1);
	IS(fcntl(4, F_GETFD) & FD_CLOEXEC);
	fd_store_settle(store);
	IS(is_open(4) && !is_open(3) && !is_open(5));
	IS(fd_store_take(store, "one") == -1);
}

static void none(struct fd_store *store)
{
	IS(store->n == 0);
}

static void the_first_alone(struct fd_store *store)
{
	IS(store->n == 1 && fd_store_take(store, "one") == 3);
	IS(!is_open(4));
}

static void what_is_given_is_found_by_name(void **state)
{
	char text[128];

	(void)state;
	begun_with(3, "3", "one:two:three", true, by_name_and_once);
	(void)hear(text, sizeof(text));
	assert_string_equal(text, "FDSTOREREMOVE=1\nFDNAME=three");
	(void)hear(text, sizeof(text));
	assert_string_equal(text, "FDSTOREREMOVE=1\nFDNAME=one");
	(void)hear(text, sizeof(text));
	assert_string_equal(text, "");
}

static void what_is_not_ours_is_left_alone(void **state)
{
	(void)state;
	begun_with(2, "2", "one:two", false, none);
	begun_with(2, "x", "one:two", true, none);
	begun_with(2, "-2", "one:two", true, none);
	begun_with(2, "99999999", "one:two", true, none);
	begun_with(0, "0", "", true, none);
}

static void names_that_are_missing_or_too_long(void **state)
{
	char names[200];

	(void)state;
	begun_with(2, "2", "one", true, the_first_alone);
	(void)snprintf(names, sizeof(names), "one:%0*d", FD_STORE_NAME, 7);
	begun_with(2, "2", names, true, the_first_alone);
	/* more than there are */
	begun_with(1, "5", "one:two", true, the_first_alone);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		CASE(what_is_kept_reaches_the_manager),   CASE(without_a_manager_nothing_is_kept),
		CASE(what_is_given_is_found_by_name),     CASE(what_is_not_ours_is_left_alone),
		CASE(names_that_are_missing_or_too_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) == 0 ? 0 : 1;
}
