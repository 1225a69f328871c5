/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bus.c - see bus.h. The mapping is a static variable, since a signal handler gets no argument of
 * ours. The owner itself causes the fault, so the handler runs between two instructions of the
 * owner, where memcpy() and mmap() are safe.
 */
#include "bus.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

static struct {
	void *at;
	size_t n;
	const void *copy;
	bool mended;
} watched;

bool bus_mend(const void *touched)
{
	if (!watched.at || (uintptr_t)touched - (uintptr_t)watched.at >= watched.n)
		return false;
	if (mmap(watched.at, watched.n, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		return false;
	memcpy(watched.at, watched.copy, watched.n);
	watched.mended = true;
	return true;
}

static void on_sigbus(int signal_number, siginfo_t *info, void *context)
{
	(void)context;
	if (info->si_code != BUS_ADRERR || !bus_mend(info->si_addr))
		(void)signal(signal_number, SIG_DFL); /* it comes again and ends the process */
}

int bus_watch(void *at, size_t n, const void *copy)
{
	const struct sigaction action = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO };

	watched.at = at;
	watched.n = n;
	watched.copy = copy;
	watched.mended = false;
	return !at || sigaction(SIGBUS, &action, NULL) == 0 ? 0 : -errno;
}

bool bus_mended(void)
{
	const bool mended = watched.mended;

	watched.mended = false;
	return mended;
}
