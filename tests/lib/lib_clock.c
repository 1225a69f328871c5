/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_clock.c - see lib_clock.h. How far ahead the clock is stands in a page that the test and its
 * daemons map.
 *
 * The test's own clock jumps last, when each daemon has looked at its clock: libkvtier would take a
 * heartbeat from before the jump for that of a daemon that stands still.
 */
#include "lib_clock.h"

#include <sys/epoll.h>

#include "lib.h"
#include "wrap.h"

enum {
	DAEMONS = 8,  /* that live at once */
	SLICE_MS = 2, /* a sleeper looks so often whether there was a jump */
	LOOK_S = 60,  /* a daemon that has not looked by then hangs */
	NAP_NS = 200000,
	HEARTBEAT_MS = 250,
	HURRY_MS = 500, /* a step, shorter than anything that is told apart */
};

static const char variable[] = "KVTIER_TEST_CLOCK";

struct page {
	_Atomic uint64_t ahead_ns;
	struct {
		atomic_int pid; /* 0: free */
		_Atomic uint64_t looked_ns;
	} daemons[DAEMONS];
};

static struct page own;
static struct page *all = &own;
/* Of a test with daemons; else the page's is that of this process. */
static _Atomic uint64_t ahead_of_test;
static _Atomic uint64_t *ahead = &own.ahead_ns;

static pthread_t hurrying;
static atomic_bool hurries;

__attribute__((noreturn)) static void die(const char *what)
{
	fprintf(stderr, "lib_clock: %s: %s\n", what, strerror(errno));
	abort();
}

/* --- the two calls --- */

REAL(int, clock_gettime, (clockid_t id, struct timespec *ret))
{
	const int r = __real_clock_gettime(id, ret);
	uint64_t ns;

	if (r || id != CLOCK_MONOTONIC)
		return r;
	ns = (uint64_t)ret->tv_nsec + atomic_load(ahead);
	ret->tv_sec += (time_t)(ns / 1000000000u);
	ret->tv_nsec = (long)(ns % 1000000000u);
	return 0;
}

/* Returns early only after a jump: it does not help code that forgets to wake a loop. */
REAL(int, epoll_wait, (int fd, struct epoll_event *events, int max, int timeout_ms))
{
	const uint64_t before = atomic_load(ahead);

	for (;;) {
		const bool last = timeout_ms >= 0 && timeout_ms <= SLICE_MS;
		const int n = __real_epoll_wait(fd, events, max, last ? timeout_ms : SLICE_MS);

		if (n || last || atomic_load(ahead) != before)
			return n;
		timeout_ms -= timeout_ms < 0 ? 0 : SLICE_MS;
	}
}

/* --- sharing --- */

static void map(int fd)
{
	void *at = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (at == MAP_FAILED)
		die("mmap");
	all = at;
}

/* By a path, so that tests that look at the daemon's descriptors find no other. */
void clock_share(void)
{
	char path[64];
	int fd;

	if (all != &own)
		return;
	fd = memfd_create("clock", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, sizeof(*all)))
		die("memfd_create");
	map(fd);
	ahead = &ahead_of_test;
	(void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), fd);
	if (setenv(variable, path, 1))
		die(variable);
}

static void beat(void)
{
	clock_pass_ms(HEARTBEAT_MS);
}

void clock_hold(struct daemon *d)
{
	clock_share();
	d->program = "tests/kvtierd_clock";
	d->beat = beat;
}

void clock_join(void)
{
	const char *path = getenv(variable);
	int fd;

	if (!path)
		return;
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		die(path);
	map(fd);
	(void)close(fd);
	ahead = &all->ahead_ns;
}

uint64_t clock_ahead_ns(void)
{
	return atomic_load(ahead);
}

/* A child that has ended, and that nobody has waited for, has a pid still. */
static bool is_gone(int pid)
{
	siginfo_t info = { .si_pid = 0 };

	if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid)
		return true;
	return kill(pid, 0) && errno == ESRCH;
}

void clock_looked_ns(uint64_t now_ns)
{
	static int mine = -1;
	const int self = getpid();

	for (int i = 0; mine < 0 && i < DAEMONS; i++) {
		int pid = atomic_load(&all->daemons[i].pid);

		if (pid == self ||
		    ((pid == 0 || is_gone(pid)) &&
		     atomic_compare_exchange_strong(&all->daemons[i].pid, &pid, self)))
			mine = i;
	}
	if (mine < 0)
		die("too many daemons");
	atomic_store(&all->daemons[mine].looked_ns, now_ns);
}

/* --- jumps --- */

static uint64_t machine_ns(void)
{
	struct timespec t;

	(void)__real_clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void await_look(int i, uint64_t then_ns)
{
	const uint64_t until = machine_ns() + LOOK_S * 1000000000ull;
	int pid;

	while ((pid = atomic_load(&all->daemons[i].pid)) && !is_gone(pid) &&
	       atomic_load(&all->daemons[i].looked_ns) < then_ns) {
		errno = ETIMEDOUT;
		if (machine_ns() > until)
			die("a daemon does not look at its clock");
		(void)nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
	}
}

/* Two may let time pass at once: no clock goes back. */
static void raise_to(_Atomic uint64_t *clock, uint64_t ns)
{
	uint64_t now = atomic_load(clock);

	while (now < ns && !atomic_compare_exchange_weak(clock, &now, ns))
		;
}

void clock_pass_ms(uint64_t ms)
{
	const uint64_t now_ahead = atomic_fetch_add(&all->ahead_ns, ms * 1000000u) + ms * 1000000u,
		       then_ns = machine_ns() + now_ahead;

	for (int i = 0; i < DAEMONS; i++)
		await_look(i, then_ns);
	raise_to(ahead, now_ahead);
}

static void *hurry(void *arg)
{
	(void)arg;
	while (atomic_load(&hurries))
		clock_pass_ms(HURRY_MS);
	return NULL;
}

void clock_hurry(bool on)
{
	atomic_store(&hurries, on);
	errno = on ? pthread_create(&hurrying, NULL, hurry, NULL) : pthread_join(hurrying, NULL);
	if (errno)
		die("clock_hurry");
}
