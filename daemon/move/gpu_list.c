/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_list.c - see gpu_list.h. Core thread only. */
#include "gpu_list.h"

void gpu_list_add(struct class_order *order, struct copy *copies, uint32_t at, bool first)
{
	struct copy *copy = &copies[at];

	copy->prev = first ? COPY_END : order->last & COPY_END;
	copy->next = first ? order->first & COPY_END : COPY_END;
	if (copy->prev != COPY_END)
		copies[copy->prev].next = at & COPY_END;
	else
		order->first = at;
	if (copy->next != COPY_END)
		copies[copy->next].prev = at & COPY_END;
	else
		order->last = at;
}

void gpu_list_remove(struct class_order *order, struct copy *copies, uint32_t at)
{
	const struct copy *copy = &copies[at];

	if (copy->prev != COPY_END)
		copies[copy->prev].next = copy->next;
	else
		order->first = copy->next;
	if (copy->next != COPY_END)
		copies[copy->next].prev = copy->prev;
	else
		order->last = copy->prev;
}
