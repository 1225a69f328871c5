/* SPDX-License-Identifier: Apache-2.0 */
/*
 * form_trial.h - which spaces' images are coded (kernels/form.h) on their way to a medium: those of
 * which enough is saved. Every hour, and at first, a space has a trial of FORM_TRIAL_BLOCKS blocks;
 * by what they save together it is coded or left as it is until the next.
 *
 *	trial ──64 blocks, >= 6 % saved──> coded ──an hour──> trial
 *	  └────────── less ──────────────> as it is ──an hour──┘
 *
 * Pure policy over time that is passed in; one thread at a time.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
	FORM_TRIAL_BLOCKS = 64,
	FORM_TRIAL_PERCENT = 6,
	/* another takes the place of the one that was asked about the longest ago */
	FORM_TRIAL_SPACES = 64,
};
#define FORM_TRIAL_AGAIN_NS (3600 * 1000000000ull)

struct form_trial {
	uint8_t space_id[32];
	uint64_t plain, coded; /* bytes, of the trial so far */
	uint32_t blocks;       /* of it; FORM_TRIAL_BLOCKS: it is over */
	bool worth;            /* by the last one */
	uint64_t ended_ns;     /* of the last one */
	uint64_t asked_ns;     /* 0: free */
};

/* Zeroed: no space is known. */
struct form_trials {
	struct form_trial of[FORM_TRIAL_SPACES];
};

/* Whether a block of this space is to be coded now. now_ns > 0 */
bool form_trial_asks(struct form_trials *t, const uint8_t space_id[32], uint64_t now_ns);
/* It was, from so many bytes to so many: as many where it was not worth it. */
void form_trial_learns(struct form_trials *t, const uint8_t space_id[32], uint64_t plain,
		       uint64_t coded, uint64_t now_ns);
