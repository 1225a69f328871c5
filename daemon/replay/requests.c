/* SPDX-License-Identifier: Apache-2.0 */
/* requests.c - reads a file of requests. Contract: requests.h. */
#include "requests.h"

#include <errno.h>
#include <json-c/json.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

enum {
	MOST_BLOCKS = 1 << 28, /* unique ones: 1 GiB for each policy */
	MOST_OF_ONE = 1 << 20, /* ids of a request */
	MOST_TOKENS = 1 << 16, /* of a block */
};
static const double MOST_MS = 1e11; /* three years */

/* --- numbers of the file become numbers from 0 --- */

struct ids {
	struct {
		int64_t id;
		uint32_t number; /* + 1; 0: free */
	} * slots;
	size_t room; /* a power of two */
	uint32_t n;
};

static size_t slot_of(const struct ids *ids, int64_t id)
{
	uint64_t hash = (uint64_t)id * 0x9e3779b97f4a7c15u;
	size_t at = (size_t)(hash ^ hash >> 32) & (ids->room - 1);

	while (ids->slots[at].number != 0 && ids->slots[at].id != id)
		at = (at + 1) & (ids->room - 1);
	return at;
}

static int grow(struct ids *ids)
{
	const struct ids old = *ids;

	ids->room = old.room ? old.room * 2 : 1024;
	ids->slots = calloc(ids->room, sizeof(*ids->slots));
	if (!ids->slots) {
		*ids = old;
		return -ENOMEM;
	}
	for (size_t i = 0; i < old.room; i++)
		if (old.slots[i].number != 0)
			ids->slots[slot_of(ids, old.slots[i].id)] = old.slots[i];
	free(old.slots);
	return 0;
}

/* The number of an id, which is a new one where it was not seen before. */
static int number(struct ids **ids, int64_t id, uint32_t *ret)
{
	size_t at;

	if (!*ids)
		*ids = calloc(1, sizeof(**ids));
	if (!*ids || ((*ids)->n >= (*ids)->room / 2 && grow(*ids)))
		return -ENOMEM;
	at = slot_of(*ids, id);
	if ((*ids)->slots[at].number == 0) {
		(*ids)->slots[at].id = id;
		(*ids)->slots[at].number = ++(*ids)->n;
	}
	*ret = (*ids)->slots[at].number - 1;
	return 0;
}

static void ids_free(struct ids *ids)
{
	if (ids)
		free(ids->slots);
	free(ids);
}

/* --- a line --- */

/* Room for n more of these. */
static bool room_for(void *array, size_t *room, size_t used, size_t n, size_t bytes)
{
	void **at = array;
	size_t want = used + n > *room ? (used + n) * 2 : *room;
	void *larger = want > *room ? realloc(*at, want * bytes) : *at;

	if (!larger)
		return false;
	*at = larger;
	*room = want;
	return true;
}

/* The time of the request that is added next. */
static int time_of(struct requests *r, struct json_object *timestamp, bool session)
{
	const double ms = timestamp ? json_object_get_double(timestamp) : 0;
	const uint64_t least = r->n_requests ? r->times[r->n_requests - 1].at + 1 : 1;
	uint64_t at;

	if (!room_for(&r->times, &r->times_room, r->n_requests, 1, sizeof(*r->times)))
		return -ENOMEM;
	at = ms > 0 && ms < MOST_MS ? (uint64_t)(ms * 1000) : 0;
	r->times[r->n_requests] = (struct request_times){ .at = at > least ? at : least };
	r->timed_sessions = (r->n_requests == 0 || r->timed_sessions) && timestamp && session;
	return 0;
}

/* The first ids of a session's request are those of its request before. *ret: where that begins. */
static int kept_of(struct requests *r, int64_t session, int64_t keep, size_t *ret, char *text,
		   size_t n)
{
	uint32_t at;
	const uint32_t before = r->sessions ? r->sessions->n : 0;
	size_t request, first;

	if (number(&r->sessions, session, &at))
		return -ENOMEM;
	if (r->sessions->n > before) {
		size_t *larger = realloc(r->latest, r->sessions->n * sizeof(*larger));

		if (!larger)
			return -ENOMEM;
		r->latest = larger;
		r->latest[at] = 0;
	}
	request = r->latest[at];
	first = request > 1 ? r->ends[request - 2] : 0;
	if (keep < 0 || (uint64_t)keep > (request > 0 ? r->ends[request - 1] - first : 0))
		return text_fail(text, n, -EINVAL,
				 "\"keep\" is %lld: the session's request before has %zu blocks",
				 (long long)keep, request > 0 ? r->ends[request - 1] - first : 0);
	if (request > 0)
		r->times[request - 1].next = r->times[r->n_requests].at;
	r->times[r->n_requests].session = at + 1;
	r->latest[at] = r->n_requests + 1;
	*ret = first;
	return 0;
}

/* A request as long as any before it says best how many tokens a block has: its last block may be
 * short. Blocks have a power of two of them. */
static void learn_tokens(struct requests *r, int64_t tokens, size_t blocks)
{
	if (blocks <= r->longest || tokens <= 0 || tokens / MOST_TOKENS > (int64_t)blocks)
		return;
	r->longest = blocks;
	r->block_tokens = 1;
	while ((int64_t)(r->block_tokens * blocks) < tokens)
		r->block_tokens *= 2;
}

static int add(struct requests *r, struct json_object *ids, size_t kept, size_t from, char *text,
	       size_t n)
{
	const size_t some = json_object_array_length(ids);

	if (some + kept > MOST_OF_ONE)
		return text_fail(text, n, -EINVAL, "\"hash_ids\": at most %d", MOST_OF_ONE);
	if (!room_for(&r->ids, &r->ids_room, r->n_ids, some + kept, sizeof(*r->ids)) ||
	    !room_for(&r->ends, &r->ends_room, r->n_requests, 1, sizeof(*r->ends)))
		return -ENOMEM;
	memmove(r->ids + r->n_ids, r->ids + from, kept * sizeof(*r->ids));
	for (size_t i = 0; i < some; i++) {
		struct json_object *id = json_object_array_get_idx(ids, i);

		if (!json_object_is_type(id, json_type_int))
			return text_fail(text, n, -EINVAL, "\"hash_ids\" has what is no number");
		if (number(&r->numbers, json_object_get_int64(id), &r->ids[r->n_ids + kept + i]))
			return -ENOMEM;
		if (r->numbers->n > MOST_BLOCKS)
			return text_fail(text, n, -EINVAL, "more than %d different blocks",
					 MOST_BLOCKS);
	}
	r->unique = r->numbers ? r->numbers->n : 0;
	r->n_ids += kept + some;
	r->ends[r->n_requests++] = r->n_ids;
	return 0;
}

int requests_add_line(struct requests *r, const char *line, char *text, size_t n)
{
	struct json_object *root = json_tokener_parse(line), *ids = NULL, *session = NULL,
			   *keep = NULL, *length = NULL, *timestamp = NULL;
	size_t from = 0;
	int result = 0;

	if (!json_object_object_get_ex(root, "hash_ids", &ids) ||
	    !json_object_is_type(ids, json_type_array))
		result = text_fail(text, n, -EINVAL, "no JSON object with a list \"hash_ids\"");
	(void)json_object_object_get_ex(root, "keep", &keep);
	(void)json_object_object_get_ex(root, "session", &session);
	(void)json_object_object_get_ex(root, "timestamp", &timestamp);
	if (result == 0)
		result = time_of(r, timestamp, session != NULL);
	if (result == 0 && session)
		result = kept_of(r, json_object_get_int64(session), json_object_get_int64(keep),
				 &from, text, n);
	else if (result == 0 && keep)
		result = text_fail(text, n, -EINVAL, "\"keep\" without \"session\"");
	if (result == 0)
		result = add(r, ids, (size_t)json_object_get_int64(keep), from, text, n);
	if (result == 0 && json_object_object_get_ex(root, "input_length", &length))
		learn_tokens(r, json_object_get_int64(length), json_object_array_length(ids));
	json_object_put(root);
	return result;
}

int requests_read(struct requests *r, FILE *in, void (*told)(void *arg, uint64_t bytes), void *arg,
		  char *text, size_t n)
{
	char *line = NULL, why[256] = "";
	size_t room = 0, lines = 0;
	uint64_t bytes = 0;
	ssize_t length;
	int result = 0;

	while (result == 0 && (length = getline(&line, &room, in)) > 0) {
		lines++;
		bytes += (uint64_t)length;
		if (line[strspn(line, " \t\r\n")] != '\0')
			result = requests_add_line(r, line, why, sizeof(why));
		if (told && lines % 256 == 0)
			told(arg, bytes);
	}
	if (result == 0 && ferror(in))
		result = text_fail(text, n, -EIO, "it cannot be read");
	else if (result == -ENOMEM)
		text_fail(text, n, 0, "out of memory at line %zu", lines);
	else if (result)
		text_fail(text, n, 0, "line %zu: %s", lines, why);
	else if (r->n_ids == 0)
		result = text_fail(text, n, -EINVAL, "it has no request with blocks");
	free(line);
	return result;
}

void requests_free(struct requests *r)
{
	ids_free(r->numbers);
	ids_free(r->sessions);
	free(r->latest);
	free(r->ids);
	free(r->ends);
	free(r->times);
	*r = (struct requests){ 0 };
}
