/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_nodes.h - which NUMA node a part of the host tier's memory should be of: that of a GPU which
 * will copy to and from it. Asked of the kernel (sysfs), so that no driver is needed at this point.
 * Any thread.
 */
#ifndef KVTIER_HOST_NODES_H
#define KVTIER_HOST_NODES_H

#include <stdbool.h>
#include <stdint.h>

enum { HOST_GPUS_MAX = 64, HOST_NODES_MAX = 1024 };

/* The nodes of this machine's GPUs, each GPU once, in ascending order. */
struct host_nodes {
	uint32_t n;
	int32_t of_gpu[HOST_GPUS_MAX];
};

/* Of NVIDIA's GPUs below `sys` ("/sys") those whose node the kernel knows, and that may be used:
 * allowed(arg, node). */
void host_nodes_read(const char *sys, bool (*allowed)(void *arg, int32_t node), void *arg,
		     struct host_nodes *ret);
/* Pure: the node of the n-th chunk of memory: each GPU in turn gets one. -1: there is none. */
int32_t host_nodes_chunk(const struct host_nodes *nodes, uint64_t n);

#endif
