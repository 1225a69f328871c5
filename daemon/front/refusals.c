/* SPDX-License-Identifier: Apache-2.0 */
/* refusals.c - see refusals.h. The rows are in order, the last one first. */
#include "refusals.h"

#include <stdio.h>
#include <string.h>

void refusals_add(struct refusals *all, const struct refusal *refusal)
{
	uint32_t times = 1, at = 0;

	while (at < REFUSALS - 1 && all->rows[at].at_ns != 0 &&
	       !(all->rows[at].pid == refusal->pid && all->rows[at].uid == refusal->uid))
		at++;
	if (all->rows[at].at_ns != 0 && all->rows[at].pid == refusal->pid &&
	    all->rows[at].uid == refusal->uid)
		times += all->rows[at].times;
	memmove(&all->rows[1], &all->rows[0], at * sizeof(all->rows[0]));
	all->rows[0] = *refusal;
	all->rows[0].times = times;
}

const struct refusal *refusals_at(const struct refusals *all, uint32_t i, uint64_t now_ns)
{
	if (i >= REFUSALS || all->rows[i].at_ns == 0 ||
	    now_ns - all->rows[i].at_ns >= REFUSALS_KEPT_NS)
		return NULL;
	return &all->rows[i];
}

void refusals_text(const struct refusals *all, uint64_t now_ns, char *ret, size_t n)
{
	const struct refusal *last = refusals_at(all, 0, now_ns);
	uint32_t processes = 0;

	ret[0] = '\0';
	if (!last)
		return;
	while (refusals_at(all, processes, now_ns))
		processes++;
	snprintf(ret, n, "%u processes in ten minutes; the last: pid %ld, user %u%s%.31s: %.150s",
		 processes, (long)last->pid, (unsigned)last->uid, last->name[0] ? ", " : "",
		 last->name, last->why);
}
