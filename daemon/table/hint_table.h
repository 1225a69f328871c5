/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hint_table.h - notes on blocks, for what the table of blocks (block.h) does not have: a block's
 * ttl, its session, and the tenant that keeps it. Most blocks have no note, so notes are not in a
 * block's 96 bytes. Core thread only. No call blocks, and only hint_table_open() allocates memory.
 *
 * Invariants
 *   N1 a note's block is there: block.c says when the block is dropped (hint_table_forget()).
 *   N2 a note is in one session at most, in the order in which the blocks joined.
 *   N3 a session is there while it has blocks. It is its tenant's: equal numbers of two tenants are
 *      two sessions.
 *   N4 the bytes that a tenant keeps are the sum of kept_bytes of its notes.
 *   N5 a tenant takes another note, or session, only while it has less than seven times as many as
 *      are free (tbl_quota.h). So a tenant that takes all it can leaves an eighth, and each tenant
 *      that comes later finds some.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
	HINT_TABLE_NONE = 0xffffffff,
	HINT_TABLE_MIN = 64,
};

struct hint_table;
struct quota;

struct note {
	uint32_t block;
	uint32_t until_s; /* its end, by CLOCK_MONOTONIC; 0: it has no end */
	uint64_t tick;    /* the block's last access when the end was set */
	/* counts for the tenant: hint_table_keep() sets it */
	uint32_t kept_bytes;
	uint32_t session; /* its number, for the functions below; or HINT_TABLE_NONE */
	uint32_t turn;    /* the turn of the session in which it joined */
	uint16_t tenant;
	/* for hint_table.c alone */
	uint16_t used;
	uint32_t chain;
	uint32_t before, after; /* in its session */
};

/* Makes room for `max` notes, HINT_TABLE_MIN or more, and a sixteenth as many sessions. quota
 * counts them and the bytes that are kept; it stays the caller's. -ENOMEM. */
int hint_table_open(uint32_t max, struct quota *quota, struct hint_table **ret);
void hint_table_close(struct hint_table *table); /* may be NULL */

/* NULL: the block has no note. */
struct note *hint_table_find(const struct hint_table *table, uint32_t block);
/* The note of this block, which is made if there is none. NULL: the tenant has too many notes. */
struct note *hint_table_make(struct hint_table *table, uint32_t block, uint16_t tenant);
bool hint_table_have_room(const struct hint_table *table, uint16_t tenant);
/* Removes the note if it is empty, without end, session and kept bytes. */
void hint_table_settle(struct hint_table *table, struct note *note);
/* The block is gone. table may be NULL, and the block need not have a note. */
void hint_table_forget(struct hint_table *table, uint32_t block);

void hint_table_keep(struct hint_table *table, struct note *note, uint32_t bytes);

/* The session's number, or HINT_TABLE_NONE. */
uint32_t hint_table_session(const struct hint_table *table, uint16_t tenant, uint64_t id);
/* The block joins a session at its end, in this turn. If it is in this session already, it stays as
 * it is. False: the tenant has too many sessions, and the block is in no session now. */
bool hint_table_join(struct hint_table *table, struct note *note, uint64_t id, uint32_t turn);
void hint_table_leave(struct hint_table *table, struct note *note);
uint32_t hint_table_session_blocks(const struct hint_table *table, uint32_t session);
/* Moves the first note of a session to its end, and returns it. So as many calls as the session has
 * blocks meet each block once. */
struct note *hint_table_next(struct hint_table *table, uint32_t session);

/* Looks at up to `budget` notes from *cursor on, which begins as 0, and calls fn for the notes
 * whose end has come; fn may settle the note. False when the last note was reached. */
bool hint_table_sweep(struct hint_table *table, uint32_t *cursor, uint32_t budget, uint32_t now_s,
		      void (*fn)(void *arg, struct note *note), void *arg);
