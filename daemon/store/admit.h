/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admit.h - which block is worth a write to NVMe while the write budget is short. Pure: no I/O, clock, log, or
 * allocation after open, so traces replay by the million (tests/sim/sim_admit_trace.c). Core thread only.
 *
 * With no budget, or plenty of it left, every block is, as long as its parent is on NVMe or on its way there: a
 * block whose parent is not cannot be found by its chain once the host tier has lost that. When the budget is short,
 * those are that were refused before and came again (a second miss): most of what is stored is never asked for.
 */
#ifndef KVTIER_ADMIT_H
#define KVTIER_ADMIT_H

#include <stdbool.h>
#include <stdint.h>

struct admit;

enum {
	ADMIT_PLENTY_PERCENT = 50,	/* of the budget's reserve: from here on everything is admitted */
	ADMIT_REMEMBERED = 128 << 10,	/* refused keys; the oldest go */
};

int  admit_open(struct admit **ret);	/* -ENOMEM */
void admit_close(struct admit *admit);	/* NULL is fine */

/* To be asked once each time that a block is stored: asking again is what the second miss looks like.
 * budget_percent: what is left of the budget's reserve; 100: there is no budget. parent_there: the block starts
 * its chain, or its parent is on NVMe or was admitted. A key that is refused is remembered by 32 bits of it, among
 * 16 in a place: one in 2^28 refusals is taken for a second one. O(1). */
bool admit_ask(struct admit *admit, const uint8_t key[32], uint32_t budget_percent, bool parent_there);

#endif
