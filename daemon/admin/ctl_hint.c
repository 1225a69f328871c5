/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_hint.c - the admin command hint (HINTS.md): hints as an engine gives them by kvtier_hint(),
 * given by the operator. Core thread only; see ctl_commands.h.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/tbl_hints.h"
#include "ctl_commands.h"
#include "daemon/base/log.h"
#include "daemon/op/hint.h"
#include "daemon/store/hints.h"
#include "daemon/store/space.h"

enum { HINT_TURN = 64 /* blocks of a session in one turn */ };

/* An option's value; NULL: it is not there. */
static const char *option(const struct ctl_request *request, const char *name)
{
	for (size_t i = 2; i + 1 < request->n_words; i += 2)
		if (strcmp(request->words[i], name) == 0)
			return request->words[i + 1];
	return NULL;
}

/* A number of the option, or `otherwise`. False: it is none, or out of bounds. */
static bool number(const struct ctl_request *request, const char *name, int64_t least, int64_t most,
		   int64_t otherwise, int64_t *ret)
{
	const char *text = option(request, name);
	char *end = NULL;

	*ret = otherwise;
	if (!text)
		return true;
	errno = 0;
	*ret = strtoll(text, &end, 10);
	return end != text && *end == '\0' && errno == 0 && *ret >= least && *ret <= most;
}

static int refuse(char *sentence, size_t n, const char *why)
{
	snprintf(sentence, n, "hint: %s", why);
	return -EINVAL;
}

static bool options_known(const struct ctl_request *request)
{
	static const char *const names[] = { "--session", "--turn",     "--model", "--tenant",
					     "--ttl",     "--priority", "--key",   "--space" };

	for (size_t i = 2; i < request->n_words; i += 2) {
		bool known = false;

		for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++)
			known |= strcmp(request->words[i], names[k]) == 0;
		if (!known)
			return false;
	}
	return request->n_words % 2 == 0;
}

/* A space of this tenant: its sessions are the tenant's. */
static const struct space *space_of_tenant(const struct kvtierd *d, const char *tenant)
{
	for (uint32_t i = 0; i < spaces_numbers(d->store.spaces); i++) {
		const struct space *space = space_at(d->store.spaces, i);

		if (space && space->known && strcmp(space->tenant, tenant) == 0)
			return space;
	}
	return NULL;
}

int hint_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	struct hint *h = &request->hint;
	int64_t session, turn, ttl, priority, space;

	if (!d->store.hints || !d->store.blocks)
		return refuse(sentence, n, "the daemon is still starting");
	if (request->n_words < 2 || !hint_action_named(request->words[1]))
		return refuse(sentence, n,
			      "the action is retain, pin, demote, prefetch, release, superseded "
			      "or ended");
	*h = (struct hint){ .action = hint_action_named(request->words[1]) };
	if (!options_known(request))
		return refuse(sentence, n, "an unknown option, or one without its value");
	if (!number(request, "--session", 1, INT64_MAX, 0, &session) ||
	    !number(request, "--turn", 0, UINT32_MAX, 0, &turn) ||
	    !number(request, "--ttl", 0, UINT32_MAX, 0, &ttl) ||
	    !number(request, "--priority", -100, 100, 0, &priority) ||
	    !number(request, "--space", 0, UINT32_MAX, -1, &space))
		return refuse(sentence, n,
			      "--session above 0, --turn, --ttl and --space take numbers, "
			      "--priority one of -100 to 100");
	if ((session > 0) + (option(request, "--model") != NULL) + (space >= 0) != 1 ||
	    (space >= 0) != (option(request, "--key") != NULL))
		return refuse(sentence, n,
			      "needs one of --session N, --model NAME, --space N with --key HEX");
	if (h->action == WIRE_HINT_PREFETCH && !option(request, "--model"))
		return refuse(sentence, n,
			      "to prefetch is an op, which comes by the client socket: take a "
			      "kvtierctl of this kvtierd's version");
	h->session = (uint64_t)session;
	h->turn = (uint32_t)turn;
	h->ttl_s = (uint32_t)ttl;
	h->priority = (int32_t)priority;
	request->wanted_bytes = (uint64_t)space; /* the number of the space */
	request->rows = 0;
	memset(request->answers, 0, sizeof(request->answers));
	return 0;
}

static void answered(struct kvtierd *d, struct ctl_request *request, enum wire_hint_answer answer)
{
	request->answers[answer]++;
	hints_count(d->store.hints, request->hint.action, answer, 1);
}

static bool key_of(const char *hex, uint8_t ret[32])
{
	for (int i = 0; i < 32; i++) {
		unsigned byte;

		if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
			return false;
		ret[i] = (uint8_t)byte;
	}
	return hex[64] == '\0';
}

static enum wire_hint_answer on_key(struct kvtierd *d, const struct ctl_request *request)
{
	const char *hex = option(request, "--key");
	uint32_t block = BLOCK_NONE;
	uint8_t key[32];

	if (strlen(hex) == 64 && key_of(hex, key) &&
	    space_at(d->store.spaces, (uint32_t)request->wanted_bytes))
		block = blocks_find(d->store.blocks, key, (uint32_t)request->wanted_bytes);
	return block == BLOCK_NONE ? WIRE_HINT_MISSING :
				     hint_on_block(&d->store, block, &request->hint);
}

static enum wire_hint_answer on_model(struct kvtierd *d, const struct ctl_request *request,
				      const char *tenant)
{
	uint8_t revision[32];

	spaces_revision(d->store.spaces, tenant, option(request, "--model"), revision);
	return hints_revision(d->store.hints, revision, request->hint.action);
}

/* Some blocks of the session. True: more are left. */
static bool on_session(struct kvtierd *d, struct ctl_request *request, const char *tenant)
{
	const struct space *space = space_of_tenant(d, tenant);
	const uint32_t blocks =
		space ? hints_session_blocks(d->store.hints, space, request->hint.session) : 0;

	if (request->position == 0) /* as many as it has now */
		request->rows = blocks;
	if (blocks == 0 && request->position == 0)
		answered(d, request, WIRE_HINT_MISSING);
	for (uint32_t i = 0; i < HINT_TURN && space && request->position < request->rows; i++) {
		const uint32_t block = hints_session_next(d->store.hints, space, &request->hint);

		request->position++;
		if (block != BLOCK_NONE)
			answered(d, request, hint_on_block(&d->store, block, &request->hint));
	}
	return request->position < request->rows;
}

enum ctl_progress hint_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	const char *tenant = option(request, "--tenant");

	tenant = tenant ? tenant : d->config->socket_tenant;
	if (request->hint.session > 0) {
		if (on_session(d, request, tenant))
			return CTL_LATER;
	} else if (option(request, "--model")) {
		answered(d, request, on_model(d, request, tenant));
	} else {
		answered(d, request, on_key(d, request));
	}
	log_info("hint %s, as the operator said", hint_action_name(request->hint.action));
	json_print(json, "{");
#define MEMBER(name, number, prose) json_number(json, #name, request->answers[number]);
	HINT_ANSWERS(MEMBER)
	json_print(json, "}\n");
	return CTL_LAST;
}
