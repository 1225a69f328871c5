/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_packet.h - packets as tests send and receive them by hand, without libkvtier's code. Only
 * packet_listen() asserts: the other functions are for kvtier-bench and for threads, too.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/abi/wire.h"

enum { PACKET_MAX_FDS = 253 /* SCM_MAX_FD */, PACKET_FDS = 64 };

/* A connection to the socket at this path, or -errno. No call on it, this one included, waits for
 * longer than `patience_ms`; 0: for as long as it takes. */
int packet_dial(const char *path, uint32_t patience_ms);
/* A socket that listens there. */
int packet_listen(const char *path);
/* One packet, with n_fds <= PACKET_MAX_FDS descriptors. 0 or -errno. */
int packet_with_fds(int socket, const void *message, size_t n, const int *fds, size_t n_fds);
/* Bytes of the next packet; 0: closed; -errno. The first PACKET_FDS descriptors in it are the
 * caller's to close. flags: of recvmsg(). */
ssize_t packet_receive(int socket, int flags, void *ret, size_t room, int fds[PACKET_FDS],
		       size_t *ret_fds);
struct wire_head packet_head(enum wire_type type, size_t n, uint32_t seq);
/* The HELLO that libkvtier would send. */
struct wire_hello packet_hello(uint32_t seq, uint32_t arena_blocks, const char *name);
