/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_packet.h"

#include "test.h"

static struct sockaddr_un address_of(const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	(void)snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	return a;
}

int packet_dial(const char *path, uint32_t patience_ms)
{
	const struct timeval patience = { .tv_sec = patience_ms / 1000,
					  .tv_usec = patience_ms % 1000 * 1000 };
	const struct sockaddr_un a = address_of(path);
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	int r;

	if (fd < 0)
		return -errno;
	(void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	if (connect(fd, (const struct sockaddr *)&a, sizeof(a)) == 0)
		return fd;
	r = -errno;
	(void)close(fd);
	return r;
}

int packet_listen(const char *path)
{
	const struct sockaddr_un a = address_of(path);
	const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	assert_int_equal(bind(fd, (const struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(fd, 8), 0);
	return fd;
}

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

ssize_t packet_receive(int socket, int flags, void *ret, size_t room, int fds[PACKET_FDS],
		       size_t *ret_fds)
{
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(PACKET_FDS * sizeof(int))];
	} control;
	struct iovec iov = { .iov_base = ret, .iov_len = room };
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control.bytes,
			    .msg_controllen = sizeof(control.bytes) };
	const ssize_t n = recvmsg(socket, &m, MSG_CMSG_CLOEXEC | flags);

	*ret_fds = 0;
	if (n < 0)
		return -errno;
	for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h))
		if (h->cmsg_type == SCM_RIGHTS) {
			*ret_fds = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(fds, CMSG_DATA(h), *ret_fds * sizeof(int));
		}
	return n;
}

struct wire_head packet_head(enum wire_type type, size_t n, uint32_t seq)
{
	return (struct wire_head){
		.magic = WIRE_MAGIC, .type = (uint16_t)type, .length = (uint32_t)n, .seq = seq
	};
}

struct wire_hello packet_hello(uint32_t seq, uint32_t arena_blocks, const char *name)
{
	struct wire_hello hello = {
		.head = packet_head(WIRE_HELLO, sizeof(hello), seq),
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
