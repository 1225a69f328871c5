/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn_message.h - control messages of a client: HELLO, SPACE_OPEN, SPACE_CLOSE, PARTS, ORDER, and
 * their answers. Core thread only.
 */
#ifndef KVTIER_CONN_MESSAGE_H
#define KVTIER_CONN_MESSAGE_H

#include "conn.h"

void conn_message(struct conn *c, const void *packet, size_t n); /* without descriptors */
/* The rings are made, or a packet with regions or descriptors is taken: of struct intake. */
void conn_intake_done(struct helper_job *job);
/* Answers SPACE_CLOSE for the mounts whose pages nobody touches any more. */
void conn_finish_closing(struct conn *c);

#endif
