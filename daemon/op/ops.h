/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops.h - all ops of the daemon: the pools that they come from, and how many there are. Core thread
 * only.
 */
#ifndef KVTIER_OPS_H
#define KVTIER_OPS_H

#include <stdint.h>

struct client;
struct config;
struct devices;
struct loop;
struct ops;
struct store;

/* Reserves everything: an op for each entry of each client's ring, touched as used, so that no
 * client's ops take another's; and as many blocks in flight as the devices take jobs. Its arguments
 * stay the caller's, and alive until ops_close(). -ENOMEM. */
int ops_open(struct store *store, struct loop *loop, struct devices *devices,
	     const struct config *config, struct ops **ret);
void ops_close(struct ops *ops);                 /* none outstanding; NULL is fine */
uint32_t ops_outstanding(const struct ops *ops); /* NULL: 0 */
uint64_t ops_pages(const struct client *client); /* of its ops, that the daemon may still touch */

#endif
