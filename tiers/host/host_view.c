/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_view.c - what is known of the host tier's slots, slabs and classes: their extents, owners, counts, memory. It
 * changes owners and nothing else. Core thread only.
 */
#include "host_inner.h"

#include <assert.h>
#include <errno.h>

struct host *host_of(const struct tier *t)
{
	while (t->inner)
		t = t->inner;
	assert(t->ops == &host_ops);
	return (struct host *)(uintptr_t)t;	/* base is the first member */
}

struct slot *host_slot_at(const struct host *h, uint32_t slab, uint32_t slot)
{
	return &h->slots[(uint64_t)slot * h->n_slabs + slab];
}

int host_extent(const struct tier *t, uint32_t slot, struct extent *ret)
{
	const struct host *h = host_of(t);
	const uint32_t slab = slot >> 16, i = slot & 0xffff;

	if (slab >= h->n_slabs || h->slabs[slab].class == TIER_MAX_CLASSES || i >= h->slabs[slab].fresh ||
	    !(host_slot_at(h, slab, i)->generation & 1))
		return -ESTALE;
	*ret = (struct extent){ .tier = TIER_HOST, .class = h->slabs[slab].class, .slot = slot,
				.generation = host_slot_at(h, slab, i)->generation };
	return 0;
}

struct slot *host_slot_live(const struct host *h, const struct extent *where)
{
	struct extent now;

	if (where->tier != TIER_HOST || host_extent(&h->base, where->slot, &now) || now.class != where->class ||
	    now.generation != where->generation)
		return NULL;
	return host_slot_at(h, where->slot >> 16, where->slot & 0xffff);
}

uint32_t host_extent_bytes(const struct tier *t, const struct extent *where)
{
	const struct host *h = host_of(t);

	return host_slot_live(h, where) ? h->classes[where->class].slot_bytes : 0;
}

uint32_t host_classes(const struct tier *t)
{
	return host_of(t)->n_classes;
}

void host_class_view(const struct tier *t, uint32_t class, struct tier_class_view *ret)
{
	const struct class *c = &host_of(t)->classes[class];

	assert(class < host_of(t)->n_classes);
	*ret = (struct tier_class_view){ .slot_bytes = c->slot_bytes, .slots_per_slab = c->slots,
					 .slabs = c->slabs, .used_slots = c->used,
					 .free_slots = c->slabs * c->slots - c->used };
}

uint32_t host_next_slab(const struct tier *t, uint32_t class, uint32_t slab)
{
	const struct host *h = host_of(t);
	const struct class *c = &h->classes[class];
	int fill = 0;

	assert(class < h->n_classes);
	if (slab != HOST_NO_SLAB) {
		if (h->slabs[slab].next != HOST_NO_SLAB)
			return h->slabs[slab].next;
		fill = h->slabs[slab].fill + 1;
	}
	while (fill < HOST_FILLS && c->head[fill] == HOST_NO_SLAB)
		fill++;
	return fill < HOST_FILLS ? c->head[fill] : HOST_NO_SLAB;
}

bool host_slab_walk(struct tier *t, uint32_t slab, bool (*fn)(void *arg, const struct extent *where), void *arg)
{
	const struct host *h = host_of(t);
	const uint32_t end = h->slabs[slab].fresh;	/* fn may free the last slot, and with it the slab */
	struct extent where;

	for (uint32_t i = 0; i < end; i++)
		if (!host_extent(t, slab << 16 | i, &where) && !fn(arg, &where))
			return false;
	return true;
}

void host_set_owner(struct tier *t, const struct extent *where, uint32_t owner)
{
	struct slot *slot = host_slot_live(host_of(t), where);

	assert(slot);
	slot->owner = owner;
}

uint32_t host_owner(const struct tier *t, const struct extent *where)
{
	const struct slot *slot = host_slot_live(host_of(t), where);

	assert(slot);
	return slot->owner;
}

bool host_memory_piece(const struct tier *t, uint32_t i, void **ret_base, uint64_t *ret_bytes)
{
	return host_memory_part(host_of(t)->memory, i, ret_base, ret_bytes);
}

const char *host_note(const struct tier *t)
{
	return host_memory_note(host_of(t)->memory);
}
