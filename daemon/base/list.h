/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list.h - a ring of links that lie in their owners. A struct list is a head or a link. A zeroed
 * link is in no list; a head needs list_open(). Nothing is allocated; one thread uses a list.
 */
#ifndef KVTIER_LIST_H
#define KVTIER_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
	struct list *next, *prev;
};

static inline void list_open(struct list *head)
{
	head->next = head->prev = head;
}

static inline bool list_empty(const struct list *head)
{
	return head->next == head;
}

/* Whether this link stands in a list. */
static inline bool list_has(const struct list *link)
{
	return link->next != NULL;
}

/* Puts a link that is in no list before `at`: at the head that is the list's end. */
static inline void list_add(struct list *at, struct list *link)
{
	link->next = at;
	link->prev = at->prev;
	at->prev->next = link;
	at->prev = link;
}

/* A link that is in no list stays so. */
static inline void list_remove(struct list *link)
{
	if (!link->next)
		return;
	link->prev->next = link->next;
	link->next->prev = link->prev;
	link->next = link->prev = NULL;
}

#endif
