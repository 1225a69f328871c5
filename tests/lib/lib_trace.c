/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_trace.h"

#include <assert.h>
#include <math.h>

#include "daemon/policy/reuse.h"
#include "daemon/replay/replay.h"

void trace_add(struct requests *t, const uint32_t *ids, size_t n)
{
	if (t->n_ids + n > t->ids_room) {
		t->ids_room = 2 * (t->n_ids + n);
		t->ids = realloc(t->ids, t->ids_room * sizeof(*t->ids));
		assert(t->ids);
	}
	if (t->n_requests == t->ends_room) { /* AddressSanitizer copies at each call */
		t->ends_room = 2 * (t->n_requests + 1);
		t->ends = realloc(t->ends, t->ends_room * sizeof(*t->ends));
		assert(t->ends);
	}
	for (size_t i = 0; i < n; i++) {
		t->ids[t->n_ids++] = ids[i];
		if (ids[i] >= t->unique)
			t->unique = ids[i] + 1;
	}
	t->ends[t->n_requests++] = t->n_ids;
}

static struct requests given;

void trace_needed(void)
{
	const char *path = getenv("KVTIER_TRACE");
	FILE *in = path ? fopen(path, "re") : NULL;
	char why[256];

	if (!in) {
		printf("KVTIER_TRACE names no trace: skipped\n");
		exit(77);
	}
	if (requests_read(&given, in, NULL, NULL, why, sizeof(why))) {
		printf("%s: %s\n", path, why);
		exit(1);
	}
	(void)fclose(in);
}

int trace_begin(void **state)
{
	*state = &given;
	return 0;
}

int trace_end(TEST_UNUSED void **state)
{
	requests_free(&given);
	return 0;
}

double trace_lru(const struct requests *t, uint32_t room)
{
	uint64_t hits;

	assert_int_equal(replay_ours(t, room, false, NULL, &hits), 0);
	return (double)hits / (double)t->n_ids;
}

/* --- the sample --- */

static const double factors[] = { .5, 1, 2, 4 };
enum { FACTORS = sizeof(factors) / sizeof(factors[0]), DRAWS = 20 };

static bool trace_key(void *arg, uint32_t at, uint8_t ret[32])
{
	random_key(((const uint32_t *)arg)[at], ret);
	return true;
}

/* What the sample says for each of the factors. */
static void sampled_rates(const struct requests *t, uint32_t room, uint64_t seed, double *ret)
{
	enum { BYTES = 12345 };
	static struct histogram unused;
	const struct reuse_times times = { &unused, &unused, &unused };
	uint8_t *seen = calloc(t->unique, 1);
	struct reuse *reuse;

	assert_non_null(seen);
	assert_int_equal(reuse_open(seed, &times, 0, &reuse), 0);
	reuse_tick(reuse, (uint64_t)room * BYTES);
	for (size_t r = 0, first = 0; r < t->n_requests; r++) {
		size_t there = first;

		/* the blocks that were there once are loaded, and the others stored: two ops */
		while (there < t->ends[r] && seen[t->ids[there]])
			there++;
		reuse_chain(reuse, (uint32_t)(there - first), BYTES, trace_key, t->ids + first);
		reuse_chain(reuse, (uint32_t)(t->ends[r] - there), BYTES, trace_key,
			    t->ids + there);
		for (size_t i = there; i < t->ends[r]; i++)
			seen[t->ids[i]] = 1;
		first = t->ends[r];
	}
	for (size_t i = 0; i < FACTORS; i++)
		ret[i] = 1 - reuse_miss_ppm(reuse, (uint64_t)(factors[i] * room * BYTES)) / 1e6;
	reuse_close(reuse);
	free(seen);
}

void trace_assert_sampled(const struct requests *t, uint32_t room)
{
	double said[DRAWS][FACTORS];

	for (uint64_t i = 0; i < DRAWS; i++)
		sampled_rates(t, room, i, said[i]);
	for (size_t i = 0; i < FACTORS; i++) {
		const double lru = trace_lru(t, (uint32_t)(factors[i] * room));
		double squares = 0, most = 0;

		for (size_t k = 0; k < DRAWS; k++) {
			const double off = fabs(said[k][i] - lru);

			squares += off * off;
			most = off > most ? off : most;
		}
		printf("%5u blocks, %.1f times: hit rate %.4f, %d samples are off by %.4f (rms), "
		       "at most %.4f\n",
		       room, factors[i], lru, DRAWS, sqrt(squares / DRAWS), most);
		assert_true(most <= .02);
	}
}
