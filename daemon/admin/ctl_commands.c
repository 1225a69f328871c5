/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_commands.c - the admin commands. Core thread only; see ctl_commands.h.
 *
 * Lists are sent while they change: a row is as it was when its packet was made, and one that came or went in
 * between may be missed. Nothing here blocks or allocates.
 */
#include "ctl_commands.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/front/conn.h"
#include "daemon/base/log.h"

enum {
	ROW_TURN = 128,    /* rows looked at in one turn */
	EVICT_STEPS = 256, /* blocks evicted in one turn: some 50 us */
	EVICT_MS = 3000,   /* then the reply says it is not complete, well before the asker gives up */
};

enum ctl_progress ctl_list(struct kvtierd *d, struct ctl_request *request, struct json *json, const char *name,
			   ctl_row_fn *row)
{
	bool end = false;

	if (request->position == 0)
		json_print(json, "{\"%s\":[", name);
	for (int i = 0; i < ROW_TURN; i++) {
		const size_t before = json->used;
		bool wrote;

		if (request->rows > 0)
			json_print(json, ",\n");
		wrote = row(d, request->position, json, &end);
		if (json->full) { /* belongs into the next packet */
			json_rewind(json, before);
			return CTL_MORE;
		}
		if (wrote)
			request->rows++;
		else
			json_rewind(json, before);
		if (end)
			break;
		request->position++;
	}
	if (!end)
		return json->used > 0 ? CTL_MORE : CTL_LATER;
	json_print(json, "]}\n");
	if (!json->full)
		return CTL_LAST;
	json_rewind(json, json->used);
	return CTL_MORE;
}

int ctl_no_arguments(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	(void)d;
	if (request->n_words == 1)
		return 0;
	snprintf(sentence, n, "%s takes no arguments", request->command->name);
	return -EINVAL;
}

static const char *path_name(const struct conn_row *row)
{
	if (row->shared && row->staged)
		return "shared+staged";
	return row->shared ? "shared" : row->staged ? "staged" : "none";
}

static bool client_row(struct kvtierd *d, uint32_t position, struct json *json, bool *ret_end)
{
	struct conn_row row;

	*ret_end = d->server == NULL || !server_row(d->server, position, &row);
	if (*ret_end)
		return false;
	json_print(json, "{\"id\":%" PRIu32 ",\"pid\":%d,\"uid\":%u,\"name\":", row.id, (int)row.pid,
		   (unsigned)row.uid);
	json_string(json, row.name);
	json_print(json, ",\"tenant\":");
	json_string(json, row.tenant);
	json_print(json,
		   ",\"state\":\"%s\",\"path\":\"%s\",\"spaces\":%" PRIu32 ",\"regions\":%" PRIu32 ",\"region_bytes\":%" PRIu64
		   ",\"ops\":%" PRIu32 ",\"pages\":%" PRIu64 ",\"stored_blocks\":%" PRIu64 ",\"loaded_blocks\":%" PRIu64
		   ",\"missed_blocks\":%" PRIu64 ",\"sparse_blocks\":%" PRIu64 ",\"age_s\":%" PRIu64 "}",
		   row.ending ? "ending" : "open", path_name(&row), row.spaces, row.regions, row.region_bytes, row.ops,
		   row.pages, row.stored_blocks, row.loaded_blocks, row.missed_blocks, row.sparse_blocks,
		   row.age_ns / 1000000000u);
	return true;
}

static int clients_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	return ctl_no_arguments(d, request, sentence, n);
}

static enum ctl_progress clients_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	return ctl_list(d, request, json, "clients", client_row);
}

static const char *name_of(const char *const *names, size_t n, uint32_t value)
{
	return value < n && names[value] != NULL ? names[value] : "unknown";
}

static const char *dtype_name(uint32_t dtype)
{
	static const char *const names[] = {
		[DTYPE_BF16] = "bf16", [DTYPE_FP16] = "fp16", [DTYPE_FP32] = "fp32",
		[DTYPE_E4M3] = "e4m3", [DTYPE_E5M2] = "e5m2", [DTYPE_INT8] = "int8",
	};

	return name_of(names, sizeof(names) / sizeof(names[0]), dtype);
}

static const char *codec_name(uint32_t codec)
{
	static const char *const names[] = {
		[CODEC_RAW] = "raw",
		[CODEC_FP8] = "fp8",
		[CODEC_FP8_NATIVE] = "fp8-native",
		[CODEC_LOSSLESS] = "lossless",
	};

	return name_of(names, sizeof(names) / sizeof(names[0]), codec);
}

static void space_identity(const struct space *space, struct json *json)
{
	json_print(json, "{\"number\":%" PRIu32 ",\"known\":%s,\"id\":\"", space->number,
		   space->known ? "true" : "false");
	for (size_t i = 0; i < sizeof(space->id); i++)
		json_print(json, "%02x", space->id[i]);
	json_print(json, "\",\"tenant\":");
	json_string(json, space->tenant);
	json_print(json, ",\"model\":");
	json_string(json, space->wire.model);
	json_print(json, ",\"convention\":");
	json_string(json, space->wire.convention);
	json_print(json, ",\"extras\":");
	json_string(json, space->wire.extras);
}

/* Image bytes in both tiers count once. idle_s: since it was closed, absent while it is open or was not opened yet. */
static void space_use(const struct kvtierd *d, const struct space *space, struct json *json)
{
	const char *state = space->going ? "going" : space->opened ? "open" : space->known ? "idle" : "unknown";
	uint64_t bytes = 0;

	for (uint32_t variant = 0; variant < 2 && d->blocks; variant++)
		bytes += (uint64_t)blocks_space_variant_count(d->blocks, space->number, variant) *
			 space->variant_bytes[variant];
	json_print(json, ",\"state\":\"%s\",\"bytes\":%" PRIu64, state, bytes);
	if (space->idle_ns)
		json_print(json, ",\"idle_s\":%" PRIu64, (loop_now(d->loop) - space->idle_ns) / 1000000000u);
}

static bool space_row(struct kvtierd *d, uint32_t position, struct json *json, bool *ret_end)
{
	const struct space *space;
	uint32_t blocks;

	*ret_end = d->spaces == NULL || position >= spaces_numbers(d->spaces);
	if (*ret_end)
		return false;
	space = space_at(d->spaces, position);
	if (space == NULL)
		return false;
	blocks = d->blocks == NULL ? 0 : blocks_space_count(d->blocks, position);
	space_identity(space, json);
	space_use(d, space, json);
	json_print(json,
		   ",\"dtype\":\"%s\",\"codec\":\"%s\",\"layers\":%" PRIu32 ",\"kv_heads\":%" PRIu32
		   ",\"head_dim_k\":%" PRIu32 ",\"head_dim_v\":%" PRIu32 ",\"block_tokens\":%" PRIu32
		   ",\"rank\":%" PRIu32 ",\"world\":%" PRIu32 ",\"typed_segments\":%" PRIu32
		   ",\"typed_values\":%" PRIu32 ",\"opaque_bytes\":%" PRIu32,
		   dtype_name(space->geometry.dtype), codec_name(space->codec), space->geometry.layers,
		   space->geometry.kv_heads, space->geometry.head_dim_k, space->geometry.head_dim_v,
		   space->geometry.block_tokens, space->wire.rank, space->wire.world,
		   space->geometry.typed_segments, space->geometry.typed_values,
		   space->geometry.opaque_bytes);
	json_print(json,
		   ",\"logical_bytes\":%" PRIu32 ",\"image_bytes\":%" PRIu32 ",\"opened\":%" PRIu32
		   ",\"blocks\":%" PRIu32 ",\"stored_blocks\":%" PRIu64 ",\"loaded_blocks\":%" PRIu64
		   ",\"raw_blocks\":%" PRIu64 "}",
		   space->shape.logical_bytes, space->shape.image_bytes, space->opened, blocks,
		   space->stored_blocks, space->loaded_blocks, space->raw_blocks);
	return true;
}

static int spaces_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	return ctl_no_arguments(d, request, sentence, n);
}

static enum ctl_progress spaces_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	return ctl_list(d, request, json, "spaces", space_row);
}

static int evict_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	char *end = NULL;

	if (d->tiers[TIER_HOST] == NULL || d->blocks == NULL) {
		snprintf(sentence, n, "there is no host tier to evict from");
		return -EINVAL;
	}
	if (request->n_words == 2 && strcmp(request->words[1], "--all") == 0) {
		request->wanted_bytes = UINT64_MAX;
		return 0;
	}
	if (request->n_words == 3 && strcmp(request->words[1], "--bytes") == 0) {
		const char *digits = request->words[2];

		errno = 0;
		if (digits[0] >= '0' && digits[0] <= '9')
			request->wanted_bytes = strtoull(digits, &end, 10);
		if (end != NULL && *end == '\0' && errno == 0 && request->wanted_bytes > 0)
			return 0;
	}
	snprintf(sentence, n, "evict takes --all, or --bytes and a number above 0");
	return -EINVAL;
}

static enum ctl_progress evict_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	const struct mover_counts before = d->moved;
	const uint64_t freed =
		mover_evict_bytes(d->tiers[TIER_HOST], d->blocks,
				  request->wanted_bytes - request->freed_bytes, EVICT_STEPS, &d->moved);
	bool complete;

	request->freed_bytes += freed;
	request->evicted.evicted_blocks += d->moved.evicted_blocks - before.evicted_blocks;
	request->evicted.demoted_blocks += d->moved.demoted_blocks - before.demoted_blocks;
	/* --all is complete when nothing is left that may go */
	complete = request->freed_bytes >= request->wanted_bytes ||
		   (freed == 0 && request->wanted_bytes == UINT64_MAX);
	if (freed > 0 && !complete && loop_now(d->loop) - request->started_ns < EVICT_MS * 1000000ull)
		return CTL_LATER;
	log_info("evicted %" PRIu64 " blocks, %" PRIu64 " bytes, as asked by the operator",
		 request->evicted.evicted_blocks, request->freed_bytes);
	json_print(json,
		   "{\"evicted_blocks\":%" PRIu64 ",\"demoted_blocks\":%" PRIu64 ",\"freed_bytes\":%" PRIu64
		   ",\"complete\":%s}\n",
		   request->evicted.evicted_blocks, request->evicted.demoted_blocks, request->freed_bytes,
		   complete ? "true" : "false");
	return CTL_LAST;
}

/* Those of tbl_ctl.h that are asked here; NAME_start, NAME_next and NAME_end are their functions. */
#define CTL_local(name)
#define CTL_admin(name)                             { #name, name##_start, name##_next, NULL },
#define CTL_waits(name)                             { #name, name##_start, name##_next, name##_end },
#define CTL(name, where, arguments, prose, example) CTL_##where(name)
static const struct ctl_command commands[] = {
#include "tbl_ctl.h"
};

int ctl_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	char shown[64];

	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(commands[i].name, request->words[0]) == 0) {
			request->command = &commands[i];
			return commands[i].start(d, request, sentence, n);
		}
	}
	if (strcmp(request->words[0], "devices") == 0)
		snprintf(sentence, n, "devices: the disks of the NVMe tier are shown by kvtierctl disks");
	else
		snprintf(sentence, n,
			 "%s: no such command; this daemon knows clients, spaces, disks, endpoints, evict, flush, purge, verify",
			 log_escape(request->words[0], shown, sizeof(shown)));
	return -EINVAL;
}

enum ctl_progress ctl_continue(struct kvtierd *d, struct ctl_request *request, struct json *ret)
{
	return request->command->next(d, request, ret);
}

void ctl_end(struct kvtierd *d, struct ctl_request *request)
{
	if (request->command->end != NULL)
		request->command->end(d, request);
}
