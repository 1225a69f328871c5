/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_packet.h - packets of a client as tests write them by hand, with libkvtier's code left out.
 */
#ifndef KVTIER_TESTS_LIB_PACKET_H
#define KVTIER_TESTS_LIB_PACKET_H

#include <stddef.h>
#include <stdint.h>

#include "client/wire.h"

enum { PACKET_MAX_FDS = 253 /* SCM_MAX_FD */ };

/* One packet, with n_fds <= PACKET_MAX_FDS descriptors. 0 or -errno. */
int packet_with_fds(int socket, const void *message, size_t n, const int *fds, size_t n_fds);
/* The HELLO that libkvtier would send, but for its head. */
struct wire_hello packet_hello(uint32_t arena_blocks, const char *name);

#endif
