/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_evict_trace - leaf-first LRU has the hit rates it should have on a public trace. Method:
 * replay of Mooncake's conversation trace (JSONL; $KVTIER_TRACE names the file, skipped when
 * absent) against the rates that two independent simulators gave. Hits are the leading blocks of a
 * request that are present; capacity is a share of the trace's unique blocks.
 */
#include <math.h>

#include "tests/lib/lib_trace.h"

TEST(has_the_reference_hit_rates)
{
	static const struct {
		double share, rate;
	} reference[] = {
		{ .01, .053 }, { .02, .079 }, { .05, .196 },
		{ .10, .279 }, { .20, .345 }, { 1, .366 },
	};
	const struct requests *t = *state;

	for (size_t i = 0; i < sizeof(reference) / sizeof(reference[0]); i++) {
		const double rate = trace_lru(t, (uint32_t)(reference[i].share * t->unique + 0.5));

		printf("capacity %5.1f %%: hit rate %.4f, reference %.3f\n",
		       100 * reference[i].share, rate, reference[i].rate);
		assert_true(fabs(rate - reference[i].rate) <= .003);
	}
}

TRACE_TEST;
