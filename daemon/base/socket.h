/* SPDX-License-Identifier: Apache-2.0 */
/*
 * socket.h - socket files, which outlive the daemon that made them, and which sockets take
 * descriptors.
 */
#ifndef KVTIER_SOCKET_H
#define KVTIER_SOCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "own.h"

/* A SOCK_SEQPACKET socket at path, of these permissions, for listen(): nobody connects before. A
 * socket there at which nobody answers is removed. -EADDRINUSE: somebody answers; -EEXIST: a file
 * that is no socket is there; another -errno: likewise nothing is left behind. Any thread. */
int socket_bind(const char *path, uint32_t mode, int *ret_fd, struct own *ret_own);

/* Whether somebody listens at path, with whom nobody has to talk. Does not wait. Any thread. */
bool socket_answers(const char *path);

/* Whether descriptors can be sent to this Unix socket: at a listening socket, to those that will be
 * accepted. A packet with descriptors is refused at its sender else. False: nothing was changed,
 * as this kernel is older than 6.16. Any thread. */
bool socket_pass_fds(int fd, bool pass);

#endif
