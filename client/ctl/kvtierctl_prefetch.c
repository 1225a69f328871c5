/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_prefetch.c - see kvtierctl_prefetch.h. The list of spaces has all of a geometry that an
 * identity is made of. So a space without pages can be opened from its row.
 */
#include "kvtierctl_prefetch.h"

#include <errno.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvtier.h"
#include "client/tbl_geometry.h"
#include "daemon/base/log.h"
#include "daemon/stats/stats.h"
#include "kvtierctl.h"
#include "kvtierctl_ask.h"
#include "kvtierctl_text.h"

enum {
	PREFETCH_S = 60, /* the op's deadline: blocks that have come by then stay */
	CONNECT_MS = 5000,
	LOOK_MS = 200,
	SILENT_MS = 5000, /* the daemon is given up when its heart has not beaten for so long */
};

/* --- the request --- */

static uint64_t number(const struct context *context, const char *name, const char *text,
		       uint64_t least, uint64_t most)
{
	char *end = NULL;
	uint64_t value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno || value < least ||
	    value > most)
		usage_error(context, "%s %s: a number of %" PRIu64 " to %" PRIu64, name, text,
			    least, most);
	return value;
}

static struct kvtier_key key_of(const struct context *context, const char *hex)
{
	struct kvtier_key key = { 0 };

	if (strlen(hex) != 2 * sizeof(key.bytes) || strspn(hex, "0123456789abcdefABCDEF") != 64)
		usage_error(context, "--key %s: not the 64 hexadecimal digits of a key", hex);
	for (size_t i = 0; i < sizeof(key.bytes); i++) {
		const char digits[] = { hex[2 * i], hex[2 * i + 1], '\0' };

		key.bytes[i] = (uint8_t)strtoul(digits, NULL, 16);
	}
	return key;
}

static void hint_of(const struct context *context, const struct prefetch *p,
		    struct kvtier_key *keys, struct kvtier_hint *ret)
{
	*ret = (struct kvtier_hint){ .size = sizeof(*ret),
				     .action = KVTIER_HINT_PREFETCH,
				     .scope =
					     p->n_keys > 0 ? KVTIER_HINT_KEYS : KVTIER_HINT_SESSION,
				     .timeout_ms = PREFETCH_S * 1000,
				     .keys = p->n_keys > 0 ? keys : NULL,
				     .n = p->n_keys };
	for (size_t i = 0; i < p->n_keys; i++)
		keys[i] = key_of(context, p->key_list[i]);
	if (p->session)
		ret->session = number(context, "--session", p->session, 1, UINT64_MAX);
	if (p->turn)
		ret->turn = (uint32_t)number(context, "--turn", p->turn, 0, UINT32_MAX);
}

/* --- the space --- */

static struct json_object *member(struct json_object *row, const char *name)
{
	struct json_object *value = NULL;

	(void)json_object_object_get_ex(row, name, &value);
	return value;
}

static const char *text_at(struct json_object *row, const char *name)
{
	const char *text = json_object_get_string(member(row, name));

	return text ? text : "";
}

static struct json_object *row_of(struct json_object *root, uint64_t wanted)
{
	struct json_object *rows = member(root, "spaces");

	if (!json_object_is_type(rows, json_type_array))
		return NULL;
	for (size_t i = 0; i < json_object_array_length(rows); i++) {
		struct json_object *row = json_object_array_get_idx(rows, i);

		if (json_object_get_uint64(member(row, "number")) == wanted)
			return row;
	}
	return NULL;
}

static uint32_t dtype_of(const char *name)
{
#define DTYPE(id, text)              \
	if (strcmp(name, text) == 0) \
		return KVTIER_##id;
	GEOMETRY_DTYPES(DTYPE)
	return 0;
}

static uint32_t codec_of(const char *name)
{
#define CODEC(id, text)              \
	if (strcmp(name, text) == 0) \
		return KVTIER_CODEC_##id;
	GEOMETRY_CODECS(CODEC)
	return 0;
}

/* The strings are the row's. False: JSON did not bring all of it. With another string a space of
 * its own would be opened, and with codec 0 perhaps too. */
static bool geometry_of(struct json_object *row, struct kvtier_geometry *ret)
{
	static const char lost[] = "\xef\xbf\xbd"; /* in the place of a byte that is no text */

	*ret = (struct kvtier_geometry){ .size = sizeof(*ret),
					 .dtype = dtype_of(text_at(row, "dtype")),
					 .codec = codec_of(text_at(row, "codec")),
					 .model = text_at(row, "model"),
					 .convention = text_at(row, "convention"),
					 .extras = text_at(row, "extras"),
#define FIELD(name) .name = (uint32_t)json_object_get_uint64(member(row, #name)),
					 FIELD(layers) FIELD(kv_heads) FIELD(head_dim_k)
						 FIELD(head_dim_v) FIELD(block_tokens) FIELD(rank)
							 FIELD(world) FIELD(typed_segments)
								 FIELD(typed_values)
									 FIELD(opaque_bytes) };
	return ret->dtype && ret->codec && !strstr(ret->model, lost) &&
	       !strstr(ret->convention, lost) && !strstr(ret->extras, lost);
}

static int refuse(uint64_t space, const char *why)
{
	fprintf(stderr, "kvtierctl: space %" PRIu64 " %s\n", space, why);
	return EXIT_FAILED;
}

/* EXIT_FINE: *ret can be opened without harm. */
static int space_check(struct json_object *row, uint64_t space, const char *tenant,
		       struct kvtier_geometry *ret)
{
	const char *state = text_at(row, "state"), *of = text_at(row, "tenant");

	if (!row)
		return refuse(space, "is not there; kvtierctl spaces lists the NUMBER of each");
	if (strcmp(state, "unknown") == 0)
		return refuse(space, "is unknown: it was found on NVMe, and what its geometry is "
				     "will be known when its engine opens it; start that first");
	if (strcmp(state, "going") == 0)
		return refuse(space, "is being removed with its blocks");
	if (tenant && strcmp(tenant, of) != 0)
		return refuse(space, "is of another tenant; kvtierctl spaces has TENANT");
	if (text_at(row, "hinted")[0] != '\0')
		return refuse(space, "was demoted or retired by a hint on its model, and to open "
				     "it would end that; if that is meant, say kvtierctl hint "
				     "retain --model NAME first");
	if (!geometry_of(row, ret))
		return refuse(space, "has a model, convention, extras or codec that kvtierctl "
				     "cannot say again; let its engine prefetch");
	return EXIT_FINE;
}

/* --- the hint --- */

static int fail(const struct context *context, const char *what)
{
	char shown[1024]; /* the daemon's words may be among them */

	fprintf(stderr, "kvtierctl: %s at %s: %s; kvtierctl status says how kvtierd is\n", what,
		context->socket_path, log_escape(kvtier_last_error(), shown, sizeof(shown)));
	return EXIT_FAILED;
}

/* The daemon's heart beats in the stats page. Without that page the op's deadline is enough. */
static bool is_silent(const struct stats *stats)
{
	const uint64_t beat_ns = stats ? stats_get(&stats->heartbeat_ns) : UINT64_MAX;
	const uint64_t now_ns = clock_ns();

	return now_ns > beat_ns && now_ns - beat_ns > SILENT_MS * 1000000ull;
}

/* Until the op has ended. */
static int wait_for(const struct context *context, struct kvtier_client *client, uint64_t op,
		    struct kvtier_result *result)
{
	const uint64_t give_up_ns = clock_ns() + (PREFETCH_S * 1000 + SILENT_MS) * 1000000ull;
	struct progress progress = { .what = "hint prefetch" };
	const struct stats *stats = NULL;
	int r;

	(void)stats_map(context->stats_path, &stats);
	do {
		progress_show(&progress, 0, 0, "");
		r = kvtier_wait(client, op, LOOK_MS, result);
	} while (r == -ETIMEDOUT && clock_ns() < give_up_ns && !is_silent(stats));
	progress_end(&progress);
	stats_unmap(stats);
	if (r == 0)
		return EXIT_FINE;
	if (r != -ETIMEDOUT)
		return fail(context, "the hint has no result");
	explain_silence(context);
	return EXIT_NO_DAEMON;
}

/* The error that kept a block from an answer; 0: each block has one. */
static int32_t unanswered(const struct kvtier_result *result)
{
	for (uint32_t i = 0; i < result->n && i < result->blocks_max; i++) {
		const int32_t status = result->blocks[i];

		if (status < 0 && status != -ENOENT && status != -EPERM)
			return status;
	}
	return 0;
}

static int say(const struct context *context, struct kvtier_client *client,
	       struct kvtier_space *space, const struct kvtier_hint *hint, uint64_t *ret_answers)
{
	static int32_t blocks[KVTIER_MAX_BLOCKS];
	struct kvtier_result result = { .size = sizeof(result),
					.blocks = blocks,
					.blocks_max = KVTIER_MAX_BLOCKS };
	int32_t status;
	uint64_t op;
	int r;

	if (kvtier_hint(space, hint, &op) < 0)
		return fail(context, "the hint was not taken");
	r = wait_for(context, client, op, &result);
	if (r != EXIT_FINE)
		return r;
	for (int i = 0; i < 5; i++)
		ret_answers[i] = result.answers[i];
	status = unanswered(&result);
	if (status == 0)
		return EXIT_FINE;
	if (status == -ETIMEDOUT) {
		fprintf(stderr,
			"kvtierctl: not all of the blocks came within %d s; those that came stay: "
			"say it again to go on\n",
			PREFETCH_S);
		return EXIT_FAILED;
	}
	fprintf(stderr, "kvtierctl: kvtierd ended it: %s; kvtierctl status says more\n",
		strerror(status > INT32_MIN ? -status : 0));
	return status == -ECONNRESET ? EXIT_NO_DAEMON : EXIT_FAILED;
}

/* As a client without pages. */
static int open_and_say(const struct context *context, const struct kvtier_geometry *geometry,
			const struct kvtier_hint *hint, uint64_t *ret_answers)
{
	const struct kvtier_options options = { .size = sizeof(options),
						.timeout_ms = CONNECT_MS,
						.socket_path = context->socket_path,
						.name = "kvtierctl" };
	struct kvtier_client *client = NULL;
	struct kvtier_space *space = NULL;
	int r;

	if (kvtier_connect(&options, &client) < 0)
		return fail(context, "cannot connect as a client");
	if (kvtier_space_open(client, geometry, NULL, 0, NULL, 0, &space) < 0)
		r = fail(context, "cannot open the space");
	else
		r = say(context, client, space, hint, ret_answers);
	kvtier_close(client);
	return r;
}

int prefetch_say(const struct context *context, const struct prefetch *p, uint64_t ret_answers[5])
{
	static struct kvtier_key keys[KVTIER_MAX_BLOCKS];
	const uint64_t number_of_space = number(context, "--space", p->space, 0, UINT32_MAX);
	const char *const words[] = { "spaces" };
	struct kvtier_geometry geometry;
	struct json_object *root;
	struct kvtier_hint hint;
	struct reply reply;
	int r;

	hint_of(context, p, keys, &hint);
	r = ask(context, 1, words, &reply);
	if (r == EXIT_FINE) {
		root = json_tokener_parse(reply.text);
		r = space_check(row_of(root, number_of_space), number_of_space, p->tenant,
				&geometry);
		if (r == EXIT_FINE)
			r = open_and_say(context, &geometry, &hint, ret_answers);
		json_object_put(root);
	}
	free(reply.text);
	return r;
}
