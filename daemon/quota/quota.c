/* SPDX-License-Identifier: Apache-2.0 */
/* quota.c - see quota.h. */
#include "quota.h"

#include <assert.h>

#define QUOTA(name, percent, times, holder) { #name, percent, times, QUOTA_##holder },
const struct quota_line quota_lines[QUOTA_USES] = {
#include "tbl_quota.h"
};

uint64_t quota_guaranteed(uint64_t all, uint32_t percent, uint64_t holders)
{
	return (all / 100 * percent + all % 100 * percent / 100) / (holders > 0 ? holders : 1);
}

bool quota_of_free(uint64_t used, uint64_t times, uint64_t free)
{
	return used < times * free;
}

bool quota_may_take(const struct quota_account *account, const struct quota_account *own,
		    uint64_t own_asks, unsigned from)
{
	return ((from & QUOTA_RICH) && account->held > account->guaranteed) ||
	       ((from & QUOTA_OWN) && account == own) ||
	       ((from & QUOTA_ANY) && own->held <= own->guaranteed &&
		own_asks <= own->guaranteed - own->held);
}

void quota_add(struct quota *q, const char *name, uint32_t share, uint32_t priority)
{
	assert(q->n < QUOTA_OTHERS);
	q->tenant[q->n++] =
		(struct quota_tenant){ .name = name, .share = share, .priority = priority };
	q->tenant[QUOTA_OTHERS].name = "(without a socket)";
}

void quota_change(struct quota *q, uint32_t tenant, uint32_t share, uint32_t priority)
{
	assert(tenant < q->n);
	q->tenant[tenant].share = share;
	q->tenant[tenant].priority = priority;
}

void quota_set(struct quota *q, enum quota_use use, uint64_t all, uint32_t percent)
{
	q->all[use] = all;
	q->guarantee[use] = quota_guaranteed(all, percent, 1);
}

void quota_peer_works(struct quota *q, uint32_t tenant)
{
	q->working += q->tenant[tenant].peers++ == 0;
}

void quota_peer_rests(struct quota *q, uint32_t tenant)
{
	q->working -= --q->tenant[tenant].peers == 0;
}

/* Kept for the tenant whether it is active or not. */
static uint32_t share_of(const struct quota *q, enum quota_use use, uint32_t tenant)
{
	return use == QUOTA_host_bytes || use == QUOTA_blocks ? q->tenant[tenant].share : 0;
}

/* Whether the tenant has a guarantee of this now. */
static bool holds(const struct quota *q, enum quota_use use, uint32_t tenant)
{
	const struct quota_tenant *t = &q->tenant[tenant];

	switch (use) {
	case QUOTA_host_bytes:
	case QUOTA_blocks:
		return t->share == 0 && t->active > 0;
	case QUOTA_in_flight_bytes:
	case QUOTA_parts:
		return t->peers > 0;
	case QUOTA_spaces:
		return t->used[use] > 0;
	default:
		return tenant < q->n;
	}
}

/* The tenant's guarantee, as if it had one now. */
static uint64_t guarantee_of(const struct quota *q, enum quota_use use, uint32_t tenant)
{
	uint64_t holders = 0;

	if (share_of(q, use, tenant) > 0)
		return quota_guaranteed(q->all[use], share_of(q, use, tenant), 1);
	if (quota_lines[use].holder == QUOTA_CONNECTION)
		return q->guarantee[use] / q->all[QUOTA_connections] *
		       q->tenant[tenant].used[QUOTA_connections];
	for (uint32_t i = 0; i < QUOTA_TENANTS; i++)
		holders += i == tenant || (use != QUOTA_kept_bytes && holds(q, use, i));
	return q->guarantee[use] / holders;
}

uint64_t quota_of_tenant(const struct quota *q, enum quota_use use, uint32_t tenant)
{
	return share_of(q, use, tenant) > 0 || holds(q, use, tenant) ?
		       guarantee_of(q, use, tenant) :
		       0;
}

bool quota_allows(const struct quota *q, enum quota_use use, uint32_t tenant)
{
	uint64_t owed = 0;

	if (q->tenant[tenant].used[use] < quota_of_tenant(q, use, tenant))
		return true;
	for (uint32_t i = 0; i < q->n; i++)
		if (i != tenant && quota_of_tenant(q, use, i) > q->tenant[i].used[use])
			owed += quota_of_tenant(q, use, i) - q->tenant[i].used[use];
	return q->used[use] + owed < q->all[use];
}

uint64_t quota_limit(const struct quota *q, enum quota_use use, uint32_t tenant)
{
	const struct quota_line *line = &quota_lines[use];
	const uint64_t guarantee = guarantee_of(q, use, tenant), times = (uint64_t)line->times,
		       free = q->all[use] - q->used[use];
	uint64_t most;

	if (line->times == QUOTA_NONE)
		return guarantee;
	if (line->times == QUOTA_REST)
		return q->all[use];
	most = (q->tenant[tenant].used[use] + free) * times / (times + 1);
	return line->percent > 0 && guarantee < most ? guarantee : most;
}
