/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn_share.h - a connection's share of the daemon and of its devices: regions, numbers, room in
 * rings, orders; and the answers that say so. Core thread only.
 */
#ifndef KVTIER_CONN_SHARE_H
#define KVTIER_CONN_SHARE_H

#include "conn.h"

/* The share of its regions. */
void conn_share(const struct conn *c, struct intake_share *ret);
/* Its lookups since the last call, into the stats; of a connection that is OPEN. */
void conn_count_lookups(struct conn *c);
/* It is one of the clients that were refused. */
void conn_refused(struct conn *c, const char *why);
void conn_send_wake(struct conn *c); /* as its client asked; never blocks */
/* The rings are made: HELLO_OK, which is all that needs their descriptors. 0 or -errno. */
int conn_answer_hello(struct conn *c, uint32_t seq);
/* A number for one more space. -ENOSPC with text: none is free, or the connection has used up its
 * share of [index] max_spaces, and the numbers beyond all shares are in use. */
int conn_free_handle(const struct conn *c, uint32_t *ret, char *text, size_t n);
/* The space is open: under its handle. */
void conn_put_mount(struct conn *c, struct mount *mount);
/* It is closed: the handle is free, and counts no more. Returns the mount; NULL: none. */
struct mount *conn_take_mount(struct conn *c, uint32_t handle);
/* All but the head. */
void conn_fill_ok(const struct conn *c, const struct mount *mount, struct wire_space_ok *ret);
/* It has regions or events of the device; of any GPU. */
bool conn_uses(const struct conn *c, const struct device *device);
bool conn_uses_gpu(const struct conn *c);
bool conn_has_void(const struct conn *c, const struct device *device); /* that it has lost */
void conn_give_up_orders(struct conn *c); /* all of them are unwanted from now on */
/* The order is the connection's: 0. With text, and the order is the caller's: -EEXIST, it has one;
 * -EBUSY, the device has lost it. */
int conn_take_order(struct conn *c, struct order *order, char *text, size_t n);

#endif
