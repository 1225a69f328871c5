/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.c - the host tier: images in slots (slabs.h) of main memory (host_memory.h). Core thread;
 * device workers read and write the memory of slots, and nothing else of this.
 *
 * A slab is usable from the moment it is mapped: the first touch faults it in, only slower. So a
 * store does not wait, nor evict, for memory that is about to come.
 */
#include "host.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "host_memory.h"
#include "tiers/slabs.h"

/* a call of tier_ready gets at most so many: io_uring registers no more at once */
enum { PIECE_BYTES = 1 << 30 };

struct host {
	struct tier base;
	struct host_memory *memory;
	struct slabs *slabs;
	uint64_t slab_bytes;
	struct tier_ready *listeners;
};

static struct host *host_of(const struct tier *t)
{
	assert(t->ops == &host_ops);
	return (struct host *)(uintptr_t)t; /* base is the first member */
}

/* --- memory --- */

static uint32_t more(void *arg, bool hurry)
{
	struct host *h = arg;
	const uint32_t slab = (hurry ? host_memory_take_cold : host_memory_next)(h->memory);

	for (struct tier_ready *l = slab == SLABS_NONE ? NULL : h->listeners; l; l = l->next)
		if (!l->mapped)
			l->ready(l, host_memory_base(h->memory) + slab * h->slab_bytes,
				 h->slab_bytes);
	return slab;
}

static uint32_t lost(void *arg)
{
	return host_memory_lost(((struct host *)arg)->memory);
}

static void host_listen(struct tier *t, struct tier_ready *listener)
{
	struct host *h = host_of(t);
	const uint64_t all = host_memory_slabs(h->memory) * h->slab_bytes;
	const uint64_t step = listener->mapped ? PIECE_BYTES : h->slab_bytes;
	const uint64_t end =
		listener->mapped ? all : host_memory_handed_out(h->memory) * h->slab_bytes;

	listener->next = h->listeners;
	h->listeners = listener;
	for (uint64_t from = 0; from < end; from += step)
		if (listener->mapped ||
		    !host_memory_is_lost(h->memory, (uint32_t)(from / h->slab_bytes)))
			listener->ready(listener, host_memory_base(h->memory) + from,
					end - from < step ? end - from : step);
}

static void host_unlisten(struct tier *t, struct tier_ready *listener)
{
	struct tier_ready **link = &host_of(t)->listeners;

	while (*link && *link != listener)
		link = &(*link)->next;
	if (*link)
		*link = listener->next;
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

	return offset == UINT64_MAX ? NULL : host_memory_base(h->memory) + offset;
}

static struct slabs *host_slabs(const struct tier *t)
{
	return host_of(t)->slabs;
}

static enum tier_state host_state(const struct tier *t)
{
	const struct host_memory *m = host_of(t)->memory;

	return !host_memory_settled(m) ? TIER_STARTING :
	       host_memory_lost(m)     ? TIER_DEGRADED :
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
	h->slab_bytes = conf->slab_bytes;
	slabs.tier = &h->base;
	err = host_memory_open(conf, &h->memory, text, n);
	if (err)
		goto fail;
	slabs.n_slabs = host_memory_slabs(h->memory);
	slabs.units = host_memory_nodes(h->memory);
	slabs.n_units = host_memory_node_count(h->memory);
	slabs.n_units += slabs.n_units == 0;
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
	.name = "host",
	.id = TIER_HOST,
	.caps = TIER_CAP_CPU_ADDRESSABLE,
	.open = host_open,
	.close = host_close,
	.alloc = host_alloc,
	.free = host_free,
	.address = host_address,
	.slabs = host_slabs,
	.state = host_state,
	.listen = host_listen,
	.unlisten = host_unlisten,
};

const char *host_note(const struct tier *t)
{
	return host_memory_note(host_of(t)->memory);
}

uint8_t host_unit(const struct tier *t, int32_t node)
{
	const struct host_memory *m = host_of(t)->memory;
	const uint32_t n = host_memory_node_count(m);

	for (uint32_t i = 0; node >= 0 && i < n; i++)
		if (host_memory_node(m, i) == node)
			return (uint8_t)i;
	return node < 0 || n == 0 ? TIER_ANY_UNIT : TIER_NO_UNIT;
}

uint64_t host_astray_bytes(const struct tier *t)
{
	return host_memory_astray(host_of(t)->memory) * host_of(t)->slab_bytes;
}

char *host_nodes_text(const struct tier *t, char *ret, size_t n)
{
	const struct host *h = host_of(t);
	const uint8_t *nodes = host_memory_nodes(h->memory);
	size_t used = 0;

	ret[0] = '\0';
	for (uint32_t at = 0; host_memory_node(h->memory, at) >= 0 && used < n; at++) {
		uint64_t bytes = 0;

		for (uint32_t i = 0; i < host_memory_slabs(h->memory); i++)
			bytes += nodes[i] == at ? h->slab_bytes : 0;
		used += (size_t)snprintf(ret + used, n - used, "%s%" PRId32 ": %" PRIu64 " MiB",
					 at ? ", " : "", host_memory_node(h->memory, at),
					 bytes >> 20);
	}
	return ret;
}
