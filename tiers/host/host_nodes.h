/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_nodes.h - which NUMA node each slab of the host tier's memory should be of: that of a GPU
 * which will copy to and from it, or as the configuration says. Where GPUs are is asked of the
 * kernel (sysfs), so that no driver is needed at this point. Any thread.
 */
#ifndef KVTIER_HOST_NODES_H
#define KVTIER_HOST_NODES_H

#include <stdbool.h>
#include <stdint.h>

#include "tiers/tier.h"

enum { HOST_GPUS_MAX = 64, HOST_NODES_MAX = 1024 };

/* The nodes of this machine's GPUs, each GPU once, in ascending order. */
struct host_nodes {
	uint32_t n;
	int32_t of_gpu[HOST_GPUS_MAX];
};

/* Of NVIDIA's GPUs below `sys` ("/sys") the GPUs whose node the kernel knows, and that may be used:
 * allowed(arg, node). */
void host_nodes_read(const char *sys, bool (*allowed)(void *arg, int32_t node), void *arg,
		     struct host_nodes *ret);

/* How many slabs are to be of each node. */
struct host_shares {
	uint32_t n; /* 0: no node is known */
	int32_t node[TIER_MAX_NODES];
	uint32_t slabs[TIER_MAX_NODES];
};

/* Pure. For each GPU as much, give or take a slab; nodes beyond TIER_MAX_NODES get none. */
void host_nodes_by_gpus(const struct host_nodes *gpus, uint32_t slabs, struct host_shares *ret);
/* Pure. As the configuration names them: whole slabs. */
void host_nodes_by_conf(const struct tier_conf *conf, struct host_shares *ret);
/* Pure. ret[i]: the node of slab i, as its index in shares. In runs of `run` slabs, where a node
 * has so many left; each run is of the node that has had the smallest part of its share. So memory
 * of all nodes is there soon after a start, and mappings are few. */
void host_nodes_lay_out(const struct host_shares *shares, uint32_t run, uint8_t *ret);

#endif
