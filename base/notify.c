/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify.c - see notify.h. A datagram has lines of the form NAME=value; this is all of libsystemd
 * that kvtierd would need.
 */
#include "notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"

/* The name is a path, or an abstract name, which is written with '@' for its leading NUL and whose
 * end is given by its length. */
static int address(const char *name, struct notify *ret)
{
	const size_t length = strlen(name);

	if ((name[0] != '/' && name[0] != '@') || length < 2 || length >= sizeof(ret->to.sun_path))
		return -EINVAL;
	ret->to.sun_family = AF_UNIX;
	memcpy(ret->to.sun_path, name, length + 1);
	ret->length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + 1);
	if (name[0] == '@') {
		ret->to.sun_path[0] = '\0';
		ret->length--;
	}
	return 0;
}

static int number(const char *text, uint64_t *ret)
{
	unsigned long long value;
	char *end;

	if (text[0] < '0' || text[0] > '9')
		return -EINVAL;
	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno != 0 || *end != '\0')
		return -EINVAL;
	*ret = value;
	return 0;
}

/* $WATCHDOG_PID names the process meant; a child that inherited the variables must stay silent. */
static int watchdog(uint64_t *ret_ns)
{
	const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
	uint64_t value;

	*ret_ns = 0;
	if (!usec)
		return 0;
	if (pid && (number(pid, &value) < 0 || value != (uint64_t)getpid()))
		return 0;
	if (number(usec, &value) < 0 || value == 0 || value > UINT64_MAX / 1000)
		return -EINVAL;
	*ret_ns = value * 1000 / 2;
	return 0;
}

int notify_open(struct notify *ret)
{
	const char *name = getenv("NOTIFY_SOCKET");
	int r;

	memset(ret, 0, sizeof(*ret));
	ret->fd = -1;
	if (!name || name[0] == '\0')
		return 0;
	r = address(name, ret);
	if (r == 0)
		r = watchdog(&ret->watchdog_ns);
	if (r < 0)
		return r;
	ret->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	return ret->fd < 0 ? -errno : 0;
}

void notify_close(struct notify *notify)
{
	if (notify->fd >= 0)
		(void)close(notify->fd);
	notify->fd = -1;
}

int notify_send(const struct notify *notify, const char *lines)
{
	if (notify->fd < 0)
		return 0;
	if (sendto(notify->fd, lines, strlen(lines), MSG_NOSIGNAL | MSG_DONTWAIT,
		   (const struct sockaddr *)&notify->to, notify->length) < 0)
		return -errno;
	return 0;
}

int notify_reloading(const struct notify *notify)
{
	char lines[64];

	snprintf(lines, sizeof(lines), "RELOADING=1\nMONOTONIC_USEC=%llu",
		 (unsigned long long)(clock_ns() / 1000));
	return notify_send(notify, lines);
}
