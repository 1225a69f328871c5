/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runtime_dir.h - where a daemon and its clients meet if they were not told where. kvtierd,
 * libkvtier and kvtierctl share this rule.
 */
#pragma once

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define RUNTIME_DIR_SOCKET "kvtier.sock"
/* The node's daemon, which systemd starts, is there. Root alone decides what lies in /run. */
#define RUNTIME_DIR_NODE        "/run/kvtier"
#define RUNTIME_DIR_NODE_SOCKET RUNTIME_DIR_NODE "/" RUNTIME_DIR_SOCKET

/* The directory of kvtier.sock, admin.sock and stats, for this process's user. Returns 0; 1: the
 * directory is in /tmp, where any user may have made it, so a client has to check its owner; or
 * -ENAMETOOLONG. A relative $XDG_RUNTIME_DIR is ignored, as its specification says. Where no daemon
 * answers there, a client tries RUNTIME_DIR_NODE. */
static inline int runtime_dir(char *ret, size_t n)
{
	const char *from = getenv("XDG_RUNTIME_DIR");
	int length, in_tmp = 0;

	if (geteuid() == 0) {
		length = snprintf(ret, n, RUNTIME_DIR_NODE);
	} else if (from && from[0] == '/') {
		length = snprintf(ret, n, "%s/kvtier", from);
	} else {
		length = snprintf(ret, n, "/tmp/kvtier-%u", (unsigned)geteuid());
		in_tmp = 1;
	}
	return length < 0 || (size_t)length >= n ? -ENAMETOOLONG : in_tmp;
}
