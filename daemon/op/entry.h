/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entry.h - may an entry of a client's ring be acted on? Core thread only. See entry.c.
 */
#ifndef KVTIER_ENTRY_H
#define KVTIER_ENTRY_H

#include <stddef.h>

#include "client/wire.h"

struct client;
struct op;

/* sqe: copied, and passed by proto_sqe(). 0, or -EPROTO with text: the client broke the protocol.
 * *ret_target: the op that a CANCEL or LAYERS means; NULL: that op has completed. */
int entry_check(const struct client *client, const struct wire_sqe *sqe, struct op **ret_target,
		char *text, size_t n);

#endif
