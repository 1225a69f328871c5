/* SPDX-License-Identifier: Apache-2.0 */
/*
 * numbers.c - see numbers.h. Core thread only.
 */
#include "numbers.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>

#include "daemon/base/reserve.h"

static_assert(sizeof(union numbers_name) == NUMBERS_BYTES,
	      "the memory budget of a block counts on it");

int numbers_open(struct numbers *n, uint32_t max)
{
	union numbers_name *base = reserve((uint64_t)max * sizeof(*base));

	if (!base)
		return -ENOMEM;
	*n = (struct numbers){ .name = base, .max = max, .free = NUMBERS_NONE };
	return 0;
}

void numbers_close(struct numbers *n)
{
	unreserve(n->name, (uint64_t)n->max * sizeof(union numbers_name));
	n->name = NULL;
}

uint32_t numbers_take(struct numbers *n)
{
	const uint32_t number = numbers_pop(n, &n->free);

	if (number != NUMBERS_NONE)
		return number;
	return n->used < n->max ? n->used++ : NUMBERS_NONE;
}

void numbers_give_back(struct numbers *n, uint32_t number)
{
	numbers_push(n, &n->free, number);
}

void numbers_push(struct numbers *n, uint32_t *list, uint32_t number)
{
	assert(number < n->used);
	n->name[number].next = *list;
	*list = number;
}

uint32_t numbers_pop(struct numbers *n, uint32_t *list)
{
	const uint32_t number = *list;

	if (number != NUMBERS_NONE)
		*list = n->name[number].next;
	return number;
}
