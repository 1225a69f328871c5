/* SPDX-License-Identifier: Apache-2.0 */
/*
 * command_line.c - see command_line.h.
 */
#include "command_line.h"

#include <getopt.h>
#include <stdio.h>

#include "config_print.h"

static void print_help(FILE *out)
{
	fputs("kvtierd - keeps LLM KV-cache blocks of this node's engines and gives prefixes back\n"
	      "\n"
	      "usage: kvtierd [--config FILE] [--check-config] [--print-config]\n"
	      "\n"
	      "  --config FILE    read FILE (INI); without it: the defaults below, nothing to set "
	      "up\n"
	      "  --check-config   say whether the configuration is good, with file, line, key and "
	      "range; exit 0 or 1\n"
	      "  --print-config   print the configuration in effect as a file\n"
	      "  --version        print the version\n"
	      "  --help           this text\n"
	      "\n"
	      "example: kvtierd &   then   kvtierctl status\n"
	      "\n"
	      "Configuration keys, by [section]:\n",
	      out);
	config_print_help(out);
}

int command_line_parse(int argc, char **argv, struct command_line *ret)
{
	static const struct option options[] = {
		{ "config", required_argument, NULL, 'c' },
		{ "check-config", no_argument, NULL, 'k' },
		{ "print-config", no_argument, NULL, 'p' },
		{ "man-config", no_argument, NULL, 'm' },
		{ "version", no_argument, NULL, 'v' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	int option;

	while ((option = getopt_long(argc, argv, "c:h", options, NULL)) != -1) {
		switch (option) {
		case 'c':
			ret->config = optarg;
			break;
		case 'k':
			ret->check = true;
			break;
		case 'p':
			ret->print = true;
			break;
		case 'm':
			ret->man = true;
			break;
		case 'v':
			puts("kvtierd " KVTIER_VERSION);
			return 0;
		case 'h':
			print_help(stdout);
			return 0;
		default:
			fputs("try: kvtierd --help\n", stderr);
			return 64;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "kvtierd takes no argument \"%s\"; try: kvtierd --help\n",
			argv[optind]);
		return 64;
	}
	return -1;
}
