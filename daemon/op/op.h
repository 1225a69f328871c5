/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op.h - the life of an op: from an entry of its client's ring, block by block, to the completion.
 * Core thread only. See op.c.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/abi/wire.h"

struct client;
struct config;
struct devices;
struct loop;
struct mount;
struct op;
struct ops;
struct tables;

/* Reserves all memory: an op for each entry of each client's ring, which is touched when it is
 * used, so that no client takes the ops of another; and as many parts as the devices take jobs. The
 * arguments stay the caller's, and must live until ops_close(). 0 or -ENOMEM. */
int ops_open(struct tables *tables, struct loop *loop, struct devices *devices,
	     const struct config *config, struct ops **ret);
void ops_close(struct ops *ops);                 /* no op is outstanding; may be NULL */
uint32_t ops_outstanding(const struct ops *ops); /* NULL: 0 */
uint32_t ops_stores(const struct ops *ops);      /* that are under way */
/* pages of its ops that the daemon may still touch */
uint64_t ops_pages(const struct client *client);

/* Acts on a copied entry that proto_sqe() has passed: begins an op, cancels one, or gives layers to
 * one. If an op begins, the completion ring has room for it. 0, or -EPROTO with text, from
 * op_check_entry(). If anything else is lacking, the op's blocks get statuses that say so. */
int op_start(struct ops *ops, struct client *client, const struct wire_sqe *sqe, char *text,
	     size_t n);

/* Whether a copied entry that proto_sqe() has passed may be acted on: 0, or -EPROTO with text if
 * the client broke the protocol. *ret_target is the op that a CANCEL or LAYERS means, or NULL if
 * that op has completed. */
int op_check_entry(const struct client *client, const struct wire_sqe *sqe, struct op **ret_target,
		   char *text, size_t n);

/* From op_pump_start() to op_pump_stop() steps run and blocks begin in each iteration of the
 * loop. */
void op_pump_start(struct ops *ops);
void op_pump_stop(struct ops *ops); /* ops may be NULL */

/* Ends every op of a mount early; mount NULL: of all mounts. Blocks that have not begun get
 * -ECANCELED, and blocks in flight finish. The ops have ended when mount->ops is 0. */
void op_cancel_all(struct client *client, const struct mount *mount);

/* The client is gone: from now on no block is committed, no status is written, and no op begins for
 * it. Its ops have ended when client->n_ops is 0. */
void op_abandon_all(struct client *client);
