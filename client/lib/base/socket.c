/* SPDX-License-Identifier: Apache-2.0 */
/*
 * socket.c - sends and receives one packet of the control socket. No call blocks or raises SIGPIPE,
 * and every descriptor is close-on-exec. Errors are -errno.
 */
#include "socket.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/kvtier.h"

int socket_connect(const char *path, int *ret)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const int send_bytes = 2 * WIRE_MAX_MESSAGE;
	int fd, rc;

	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	/* The kernel may cap this; a space with very many segments then says -EMSGSIZE. */
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof(send_bytes));
	if (connect(fd, (const struct sockaddr *)&address, sizeof(address))) {
		rc = -errno;
		(void)close(fd);
		return rc;
	}
	*ret = fd;
	return 0;
}

int socket_send(int fd, const void *message, size_t n, const int *fds, size_t n_fds)
{
	_Alignas(struct cmsghdr)
		uint8_t control[CMSG_SPACE(sizeof(int) * KVTIER_MAX_REGIONS)] = { 0 };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)message, .iov_len = n };
	struct msghdr header = { .msg_iov = &iov, .msg_iovlen = 1 };

	assert(n_fds <= KVTIER_MAX_REGIONS);
	if (n_fds) {
		struct cmsghdr *c;

		header.msg_control = control;
		header.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
		c = CMSG_FIRSTHDR(&header);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
		memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
	}
	for (;;) {
		const ssize_t sent = sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (sent >= 0)
			return (size_t)sent == n ? 0 : -EPROTO; /* packets are whole */
		if (errno != EINTR)
			return errno == EPIPE ? -ECONNRESET : -errno;
	}
}

void packet_close(struct packet *packet)
{
	for (int i = 0; i < packet->n_fds; i++)
		(void)close(packet->fds[i]);
	packet->n_fds = 0;
}

static void packet_take_fds(struct msghdr *header, struct packet *ret)
{
	ret->n_fds = 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
		size_t n;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		assert(n <= SOCKET_MAX_FDS); /* the control buffer has no room for more */
		memcpy(ret->fds, CMSG_DATA(c), n * sizeof(int));
		ret->n_fds = (int)n;
	}
}

/* The bytes of a reply; 0: a client is not sent messages of this type. */
static size_t packet_bytes_expected(const struct packet *packet)
{
	switch (packet->head.type) {
	case WIRE_HELLO_OK:
		return wire_hello_ok_bytes(packet->hello_ok.version);
	case WIRE_ERROR:
		return sizeof(struct wire_error);
	case WIRE_SPACE_OK:
		return sizeof(struct wire_space_ok);
	case WIRE_SPACE_CLOSED:
		return sizeof(struct wire_space_close);
	case WIRE_ORDER_OK:
		return sizeof(struct wire_order_ok);
	case WIRE_WAKE:
	case WIRE_ALLOCS_OK:
	case WIRE_BYE:
		return sizeof(struct wire_head);
	default:
		return 0;
	}
}

int socket_receive(int fd, struct packet *ret)
{
	/* One CMSG of SOCKET_MAX_FDS fits, and no more. The kernel drops the rest, and says so. */
	_Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int) * SOCKET_MAX_FDS)];
	struct iovec iov = { .iov_base = ret->bytes, .iov_len = sizeof(ret->bytes) };
	struct msghdr header = { .msg_iov = &iov,
				 .msg_iovlen = 1,
				 .msg_control = control,
				 .msg_controllen = sizeof(control) };
	bool reset = false;
	ssize_t n;

	/* A peer that closes before it read all that we sent resets the connection. The kernel
	 * tells of the reset once, before it gives us the packets of that peer, of which the last
	 * says why. */
	ret->hello_ok.version = 0;
	do
		n = recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && (errno == EINTR || (errno == ECONNRESET && !reset && (reset = true))));
	if (n < 0)
		return errno == EAGAIN || errno == EWOULDBLOCK ? -EAGAIN : -ECONNRESET;
	packet_take_fds(&header, ret);
	if (n == 0) {
		packet_close(ret);
		return -ECONNRESET;
	}
	if ((header.msg_flags & MSG_CTRUNC) && ret->n_fds < SOCKET_MAX_FDS) {
		/* the buffer had room: this process may have no more descriptors */
		packet_close(ret);
		return -EMFILE;
	}
	if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) || (size_t)n < sizeof(ret->head) ||
	    ret->head.magic != WIRE_MAGIC || ret->head.flags || ret->head.length != (size_t)n ||
	    ret->head.length != packet_bytes_expected(ret)) {
		packet_close(ret);
		return -EPROTO;
	}
	return 0;
}
