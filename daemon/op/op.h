/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op.h - the life of an op: from an entry of its client's ring, block by block, to the completion.
 * Core thread only. See op.c.
 */
#ifndef KVTIER_OP_H
#define KVTIER_OP_H

#include <stddef.h>

#include "client/wire.h"

struct client;
struct mount;
struct op;
struct ops;
struct part;

/* Acts on a copied entry that proto_sqe() passed: an op begins, or another one is cancelled, or
 * given layers. Where an op begins, the completion ring has room for it. 0, or -EPROTO with text:
 * entry_check(). A lack of anything else shows as per-block statuses. */
int op_start(struct ops *ops, struct client *client, const struct wire_sqe *sqe, char *text,
	     size_t n);

/* For pump.c. The op's next block is begun: its part, whose steps are to run. */
struct part *op_begin_block(struct op *op);
/* The block's status is final, and the part holds nothing: it goes back to the pool, the part whose
 * turn it is then is woken, and the op completes if this was its last one. */
void op_part_done(struct part *part);

/* Ends every op of a mount, or with NULL of all mounts, early (-ECANCELED for blocks not begun);
 * blocks in flight finish. mount->ops says when. */
void op_cancel_all(struct client *client, const struct mount *mount);

/* The client is gone: nothing more is committed, written to it or begun. client->n_ops says when
 * all let go. */
void op_abandon_all(struct client *client);

#endif
