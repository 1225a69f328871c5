/* SPDX-License-Identifier: Apache-2.0 */
/* host_numa.c - see host_numa.h. */
#include "host_numa.h"

#include <errno.h>
#include <numa.h>
#include <numaif.h>
#include <stddef.h>

bool host_numa_known(void)
{
	return numa_available() >= 0;
}

bool host_numa_allowed(void *arg, int32_t node)
{
	struct bitmask *allowed = numa_get_mems_allowed();
	const bool ret = node >= 0 && numa_bitmask_isbitset(allowed, (unsigned int)node);

	(void)arg;
	numa_bitmask_free(allowed);
	return ret;
}

uint64_t host_numa_bytes(int32_t node)
{
	const long long bytes = numa_node_size64(node, NULL);

	return bytes > 0 ? (uint64_t)bytes : 0;
}

int32_t host_numa_highest(void)
{
	return numa_max_node();
}

int host_numa_place(void *at, uint64_t bytes, int32_t node, bool strict)
{
	struct bitmask *one = numa_allocate_nodemask();
	long r;

	numa_bitmask_setbit(one, (unsigned int)node);
	r = mbind(at, bytes, strict ? MPOL_BIND : MPOL_PREFERRED, one->maskp, one->size + 1, 0);
	r = r ? -errno : 0;
	numa_bitmask_free(one);
	return (int)r;
}

int host_numa_interleave(void *at, uint64_t bytes)
{
	struct bitmask *allowed = numa_get_mems_allowed();
	long r = 0;

	if (numa_bitmask_weight(allowed) > 1)
		r = mbind(at, bytes, MPOL_INTERLEAVE, allowed->maskp, allowed->size + 1, 0);
	r = r ? -errno : 0;
	numa_bitmask_free(allowed);
	return (int)r;
}

int32_t host_numa_of(void *at)
{
	int node = -1;

	return get_mempolicy(&node, NULL, 0, at, MPOL_F_NODE | MPOL_F_ADDR) ? -1 : node;
}
