/* SPDX-License-Identifier: Apache-2.0 */
/* packet.c - see packet.h. */
#include "packet.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

struct wire_head packet_head(enum wire_type type, size_t n, uint32_t seq)
{
	return (struct wire_head){
		.magic = WIRE_MAGIC,
		.type = (uint16_t)type,
		.length = (uint32_t)n,
		.seq = seq,
	};
}

int packet_send(int socket, const void *message, size_t n, const int *fds, size_t n_fds)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(PACKET_MAX_FDS * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)message, .iov_len = n };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

	assert(n_fds <= PACKET_MAX_FDS);
	if (n_fds > 0) {
		m.msg_control = control.bytes;
		m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		control.head.cmsg_level = SOL_SOCKET;
		control.head.cmsg_type = SCM_RIGHTS;
		control.head.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(&control.head), fds, n_fds * sizeof(int));
	}
	return sendmsg(socket, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)n ? 0 : -errno;
}

int packet_error(int socket, uint32_t seq, int error, const char *text)
{
	struct wire_error e = { .head = packet_head(WIRE_ERROR, sizeof(e), seq), .error = error };

	snprintf(e.text, sizeof(e.text), "%.*s", (int)sizeof(e.text) - 1, text);
	return packet_send(socket, &e, sizeof(e), NULL, 0);
}
