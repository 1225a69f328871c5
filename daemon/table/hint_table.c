/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hint_table.c - see hint_table.h. Core thread only.
 *
 * There are two hash tables with chains: notes by block, and sessions by tenant and number. Clients
 * choose the numbers of sessions, so a secret of this start keeps them from choosing buckets.
 */
#include "hint_table.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

#include "client/abi/fingerprint.h"
#include "daemon/quota/quota.h"
#include "base/reserve.h"

struct session {
	uint64_t id;
	uint32_t first, last, blocks;
	uint32_t chain; /* or the next free one */
	uint16_t tenant;
};

struct hint_table {
	struct quota *quota; /* counts rows, sessions and kept bytes, by tenant */
	uint32_t max, used, free;
	uint32_t max_sessions, used_sessions, free_session;
	uint32_t buckets, session_buckets; /* powers of two */
	struct fingerprint_key secret;
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

int hint_table_open(uint32_t max, struct quota *quota, struct hint_table **ret)
{
	struct hint_table *n = calloc(1, sizeof(*n));

	assert(max >= HINT_TABLE_MIN && max <= 1u << 30);
	if (!n)
		return -ENOMEM;
	n->max = max;
	n->max_sessions = max / 16;
	n->quota = quota;
	quota_set(quota, QUOTA_hint_rows, n->max, 0);
	quota_set(quota, QUOTA_sessions, n->max_sessions, 0);
	n->free = n->free_session = HINT_TABLE_NONE;
	n->buckets = power_of_two(n->max);
	n->session_buckets = power_of_two(n->max_sessions);
	n->note = reserve((uint64_t)n->max * sizeof(*n->note));
	n->session = reserve((uint64_t)n->max_sessions * sizeof(*n->session));
	n->head = reserve((uint64_t)n->buckets * sizeof(*n->head));
	n->session_head = reserve((uint64_t)n->session_buckets * sizeof(*n->session_head));
	if (!n->note || !n->session || !n->head || !n->session_head ||
	    getrandom(&n->secret, sizeof(n->secret), 0) != sizeof(n->secret)) {
		hint_table_close(n);
		return -ENOMEM;
	}
	*ret = n;
	return 0;
}

void hint_table_close(struct hint_table *n)
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

static uint32_t *bucket_of(const struct hint_table *n, uint32_t block)
{
	return &n->head[(block * 0x9e3779b1u >> 4) & (n->buckets - 1)];
}

struct note *hint_table_find(const struct hint_table *n, uint32_t block)
{
	if (n->quota->used[QUOTA_hint_rows] == 0)
		return NULL;
	for (uint32_t i = *bucket_of(n, block); i != 0; i = n->note[i - 1].chain)
		if (n->note[i - 1].block == block)
			return &n->note[i - 1];
	return NULL;
}

/* N5 */
static bool may_take(const struct hint_table *n, enum quota_use use, uint16_t tenant)
{
	const struct quota *q = n->quota;

	return quota_of_free(q->tenant[tenant].used[use], (uint32_t)quota_lines[use].times,
			     q->all[use] - q->used[use]);
}

bool hint_table_have_room(const struct hint_table *n, uint16_t tenant)
{
	return may_take(n, QUOTA_hint_rows, tenant);
}

struct note *hint_table_make(struct hint_table *n, uint32_t block, uint16_t tenant)
{
	struct note *note = hint_table_find(n, block);
	uint32_t i = n->free, *head = bucket_of(n, block);

	if (note)
		return note;
	if (!hint_table_have_room(n, tenant)) {
		quota_refused(n->quota, QUOTA_hint_rows, tenant);
		return NULL;
	}
	if (i != HINT_TABLE_NONE)
		n->free = n->note[i].chain;
	else
		i = n->used++;
	n->note[i] = (struct note){ .block = block,
				    .session = HINT_TABLE_NONE,
				    .tenant = tenant,
				    .used = 1,
				    .chain = *head };
	*head = i + 1;
	quota_take(n->quota, QUOTA_hint_rows, tenant, 1);
	return &n->note[i];
}

static void drop(struct hint_table *n, struct note *note)
{
	const uint32_t number = (uint32_t)(note - n->note);
	uint32_t *at = bucket_of(n, note->block);

	while (*at != number + 1)
		at = &n->note[*at - 1].chain;
	*at = note->chain;
	note->used = 0;
	note->chain = n->free;
	n->free = number;
	quota_give(n->quota, QUOTA_hint_rows, note->tenant, 1);
}

void hint_table_settle(struct hint_table *n, struct note *note)
{
	if (note->session == HINT_TABLE_NONE && note->until_s == 0 && note->kept_bytes == 0)
		drop(n, note);
}

void hint_table_forget(struct hint_table *n, uint32_t block)
{
	struct note *note = n ? hint_table_find(n, block) : NULL;

	if (!note)
		return;
	hint_table_leave(n, note);
	hint_table_keep(n, note, 0);
	drop(n, note);
}

/* --- kept bytes --- */

void hint_table_keep(struct hint_table *n, struct note *note, uint32_t bytes)
{
	quota_give(n->quota, QUOTA_kept_bytes, note->tenant, note->kept_bytes);
	quota_take(n->quota, QUOTA_kept_bytes, note->tenant, bytes);
	note->kept_bytes = bytes;
}

/* --- sessions --- */

static uint32_t *session_bucket(const struct hint_table *n, uint16_t tenant, uint64_t id)
{
	uint8_t key[32] = { 0 };

	memcpy(key, &id, sizeof(id));
	memcpy(key + sizeof(id), &tenant, sizeof(tenant));
	return &n->session_head[fingerprint(&n->secret, key).half[0] & (n->session_buckets - 1)];
}

uint32_t hint_table_session(const struct hint_table *n, uint16_t tenant, uint64_t id)
{
	for (uint32_t i = *session_bucket(n, tenant, id); i != 0; i = n->session[i - 1].chain)
		if (n->session[i - 1].id == id && n->session[i - 1].tenant == tenant)
			return i - 1;
	return HINT_TABLE_NONE;
}

static uint32_t session_make(struct hint_table *n, uint16_t tenant, uint64_t id)
{
	uint32_t i = n->free_session, *head = session_bucket(n, tenant, id);

	if (!may_take(n, QUOTA_sessions, tenant)) {
		quota_refused(n->quota, QUOTA_sessions, tenant);
		return HINT_TABLE_NONE;
	}
	if (i != HINT_TABLE_NONE)
		n->free_session = n->session[i].chain;
	else
		i = n->used_sessions++;
	n->session[i] = (struct session){ .id = id,
					  .first = HINT_TABLE_NONE,
					  .last = HINT_TABLE_NONE,
					  .chain = *head,
					  .tenant = tenant };
	*head = i + 1;
	quota_take(n->quota, QUOTA_sessions, tenant, 1);
	return i;
}

static void session_drop(struct hint_table *n, uint32_t session)
{
	struct session *s = &n->session[session];
	uint32_t *at = session_bucket(n, s->tenant, s->id);

	while (*at != session + 1)
		at = &n->session[*at - 1].chain;
	*at = s->chain;
	s->chain = n->free_session;
	n->free_session = session;
	quota_give(n->quota, QUOTA_sessions, s->tenant, 1);
}

static void enlist(struct hint_table *n, struct note *note)
{
	struct session *s = &n->session[note->session];
	const uint32_t number = (uint32_t)(note - n->note);

	note->before = s->last;
	note->after = HINT_TABLE_NONE;
	if (s->last != HINT_TABLE_NONE)
		n->note[s->last].after = number;
	else
		s->first = number;
	s->last = number;
	s->blocks++;
}

static void delist(struct hint_table *n, struct note *note)
{
	struct session *s = &n->session[note->session];

	if (note->before != HINT_TABLE_NONE)
		n->note[note->before].after = note->after;
	else
		s->first = note->after;
	if (note->after != HINT_TABLE_NONE)
		n->note[note->after].before = note->before;
	else
		s->last = note->before;
	s->blocks--;
}

void hint_table_leave(struct hint_table *n, struct note *note)
{
	const uint32_t session = note->session;

	if (session == HINT_TABLE_NONE)
		return;
	delist(n, note);
	note->session = HINT_TABLE_NONE;
	if (n->session[session].blocks == 0)
		session_drop(n, session);
}

bool hint_table_join(struct hint_table *n, struct note *note, uint64_t id, uint32_t turn)
{
	uint32_t session = hint_table_session(n, note->tenant, id);

	if (session != HINT_TABLE_NONE && session == note->session)
		return true;
	if (session == HINT_TABLE_NONE)
		session = session_make(n, note->tenant, id);
	hint_table_leave(n, note);
	if (session == HINT_TABLE_NONE)
		return false;
	note->session = session;
	note->turn = turn;
	enlist(n, note);
	return true;
}

uint32_t hint_table_session_blocks(const struct hint_table *n, uint32_t session)
{
	return n->session[session].blocks;
}

struct note *hint_table_next(struct hint_table *n, uint32_t session)
{
	struct note *note = &n->note[n->session[session].first];

	delist(n, note);
	enlist(n, note);
	return note;
}

/* --- ends --- */

bool hint_table_sweep(struct hint_table *n, uint32_t *cursor, uint32_t budget, uint32_t now_s,
		      void (*fn)(void *arg, struct note *note), void *arg)
{
	for (; budget > 0 && *cursor < n->used; budget--) {
		struct note *note = &n->note[(*cursor)++];

		if (note->used && note->until_s != 0 && note->until_s <= now_s)
			fn(arg, note);
	}
	return *cursor < n->used;
}
