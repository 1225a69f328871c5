/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object.c - handles that name contexts, streams, events, modules, functions, VMM allocations.
 *
 * A handle is a number, not an address: its bits are 0xea, the kind, a generation, an index. So a
 * program that looks behind it faults, and a handle whose object has gone is known as such for
 * ever: a slot's generation grows when its object goes. Guarded by emu.lock.
 */

#include "emu.h"

enum { SLOTS = 1 << 16, MARK = 0xea };

static struct slot {
	struct object *object;
	uint32_t generation;
} slots[SLOTS];
static uint32_t next_slot;

const char *object_kind_name(enum object_kind kind)
{
	static const char *const names[] = {
		[OBJECT_CONTEXT] = "a context",   [OBJECT_STREAM] = "a stream",
		[OBJECT_EVENT] = "an event",      [OBJECT_MODULE] = "a module",
		[OBJECT_FUNCTION] = "a function", [OBJECT_MEMORY] = "a handle of an allocation",
		[OBJECT_GRAPH] = "a graph",
	};

	return names[kind];
}

void *object_new(enum object_kind kind, struct context *ctx, size_t bytes)
{
	struct object *object = calloc(1, bytes);

	for (uint32_t i = 0; object && i < SLOTS; i++) {
		const uint32_t at = next_slot++ % SLOTS;

		if (slots[at].object)
			continue;
		slots[at].object = object;
		*object = (struct object){ .kind = kind, .ctx = ctx };
		object->handle = (uint64_t)MARK << 56 | (uint64_t)kind << 48 |
				 (uint64_t)(slots[at].generation & 0xffffff) << 24 | at;
		return object;
	}
	free(object);
	return NULL;
}

void object_remove(struct object *object)
{
	struct slot *slot = &slots[object->handle & 0xffffff];

	slot->object = NULL;
	slot->generation++;
}

void object_free(void *object)
{
	object_remove(object);
	free(object);
}

struct object *object_find(enum object_kind kind, uint64_t handle, const char *who)
{
	const uint64_t at = handle & 0xffffff;

	if (!handle)
		return NULL;
	if (at < SLOTS && slots[at].object && slots[at].object->handle == handle &&
	    slots[at].object->kind == kind)
		return slots[at].object;
	if (handle >> 56 == MARK && (handle >> 48 & 0xff) == kind)
		violation("%s: %#llx, %s, is used after it was destroyed", who,
			  (unsigned long long)handle, object_kind_name(kind));
	else
		violation("%s: %#llx is not %s", who, (unsigned long long)handle,
			  object_kind_name(kind));
	return NULL;
}

struct object *object_next(const struct context *ctx, uint32_t *at)
{
	while (*at < SLOTS) {
		struct object *object = slots[(*at)++].object;

		if (object && (!ctx || object->ctx == ctx))
			return object;
	}
	return NULL;
}
