/* SPDX-License-Identifier: Apache-2.0 */
/*
 * closer.h - closes sockets of peers on helper threads. Descriptors that the peer has sent and
 * nobody received lie in a socket's queue, and close() drops them, which may block for as long as
 * the peer likes (helper.h). Core thread only.
 */
#ifndef KVTIER_CLOSER_H
#define KVTIER_CLOSER_H

#include <stdint.h>

struct closer;
struct helpers;

/* At most `n` sockets are being closed at once. `gone` runs after each, from the loop: there is
 * room for one more. 0 or -ENOMEM. */
int closer_open(struct helpers *helpers, uint32_t n, void (*gone)(void *arg), void *arg,
		struct closer **ret);
void closer_close(struct closer *closer); /* none is being closed; NULL is fine */
uint32_t closer_room(const struct closer *closer);
/* Hangs up at once and closes later; fd is the closer's. There is room. */
void closer_take(struct closer *closer, int fd);

#endif
