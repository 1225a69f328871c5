/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_commands.c - the admin commands. Core thread only; see ctl_commands.h.
 *
 * Lists are sent while they change: a row is as it was when its packet was made, and a row that
 * came or went in between may be missed. Nothing here blocks or allocates.
 */
#include "ctl_commands.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/tbl_geometry.h"
#include "daemon/store/beside.h"
#include "daemon/front/server.h"
#include "daemon/store/hints.h"
#include "daemon/store/tally.h"
#include "daemon/base/log.h"

enum {
	ROW_TURN = 128,    /* rows looked at in one turn */
	EVICT_STEPS = 256, /* blocks evicted in one turn: some 50 us */
	/* then the reply says it is not complete, well before the asker gives up */
	EVICT_MS = 3000,
};

enum ctl_progress ctl_list(struct kvtierd *d, struct ctl_request *request, struct json *json,
			   const char *name, ctl_row_fn *row)
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

void ctl_age(struct json *json, const char *name, uint64_t seconds)
{
	if (seconds != LIST_NONE)
		json_number(json, name, seconds);
}

void ctl_ratio(struct json *json, const char *name, double ratio)
{
	if (ratio < 0)
		return;
	json_member(json, name);
	json_print(json, "%.6f", ratio);
}

/* The ways in which its pages are reached, '+' between. */
static const char *path_name(const struct conn_row *row)
{
	static const char *const ways[WIRE_MEMORIES] = {
		[WIRE_MEMFD] = "shared",
		[WIRE_STAGED] = "staged",
		[WIRE_DEVICE_HANDLE] = "cuda-ipc",
		[WIRE_DEVICE_FD] = "cuda-fd",
		[WIRE_DEVICE_FABRIC] = "cuda-fabric",
		[WIRE_DEVICE_ENGINE] = "cuda-engine",
	};
	static char text[64];
	size_t n = 0;

	for (int way = WIRE_MEMFD; way < WIRE_MEMORIES; way++)
		if (row->memories & 1u << way)
			n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s", n ? "+" : "",
					      ways[way]);
	return n ? text : "none";
}

/* Whose kernels have the pages of its spaces on GPUs. */
static const char *mode_name(const struct conn_row *row)
{
	const uint32_t engine = 1u << WIRE_DEVICE_ENGINE,
		       host = 1u << WIRE_MEMFD | 1u << WIRE_STAGED;
	const bool daemon = row->memories & ~(engine | host);

	if (row->memories & engine)
		return daemon ? "daemon+engine" : "engine";
	return daemon ? "daemon" : "none";
}

static const char *client_state(const struct conn_row *row)
{
	if (row->refused)
		return "refused";
	return row->ending ? "ending" : "open";
}

/* "11", "9-10"; "": it has said none. */
static const char *client_wire(const struct conn_row *row, char *ret, size_t n)
{
	ret[0] = '\0';
	if (row->version_max == row->version_min && row->version_max > 0)
		snprintf(ret, n, "%u", row->version_max);
	else if (row->version_max > 0)
		snprintf(ret, n, "%u-%u", row->version_min, row->version_max);
	return ret;
}

static bool client_row(struct kvtierd *d, uint32_t position, struct json *json, bool *ret_end)
{
	struct conn_row found, *row = &found;
	char buffer[32];

	*ret_end = !d->server || !server_row(d->server, position, row);
	if (*ret_end)
		return false;
	json_print(json, "{");
#define CLIENTS_COLUMN(title, name, kind, value) CTL_##kind(json, name, value);
#include "tbl_lists.h"
	json_print(json, "}");
	return true;
}

int clients_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	return ctl_no_arguments(d, request, sentence, n);
}

enum ctl_progress clients_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	return ctl_list(d, request, json, "clients", client_row);
}

static const char *name_of(const char *const *names, size_t n, uint32_t value)
{
	return value < n && names[value] ? names[value] : "unknown";
}

static const char *dtype_name(uint32_t dtype)
{
#define DTYPE_NAME(id, text) [DTYPE_##id] = (text),
	static const char *const names[] = { GEOMETRY_DTYPES(DTYPE_NAME) };

	return name_of(names, sizeof(names) / sizeof(names[0]), dtype);
}

static const char *codec_name(uint32_t codec)
{
#define CODEC_NAME(id, text) [CODEC_##id] = (text),
	static const char *const names[] = { GEOMETRY_CODECS(CODEC_NAME)[CODEC_LOSSLESS] =
						     "lossless" };

	return name_of(names, sizeof(names) / sizeof(names[0]), codec);
}

static const char *space_state(const struct space *space)
{
	return space->going ? "going" : space->opened ? "open" : space->known ? "idle" : "unknown";
}

/* LIST_NONE: it is open, or was not opened yet. */
static uint64_t space_idle_s(const struct kvtierd *d, const struct space *space)
{
	return space->idle_ns ? (loop_now(d->loop) - space->idle_ns) / 1000000000u : LIST_NONE;
}

static uint32_t space_blocks(const struct kvtierd *d, const struct space *space)
{
	return d->store.blocks ? tally_blocks(blocks_tally(d->store.blocks), space->number) : 0;
}

/* Image bytes; a block in both tiers counts once. */
static uint64_t space_bytes(const struct kvtierd *d, const struct space *space)
{
	uint64_t bytes = 0;

	for (uint32_t variant = 0; variant < 2 && d->store.blocks; variant++)
		bytes += (uint64_t)tally_count(blocks_tally(d->store.blocks), space->number,
					       variant) *
			 space->variant_bytes[variant];
	return bytes;
}

/* The standing that a hint on its revision has given it. */
static const char *space_hinted(const struct kvtierd *d, const struct space *space)
{
	static const char *const names[] = {
		[HINT_USUAL] = "", [HINT_DEMOTED] = "demoted", [HINT_RETIRED] = "retired"
	};

	return d->store.hints ?
		       names[tally_standing(blocks_tally(d->store.blocks), space->number)] :
		       "";
}

/* Of its tenant. */
static uint64_t kept_bytes(const struct kvtierd *d, const struct space *space)
{
	return d->store.hints ? hints_kept_bytes(d->store.hints, space) : 0;
}

static bool space_row(struct kvtierd *d, uint32_t position, struct json *json, bool *ret_end)
{
	const struct space *row;

	*ret_end = !d->store.spaces || position >= spaces_numbers(d->store.spaces);
	if (*ret_end)
		return false;
	row = space_at(d->store.spaces, position);
	if (!row)
		return false;
	json_print(json, "{");
#define SPACES_COLUMN(title, name, kind, value) CTL_##kind(json, name, value);
#include "tbl_lists.h"
	json_print(json, "}");
	return true;
}

int spaces_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	return ctl_no_arguments(d, request, sentence, n);
}

enum ctl_progress spaces_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	return ctl_list(d, request, json, "spaces", space_row);
}

int evict_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	const size_t n_words = request->n_words;
	char *const *words = request->words;
	const bool tier = n_words >= 3 && strcmp(words[n_words - 2], "--tier") == 0;
	const size_t last = tier ? n_words - 2 : n_words;
	char *end = NULL;

	if (!store_host(&d->store) || !d->store.blocks) {
		snprintf(sentence, n, "there is no host tier to evict from");
		return -EINVAL;
	}
	request->of_gpus = tier && strcmp(words[n_words - 1], "gpu") == 0;
	if (tier && !request->of_gpus && strcmp(words[n_words - 1], "host") != 0) {
		snprintf(sentence, n, "evict --tier takes host or gpu");
		return -EINVAL;
	}
	if (request->of_gpus && !d->store.beside) {
		snprintf(sentence, n, "no images are kept on GPUs: [gpu] bytes = 0, or no GPU");
		return -EINVAL;
	}
	if (last == 2 && strcmp(words[1], "--all") == 0) {
		request->wanted_bytes = UINT64_MAX;
		return 0;
	}
	if (last == 3 && strcmp(words[1], "--bytes") == 0) {
		const char *digits = words[2];

		errno = 0;
		if (digits[0] >= '0' && digits[0] <= '9')
			request->wanted_bytes = strtoull(digits, &end, 10);
		if (end && *end == '\0' && errno == 0 && request->wanted_bytes > 0)
			return 0;
	}
	snprintf(sentence, n, "evict takes --all, or --bytes and a number above 0");
	return -EINVAL;
}

/* Some blocks of a turn. Returns the bytes that they took. */
static uint64_t evict_some(struct kvtierd *d, struct ctl_request *request)
{
	const struct mover_counts before = d->store.mover.counts;
	const uint64_t wanted = request->wanted_bytes - request->freed_bytes;
	uint64_t freed, blocks;

	if (request->of_gpus) {
		freed = beside_evict(&d->store, wanted, EVICT_STEPS, &blocks);
		request->evicted.evicted_blocks += blocks;
		return freed;
	}
	freed = mover_evict_bytes(store_host(&d->store), d->store.blocks, wanted, EVICT_STEPS,
				  &d->store.mover);
	request->evicted.evicted_blocks +=
		d->store.mover.counts.evicted_blocks - before.evicted_blocks;
	request->evicted.demoted_blocks +=
		d->store.mover.counts.demoted_blocks - before.demoted_blocks;
	return freed;
}

enum ctl_progress evict_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	const uint64_t freed = evict_some(d, request);
	bool complete;

	request->freed_bytes += freed;
	/* --all is complete when nothing is left that may go */
	complete = request->freed_bytes >= request->wanted_bytes ||
		   (freed == 0 && request->wanted_bytes == UINT64_MAX);
	if (freed > 0 && !complete &&
	    loop_now(d->loop) - request->started_ns < EVICT_MS * 1000000ull)
		return CTL_LATER;
	log_info("evicted %" PRIu64 " blocks, %" PRIu64 " bytes, as asked by the operator",
		 request->evicted.evicted_blocks, request->freed_bytes);
	json_print(json,
		   "{\"evicted_blocks\":%" PRIu64 ",\"demoted_blocks\":%" PRIu64
		   ",\"freed_bytes\":%" PRIu64 ",\"complete\":%s}\n",
		   request->evicted.evicted_blocks, request->evicted.demoted_blocks,
		   request->freed_bytes, complete ? "true" : "false");
	return CTL_LAST;
}

#define COMMAND_local(name)
#define COMMAND_admin(name) { #name, name##_start, name##_next, NULL },
#define COMMAND_waits(name) { #name, name##_start, name##_next, name##_end },

#define CTL(name, where, arguments, prose, example) COMMAND_##where(name)
static const struct ctl_command commands[] = {
#include "tbl_ctl.h"
};

#define NAME_local(name)
#define NAME_admin(name)                            ", " #name
#define NAME_waits(name)                            ", " #name
#define CTL(name, where, arguments, prose, example) NAME_##where(name)
static const char names[] =
#include "tbl_ctl.h"
	;

int ctl_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	char shown[64];

	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(commands[i].name, request->words[0]) == 0) {
			request->command = &commands[i];
			return commands[i].start(d, request, sentence, n);
		}
	}
	snprintf(sentence, n, "%s: no such command; this daemon knows %s",
		 log_escape(request->words[0], shown, sizeof(shown)), names + strlen(", "));
	return -EINVAL;
}

enum ctl_progress ctl_continue(struct kvtierd *d, struct ctl_request *request, struct json *ret)
{
	return request->command->next(d, request, ret);
}

void ctl_end(struct kvtierd *d, struct ctl_request *request)
{
	if (request->command->end)
		request->command->end(d, request);
}
