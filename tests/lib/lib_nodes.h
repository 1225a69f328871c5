/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_nodes.h - a machine with several NUMA nodes, for the program that is linked with
 *
 *	wrap=mbind,get_mempolicy,numa_available,numa_get_mems_allowed,numa_node_size64
 *
 * A page lies on the node that its memory was bound to last. Bound ranges are remembered, and,
 * where $KVTIER_TEST_NODES names a file, written there: a daemon's test reads it. The node that
 * $KVTIER_TEST_NODES_FULL names has no page left: they come from node 0. Any thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NODES = 3, NODES_BYTES = 1 << 30 /* of each */ };

struct nodes_bound {
	const uint8_t *at;
	uint64_t bytes;
	int32_t node;
	bool strict; /* MPOL_BIND; else MPOL_PREFERRED */
};

/* Ranges bound since nodes_reset(), in order; returns how many. */
uint32_t nodes_bound(struct nodes_bound *ret, uint32_t max);
/* Nothing was bound; pages of `full` (-1: of none) come from node 0. */
void nodes_reset(int32_t full);
