/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "lib_packet.h"

int packet_with_fds(int socket, const void *message, size_t n, const int *fds, size_t n_fds)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(PACKET_MAX_FDS * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)message, .iov_len = n };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (n_fds > PACKET_MAX_FDS)
		return -E2BIG;
	if (n_fds > 0) {
		m.msg_control = control.bytes;
		m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(&control.head), fds, n_fds * sizeof(int));
	}
	return sendmsg(socket, &m, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

struct wire_hello packet_hello(uint32_t arena_blocks, const char *name)
{
	struct wire_hello hello = {
		.version_min = WIRE_VERSION_MIN,
		.version_max = WIRE_VERSION_MAX,
		.size_geometry = sizeof(struct wire_geometry),
		.size_region = sizeof(struct wire_region),
		.size_segment = sizeof(struct wire_segment),
		.size_sqe = sizeof(struct wire_sqe),
		.size_cqe = sizeof(struct wire_cqe),
		.sq_entries = 64,
		.arena_blocks = arena_blocks,
	};

	(void)snprintf(hello.name, sizeof(hello.name), "%s", name);
	return hello;
}
