/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packet.h - the daemon's messages on a client's socket. A packet is sent at once or not at all:
 * nothing here blocks, and a socket whose client does not read its replies is an error. Core thread
 * only.
 */
#ifndef KVTIER_PACKET_H
#define KVTIER_PACKET_H

#include <stddef.h>
#include <stdint.h>

#include "client/wire.h"

enum { PACKET_MAX_FDS = 4 };

/* seq: of the request that is answered; 0: none is. */
struct wire_head packet_head(enum wire_type type, size_t n, uint32_t seq);
/* With n_fds descriptors, which stay the caller's. 0 or -errno. */
int packet_send(int socket, const void *message, size_t n, const int *fds, size_t n_fds);
/* An ERROR; text is cut to the bytes that fit. 0 or -errno. */
int packet_error(int socket, uint32_t seq, int error, const char *text);

#endif
