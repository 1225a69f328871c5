/* SPDX-License-Identifier: Apache-2.0 */
/* socket.h - sends and receives one packet, without blocking. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/abi/wire.h"

enum { SOCKET_MAX_FDS = 8, SOCKET_PACKET_BYTES = 1024 };

struct packet {
	union {
		struct wire_head head;
		struct wire_hello_ok hello_ok;
		struct wire_error error;
		struct wire_space_ok space_ok;
		struct wire_space_close closed;
		uint8_t bytes[SOCKET_PACKET_BYTES];
	};
	int fds[SOCKET_MAX_FDS];
	int n_fds;
};

int socket_connect(const char *path, int *ret); /* -EAGAIN: the daemon's backlog is full */
int socket_send(int fd, const void *message, size_t n, const int *fds, size_t n_fds);
/* 0: *ret is a packet whose head was checked. -EAGAIN: there is no packet. -ECONNRESET: the peer is
 * gone. -EPROTO: it is no message. -EMFILE: descriptors came with the packet, and this process has
 * no room for them. */
int socket_receive(int fd, struct packet *ret);
void packet_close(struct packet *packet); /* closes the descriptors that were not taken */
