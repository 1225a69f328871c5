/* SPDX-License-Identifier: Apache-2.0 */
/* lib_trace.c - reads a trace. */
#include "lib_trace.h"

#include <assert.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>

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
		const uint32_t id = (uint32_t)json_object_get_int(json_object_array_get_idx(ids, i));

		t->ids[t->n_ids++] = id;
		if (id >= t->unique)
			t->unique = id + 1;
	}
	t->ends[t->n_requests++] = (uint32_t)t->n_ids;
}

bool trace_read(const char *path, struct trace *ret)
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

void trace_free(struct trace *trace)
{
	free(trace->ids);
	free(trace->ends);
}
