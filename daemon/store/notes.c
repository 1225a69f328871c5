/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notes.c - see notes.h. Core thread only.
 *
 * Two hash tables with chains, of notes by block and of sessions by tenant and number. Clients
 * choose the numbers of sessions: a secret of this start keeps them from choosing buckets, too.
 */
#include "notes.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

#include "client/fingerprint.h"
#include "daemon/base/reserve.h"

struct session {
	uint64_t id;
	uint32_t first, last, blocks;
	uint32_t chain; /* or the next free one */
	uint16_t tenant;
};

struct notes {
	uint32_t max, used, count, free;
	uint32_t max_sessions, used_sessions, sessions, free_session;
	uint32_t buckets, session_buckets; /* powers of two */
	struct fingerprint_key secret;
	uint64_t all_kept, kept[NOTES_TENANTS];
	uint32_t count_of[NOTES_TENANTS], sessions_of[NOTES_TENANTS];
	struct note *note;
	struct session *session;
	uint32_t *head, *session_head; /* number + 1 */
};

static uint32_t power_of_two(uint32_t n)
{
	uint32_t ret = 1;

	while (ret < n)
		ret *= 2;
	return ret;
}

int notes_open(uint32_t max, struct notes **ret)
{
	struct notes *n = calloc(1, sizeof(*n));

	assert(max >= NOTES_MIN && max <= 1u << 30);
	if (!n)
		return -ENOMEM;
	n->max = max;
	n->max_sessions = max / 16;
	n->free = n->free_session = NOTES_NONE;
	n->buckets = power_of_two(n->max);
	n->session_buckets = power_of_two(n->max_sessions);
	n->note = reserve((uint64_t)n->max * sizeof(*n->note));
	n->session = reserve((uint64_t)n->max_sessions * sizeof(*n->session));
	n->head = reserve((uint64_t)n->buckets * sizeof(*n->head));
	n->session_head = reserve((uint64_t)n->session_buckets * sizeof(*n->session_head));
	if (!n->note || !n->session || !n->head || !n->session_head ||
	    getrandom(&n->secret, sizeof(n->secret), 0) != sizeof(n->secret)) {
		notes_close(n);
		return -ENOMEM;
	}
	*ret = n;
	return 0;
}

void notes_close(struct notes *n)
{
	if (!n)
		return;
	unreserve(n->note, (uint64_t)n->max * sizeof(*n->note));
	unreserve(n->session, (uint64_t)n->max_sessions * sizeof(*n->session));
	unreserve(n->head, (uint64_t)n->buckets * sizeof(*n->head));
	unreserve(n->session_head, (uint64_t)n->session_buckets * sizeof(*n->session_head));
	free(n);
}

/* --- notes --- */

static uint32_t *bucket_of(const struct notes *n, uint32_t block)
{
	return &n->head[(block * 0x9e3779b1u >> 4) & (n->buckets - 1)];
}

struct note *notes_find(const struct notes *n, uint32_t block)
{
	if (n->count == 0)
		return NULL;
	for (uint32_t i = *bucket_of(n, block); i != 0; i = n->note[i - 1].chain)
		if (n->note[i - 1].block == block)
			return &n->note[i - 1];
	return NULL;
}

/* N5 */
static bool may_take(uint32_t own, uint32_t free)
{
	return own < (uint64_t)NOTES_PER_FREE * free;
}

bool notes_have_room(const struct notes *n, uint16_t tenant)
{
	assert(tenant < NOTES_TENANTS);
	return may_take(n->count_of[tenant], n->max - n->count);
}

struct note *notes_make(struct notes *n, uint32_t block, uint16_t tenant)
{
	struct note *note = notes_find(n, block);
	uint32_t i = n->free, *head = bucket_of(n, block);

	if (note)
		return note;
	if (!notes_have_room(n, tenant))
		return NULL;
	if (i != NOTES_NONE)
		n->free = n->note[i].chain;
	else
		i = n->used++;
	n->note[i] = (struct note){
		.block = block, .session = NOTES_NONE, .tenant = tenant, .used = 1, .chain = *head
	};
	*head = i + 1;
	n->count++;
	n->count_of[tenant]++;
	return &n->note[i];
}

static void drop(struct notes *n, struct note *note)
{
	const uint32_t number = (uint32_t)(note - n->note);
	uint32_t *at = bucket_of(n, note->block);

	while (*at != number + 1)
		at = &n->note[*at - 1].chain;
	*at = note->chain;
	note->used = 0;
	note->chain = n->free;
	n->free = number;
	n->count--;
	n->count_of[note->tenant]--;
}

void notes_settle(struct notes *n, struct note *note)
{
	if (note->session == NOTES_NONE && note->until_s == 0 && note->kept_bytes == 0)
		drop(n, note);
}

void notes_forget(struct notes *n, uint32_t block)
{
	struct note *note = n ? notes_find(n, block) : NULL;

	if (!note)
		return;
	notes_leave(n, note);
	notes_keep(n, note, 0);
	drop(n, note);
}

/* --- kept bytes --- */

void notes_keep(struct notes *n, struct note *note, uint32_t bytes)
{
	n->kept[note->tenant] += (uint64_t)bytes - note->kept_bytes;
	n->all_kept += (uint64_t)bytes - note->kept_bytes;
	note->kept_bytes = bytes;
}

uint64_t notes_kept_bytes(const struct notes *n, uint16_t tenant)
{
	assert(tenant < NOTES_TENANTS);
	return n->kept[tenant];
}

uint64_t notes_all_kept_bytes(const struct notes *n)
{
	return n->all_kept;
}

uint32_t notes_count(const struct notes *n)
{
	return n->count;
}

/* --- sessions --- */

static uint32_t *session_bucket(const struct notes *n, uint16_t tenant, uint64_t id)
{
	uint8_t key[32] = { 0 };

	memcpy(key, &id, sizeof(id));
	memcpy(key + sizeof(id), &tenant, sizeof(tenant));
	return &n->session_head[fingerprint(&n->secret, key).half[0] & (n->session_buckets - 1)];
}

uint32_t notes_session(const struct notes *n, uint16_t tenant, uint64_t id)
{
	for (uint32_t i = *session_bucket(n, tenant, id); i != 0; i = n->session[i - 1].chain)
		if (n->session[i - 1].id == id && n->session[i - 1].tenant == tenant)
			return i - 1;
	return NOTES_NONE;
}

static uint32_t session_make(struct notes *n, uint16_t tenant, uint64_t id)
{
	uint32_t i = n->free_session, *head = session_bucket(n, tenant, id);

	if (!may_take(n->sessions_of[tenant], n->max_sessions - n->sessions))
		return NOTES_NONE;
	if (i != NOTES_NONE)
		n->free_session = n->session[i].chain;
	else
		i = n->used_sessions++;
	n->session[i] = (struct session){
		.id = id, .first = NOTES_NONE, .last = NOTES_NONE, .chain = *head, .tenant = tenant
	};
	*head = i + 1;
	n->sessions++;
	n->sessions_of[tenant]++;
	return i;
}

static void session_drop(struct notes *n, uint32_t session)
{
	struct session *s = &n->session[session];
	uint32_t *at = session_bucket(n, s->tenant, s->id);

	while (*at != session + 1)
		at = &n->session[*at - 1].chain;
	*at = s->chain;
	s->chain = n->free_session;
	n->free_session = session;
	n->sessions--;
	n->sessions_of[s->tenant]--;
}

static void enlist(struct notes *n, struct note *note)
{
	struct session *s = &n->session[note->session];
	const uint32_t number = (uint32_t)(note - n->note);

	note->before = s->last;
	note->after = NOTES_NONE;
	if (s->last != NOTES_NONE)
		n->note[s->last].after = number;
	else
		s->first = number;
	s->last = number;
	s->blocks++;
}

static void delist(struct notes *n, struct note *note)
{
	struct session *s = &n->session[note->session];

	if (note->before != NOTES_NONE)
		n->note[note->before].after = note->after;
	else
		s->first = note->after;
	if (note->after != NOTES_NONE)
		n->note[note->after].before = note->before;
	else
		s->last = note->before;
	s->blocks--;
}

void notes_leave(struct notes *n, struct note *note)
{
	const uint32_t session = note->session;

	if (session == NOTES_NONE)
		return;
	delist(n, note);
	note->session = NOTES_NONE;
	if (n->session[session].blocks == 0)
		session_drop(n, session);
}

bool notes_join(struct notes *n, struct note *note, uint64_t id, uint32_t turn)
{
	uint32_t session = notes_session(n, note->tenant, id);

	if (session != NOTES_NONE && session == note->session)
		return true;
	if (session == NOTES_NONE)
		session = session_make(n, note->tenant, id);
	notes_leave(n, note);
	if (session == NOTES_NONE)
		return false;
	note->session = session;
	note->turn = turn;
	enlist(n, note);
	return true;
}

uint32_t notes_sessions(const struct notes *n)
{
	return n->sessions;
}

uint32_t notes_session_blocks(const struct notes *n, uint32_t session)
{
	return n->session[session].blocks;
}

struct note *notes_next(struct notes *n, uint32_t session)
{
	struct note *note = &n->note[n->session[session].first];

	delist(n, note);
	enlist(n, note);
	return note;
}

/* --- ends --- */

bool notes_sweep(struct notes *n, uint32_t *cursor, uint32_t budget, uint32_t now_s,
		 void (*fn)(void *arg, struct note *note), void *arg)
{
	for (; budget > 0 && *cursor < n->used; budget--) {
		struct note *note = &n->note[(*cursor)++];

		if (note->used && note->until_s != 0 && note->until_s <= now_s)
			fn(arg, note);
	}
	return *cursor < n->used;
}
