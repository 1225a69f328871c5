/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.h - a pin on one block, owned by an op and so by its connection: it dies with them.
 * While one is held the block is neither evicted nor moved. Core thread only.
 */
#ifndef KVTIER_LEASE_H
#define KVTIER_LEASE_H

#include <stdbool.h>
#include <stdint.h>

struct store;

/* Embedded in its owner; zeroed = not held. */
struct lease {
	uint32_t block;
	bool held;
};

/* not held before */
void lease_take(struct store *store, struct lease *lease, uint32_t block);
/* not held: fine. Frees blocks condemned meanwhile */
void lease_drop(struct store *store, struct lease *lease);

#endif
