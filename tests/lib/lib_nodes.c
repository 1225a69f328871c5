/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_nodes.h"

#include <errno.h>
#include <numa.h>
#include <numaif.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "wrap.h"

enum { BOUND_MAX = 256 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all below; a leaf */
static struct nodes_bound bound[BOUND_MAX];
static uint32_t n_bound;
static int32_t full_node = -1;

static void note(const struct nodes_bound *b)
{
	const char *path = getenv("KVTIER_TEST_NODES");
	FILE *f = path ? fopen(path, "ae") : NULL;

	if (!f)
		return;
	fprintf(f, "%d %llu %s\n", b->node, (unsigned long long)b->bytes,
		b->strict ? "bound" : "preferred");
	(void)fclose(f);
}

REAL(long, mbind,
     (void *at, unsigned long bytes, int mode, const unsigned long *mask, unsigned long bits,
      unsigned int flags))
{
	struct nodes_bound b = {
		.at = at, .bytes = bytes, .node = -1, .strict = mode == MPOL_BIND
	};

	(void)flags;
	for (int32_t i = 0; i < NODES; i++)
		if ((unsigned long)i < bits && mask[0] >> i & 1 && mode != MPOL_INTERLEAVE)
			b.node = i;
	if (b.node < 0 && mode != MPOL_INTERLEAVE) {
		errno = EINVAL;
		return -1;
	}
	(void)pthread_mutex_lock(&lock);
	if (n_bound < BOUND_MAX)
		bound[n_bound++] = b;
	note(&b);
	(void)pthread_mutex_unlock(&lock);
	return 0;
}

REAL(long, get_mempolicy,
     (int *mode, unsigned long *mask, unsigned long bits, void *at, unsigned long flags))
{
	(void)mask;
	(void)bits;
	if (flags != (MPOL_F_NODE | MPOL_F_ADDR)) {
		errno = EINVAL;
		return -1;
	}
	*mode = 0;
	(void)pthread_mutex_lock(&lock);
	if (getenv("KVTIER_TEST_NODES_FULL"))
		full_node = atoi(getenv("KVTIER_TEST_NODES_FULL"));
	for (uint32_t i = 0; i < n_bound; i++)
		if ((const uint8_t *)at >= bound[i].at &&
		    (const uint8_t *)at < bound[i].at + bound[i].bytes)
			*mode = bound[i].node == full_node ? 0 : bound[i].node;
	(void)pthread_mutex_unlock(&lock);
	return 0;
}

REAL(int, numa_available, (void))
{
	return 0;
}

REAL(struct bitmask *, numa_get_mems_allowed, (void))
{
	struct bitmask *ret = numa_bitmask_alloc(64);

	for (unsigned int i = 0; i < NODES; i++)
		numa_bitmask_setbit(ret, i);
	return ret;
}

REAL(long long, numa_node_size64, (int node, long long *ret_free))
{
	(void)ret_free;
	return node < NODES ? NODES_BYTES : -1;
}

uint32_t nodes_bound(struct nodes_bound *ret, uint32_t max)
{
	uint32_t n;

	(void)pthread_mutex_lock(&lock);
	for (n = 0; n < n_bound && n < max; n++)
		ret[n] = bound[n];
	(void)pthread_mutex_unlock(&lock);
	return n;
}

void nodes_reset(int32_t full)
{
	(void)pthread_mutex_lock(&lock);
	n_bound = 0;
	full_node = full;
	(void)pthread_mutex_unlock(&lock);
}
