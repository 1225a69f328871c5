/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hint_policy.h - the effect of a hint on one block. Pure: state in, plan out; no I/O, clock, log
 * or allocation. hints.c executes the plans; HINTS.md says the same in words.
 *
 *	action				band	last access	until	note
 *	retain, priority > 0		KEPT			ttl	bytes are kept
 *	retain, priority < 0		FIRST			ttl
 *	retain, 0			USUAL			ttl	(ttl 0: none)
 *	pin				HELD			ttl	bytes are kept
 *	demote				FIRST			-	none
 *	release, superseded, ended	USUAL	never		-	none
 *	the ttl is over			USUAL	never		-	none
 *
 * Bounds: the bytes that a tenant keeps (KEPT and HELD) are at most its share of host memory. Of
 * this share a retain of priority p may fill (50 + p / 2) %, so that the last of it is left for the
 * blocks that matter most; a pin takes all of it. All tenants together keep at most three quarters
 * of host memory. A ttl is at most max_ttl_s; a block that is kept without a ttl gets max_ttl_s.
 */
#ifndef KVTIER_HINT_POLICY_H
#define KVTIER_HINT_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "client/wire.h"
#include "evict.h"

struct hint {
	enum wire_hint_action action; /* not PREFETCH, which is no matter of policy */
	uint32_t ttl_s;
	int32_t priority;
	uint64_t session; /* 0: none */
	uint32_t turn;
	/* RETAIN by the fields of an op: it takes back nothing that others said of the block.
	 * fresh: nobody did, the op has just stored it */
	bool soft, fresh;
};

/* A block as it is. */
struct hint_block {
	bool away;    /* it has no host copy */
	bool on_nvme; /* it has a copy there */
	bool in_use;  /* pinned by ops, or by a write that is under way */
	bool noted;   /* there is a note of it, or room for one */
	enum evict_band band;
	uint32_t left_s; /* of its ttl; 0: it has none */
	uint32_t bytes;
};

struct hint_limits {
	uint64_t share_bytes; /* of a tenant */
	uint64_t all_bytes;   /* of all together */
	uint32_t max_ttl_s;
	bool nvme; /* there is such a tier, and it takes writes */
};

/* The bytes that are kept, this block not counted. */
struct hint_kept {
	uint64_t tenant_bytes, all_bytes;
};

struct hint_plan {
	enum wire_hint_answer answer;
	bool change; /* else nothing below is to be done */
	enum evict_band band;
	bool age;   /* as if it had never been used */
	bool write; /* to NVMe, if it takes it */
	uint32_t keep_bytes;
	uint32_t ttl_s; /* from now; 0: no end. With keep_bytes, it needs a note */
};

void hint_plan(const struct hint *hint, const struct hint_block *block,
	       const struct hint_limits *limits, const struct hint_kept *kept,
	       struct hint_plan *ret);

/* Of whole spaces. */
enum hint_standing {
	HINT_USUAL,
	HINT_DEMOTED, /* their blocks are the first to leave memory */
	HINT_RETIRED, /* ...and everything */
};

/* The new state of a revision. False: rejected. */
bool hint_standing(enum wire_hint_action action, enum hint_standing *ret);

#endif
