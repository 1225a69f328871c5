/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_notify - goal: the service manager gets the datagrams it is owed and no others. Method: a
 * datagram socket of our own as $NOTIFY_SOCKET, as a path and as an abstract name.
 */

#include "base/clock.h"
#include "base/notify.h"
#include "tests/lib/test.h"

static struct notify notify;
static char name[64]; /* an abstract one */

FIXTURE(clear_environment)
{
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	unsetenv("WATCHDOG_PID");
	snprintf(name, sizeof(name), "@unit_notify.%d", (int)getpid());
	return 0;
}

TEST_EACH(clear_environment, NULL);

/* Binds a socket to the name, '@' for abstract ones, and sets $NOTIFY_SOCKET. */
static int manager(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	memcpy(address.sun_path, name, strlen(name));
	if (name[0] == '@')
		address.sun_path[0] = '\0';
	else
		(void)unlink(name);
	assert_int_equal(bind(fd, (const struct sockaddr *)&address,
			      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))),
			 0);
	setenv("NOTIFY_SOCKET", name, 1);
	return fd;
}

static void expect(int fd, const char *want)
{
	char got[256] = "";

	assert_true(recv(fd, got, sizeof(got) - 1, MSG_DONTWAIT) >= 0);
	assert_string_equal(got, want);
}

TEST(nobody_listens)
{
	assert_int_equal(notify_open(&notify), 0);
	assert_int_equal(notify_send(&notify, "READY=1"), 0);
	assert_int_equal(notify.watchdog_ns, 0);
	notify_close(&notify);
}

static void sends(void)
{
	const int fd = manager();

	assert_int_equal(notify_open(&notify), 0);
	assert_int_equal(notify_send(&notify, "READY=1\nSTATUS=serving"), 0);
	assert_int_equal(notify_send(&notify, "WATCHDOG=1"), 0);
	expect(fd, "READY=1\nSTATUS=serving");
	expect(fd, "WATCHDOG=1");
	notify_close(&notify);
	(void)close(fd);
}

TEST(a_path)
{
	snprintf(name, sizeof(name), "/tmp/unit_notify.%d", (int)getpid());
	sends();
	(void)unlink(name);
}

TEST_DO(an_abstract_name, sends());

TEST(a_manager_that_does_not_read_is_not_waited_for)
{
	const int fd = manager();
	int r = 0;

	assert_int_equal(notify_open(&notify), 0);
	for (int i = 0; i < 100000 && r == 0; i++)
		r = notify_send(&notify, "WATCHDOG=1");
	assert_int_equal(r, -EAGAIN);
	(void)close(fd);
	assert_int_equal(notify_send(&notify, "WATCHDOG=1"), -ECONNREFUSED);
	notify_close(&notify);
}

TEST(watchdog_is_half_of_what_is_allowed)
{
	char pid[32];

	setenv("NOTIFY_SOCKET", "@nobody", 1);
	setenv("WATCHDOG_USEC", "30000000", 1);
	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	setenv("WATCHDOG_PID", pid, 1);
	assert_int_equal(notify_open(&notify), 0);
	assert_int_equal(notify.watchdog_ns, 15 * 1000000000ull);
	notify_close(&notify);
}

TEST(anothers_watchdog_is_not_ours)
{
	setenv("NOTIFY_SOCKET", "@nobody", 1);
	setenv("WATCHDOG_USEC", "30000000", 1);
	setenv("WATCHDOG_PID", "1", 1);
	assert_int_equal(notify_open(&notify), 0);
	assert_int_equal(notify.watchdog_ns, 0);
	notify_close(&notify);
}

TEST(nonsense_is_refused_and_harmless)
{
	static const char *const sockets[] = { "relative", "@", "/", "" };
	static const char *const watchdogs[] = { "x", "-1", "0", "12s", "99999999999999999999999" };
	char long_name[256];

	memset(long_name, '/', sizeof(long_name));
	long_name[sizeof(long_name) - 1] = '\0';
	setenv("NOTIFY_SOCKET", long_name, 1);
	assert_int_equal(notify_open(&notify), -EINVAL);
	assert_int_equal(notify_send(&notify, "READY=1"), 0);
	for (size_t i = 0; i < sizeof(sockets) / sizeof(sockets[0]); i++) {
		setenv("NOTIFY_SOCKET", sockets[i], 1);
		assert_int_equal(notify_open(&notify), sockets[i][0] == '\0' ? 0 : -EINVAL);
		assert_int_equal(notify_send(&notify, "READY=1"), 0);
	}
	setenv("NOTIFY_SOCKET", "@nobody", 1);
	for (size_t i = 0; i < sizeof(watchdogs) / sizeof(watchdogs[0]); i++) {
		setenv("WATCHDOG_USEC", watchdogs[i], 1);
		assert_int_equal(notify_open(&notify), -EINVAL);
		notify_close(&notify);
	}
}

TEST(a_reload_has_the_time_at_which_it_begins)
{
	const int fd = manager();
	unsigned long long us = 0;
	char got[128] = "";

	assert_int_equal(notify_open(&notify), 0);
	assert_int_equal(notify_reloading(&notify), 0);
	assert_true(recv(fd, got, sizeof(got) - 1, MSG_DONTWAIT) > 0);
	assert_int_equal(sscanf(got, "RELOADING=1\nMONOTONIC_USEC=%llu", &us), 1);
	assert_true(us > 0 && us <= clock_ns() / 1000);
	notify_close(&notify);
	(void)close(fd);
}
