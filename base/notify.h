/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify.h - tells the service manager how the daemon is, by datagrams to $NOTIFY_SOCKET (the
 * protocol of sd_notify). Where that variable is not set, every call here succeeds and has no
 * effect.
 */
#pragma once

#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

struct notify {
	int fd; /* -1: no service manager listens */
	socklen_t length;
	struct sockaddr_un to;
	/* how often to send WATCHDOG=1 (half of the allowed time); 0: no watchdog */
	uint64_t watchdog_ns;
};

/* Reads $NOTIFY_SOCKET, $WATCHDOG_USEC, $WATCHDOG_PID. -EINVAL: one of them is no path, abstract
 * name or number. After a failure *ret can still be used, and sends nothing. */
int notify_open(struct notify *ret);
void notify_close(struct notify *notify);

/* Sends lines such as "READY=1\nSTATUS=serving", "WATCHDOG=1", "STOPPING=1". Never blocks. 0 or
 * -errno, which is for the log only. */
int notify_send(const struct notify *notify, const char *lines);
/* Says that a reload begins. READY=1 says that it has ended. */
int notify_reloading(const struct notify *notify);
