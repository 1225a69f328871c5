/* SPDX-License-Identifier: Apache-2.0 */
/*
 * socket.h - socket files, which outlive the daemon that made them, and which sockets take
 * descriptors.
 */
#ifndef KVTIER_SOCKET_H
#define KVTIER_SOCKET_H

#include <stdbool.h>

struct sockaddr_un;

/* Removes the file at address, of a SOCK_SEQPACKET socket, if nobody answers there. 0: there is
 * none now. -EADDRINUSE: somebody answers; -EEXIST: the file is no socket; another -errno. Any
 * thread. */
int socket_remove_stale(const struct sockaddr_un *address);

/* Whether descriptors can be sent to this Unix socket: at a listening socket, to those that will be
 * accepted. A packet with descriptors is refused at its sender else. False: nothing was changed,
 * as this kernel is older than 6.16. Any thread. */
bool socket_pass_fds(int fd, bool pass);

#endif
