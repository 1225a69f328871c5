/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_limits.h - the machine's memory for the host tier, and whether a configuration fits. Any
 * thread.
 */
#ifndef KVTIER_HOST_LIMITS_H
#define KVTIER_HOST_LIMITS_H

#include "tiers/tier.h"

enum { HOST_MAX_THREADS = 64, HOST_DEFAULT_THREADS = 8 };
#define HOST_MAX_SLAB_BYTES (1ull << 30)

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

#endif
