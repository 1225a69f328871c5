/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_trace.h"

#include <assert.h>
#include <json-c/json.h>

#include "daemon/table/evict.h"

static void add_request(struct trace *t, struct json_object *ids)
{
	const size_t n = json_object_array_length(ids);

	if (t->n_ids + n > t->room) {
		t->room = 2 * (t->n_ids + n);
		t->ids = realloc(t->ids, t->room * sizeof(*t->ids));
		assert(t->ids);
	}
	t->ends = realloc(t->ends, (t->n_requests + 1) * sizeof(*t->ends));
	assert(t->ends);
	for (size_t i = 0; i < n; i++) {
		const uint32_t id =
			(uint32_t)json_object_get_int(json_object_array_get_idx(ids, i));

		t->ids[t->n_ids++] = id;
		if (id >= t->unique)
			t->unique = id + 1;
	}
	t->ends[t->n_requests++] = (uint32_t)t->n_ids;
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
		struct json_object *request = json_tokener_parse(line), *ids = NULL;

		assert(json_object_object_get_ex(request, "hash_ids", &ids));
		add_request(ret, ids);
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
	free(given.ids);
	free(given.ends);
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
