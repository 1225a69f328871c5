/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.c - the host tier: images in slots (slabs.h) of main memory (host_memory.h). All functions
 * run on the core thread; device workers only read and write the memory of slots.
 *
 * A slab is usable from the moment it is mapped: the first touch faults it in, only slower. So a
 * store does not wait or evict while memory is about to come.
 */
#include "host.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "host_memory.h"
#include "tiers/slabs.h"

struct host {
	struct tier base;
	struct host_memory *memory;
	struct slabs *slabs;
};

static struct host *host_of(const struct tier *t)
{
	assert(t->ops == &host_ops);
	return (struct host *)(uintptr_t)t; /* base is the first member */
}

/* --- memory --- */

static uint32_t more(void *arg, bool hurry)
{
	struct host_memory *m = ((struct host *)arg)->memory;

	return hurry ? host_memory_take_cold(m) : host_memory_next(m);
}

static uint32_t lost(void *arg)
{
	return atomic_load(&((struct host *)arg)->memory->lost);
}

static uint8_t *host_mapping(const struct tier *t, uint64_t *ret_bytes)
{
	const struct host_memory *m = host_of(t)->memory;

	*ret_bytes = m->bytes;
	return m->base;
}

/* --- the table --- */

static int host_alloc(struct tier *t, uint32_t bytes, uint32_t unit, struct extent *ret)
{
	return slabs_alloc(host_of(t)->slabs, bytes, unit, ret);
}

static void host_free(struct tier *t, const struct extent *where)
{
	slabs_free(host_of(t)->slabs, where);
}

static uint8_t *host_address(struct tier *t, const struct extent *where)
{
	const struct host *h = host_of(t);
	const uint64_t offset = slabs_offset(h->slabs, where);

	return offset == UINT64_MAX ? NULL : h->memory->base + offset;
}

static struct slabs *host_slabs(const struct tier *t)
{
	return host_of(t)->slabs;
}

static enum tier_state host_state(const struct tier *t)
{
	const struct host_memory *m = host_of(t)->memory;

	return atomic_load(&m->done) < m->n_slabs ? TIER_STARTING :
	       atomic_load(&m->lost)              ? TIER_DEGRADED :
						    TIER_UP;
}

static void host_close(struct tier *t)
{
	struct host *h;

	if (!t)
		return;
	h = host_of(t);
	host_memory_close(h->memory);
	slabs_close(h->slabs);
	free(h);
}

static int host_open(const struct tier_conf *conf, struct loop *loop, struct tier **ret, char *text,
		     size_t n)
{
	struct host *h = calloc(1, sizeof(*h));
	struct slabs_conf slabs = {
		.slab_bytes = conf->slab_bytes, .more = more, .lost = lost, .arg = h
	};
	int err;

	(void)loop;
	(void)snprintf(text, n, "[host] no memory to start");
	if (!h)
		return -ENOMEM;
	h->base.ops = &host_ops;
	slabs.tier = &h->base;
	err = host_memory_open(conf, &h->memory, text, n);
	if (err)
		goto fail;
	slabs.n_slabs = h->memory->n_slabs;
	slabs.units = h->memory->nodes;
	slabs.n_units = h->memory->split.n + (h->memory->split.n == 0);
	err = slabs_open(&slabs, &h->slabs);
	if (err) {
		(void)snprintf(text, n, "[host] bytes: no memory for the table of slots");
		goto fail;
	}
	*ret = &h->base;
	return 0;
fail:
	host_close(&h->base);
	return err;
}

const struct tier_ops host_ops = {
	.id = TIER_HOST,
	.open = host_open,
	.close = host_close,
	.alloc = host_alloc,
	.free = host_free,
	.address = host_address,
	.slabs = host_slabs,
	.state = host_state,
	.memory = host_mapping,
};

const char *host_note(const struct tier *t)
{
	return host_of(t)->memory->note;
}

uint8_t host_unit(const struct tier *t, int32_t node)
{
	const struct host_split *split = &host_of(t)->memory->split;

	for (uint32_t i = 0; node >= 0 && i < split->n; i++)
		if (split->node[i] == node)
			return (uint8_t)i;
	return node < 0 || split->n == 0 ? TIER_ANY_UNIT : TIER_NO_UNIT;
}

uint64_t host_astray_bytes(const struct tier *t)
{
	const struct host_memory *m = host_of(t)->memory;

	return atomic_load(&m->astray) * m->slab_bytes;
}

char *host_nodes_text(const struct tier *t, char *ret, size_t n)
{
	const struct host_memory *m = host_of(t)->memory;
	size_t used = 0;

	ret[0] = '\0';
	for (uint32_t at = 0; at < m->split.n && used < n; at++) {
		uint64_t bytes = 0;

		for (uint32_t i = 0; i < m->n_slabs; i++)
			bytes += m->nodes[i] == at ? m->slab_bytes : 0;
		used += (size_t)snprintf(ret + used, n - used, "%s%" PRId32 ": %" PRIu64 " MiB",
					 at ? ", " : "", m->split.node[at], bytes >> 20);
	}
	return ret;
}
