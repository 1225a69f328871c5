/* SPDX-License-Identifier: Apache-2.0 */
/* hint_policy.c - see hint_policy.h. Pure functions; any thread. */
#include "hint_policy.h"

enum { PIN_PRIORITY = 100 }; /* it may take all of the share */

static bool fits(const struct hint_block *block, const struct hint_limits *limits,
		 const struct hint_kept *kept, int32_t priority)
{
	const uint64_t part = (uint64_t)(50 + priority / 2),
		       most = limits->share_bytes / 100 * part +
			      limits->share_bytes % 100 * part / 100;

	return kept->tenant_bytes + block->bytes <= most &&
	       kept->all_bytes + block->bytes <= limits->all_bytes;
}

/* The ttl as it may be; true: it was cut. */
static bool clip_ttl(uint32_t ttl_s, const struct hint_limits *limits, bool endless, uint32_t *ret)
{
	*ret = ttl_s == 0 && !endless ? limits->max_ttl_s : ttl_s;
	if (*ret <= limits->max_ttl_s)
		return false;
	*ret = limits->max_ttl_s;
	return true;
}

static void keep(const struct hint *hint, const struct hint_block *block,
		 const struct hint_limits *limits, const struct hint_kept *kept,
		 struct hint_plan *ret)
{
	const bool pin = hint->action == WIRE_HINT_PIN;

	if (!block->noted || !fits(block, limits, kept, pin ? PIN_PRIORITY : hint->priority)) {
		ret->answer = WIRE_HINT_CLIPPED;
		return;
	}
	ret->change = true;
	ret->band = pin ? EVICT_HELD : EVICT_KEPT;
	ret->keep_bytes = block->bytes;
	if (clip_ttl(hint->ttl_s, limits, false, &ret->ttl_s))
		ret->answer = WIRE_HINT_CLIPPED;
	else if (pin && block->away)
		ret->answer = WIRE_HINT_DEFERRED;
}

static void retain(const struct hint *hint, const struct hint_block *block,
		   const struct hint_limits *limits, struct hint_plan *ret)
{
	const bool clipped = clip_ttl(hint->ttl_s, limits, true, &ret->ttl_s);

	ret->change = true;
	ret->band = hint->priority < 0 && !block->away ? EVICT_FIRST : EVICT_USUAL;
	if (ret->ttl_s > 0 && !block->noted)
		ret->ttl_s = 0;
	if (clipped || (hint->ttl_s > 0 && ret->ttl_s == 0))
		ret->answer = WIRE_HINT_CLIPPED;
}

/* A block that others have said something of only rises. */
static void soften(const struct hint_block *block, struct hint_plan *ret)
{
	if (ret->band < block->band)
		ret->change = false;
	if (ret->band > block->band)
		return;
	if (block->left_s == 0)
		ret->change = false;
	else if (ret->ttl_s > 0 && ret->ttl_s < block->left_s)
		ret->ttl_s = block->left_s;
}

static void demote(const struct hint_block *block, const struct hint_limits *limits,
		   struct hint_plan *ret)
{
	if (!block->on_nvme && !limits->nvme) {
		ret->answer = WIRE_HINT_REJECTED;
		return;
	}
	ret->change = true;
	ret->band = block->away ? EVICT_USUAL : EVICT_FIRST;
	ret->write = !block->on_nvme;
	if (!block->away && (!block->on_nvme || block->in_use))
		ret->answer = WIRE_HINT_DEFERRED;
}

void hint_plan(const struct hint *hint, const struct hint_block *block,
	       const struct hint_limits *limits, const struct hint_kept *kept,
	       struct hint_plan *ret)
{
	*ret = (struct hint_plan){ .answer = WIRE_HINT_ACCEPTED, .band = EVICT_USUAL };
	switch (hint->action) {
	case WIRE_HINT_RETAIN:
		if (hint->priority > 0)
			keep(hint, block, limits, kept, ret);
		else
			retain(hint, block, limits, ret);
		if (hint->soft && !hint->fresh)
			soften(block, ret);
		return;
	case WIRE_HINT_PIN:
		keep(hint, block, limits, kept, ret);
		return;
	case WIRE_HINT_DEMOTE:
		demote(block, limits, ret);
		return;
	case WIRE_HINT_RELEASE:
	case WIRE_HINT_SUPERSEDED:
	case WIRE_HINT_ENDED:
		ret->change = true;
		ret->age = true;
		return;
	case WIRE_HINT_PREFETCH:
		break;
	}
	ret->answer = WIRE_HINT_REJECTED;
}

bool hint_standing(enum wire_hint_action action, enum hint_standing *ret)
{
	switch (action) {
	case WIRE_HINT_RETAIN:
		*ret = HINT_USUAL;
		return true;
	case WIRE_HINT_DEMOTE:
		*ret = HINT_DEMOTED;
		return true;
	case WIRE_HINT_RELEASE:
	case WIRE_HINT_SUPERSEDED:
	case WIRE_HINT_ENDED:
		*ret = HINT_RETIRED;
		return true;
	case WIRE_HINT_PIN:
	case WIRE_HINT_PREFETCH:
		break;
	}
	return false;
}
