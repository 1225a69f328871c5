/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_reuse_trace - the miss-ratio curve that is sampled agrees with a simulation of all keys of
 * a public trace. Method: as sim_reuse.c, with the trace of $KVTIER_TRACE (JSONL; skipped when
 * absent) and rooms of 1, 3 and 10 % of its unique blocks.
 */
#include "tests/lib/lib_trace.h"

TEST(the_sample_agrees_with_the_simulation)
{
	const struct requests *t = *state;

	trace_assert_sampled(t, t->unique / 100);
	trace_assert_sampled(t, 3 * t->unique / 100);
	trace_assert_sampled(t, t->unique / 10);
}

TRACE_TEST;
