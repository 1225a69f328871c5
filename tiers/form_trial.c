/* SPDX-License-Identifier: Apache-2.0 */
/*
 * form_trial.c - which spaces' images are coded. Contract: form_trial.h.
 */
#include "form_trial.h"

#include <string.h>

static struct form_trial *find(struct form_trials *t, const uint8_t space_id[32])
{
	for (uint32_t i = 0; i < FORM_TRIAL_SPACES; i++)
		if (t->of[i].asked_ns && memcmp(t->of[i].space_id, space_id, 32) == 0)
			return &t->of[i];
	return NULL;
}

static struct form_trial *begin(struct form_trials *t, const uint8_t space_id[32])
{
	struct form_trial *oldest = &t->of[0];

	for (uint32_t i = 1; i < FORM_TRIAL_SPACES; i++)
		if (t->of[i].asked_ns < oldest->asked_ns)
			oldest = &t->of[i];
	*oldest = (struct form_trial){ 0 };
	memcpy(oldest->space_id, space_id, sizeof(oldest->space_id));
	return oldest;
}

bool form_trial_asks(struct form_trials *t, const uint8_t space_id[32], uint64_t now_ns)
{
	struct form_trial *space = find(t, space_id);

	if (!space)
		space = begin(t, space_id);
	space->asked_ns = now_ns;
	if (space->blocks < FORM_TRIAL_BLOCKS)
		return true;
	if (now_ns - space->ended_ns >= FORM_TRIAL_AGAIN_NS) {
		space->blocks = 0;
		space->plain = space->coded = 0;
		return true;
	}
	return space->worth;
}

void form_trial_learns(struct form_trials *t, const uint8_t space_id[32], uint64_t plain,
		       uint64_t coded, uint64_t now_ns)
{
	struct form_trial *space = find(t, space_id);

	if (!space || space->blocks == FORM_TRIAL_BLOCKS)
		return;
	space->plain += plain;
	space->coded += coded;
	if (++space->blocks < FORM_TRIAL_BLOCKS)
		return;
	space->ended_ns = now_ns;
	space->worth = (space->plain - space->coded) * 100 >= space->plain * FORM_TRIAL_PERCENT;
}
