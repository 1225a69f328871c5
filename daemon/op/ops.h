/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops.h - all ops of the daemon: the pools that they come from, and how many there are. Core thread
 * only.
 */
#ifndef KVTIER_OPS_H
#define KVTIER_OPS_H

#include <stdbool.h>
#include <stdint.h>

struct client;
struct config;
struct devices;
struct loop;
struct ops;
struct store;

/* Reserves everything: [socket] max_ops, and as many blocks in flight as the devices take jobs. Its
 * arguments stay the caller's, and alive until ops_close(). -ENOMEM. */
int ops_open(struct store *store, struct loop *loop, struct devices *devices,
	     const struct config *config, struct ops **ret);
void ops_close(struct ops *ops); /* none outstanding; NULL is fine */
/* One more op_start() of this client is possible. It may have an equal share of the ops, when there
 * are so many clients (> 0): so the quick ones leave some for the others. */
bool ops_room(const struct ops *ops, const struct client *client, uint32_t clients);
uint32_t ops_outstanding(const struct ops *ops); /* NULL: 0 */
uint64_t ops_pages(const struct client *client); /* of its ops, that the daemon may still touch */

#endif
