/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_apart.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wrap.h"

static atomic_bool together;

void clients_apart(bool apart)
{
	atomic_store(&together, !apart);
}

static bool is_client(int fd)
{
	int type = 0;
	socklen_t n = sizeof(type);

	return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) == 0 && type == SOCK_SEQPACKET;
}

/* It has no descriptor of the test's any more: the daemon and others see these close. */
static void live_on(pid_t parent)
{
	(void)close_range(3, ~0u, 0);
	while (getppid() == parent)
		(void)usleep(50000);
	_exit(0);
}

REAL(int, connect, (int fd, const struct sockaddr *address, socklen_t n))
{
	const pid_t self = getpid();
	int ends[2], error = ECHILD;
	pid_t child;

	if (atomic_load(&together) || !is_client(fd))
		return __real_connect(fd, address, n);
	if (pipe(ends))
		return -1;
	child = fork();
	if (child == 0) {
		error = __real_connect(fd, address, n) ? errno : 0;
		(void)!write(ends[1], &error, sizeof(error));
		if (error)
			_exit(0);
		live_on(self);
	}
	(void)close(ends[1]);
	if (child > 0 && read(ends[0], &error, sizeof(error)) != sizeof(error))
		error = ECHILD;
	(void)close(ends[0]);
	errno = error;
	return error ? -1 : 0;
}
