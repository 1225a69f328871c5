/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notes.h - facts about blocks beyond the table of blocks (block.h): a block's ttl, its session,
 * and the tenant that keeps it. Most blocks have no note; so these are not in a block's 96 bytes.
 * Core thread only; nothing here blocks or allocates after notes_open().
 *
 * Invariants
 *   N1 a note's block is there: block.c says when it goes (notes_forget()).
 *   N2 a note is in one session at most, in the order in which the blocks joined.
 *   N3 a session is there while it has blocks. It is its tenant's: equal numbers of two tenants are
 *      two sessions.
 *   N4 the bytes that a tenant keeps are the sum of kept_bytes of its notes.
 *   N5 a tenant takes another note, or session, only while it has fewer than NOTES_PER_FREE times
 *      as many as are free. So a tenant that takes all it can leaves an eighth, and each tenant
 *      that comes later finds some.
 */
#ifndef KVTIER_NOTES_H
#define KVTIER_NOTES_H

#include <stdbool.h>
#include <stdint.h>

enum { NOTES_NONE = 0xffffffff, NOTES_TENANTS = 64, NOTES_MIN = 64, NOTES_PER_FREE = 7 };

struct notes;

struct note {
	uint32_t block;
	uint32_t until_s; /* of CLOCK_MONOTONIC; 0: no end */
	/* counted for the tenant: through notes_keep() */
	uint32_t kept_bytes;
	uint32_t session; /* NOTES_NONE: none; a number for the functions below */
	uint32_t turn;    /* of the session, in which it joined */
	uint16_t tenant;
	/* notes.c's */
	uint16_t used;
	uint32_t chain;
	uint32_t before, after; /* in its session */
};

/* So many notes, NOTES_MIN or more, and a sixteenth as many sessions. -ENOMEM. */
int notes_open(uint32_t max, struct notes **ret);
void notes_close(struct notes *notes); /* NULL is fine */

/* NULL: there is none. */
struct note *notes_find(const struct notes *notes, uint32_t block);
/* The note of this block, made if there is none. NULL: the tenant has too many. */
struct note *notes_make(struct notes *notes, uint32_t block, uint16_t tenant);
bool notes_have_room(const struct notes *notes, uint16_t tenant);
/* It goes, if it says nothing: no end, no session, nothing kept. */
void notes_settle(struct notes *notes, struct note *note);
/* The block is gone. NULL is fine, and so is a block without a note. */
void notes_forget(struct notes *notes, uint32_t block);

void notes_keep(struct notes *notes, struct note *note, uint32_t bytes);
uint64_t notes_kept_bytes(const struct notes *notes, uint16_t tenant);
uint64_t notes_all_kept_bytes(const struct notes *notes);
uint32_t notes_count(const struct notes *notes);

/* The session's number; NOTES_NONE: there is none. */
uint32_t notes_session(const struct notes *notes, uint16_t tenant, uint64_t id);
/* The block joins it, at its end; in a turn, unless it is in this session already. False: the
 * tenant has too many sessions, and the block is in none. */
bool notes_join(struct notes *notes, struct note *note, uint64_t id, uint32_t turn);
void notes_leave(struct notes *notes, struct note *note);
uint32_t notes_sessions(const struct notes *notes);
uint32_t notes_session_blocks(const struct notes *notes, uint32_t session);
/* The first note of a session goes to its end, and is returned: as many calls as it has blocks meet
 * each once. */
struct note *notes_next(struct notes *notes, uint32_t session);

/* Looks at up to `budget` notes from *cursor on (0 to start) and calls fn for the notes whose end
 * has come, which fn may settle. False when the end was reached. */
bool notes_sweep(struct notes *notes, uint32_t *cursor, uint32_t budget, uint32_t now_s,
		 void (*fn)(void *arg, struct note *note), void *arg);

#endif
