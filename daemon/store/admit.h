/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admit.h - which block is worth a write to NVMe while the write budget is short. Pure: no I/O,
 * clock, log, or allocation after open, so traces replay by the million
 * (tests/sim/sim_admit_trace.c). Core thread only.
 *
 * A block whose parent is neither on NVMe nor on its way there is refused: once host memory has
 * lost the parent, nobody could find the block by its chain. With no budget, or plenty of it left,
 * every other block is written. With a short budget only a block is written that was refused before
 * and came again (a second miss): most blocks that are stored are never asked for.
 */
#ifndef KVTIER_ADMIT_H
#define KVTIER_ADMIT_H

#include <stdbool.h>
#include <stdint.h>

struct admit;

enum {
	/* of the budget's reserve: from here on everything is admitted */
	ADMIT_PLENTY_PERCENT = 50,
	ADMIT_REMEMBERED = 128 << 10, /* refused keys; the oldest go */
};

int admit_open(struct admit **ret);    /* -ENOMEM */
void admit_close(struct admit *admit); /* NULL is fine */

/* To be asked once each time that a block is stored: asking again looks like the second miss.
 * budget_percent: the rest of the budget's reserve; 100: there is no budget. parent_there: the
 * block starts its chain, or its parent is on NVMe or was admitted. A key that is refused is
 * remembered by 32 bits of it, among 16 in a place: one in 2^28 refusals is taken for a second one.
 * O(1). */
bool admit_ask(struct admit *admit, const uint8_t key[32], uint32_t budget_percent,
	       bool parent_there);

#endif
