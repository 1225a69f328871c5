/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.c - images in main memory: slabs of equal slots, one slot size (class) a slab.
 *
 * A class serves the images that fill at least 16/17 of its slot (rounded to 4 KiB). A slab that loses its
 * last image is free for any class; a class without slabs may change its slot size.
 *
 * Allocation takes a slot of the fullest slab that has one, so that sparse slabs run empty. "Fullest" is by
 * sixteenths: each class keeps its slabs in FILLS lists, and everything is O(FILLS), whatever the capacity.
 *
 * Per slot there are 8 bytes: the generation, odd while the slot is in use, counted up by alloc and by
 * free, so a stale extent never matches; and the owner, which in a free slot is the next free one. Slots
 * that never were in use need no list: they start at slab.fresh. The array is [slot][slab], because slabs
 * of few slots would each touch a page of their own otherwise. It costs memory only as slots come into use.
 *
 * Invariants
 *   H1 a slab is in exactly one list: free, or one of its class's by its fill. Lost and cold ones in none.
 *   H2 a slab in a class has used > 0.
 *   H3 base.used_bytes = sum over classes of used * slot_bytes.
 * Core thread; device workers read and write the memory of slots, nothing of this. What may be asked of slots and
 * slabs is in host_view.c.
 */
#include "host_inner.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { SLOT_UNIT = 4096, FILLS = HOST_FILLS, NO_SLOT = -1 };

static void list_add(struct host *h, uint32_t *head, uint32_t slab)
{
	struct slab *s = &h->slabs[slab];

	s->prev = HOST_NO_SLAB;
	s->next = *head;
	if (*head != HOST_NO_SLAB)
		h->slabs[*head].prev = slab;
	*head = slab;
}

static void list_remove(struct host *h, uint32_t *head, uint32_t slab)
{
	const struct slab *s = &h->slabs[slab];

	if (s->prev != HOST_NO_SLAB)
		h->slabs[s->prev].next = s->next;
	else
		*head = s->next;
	if (s->next != HOST_NO_SLAB)
		h->slabs[s->next].prev = s->prev;
}

static uint8_t fill_of(const struct class *c, uint32_t used)
{
	return (uint8_t)((uint64_t)used * (FILLS - 1) / c->slots);
}

/* After slab.used changed to a value > 0. */
static void refile(struct host *h, struct class *c, uint32_t slab)
{
	struct slab *s = &h->slabs[slab];
	const uint8_t fill = fill_of(c, s->used);

	if (fill == s->fill)
		return;
	list_remove(h, &c->head[s->fill], slab);
	s->fill = fill;
	list_add(h, &c->head[fill], slab);
}

/* Slabs that became ready are free; where none is, one that is not ready yet. */
static void harvest(struct host *h)
{
	uint32_t slab;

	while ((slab = (h->free_slabs ? host_memory_next : host_memory_take_cold)(h->memory)) != HOST_NO_SLAB) {
		list_add(h, &h->free_head, slab);
		h->free_slabs++;
	}
	h->base.capacity_bytes = (h->n_slabs - host_memory_lost(h->memory)) * h->slab_bytes;
}

static void slab_to_class(struct host *h, uint32_t slab, uint32_t class)
{
	struct class *c = &h->classes[class];
	struct slab *s = &h->slabs[slab];

	list_remove(h, &h->free_head, slab);
	h->free_slabs--;
	*s = (struct slab){ .free_slot = NO_SLOT, .class = (uint8_t)class };
	list_add(h, &c->head[0], slab);
	c->slabs++;
}

static void slab_to_free(struct host *h, uint32_t slab)
{
	struct slab *s = &h->slabs[slab];

	list_remove(h, &h->classes[s->class].head[s->fill], slab);
	h->classes[s->class].slabs--;
	s->class = TIER_MAX_CLASSES;
	list_add(h, &h->free_head, slab);
	h->free_slabs++;
}

/* The slab is the class's and has a free slot. */
static void take_slot(struct host *h, uint32_t slab, struct extent *ret)
{
	struct slab *s = &h->slabs[slab];
	struct class *c = &h->classes[s->class];
	const uint32_t slot = s->free_slot != NO_SLOT ? (uint32_t)s->free_slot : s->fresh;
	struct slot *taken = host_slot_at(h, slab, slot);

	assert(s->used < c->slots && slot < c->slots && !(taken->generation & 1));
	if (s->free_slot != NO_SLOT)
		s->free_slot = (int32_t)taken->owner;
	else
		s->fresh++;
	taken->generation++;
	taken->owner = HOST_NO_OWNER;
	s->used++;
	c->used++;
	refile(h, c, slab);
	h->base.used_bytes += c->slot_bytes;
	h->base.extents++;
	(void)host_extent(&h->base, slab << 16 | slot, ret);
}

/* The fullest slab of a class with a free slot, other than `except`. O(FILLS). */
static uint32_t fullest_slab(const struct host *h, const struct class *c, uint32_t except)
{
	for (int fill = FILLS - 2; fill >= 0; fill--) {
		uint32_t slab = c->head[fill];

		if (slab == except && slab != HOST_NO_SLAB)
			slab = h->slabs[slab].next;
		if (slab != HOST_NO_SLAB)
			return slab;
	}
	return HOST_NO_SLAB;
}

static uint32_t slot_need(uint32_t bytes)
{
	return bytes / SLOT_UNIT * SLOT_UNIT + (bytes % SLOT_UNIT ? SLOT_UNIT : 0);
}

/* The smallest class that has slabs and is at most 1/16 too large; where every index is taken, the smallest
 * that is large enough. -1: none. */
static int find_class(const struct host *h, uint32_t need)
{
	int best = -1;
	bool spare = h->n_classes < TIER_MAX_CLASSES;

	for (uint32_t i = 0; i < h->n_classes; i++) {
		const struct class *c = &h->classes[i];

		spare |= c->slabs == 0;
		if (c->slabs && c->slot_bytes >= need && (best < 0 || c->slot_bytes < h->classes[best].slot_bytes))
			best = (int)i;
	}
	if (best >= 0 && spare && h->classes[best].slot_bytes - need > need / 16)
		return -1;
	return best;
}

/* An index without slabs, made a class of this slot size; -1: all are in use. */
static int make_class(struct host *h, uint32_t need)
{
	struct class *c;
	uint32_t i = 0;

	while (i < h->n_classes && h->classes[i].slabs)
		i++;
	if (i == TIER_MAX_CLASSES)
		return -1;
	h->n_classes += i == h->n_classes;
	c = &h->classes[i];
	*c = (struct class){ .slot_bytes = need, .slots = (uint32_t)(h->slab_bytes / need) };
	if (c->slots > TIER_MAX_SLAB_SLOTS)
		c->slots = TIER_MAX_SLAB_SLOTS;
	for (int fill = 0; fill < FILLS; fill++)
		c->head[fill] = HOST_NO_SLAB;
	return (int)i;
}

static int host_alloc(struct tier *t, uint32_t bytes, struct extent *ret)
{
	struct host *h = host_of(t);
	uint32_t slab = HOST_NO_SLAB;
	int class;

	if (bytes > h->slab_bytes)
		return -E2BIG;
	harvest(h);
	class = find_class(h, slot_need(bytes));
	if (class >= 0)
		slab = fullest_slab(h, &h->classes[class], HOST_NO_SLAB);
	if (slab == HOST_NO_SLAB && h->free_slabs) {
		if (class < 0)
			class = make_class(h, slot_need(bytes));
		if (class < 0)
			return -ENOSPC;
		slab = h->free_head;
		slab_to_class(h, slab, (uint32_t)class);
	}
	if (slab == HOST_NO_SLAB)
		return -ENOSPC;
	take_slot(h, slab, ret);
	return 0;
}

static void host_free(struct tier *t, const struct extent *where)
{
	struct host *h = host_of(t);
	struct slot *slot = host_slot_live(h, where);
	const uint32_t slab = where->slot >> 16;
	struct slab *s = &h->slabs[slab];
	struct class *c = &h->classes[where->class];

	assert(slot);	/* freed twice, or not from here */
	slot->generation++;
	slot->owner = (uint32_t)s->free_slot;
	s->free_slot = (int32_t)(where->slot & 0xffff);
	s->used--;
	c->used--;
	h->base.used_bytes -= c->slot_bytes;
	h->base.extents--;
	if (s->used)
		refile(h, c, slab);
	else
		slab_to_free(h, slab);
}

static uint8_t *host_address(struct tier *t, const struct extent *where)
{
	struct host *h = host_of(t);

	if (!host_slot_live(h, where))
		return NULL;
	return h->bytes + (where->slot >> 16) * h->slab_bytes +
	       (uint64_t)(where->slot & 0xffff) * h->classes[where->class].slot_bytes;
}

static enum tier_state host_state(const struct tier *t)
{
	const struct host_memory *m = host_of(t)->memory;

	return !host_memory_settled(m) ? TIER_STARTING : host_memory_lost(m) ? TIER_DEGRADED : TIER_UP;
}

static void host_close(struct tier *t)
{
	struct host *h;

	if (!t)
		return;
	h = host_of(t);
	host_memory_close(h->memory);
	if (h->slots)
		(void)munmap(h->slots, h->slots_bytes);
	free(h->slabs);
	free(h);
}

static int reserve_slots(struct host *h)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	uint64_t slots = h->slab_bytes / SLOT_UNIT;
	void *at;

	if (slots > TIER_MAX_SLAB_SLOTS)
		slots = TIER_MAX_SLAB_SLOTS;
	h->slots_bytes = slots * h->n_slabs * sizeof(struct slot);
	at = mmap(NULL, h->slots_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (at == MAP_FAILED)
		return -errno;
	h->slots = at;
	return 0;
}

static int host_open(const struct tier_conf *conf, struct loop *loop, struct tier **ret, char *text, size_t n)
{
	struct host *h = calloc(1, sizeof(*h));
	int err;

	(void)loop;
	(void)snprintf(text, n, "[host] no memory to start");
	if (!h)
		return -ENOMEM;
	h->base.ops = &host_ops;
	h->free_head = HOST_NO_SLAB;
	err = host_memory_open(conf, &h->memory, text, n);
	if (err)
		goto fail;
	h->bytes = host_memory_base(h->memory);
	h->slab_bytes = conf->slab_bytes;
	h->n_slabs = host_memory_slabs(h->memory);
	h->slabs = calloc(h->n_slabs, sizeof(*h->slabs));
	err = h->slabs ? reserve_slots(h) : -ENOMEM;
	if (err) {
		(void)snprintf(text, n, "[host] bytes: no memory for the table of slots");
		goto fail;
	}
	for (uint32_t i = 0; i < h->n_slabs; i++)
		h->slabs[i].class = TIER_MAX_CLASSES;
	harvest(h);
	*ret = &h->base;
	return 0;
fail:
	host_close(&h->base);
	return err;
}

const struct tier_ops host_ops = {
	.name = "host",
	.id = TIER_HOST,
	.caps = TIER_CAP_ADDRESSABLE,
	.open = host_open,
	.close = host_close,
	.alloc = host_alloc,
	.free = host_free,
	.address = host_address,
	.state = host_state,
};

int host_class_of(const struct tier *t, uint32_t bytes)
{
	return find_class(host_of(t), slot_need(bytes));
}

uint32_t host_slot_bytes(const struct tier *t, uint32_t bytes)
{
	const struct host *h = host_of(t);
	const int class = find_class(h, slot_need(bytes));

	return bytes > h->slab_bytes ? 0 : class >= 0 ? h->classes[class].slot_bytes : slot_need(bytes);
}

uint32_t host_free_slabs(struct tier *t)
{
	struct host *h = host_of(t);

	harvest(h);
	return h->free_slabs;
}

int host_alloc_outside(struct tier *t, uint32_t class, uint32_t slab, struct extent *ret)
{
	struct host *h = host_of(t);
	const uint32_t to = fullest_slab(h, &h->classes[class], slab);

	if (to == HOST_NO_SLAB)
		return -ENOSPC;
	take_slot(h, to, ret);
	return 0;
}
