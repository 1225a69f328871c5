/* SPDX-License-Identifier: Apache-2.0 */
/*
 * socket.h - socket files, which outlive the daemon that made them.
 */
#ifndef KVTIER_SOCKET_H
#define KVTIER_SOCKET_H

struct sockaddr_un;

/* Removes the file at address, of a SOCK_SEQPACKET socket, if nobody answers there. 0: there is
 * none now. -EADDRINUSE: somebody answers; -EEXIST: the file is no socket; another -errno. Any
 * thread. */
int socket_remove_stale(const struct sockaddr_un *address);

#endif
