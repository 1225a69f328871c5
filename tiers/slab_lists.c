/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slab_lists.c - see slab_lists.h. Lists are numbered: the free ones, then [class][fill][unit], so
 * that a walk from the sparsest to the fullest slab of a class goes up by one.
 */
#include "slab_lists.h"

#include <errno.h>
#include <stdlib.h>

static uint32_t list_of(const struct slab_lists *l, const struct slab_place *place, uint32_t unit)
{
	return place ? l->n_units * (1 + place->class * SLAB_FILLS + place->fill) + unit : unit;
}

/* The lists of a class are [first, end). */
static uint32_t first_list(const struct slab_lists *l, uint32_t class)
{
	return l->n_units * (1 + class * SLAB_FILLS);
}

static uint32_t end_list(const struct slab_lists *l, uint32_t class)
{
	return first_list(l, class + 1);
}

uint32_t slab_unit(const struct slab_lists *l, uint32_t slab)
{
	return l->units ? l->units[slab] : 0;
}

void slab_lists_add(struct slab_lists *l, uint32_t slab, const struct slab_place *place)
{
	uint32_t *head = &l->heads[list_of(l, place, slab_unit(l, slab))];

	l->links[slab] = (struct slab_link){ .next = *head, .prev = SLAB_NONE };
	if (*head != SLAB_NONE)
		l->links[*head].prev = slab;
	*head = slab;
	l->n_free += !place;
	l->free_of[slab_unit(l, slab)] += !place;
}

void slab_lists_remove(struct slab_lists *l, uint32_t slab, const struct slab_place *place)
{
	const struct slab_link *at = &l->links[slab];

	if (at->prev != SLAB_NONE)
		l->links[at->prev].next = at->next;
	else
		l->heads[list_of(l, place, slab_unit(l, slab))] = at->next;
	if (at->next != SLAB_NONE)
		l->links[at->next].prev = at->prev;
	l->n_free -= !place;
	l->free_of[slab_unit(l, slab)] -= !place;
}

uint32_t slab_lists_fullest_of(const struct slab_lists *l, uint32_t class, uint32_t unit)
{
	for (int fill = SLAB_FILLS - 2; fill >= 0; fill--) {
		const struct slab_place place = { class, (uint8_t)fill };
		const uint32_t slab = l->heads[list_of(l, &place, unit)];

		if (slab != SLAB_NONE)
			return slab;
	}
	return SLAB_NONE;
}

uint32_t slab_lists_fullest(const struct slab_lists *l, uint32_t class)
{
	for (uint32_t list = end_list(l, class) - l->n_units; list-- > first_list(l, class);)
		if (l->heads[list] != SLAB_NONE)
			return l->heads[list];
	return SLAB_NONE;
}

/* Of one unit. */
static uint32_t pick_of(const struct slab_lists *l, uint32_t class, uint32_t unit)
{
	const uint32_t slab =
		class == SLAB_NONE ? SLAB_NONE : slab_lists_fullest_of(l, class, unit);

	return slab == SLAB_NONE ? l->heads[unit] : slab;
}

uint32_t slab_lists_pick(const struct slab_lists *l, uint32_t class, uint32_t unit)
{
	uint32_t slab = SLAB_NONE, most = 0;

	if (unit < l->n_units)
		slab = pick_of(l, class, unit);
	if (slab == SLAB_NONE && class != SLAB_NONE)
		slab = slab_lists_fullest(l, class);
	for (uint32_t i = 1; slab == SLAB_NONE && i < l->n_units; i++)
		if (l->free_of[i] > l->free_of[most])
			most = i;
	return slab == SLAB_NONE ? l->heads[most] : slab;
}

static uint32_t first_from(const struct slab_lists *l, uint32_t list, uint32_t class)
{
	while (list < end_list(l, class) && l->heads[list] == SLAB_NONE)
		list++;
	return list < end_list(l, class) ? l->heads[list] : SLAB_NONE;
}

uint32_t slab_lists_sparsest(const struct slab_lists *l, uint32_t class)
{
	return first_from(l, first_list(l, class), class);
}

uint32_t slab_lists_after(const struct slab_lists *l, uint32_t slab, const struct slab_place *place)
{
	return l->links[slab].next != SLAB_NONE ?
		       l->links[slab].next :
		       first_from(l, list_of(l, place, slab_unit(l, slab)) + 1, place->class);
}

int slab_lists_open(struct slab_lists *l, uint32_t n_slabs, const uint8_t *units, uint32_t n_units)
{
	const uint32_t lists = n_units * (1 + TIER_MAX_CLASSES * SLAB_FILLS);

	*l = (struct slab_lists){ .units = units, .n_units = n_units };
	l->links = calloc(n_slabs, sizeof(*l->links));
	l->heads = calloc(lists, sizeof(*l->heads));
	for (uint32_t i = 0; l->heads && i < lists; i++)
		l->heads[i] = SLAB_NONE;
	return l->links && l->heads ? 0 : -ENOMEM;
}

void slab_lists_close(struct slab_lists *l)
{
	free(l->links);
	free(l->heads);
}
