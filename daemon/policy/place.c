/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place.c - the placement policy described in place.h. Pure functions; any thread.
 */
#include "place.h"

#include <assert.h>

static bool is_sparse(const struct tier_class_view *c)
{
	return c->used_slots < (c->slots_per_slab + 1) / 2;
}

uint64_t place_charge(const struct tier_class_view *c, uint32_t slots)
{
	const uint32_t used = slots > c->used_slots ? slots : c->used_slots;
	uint64_t of_slab;

	if (slots == 0 || !is_sparse(c))
		return (uint64_t)c->slot_bytes * slots;
	of_slab = (uint64_t)c->slots_per_slab * slots / used;
	return (uint64_t)c->slot_bytes * (of_slab > slots ? of_slab : slots);
}

/* Slots still to be evicted before a class can give a slab away: the slab's used slots must fit
 * into the free slots outside it (free - (slots - used)), in which `used` cancels out. */
static uint32_t deficit(const struct place_class *c)
{
	return c->view.free_slots < c->view.slots_per_slab ?
		       c->view.slots_per_slab - c->view.free_slots :
		       0;
}

static bool has_victim(const struct place_class *c)
{
	return c->oldest_tick != PLACE_NO_TICK;
}

static uint64_t age(const struct place_state *state, const struct place_class *c)
{
	return state->now_tick > c->oldest_tick ? state->now_tick - c->oldest_tick : 0;
}

/* More than so many times as old: once or twice. */
static bool older(const struct place_state *state, const struct place_class *c,
		  const struct place_class *own, uint32_t times)
{
	const uint64_t a = age(state, c), b = age(state, own);

	return times == 1 ? a > b : a > b && a - b > b;
}

static bool has_room(const struct place_state *state)
{
	return state->free_slabs > 0 ||
	       (state->wanted >= 0 && state->classes[state->wanted].view.free_slots > 0);
}

/* Whether this class could give a slab away. It could not if it was looked at in vain. */
static bool can_give(const struct place_state *state, uint32_t class)
{
	const struct place_class *c = &state->classes[class];

	if ((int32_t) class == state->wanted || c->view.slabs == 0 || c->look == PLACE_NONE)
		return false;
	return deficit(c) == 0 || has_victim(c);
}

static bool gives_a_sparse_slab(const struct place_state *state, uint32_t class)
{
	const struct place_class *c = &state->classes[class];

	return can_give(state, class) && has_victim(c) && is_sparse(&c->view);
}

/* Sparse classes that can give hold so many slabs that they are to. */
static bool crowded(const struct place_state *state, const struct place_class *own)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < state->n_classes; i++)
		n += gives_a_sparse_slab(state, i);
	return state->sparse_max > 0 && n >= state->sparse_max + (own ? 1 : 0);
}

/* The class that gives a slab: a class that loses no image by it, else the class whose least recent
 * leaf is oldest, if this leaf is more than twice as old as the wanted class's own, or older at all
 * where there are too many sparse classes, of which it is one then. */
static int32_t pick_donor(const struct place_state *state, const struct place_class *own)
{
	const bool many_sparse = crowded(state, own), free_choice = !own || !has_victim(own);
	int32_t best = PLACE_NO_CLASS;

	for (uint32_t i = 0; i < state->n_classes; i++) {
		const struct place_class *c = &state->classes[i];
		bool sparse;

		if (!can_give(state, i))
			continue;
		if (deficit(c) == 0)
			return (int32_t)i;
		sparse = many_sparse && is_sparse(&c->view);
		if (many_sparse && !own && !sparse)
			continue;
		if (!free_choice && !older(state, c, own, sparse ? 1 : 2))
			continue;
		if (best < 0 || c->oldest_tick < state->classes[best].oldest_tick)
			best = (int32_t)i;
	}
	return best;
}

/* The next step of emptying a slab of `class`. A class that evictions have begun in was looked at
 * before the first of them: it is looked at again when the slab is to be named. */
static void plan_slab(const struct place_state *state, uint32_t class, struct place_plan *ret)
{
	const struct place_class *c = &state->classes[class];
	const bool begun = state->donor == (int32_t) class && deficit(c) > 0;

	*ret = (struct place_plan){ .class = class, .donor = (int32_t) class };
	if (c->look == PLACE_UNSEEN && !begun) {
		ret->action = PLACE_LOOK;
	} else if (deficit(c) == 0) {
		ret->action = PLACE_MOVE;
		ret->slab = c->slab;
	} else {
		ret->action = PLACE_EVICT;
		ret->count = deficit(c);
	}
}

void place_plan(const struct place_state *state, struct place_plan *ret)
{
	const struct place_class *own = state->wanted >= 0 ? &state->classes[state->wanted] : NULL;
	int32_t donor = state->donor;

	assert(state->wanted < (int32_t)state->n_classes && donor < (int32_t)state->n_classes);
	if (has_room(state)) {
		*ret = (struct place_plan){ .action = PLACE_ALLOC, .donor = PLACE_NO_CLASS };
		return;
	}
	if (donor < 0 || !can_give(state, (uint32_t)donor))
		donor = pick_donor(state, own);
	/* With a victim of its own, a class begins no emptying that could not be finished now: it
	 * would evict in vain. Without a victim, slots that are freed now help the next
	 * attempt. */
	if (donor >= 0 && own && has_victim(own) &&
	    deficit(&state->classes[donor]) >= state->steps_left)
		donor = PLACE_NO_CLASS;
	if (donor >= 0 && !state->moving &&
	    !(state->hurried && deficit(&state->classes[donor]) > 0)) {
		plan_slab(state, (uint32_t)donor, ret);
		return;
	}
	*ret = (struct place_plan){ .action = PLACE_FAIL,
				    .donor = donor,
				    .left = donor >= 0 && !state->moving };
	if (own && has_victim(own)) {
		ret->action = PLACE_EVICT;
		ret->class = (uint32_t)state->wanted;
		ret->count = 1;
	} else if (donor >= 0) {
		ret->action = PLACE_WAIT;
	}
}

int32_t place_oldest(const struct place_class *classes, uint32_t n_classes)
{
	int32_t best = PLACE_NO_CLASS;

	for (uint32_t i = 0; i < n_classes; i++)
		if (has_victim(&classes[i]) &&
		    (best < 0 || classes[i].oldest_tick < classes[best].oldest_tick))
			best = (int32_t)i;
	return best;
}
