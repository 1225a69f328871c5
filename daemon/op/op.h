/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op.h - ops of clients, block by block, through one step table a kind. Core thread only. See op.c.
 */
#ifndef KVTIER_OP_H
#define KVTIER_OP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/wire.h"

struct client;
struct config;
struct devices;
struct loop;
struct mount;
struct op;
struct ops;
struct part;
struct store;

/* Reserves everything: [socket] max_ops, and as many blocks in flight as the devices take jobs.
 * What it is given stays the caller's, until ops_close(). -ENOMEM. */
int ops_open(struct store *store, struct loop *loop, struct devices *devices,
	     const struct config *config, struct ops **ret);
void ops_close(struct ops *ops); /* none outstanding; NULL is fine */
/* One more op_start() of this client is possible. It may have an equal share of the ops, when there
 * are so many clients (> 0): so the quick ones leave some for the others. */
bool ops_room(const struct ops *ops, const struct client *client, uint32_t clients);
uint32_t ops_outstanding(const struct ops *ops);
uint64_t ops_pages(const struct client *client); /* of its ops, that the daemon may still touch */

/* Starts a checked entry. 0, or -EPROTO with text: the client broke the protocol (unknown space, op
 * id in use). A lack of anything else shows as per-block statuses. */
int op_start(struct ops *ops, struct client *client, const struct wire_sqe *sqe, char *text,
	     size_t n);

/* For pump.c. The op's next block is begun: its part, whose steps are to run. */
struct part *op_begin_block(struct op *op);
/* The block's status is final, and the part holds nothing: it goes back to the pool, the part whose
 * turn it is then is woken, and the op completes if this was its last one. */
void op_part_done(struct part *part);

/* Ends every op of a mount early (-ECANCELED for blocks not begun); those in flight finish.
 * mount->ops says when. */
void ops_cancel_mount(struct client *client, const struct mount *mount);

/* The client is gone: nothing more is committed, written to it or begun. client->n_ops says when
 * all let go. */
void ops_abandon(struct client *client);

#endif
