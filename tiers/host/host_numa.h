/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_numa.h - the host tier's questions to libnuma and the kernel about NUMA nodes. Any thread.
 */
#ifndef KVTIER_HOST_NUMA_H
#define KVTIER_HOST_NUMA_H

#include <stdbool.h>
#include <stdint.h>

/* The kernel knows nodes. Nothing else here may be asked before it said yes. */
bool host_numa_known(void);
/* This process may have memory of it. arg: not used. */
bool host_numa_allowed(void *arg, int32_t node);
uint64_t host_numa_bytes(int32_t node); /* of all its memory; 0: not known */
int32_t host_numa_highest(void);

/* Where pages of a mapping are to come from, before they are touched: of this node and no other
 * one; or of another one where it has none left. 0, or the error of mbind(), as -errno. */
int host_numa_place(void *at, uint64_t bytes, int32_t node, bool strict);
/* From all allowed nodes in turn, where there are several. */
int host_numa_interleave(void *at, uint64_t bytes);
/* The node of the page at this address, which is there; -1: nobody says. */
int32_t host_numa_of(void *at);

#endif
