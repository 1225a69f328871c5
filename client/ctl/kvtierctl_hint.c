/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_hint.c - the command hint: says what becomes of blocks, and shows what was answered.
 */
#include <getopt.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/tbl_hints.h"
#include "kvtierctl.h"
#include "kvtierctl_ask.h"

/* Exit status: whether anything was done, or will be. */
static int print_answers(const char *text)
{
	struct json_object *root = json_tokener_parse(text);
	uint64_t done = 0;

#define PRINT(name, number, prose)                                                           \
	{                                                                                    \
		struct json_object *value = NULL;                                            \
                                                                                             \
		(void)json_object_object_get_ex(root, #name, &value);                        \
		if (json_object_get_uint64(value) > 0)                                       \
			printf("%" PRIu64 " " #name ": %s\n", json_object_get_uint64(value), \
			       prose);                                                       \
		done += number <= 2 ? json_object_get_uint64(value) : 0;                     \
	}
	HINT_ANSWERS(PRINT)
	json_object_put(root);
	return done > 0 ? EXIT_FINE : EXIT_FAILED;
}

int command_hint(struct context *context, int argc, char **argv)
{
	static const struct option options[] = {
		{ "session", required_argument, NULL, 1 },
		{ "turn", required_argument, NULL, 2 },
		{ "model", required_argument, NULL, 3 },
		{ "tenant", required_argument, NULL, 4 },
		{ "ttl", required_argument, NULL, 5 },
		{ "priority", required_argument, NULL, 6 },
		{ "space", required_argument, NULL, 7 },
		{ "key", required_argument, NULL, 8 },
		{ 0 },
	};
	static const char *const names[] = { "--session", "--turn",     "--model", "--tenant",
					     "--ttl",     "--priority", "--space", "--key" };
	const char *values[8] = { NULL }, *words[2 + 2 * 8] = { "hint", NULL };
	struct reply reply;
	int option, n = 2, r;

	/* options[] and names[] have one order */
	while ((option = context_option(context, argc, argv, "", options)) != -1) {
		if (values[option - 1])
			usage_error(context, "%s: once", names[option - 1]);
		values[option - 1] = optarg;
	}
	if (optind < argc)
		words[1] = argv[optind++];
	no_more_arguments(context, argc, argv);
	if (!words[1])
		usage_error(context, "hint needs an action; kvtierctl hint --help lists them");
	for (int i = 0; i < 8; i++)
		if (values[i]) {
			words[n++] = names[i];
			words[n++] = values[i];
		}
	r = ask(context, n, words, &reply);
	if (r == EXIT_FINE && context->json)
		fputs(reply.text, stdout);
	else if (r == EXIT_FINE)
		r = print_answers(reply.text);
	free(reply.text);
	return r;
}
