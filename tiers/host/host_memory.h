/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_memory.h - the memory behind the host tier: one private mapping, placed, locked and faulted
 * in.
 *
 * Threads fault pages in, in the background and slab by slab. Opening waits for the first slab
 * only. A store that needs more memory at once gets slabs that are not faulted in yet: it must not
 * evict while memory is about to come. The core thread learns of finished slabs through
 * host_memory_next(). Everything but the threads' own loop is for the core thread.
 */
#ifndef KVTIER_HOST_MEMORY_H
#define KVTIER_HOST_MEMORY_H

#include "tiers/tier.h"

/* In /proc/PID/maps, where the kernel keeps names (CONFIG_ANON_VMA_NAME). */
#define HOST_MEMORY_NAME "kvtier-host"

struct host_memory;

/* 0; -EINVAL, -ENOMEM: see text; or a system call's error. */
int host_memory_open(const struct tier_conf *conf, struct host_memory **ret, char *text, size_t n);
void host_memory_close(struct host_memory *m); /* joins the threads; accepts NULL and half-open */

uint8_t *host_memory_base(const struct host_memory *m);
uint32_t host_memory_slabs(const struct host_memory *m);
/* How many NUMA nodes it is of; 0: they are not known. */
uint32_t host_memory_node_count(const struct host_memory *m);
/* The NUMA node of this index; -1: there are no more. */
int32_t host_memory_node(const struct host_memory *m, uint32_t at);
/* By slab: the index of its node; all 0 where none are known. */
const uint8_t *host_memory_nodes(const struct host_memory *m);
/* slabs that turned out to lie on another node: their own had too little left */
uint32_t host_memory_astray(const struct host_memory *m);
const char *host_memory_note(const struct host_memory *m); /* see host_note() */

/* A slab that became usable since the last call, each once and in order; SLABS_NONE: none now. */
uint32_t host_memory_next(struct host_memory *m);
/* As above, but if none is, the next slab that is not yet faulted in: usable too, only slower. */
uint32_t host_memory_take_cold(struct host_memory *m);
/* How many slabs, from the first on, were given by the two above, or are lost. */
uint32_t host_memory_handed_out(const struct host_memory *m);
bool host_memory_is_lost(const struct host_memory *m, uint32_t slab);
/* every slab is usable or given up */
bool host_memory_settled(const struct host_memory *m);
/* slabs given up: no page was to be had */
uint32_t host_memory_lost(const struct host_memory *m);

#endif
