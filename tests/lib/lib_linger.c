/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_linger.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "lib.h"

void lingers_begin(struct lingers *l)
{
	*l = (struct lingers){ .listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) };
	assert_int_equal(listen(l->listener, LINGER_MAX), 0);
}

int lingers_add(struct lingers *l)
{
	static const char bytes[65536];
	const struct linger linger = { .l_onoff = 1, .l_linger = LINGER_S };
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(a);
	const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	assert_true(fd >= 0 && l->n < LINGER_MAX);
	assert_int_equal(getsockname(l->listener, (struct sockaddr *)&a, &n), 0);
	(void)connect(fd, (const struct sockaddr *)&a, sizeof(a));
	l->peers[l->n] = accept4(l->listener, NULL, NULL, SOCK_CLOEXEC);
	assert_true(l->peers[l->n++] >= 0);
	while (send(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
	return fd;
}

/* What the peer has not read makes of its close() a reset. */
void lingers_reset(struct lingers *l)
{
	while (l->n > 0)
		(void)close(l->peers[--l->n]);
}

void lingers_end(struct lingers *l)
{
	lingers_reset(l);
	(void)close(l->listener);
}
