/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_config.c - the command config: `config check` is answered here, all else by the daemon.
 */
#include "kvtierctl.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "daemon/config/config_place.h"

/* Does what kvtierd --check-config does. */
static int check(const struct context *context, const char *path)
{
	static struct config_notes mistakes;
	static struct config config;
	static char text[sizeof(mistakes.text) * 2];
	const char *cursor = mistakes.text;
	char line[CONFIG_NOTE_BYTES];
	struct json json;
	int r = config_load(path, &config, &mistakes);

	if (r == 0)
		r = config_derive(&config, &mistakes);
	if (context->json) {
		json_start(&json, text, sizeof(text));
		json_print(&json, "{");
		json_bool(&json, "ok", r == 0);
		json_member(&json, "mistakes");
		json_print(&json, "[");
		while (config_next_note(&cursor, line)) {
			json_string(&json, line);
			json_print(&json, "%s", *cursor != '\0' ? "," : "");
		}
		json_print(&json, "]}\n");
		fputs(text, stdout);
	} else if (r == 0) {
		config_tell_stores(&config, stdout);
		printf("%s: ok\n", path);
	} else {
		fprintf(stderr, "%s\n", mistakes.text);
	}
	return r == 0 ? EXIT_FINE : EXIT_CONFIG;
}

int command_config(struct context *context, int argc, char **argv)
{
	const char *path;
	int at = 1;

	while (at < argc && argv[at][0] == '-') /* none of its options has a value */
		at++;
	if (at == argc || strcmp(argv[at], "check") != 0)
		return command_ask(context, argc, argv);
	while (context_option(context, argc, argv))
		;
	path = ++optind < argc ? argv[optind++] : NULL;
	if (!path)
		usage_error(context, "config check needs a FILE");
	no_more_arguments(context, argc, argv);
	return check(context, path);
}
