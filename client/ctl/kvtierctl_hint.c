/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_hint.c - the command hint: decides the future of blocks, and shows the answers.
 */
#include <getopt.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/kvtier.h"
#include "client/tbl_hints.h"
#include "kvtierctl.h"
#include "kvtierctl_ask.h"
#include "kvtierctl_prefetch.h"

/* options[] and names[] of command_hint() have one order, which is that of these numbers less 1. */
enum { SESSION = 1, TURN, MODEL, TENANT, TTL, PRIORITY, SPACE, KEY, OPTIONS = KEY };

static void answers_of(const char *text, uint64_t ret[5])
{
	struct json_object *root = json_tokener_parse(text), *value;

#define READ(name, number, prose)                             \
	value = NULL;                                         \
	(void)json_object_object_get_ex(root, #name, &value); \
	ret[number] = json_object_get_uint64(value);
	HINT_ANSWERS(READ)
	json_object_put(root);
}

static void print_answers(const uint64_t answers[5], bool json)
{
	const char *before = "{";

#define PRINT(name, number, prose)                                             \
	if (json)                                                              \
		printf("%s\"" #name "\":%" PRIu64, before, answers[number]);   \
	else if (answers[number] > 0)                                          \
		printf("%" PRIu64 " " #name ": %s\n", answers[number], prose); \
	before = ",";
	HINT_ANSWERS(PRINT)
	if (json)
		puts("}");
}

/* Whether anything was done, or will be. */
static int status_of(const uint64_t answers[5])
{
	return answers[0] + answers[1] + answers[2] > 0 ? EXIT_FINE : EXIT_FAILED;
}

static int prefetch(const struct context *context, const char *const *values,
		    const char *const *keys, size_t n_keys)
{
	const struct prefetch p = { .space = values[SPACE - 1],
				    .tenant = values[TENANT - 1],
				    .session = values[SESSION - 1],
				    .turn = values[TURN - 1],
				    .key_list = keys,
				    .n_keys = n_keys };
	uint64_t answers[5] = { 0 };
	int r;

	if (!p.space || !p.session == (n_keys == 0))
		usage_error(context, "prefetch needs --space N, and --session N or --key HEX...; "
				     "kvtierctl spaces shows NUMBER");
	if (values[TTL - 1] || values[PRIORITY - 1] || (p.turn && !p.session))
		usage_error(context, "prefetch takes no --ttl and no --priority, and --turn only "
				     "with --session");
	r = prefetch_say(context, &p, answers);
	if (r == EXIT_FINE || status_of(answers) == EXIT_FINE)
		print_answers(answers, context->json);
	return r == EXIT_FINE ? status_of(answers) : r;
}

static int ask_and_print(const struct context *context, const char *action,
			 const char *const *values, const char *const *names)
{
	const char *words[2 + 2 * OPTIONS] = { "hint", action };
	uint64_t answers[5];
	struct reply reply;
	int n = 2, r;

	for (int i = 0; i < OPTIONS; i++)
		if (values[i]) {
			words[n++] = names[i];
			words[n++] = values[i];
		}
	r = ask(context, n, words, &reply);
	if (r == EXIT_FINE) {
		answers_of(reply.text, answers);
		print_answers(answers, context->json);
		r = status_of(answers);
	}
	free(reply.text);
	return r;
}

int command_hint(struct context *context, int argc, char **argv)
{
	static const struct option options[] = {
		{ "session", required_argument, NULL, SESSION },
		{ "turn", required_argument, NULL, TURN },
		{ "model", required_argument, NULL, MODEL },
		{ "tenant", required_argument, NULL, TENANT },
		{ "ttl", required_argument, NULL, TTL },
		{ "priority", required_argument, NULL, PRIORITY },
		{ "space", required_argument, NULL, SPACE },
		{ "key", required_argument, NULL, KEY },
		{ 0 },
	};
	static const char *const names[] = { "--session", "--turn",     "--model", "--tenant",
					     "--ttl",     "--priority", "--space", "--key" };
	static const char *keys[KVTIER_MAX_BLOCKS];
	const char *values[OPTIONS] = { NULL }, *action = NULL;
	bool prefetches;
	size_t n_keys = 0;
	int option, twice = 0;

	while ((option = context_option(context, argc, argv, "", options)) != -1) {
		if (option == KEY && n_keys == KVTIER_MAX_BLOCKS)
			usage_error(context, "--key: %d times at most", KVTIER_MAX_BLOCKS);
		if (option == KEY)
			keys[n_keys++] = optarg;
		else if (values[option - 1])
			twice = option;
		values[option - 1] = optarg;
	}
	if (optind < argc)
		action = argv[optind++];
	no_more_arguments(context, argc, argv);
	if (!action)
		usage_error(context, "hint needs an action; kvtierctl hint --help lists them");
	/* of a model it is rejected, which the daemon says */
	prefetches = strcmp(action, "prefetch") == 0 && !values[MODEL - 1];
	if (!prefetches && n_keys > 1)
		twice = KEY;
	if (twice)
		usage_error(context, "%s: once", names[twice - 1]);
	return prefetches ? prefetch(context, values, keys, n_keys) :
			    ask_and_print(context, action, values, names);
}
