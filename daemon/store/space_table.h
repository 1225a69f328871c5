/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space_table.h - the numbers of spaces, and which space gives its number up when there are more
 * than may be. For space.c. Core thread only.
 *
 *   ┌── closed, and without blocks ──┐
 *   v                                │
 *  free ── table_put ────────────> in use ─ table full, this one goes ─> going ─ empty ─> free
 *                                    ^                                     │
 *                                    └─────── table_keep (opened again) ───┘
 *
 * Invariants
 *   T1 at most `max` spaces are in use. There are half as many numbers more, for the spaces that
 *      are going: their blocks are dropped a slice a turn (copies.c), and no caller waits for it.
 *   T2 a number is used again only when no block carries it, not even a condemned one that is
 *      pinned.
 *   T3 an open space never goes. Of a sample of the others the first in this order goes: a space of
 *      a tenant with more than its share (`max` by the number of tenants); a space without blocks;
 *      a space with few blocks, which cost little to compute again, so that a client that opens
 *      thousands of spaces displaces these; a space that was not opened since the start; the least
 *      recent.
 *   T4 a space that is found on a disk takes the place of a less recent one that was found there,
 *      and of no other.
 */
#ifndef KVTIER_SPACE_TABLE_H
#define KVTIER_SPACE_TABLE_H

#include "space.h"

struct space_table;

/* -EINVAL: max is 0 or above SPACES_MAX. secret: of this start, for hashing. */
int table_open(uint32_t max, const uint8_t secret[16], struct space_table **ret);
void table_close(struct space_table *table); /* and frees the spaces */
void table_attach(struct space_table *table, const struct spaces_blocks *blocks);

/* The space with this owner, going ones too, and with this id if it is known (id NULL: any); or
 * NULL. */
struct space *table_find(const struct space_table *table, const uint8_t owner[32],
			 const uint8_t *id);
/* space_of_revision() */
struct space *table_revision(const struct space_table *table, const uint8_t revision[32],
			     const struct space *before);
/* Gives it a number; the space is the table's from now on. found: nobody opens it. -ENOSPC: all are
 * open, or for a found one: there is none that it may displace; -EAGAIN: all numbers are taken by
 * spaces that are going. */
int table_put(struct space_table *table, struct space *space, bool found);
/* A found space that is now known takes the place of `old`, which is freed: the same number and
 * blocks. */
void table_replace(struct space_table *table, struct space *old, struct space *space);
/* A going space stays; another one goes, if need be. -ENOSPC. */
int table_keep(struct space_table *table, struct space *space);
/* Nobody has it open any more: it is most recent, or, without blocks, free. */
void table_released(struct space_table *table, struct space *space);
/* Frees the numbers of going spaces whose blocks are gone. */
void table_sweep(struct space_table *table);

/* NULL: a free number */
struct space *table_at(const struct space_table *table, uint32_t number);
/* entries from here on were never used */
uint32_t table_numbers(const struct space_table *table);
void table_count(const struct space_table *table, struct spaces_count *ret);

#endif
