/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list.h - a ring of links that lie in their owners. A struct list is either the head of a list or
 * a link in one. A zeroed link is in no list; a head needs list_open(). A list allocates no memory,
 * and one thread uses it. container_of() finds the owner of a link, or of another member that a
 * callback was given.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define container_of(pointer, type, member) \
	((type *)(void *)((char *)(pointer)-offsetof(type, member)))

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

/* Puts a link that is in no list before `at`. If `at` is the head, that is the end of the list. */
static inline void list_add(struct list *at, struct list *link)
{
	link->next = at;
	link->prev = at->prev;
	at->prev->next = link;
	at->prev = link;
}

/* Takes the link out of its list. A link that is in no list stays as it is. */
static inline void list_remove(struct list *link)
{
	if (!link->next)
		return;
	link->prev->next = link->next;
	link->next->prev = link->prev;
	link->next = link->prev = NULL;
}
