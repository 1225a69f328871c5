/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault.h - a tier around another one that fails on purpose. For tests; per instance, no globals.
 *
 * The wrapper answers to the name and id of the wrapped tier, so the core cannot tell the
 * difference, and the host_*() functions see through it. Countdowns count calls from 1; 0 = never.
 */
#pragma once

#include "tiers/tier.h"

enum { FAULT_MAX_XFERS = 64 }; /* lent at once; one more is -EAGAIN */

struct fault_plan {
	uint32_t alloc_nth;  /* this alloc, and with `sticky` every later one, ... */
	int alloc_errno;     /* ... answers this, e.g. -ENOSPC */
	uint32_t submit_nth; /* likewise the xfers: refused at submit, ... */
	int submit_errno;
	uint32_t done_nth; /* ... or completed with this after the inner tier did its part */
	int done_errno;
	bool sticky;
	bool hold; /* completions wait for fault_release() */
	bool deaf; /* cancel is not passed on */
};

/* Owns `inner` from here on (tier_close() closes both). -ENOMEM: inner stays the caller's. */
int fault_wrap(struct tier *inner, struct tier **ret);
void fault_set(struct tier *t, const struct fault_plan *plan); /* countdowns start anew */
/* Completes up to max held xfers, oldest first; returns how many. */
uint32_t fault_release(struct tier *t, uint32_t max);
