/* SPDX-License-Identifier: Apache-2.0 */
/* space_memory.h - a space's regions. Control held, or nobody knows the space yet. */
#ifndef KVTIER_LIB_SPACE_MEMORY_H
#define KVTIER_LIB_SPACE_MEMORY_H

#include <stdbool.h>

struct kvtier_space;

int space_memory_open(struct kvtier_space *space);
void space_memory_close(struct kvtier_space *space);
/* Sends the opening. 0; 1: PARTS that come before it were sent; -EAGAIN: the socket is full;
 * -ECONNRESET; another -errno: this process cannot send it. */
int space_memory_send(struct kvtier_space *space);
/* Parts that were sent are not needed. 0; 1: it was said, and is answered; or as above. */
int space_memory_unsend(struct kvtier_space *space);
/* The daemon cannot reach the memory in this way. True: the space is WANTED again, to be asked for
 * in another way. */
bool space_memory_refused(struct kvtier_space *space, int error, const char *why);
/* A new connection: what the daemon refused before, this one may not. 0 or -errno. */
int space_memory_again(struct kvtier_space *space);

#endif
