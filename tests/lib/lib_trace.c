/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_trace.h"

#include <assert.h>
#include <json-c/json.h>
#include <math.h>

#include "daemon/policy/reuse.h"
#include "daemon/table/evict.h"

void trace_add(struct trace *t, const uint32_t *ids, size_t n)
{
	if (t->n_ids + n > t->room) {
		t->room = 2 * (t->n_ids + n);
		t->ids = realloc(t->ids, t->room * sizeof(*t->ids));
		assert(t->ids);
	}
	t->ends = realloc(t->ends, (t->n_requests + 1) * sizeof(*t->ends));
	assert(t->ends);
	for (size_t i = 0; i < n; i++) {
		t->ids[t->n_ids++] = ids[i];
		if (ids[i] >= t->unique)
			t->unique = ids[i] + 1;
	}
	t->ends[t->n_requests++] = (uint32_t)t->n_ids;
}

void trace_free(struct trace *t)
{
	free(t->ids);
	free(t->ends);
}

enum { MAX_IDS = 1 << 14, MAX_SESSIONS = 1 << 10 };

/* A request of a session may leave out the ids that it shares with the session's request before it:
 * "keep" says how many these are. */
static void add_request(struct trace *t, struct json_object *request)
{
	static uint32_t before[MAX_SESSIONS][MAX_IDS];
	struct json_object *ids, *session = NULL, *keep = NULL;
	size_t n, kept = 0;
	uint32_t *to;

	assert(json_object_object_get_ex(request, "hash_ids", &ids));
	(void)json_object_object_get_ex(request, "session", &session);
	if (json_object_object_get_ex(request, "keep", &keep))
		kept = (size_t)json_object_get_int(keep);
	to = before[json_object_get_int(session) % MAX_SESSIONS];
	n = json_object_array_length(ids);
	assert(kept + n <= MAX_IDS);
	for (size_t i = 0; i < n; i++)
		to[kept + i] = (uint32_t)json_object_get_int(json_object_array_get_idx(ids, i));
	trace_add(t, to, kept + n);
}

static bool trace_read(const char *path, struct trace *ret)
{
	FILE *file = path ? fopen(path, "re") : NULL;
	char *line = NULL;
	size_t room = 0;

	if (!file)
		return false;
	*ret = (struct trace){ 0 };
	while (getline(&line, &room, file) > 0) {
		struct json_object *request = json_tokener_parse(line);

		add_request(ret, request);
		json_object_put(request);
	}
	free(line);
	(void)fclose(file);
	return true;
}

static struct trace given;

void trace_needed(void)
{
	if (trace_read(getenv("KVTIER_TRACE"), &given))
		return;
	printf("KVTIER_TRACE names no trace: skipped\n");
	exit(77);
}

int trace_begin(void **state)
{
	*state = &given;
	return 0;
}

int trace_end(TEST_UNUSED void **state)
{
	trace_free(&given);
	return 0;
}

/* --- leaf-first LRU --- */

/* One request: counts its hits, then stores missing blocks, evicting; its own chain is pinned
 * meanwhile. */
static size_t replay_one(struct evict *evict, uint8_t *here, uint32_t *room, const uint32_t *ids,
			 size_t n, uint64_t tick)
{
	size_t hits = 0, done = 0;

	while (hits < n && here[ids[hits]])
		hits++;
	for (size_t i = 0; i < n; i++, done++) {
		if (!here[ids[i]]) {
			const uint32_t victim =
				*room ? EVICT_NONE : evict_victim(evict, 0, 0, EVICT_USUAL);

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

double trace_lru(const struct trace *t, uint32_t room)
{
	uint8_t *here = calloc(t->unique, 1);
	struct evict *evict;
	size_t first = 0, hits = 0;

	assert_non_null(here);
	assert_int_equal(evict_open(t->unique, 1, NULL, 1, &evict), 0);
	for (size_t r = 0; r < t->n_requests; r++) {
		hits += replay_one(evict, here, &room, t->ids + first, t->ends[r] - first, r + 1);
		first = t->ends[r];
	}
	evict_close(evict);
	free(here);
	return (double)hits / (double)t->n_ids;
}

/* --- the sample --- */

static const double factors[] = { .5, 1, 2, 4 };
enum { FACTORS = sizeof(factors) / sizeof(factors[0]), DRAWS = 5 };

static bool trace_key(void *arg, uint32_t at, uint8_t ret[32])
{
	random_key(((const uint32_t *)arg)[at], ret);
	return true;
}

/* What the sample says for each of the factors. */
static void sampled_rates(const struct trace *t, uint32_t room, uint64_t seed, double *ret)
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
	printf("seed %llu: %u keys, one of %llu\n", (unsigned long long)seed, reuse_samples(reuse),
	       (unsigned long long)reuse_scale(reuse));
	reuse_close(reuse);
	free(seen);
}

void trace_assert_sampled(const struct trace *t, uint32_t room)
{
	double said[DRAWS][FACTORS];

	for (uint64_t i = 0; i < DRAWS; i++)
		sampled_rates(t, room, i, said[i]);
	for (size_t i = 0; i < FACTORS; i++) {
		const double lru = trace_lru(t, (uint32_t)(factors[i] * room));
		double sum = 0, most = 0;

		for (size_t k = 0; k < DRAWS; k++) {
			const double off = fabs(said[k][i] - lru);

			sum += off;
			most = off > most ? off : most;
		}
		printf("%5u blocks, %.1f times: hit rate %.4f, the sample is off by %.4f, at most "
		       "%.4f\n",
		       room, factors[i], lru, sum / DRAWS, most);
		assert_true(sum / DRAWS <= .02);
	}
}
