/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_evict_trace - leaf-first LRU has the hit rates it should have on a public trace.
 * Method: replay of Mooncake's conversation trace (JSONL; $KVTIER_TRACE names the file, skipped when absent)
 * against the rates that two independent simulators gave. Hits are the leading blocks of a request that are
 * present; capacity is a share of the trace's unique blocks.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/store/evict.h"
#include "tests/lib/lib_trace.h"

/* One request: counts its hits, then stores what is missing, evicting; its own chain is pinned meanwhile. */
static size_t replay_one(struct evict *evict, uint8_t *here, uint32_t *room, const uint32_t *ids, size_t n,
			 uint64_t tick)
{
	size_t hits = 0, done = 0;

	while (hits < n && here[ids[hits]])
		hits++;
	for (size_t i = 0; i < n; i++, done++) {
		if (!here[ids[i]]) {
			const uint32_t victim = *room ? EVICT_NONE : evict_victim(evict, 0);

			if (!*room && victim == EVICT_NONE)
				break;
			if (victim != EVICT_NONE) {
				(void)evict_remove(evict, victim);
				here[victim] = 0;
			} else {
				(*room)--;
			}
			evict_add(evict, ids[i], i ? ids[i - 1] : EVICT_NONE, 0, tick);
			here[ids[i]] = 1;
		}
		evict_touch(evict, ids[i], tick);
		evict_pin(evict, ids[i]);
	}
	for (size_t i = 0; i < done; i++)
		evict_unpin(evict, ids[i]);
	return hits;
}

static double replay(const struct trace *t, double share)
{
	uint32_t room = (uint32_t)(share * t->unique + 0.5);
	uint8_t *here = calloc(t->unique, 1);
	struct evict *evict;
	size_t first = 0, hits = 0;

	assert_non_null(here);
	assert_int_equal(evict_open(t->unique, 1, 1, &evict), 0);
	for (size_t r = 0; r < t->n_requests; r++) {
		hits += replay_one(evict, here, &room, t->ids + first, t->ends[r] - first, r + 1);
		first = t->ends[r];
	}
	evict_close(evict);
	free(here);
	return (double)hits / (double)t->n_ids;
}

static void has_the_reference_hit_rates(void **state)
{
	static const struct { double share, rate; } reference[] = {
		{ .01, .053 }, { .02, .079 }, { .05, .196 }, { .10, .279 }, { .20, .345 }, { 1, .366 },
	};
	const struct trace *t = *state;

	for (size_t i = 0; i < sizeof(reference) / sizeof(reference[0]); i++) {
		const double rate = replay(t, reference[i].share);

		printf("capacity %5.1f %%: hit rate %.4f, reference %.3f\n", 100 * reference[i].share, rate,
		       reference[i].rate);
		assert_true(fabs(rate - reference[i].rate) <= .003);
	}
}

int main(void)
{
	struct trace trace;

	if (!trace_read(getenv("KVTIER_TRACE"), &trace)) {
		printf("KVTIER_TRACE names no trace: skipped\n");
		return 77;
	}
	const struct CMUnitTest tests[] = { cmocka_unit_test_prestate(has_the_reference_hit_rates, &trace) };
	const int failed = cmocka_run_group_tests(tests, NULL, NULL);

	trace_free(&trace);
	return failed ? 1 : 0;
}
