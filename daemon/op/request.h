/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.h - ops of clients, block by block, through one step table a kind. Core thread only. See request.c.
 */
#ifndef KVTIER_REQUEST_H
#define KVTIER_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/wire.h"

struct conn;
struct kvtierd;
struct mount;
struct requests;

/* Reserves everything: max_ops requests, `parts` blocks in flight (= the device's depth). */
int  requests_open(struct kvtierd *d, uint32_t max_ops, uint32_t parts, struct requests **ret);
void requests_close(struct requests *requests);		/* none outstanding; NULL is fine */
bool requests_room(const struct requests *requests);	/* one more request_start() is possible */
/* Ops that each of so many clients (> 0) may have outstanding: so the quick ones leave some for the others. */
uint32_t requests_share(const struct requests *requests, uint32_t clients);
uint32_t requests_outstanding(const struct requests *requests);
uint64_t requests_pages(const struct conn *conn);	/* of its ops, that the daemon may still touch */

/* Starts a checked entry. 0, or -EPROTO with text: the client broke the protocol (unknown space, op id in use). A lack
 * of anything else shows as per-block statuses. */
int  request_start(struct kvtierd *d, struct conn *conn, const struct wire_sqe *sqe, char *text, size_t n);

/* Ends every op of a mount early (-ECANCELED for blocks not begun); those in flight finish. mount->ops says when. */
void requests_cancel_mount(struct kvtierd *d, struct conn *conn, const struct mount *mount);

/* The client is gone: nothing more is committed, written to it or begun. conn->n_requests says when all let go. */
void requests_abandon(struct kvtierd *d, struct conn *conn);

#endif
