/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_memory.h - the memory behind the host tier: one private mapping, placed on NUMA nodes,
 * locked and faulted in; and whether a configuration fits this machine.
 *
 * Threads fault pages in, in the background and slab by slab. Opening waits for the first slab
 * only. A store that needs more memory at once gets slabs that are not faulted in yet: it must not
 * evict while memory is about to come. The core thread learns of finished slabs through
 * host_memory_next(). Everything but the threads' own loop is for the core thread.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "tiers/tier.h"

/* In /proc/PID/maps, where the kernel keeps names (CONFIG_ANON_VMA_NAME). */
#define HOST_MEMORY_NAME "kvtier-host"

enum { HOST_MAX_THREADS = 8, HOST_GPUS_MAX = 64, HOST_NODES_MAX = 1024 };

/* --- limits of the machine --- */

/* A machine's memory for us, as far as it says; UINT64_MAX: it does not say. */
struct host_limits {
	uint64_t available_bytes; /* MemAvailable */
	uint64_t cgroup_bytes;    /* memory.max, the lowest up to the root */
	uint64_t free_huge_pages; /* of 2 MiB, not reserved by others */
};

void host_limits_read(struct host_limits *ret);

/* The bytes of [host] bytes = auto: a quarter of the memory that is left, in whole slabs. Pure. */
uint64_t host_limits_auto(const struct tier_conf *conf, const struct host_limits *limits);

/* 0; -EINVAL: a field of conf is out of its limits; -ENOMEM: the machine lacks it; with text.
 * Pure. */
int host_limits_check(const struct tier_conf *conf, const struct host_limits *limits, char *text,
		      size_t n);

/* --- which slab is of which NUMA node --- */

/* The nodes of this machine's GPUs, each GPU once, in ascending order. */
struct host_nodes {
	uint32_t n;
	int32_t of_gpu[HOST_GPUS_MAX];
};

/* NVIDIA's GPUs below `sys` ("/sys") whose node the kernel knows and allowed(arg, node) permits. */
void host_nodes_read(const char *sys, bool (*allowed)(void *arg, int32_t node), void *arg,
		     struct host_nodes *ret);

/* How many slabs are to be of each node. */
struct host_split {
	uint32_t n; /* 0: no node is known */
	int32_t node[TIER_MAX_NODES];
	uint32_t slabs[TIER_MAX_NODES];
};

/* Pure. For each GPU as much, give or take a slab; nodes beyond TIER_MAX_NODES get no slab. */
void host_nodes_by_gpus(const struct host_nodes *gpus, uint32_t slabs, struct host_split *ret);
/* Pure. Whole slabs for each node, where the configuration names nodes. */
void host_nodes_by_conf(const struct tier_conf *conf, struct host_split *ret);
/* Pure. ret[i]: the node of slab i, as its index in split. A node gets runs of `run` slabs, while
 * it has so many left. The next run always is of the node that has had the smallest fraction of its
 * slabs. So memory of all nodes is there soon after a start, and mappings are few. */
void host_nodes_lay_out(const struct host_split *split, uint32_t run, uint8_t *ret);

/* --- the memory --- */

struct host_memory {
	/* constant */
	uint8_t *base;
	uint64_t bytes, slab_bytes;
	uint32_t n_slabs;
	struct host_split split; /* n 0: nodes are not known */
	bool strict;             /* of the nodes in split and no others */
	uint8_t *nodes;          /* by slab: index in split; all 0 where nodes are not known */
	char note[160];          /* see host_note() */
	/* the threads' and the core's */
	_Atomic uint8_t *states; /* enum slab_state, one a slab */
	atomic_uint next;        /* slab that the next free thread takes */
	atomic_bool stop;
	atomic_uint done;   /* slabs that are usable or given up; all of them: it has settled */
	atomic_uint lost;   /* of them, given up: no page was to be had */
	atomic_uint astray; /* of them, on another node: their own had too little left */
	/* the core's: slabs with lower numbers were given by host_memory_next(), or are lost */
	uint32_t handed_out;
	uint32_t n_threads;
	pthread_t threads[HOST_MAX_THREADS];
};

/* 0; -EINVAL, -ENOMEM: see text; or a system call's error. */
int host_memory_open(const struct tier_conf *conf, struct host_memory **ret, char *text, size_t n);
void host_memory_close(struct host_memory *m); /* joins the threads; may be NULL or half-open */

/* A slab that became usable since the last call, each once and in order; SLABS_NONE: not now. */
uint32_t host_memory_next(struct host_memory *m);
/* host_memory_next(). Where that has no slab: the next one that is not yet faulted in, which is
 * usable, only slower. */
uint32_t host_memory_take_cold(struct host_memory *m);
