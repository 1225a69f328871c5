/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_admin.c - commands that the daemon answers (asking: kvtierctl_ask.c): the replies, for
 * people.
 */
#include <assert.h>
#include <getopt.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvtierctl.h"
#include "kvtierctl_ask.h"
#include "kvtierctl_text.h"

/* --- a list of objects as a table --- */

enum column_kind {
	COLUMN_TEXT,
	COLUMN_BOOL,
	COLUMN_HEX,
	COLUMN_NUMBER, /* this kind and the ones below stand at the right of their column */
	COLUMN_BYTES,
	COLUMN_AGE,
	COLUMN_WAIT_MS,
	COLUMN_RATIO,
};

struct column {
	const char *title; /* "": not shown */
	const char *name;  /* in the JSON objects */
	enum column_kind kind;
};

enum { MAX_COLUMNS = 32 };

static void print_cell(struct table *table, struct json_object *row, const struct column *column)
{
	struct json_object *value = NULL;
	char text[64] = "";

	if (!json_object_object_get_ex(row, column->name, &value)) {
		/* nothing else may be absent, unless the daemon is an older one */
		table_cell(table,
			   column->kind == COLUMN_AGE || column->kind == COLUMN_RATIO ? "" : "?");
		return;
	}
	switch (column->kind) {
	case COLUMN_BYTES:
		table_cell(table, text_bytes(json_object_get_uint64(value), text, sizeof(text)));
		break;
	case COLUMN_AGE:
		table_cell(table, text_age(json_object_get_uint64(value), text, sizeof(text)));
		break;
	case COLUMN_WAIT_MS:
		if (json_object_get_uint64(value) > 0)
			snprintf(text, sizeof(text), "%.1f s",
				 (double)json_object_get_uint64(value) / 1e3);
		table_cell(table, text);
		break;
	case COLUMN_RATIO:
		snprintf(text, sizeof(text), "%.2f %%", json_object_get_double(value) * 100);
		table_cell(table, text);
		break;
	default:
		table_cell(table, json_object_get_string(value));
	}
}

static int print_rows(struct json_object *root, const char *name, const struct column *columns,
		      size_t n)
{
	const struct column *shown[MAX_COLUMNS];
	bool right[MAX_COLUMNS];
	struct json_object *rows = NULL;
	struct table *table;
	size_t n_shown = 0;

	if (!json_object_object_get_ex(root, name, &rows) ||
	    !json_object_is_type(rows, json_type_array))
		return EXIT_FAILED;
	if (json_object_array_length(rows) == 0) {
		printf("no %s\n", name);
		return EXIT_FINE;
	}
	for (size_t i = 0; i < n; i++) {
		if (columns[i].title[0] == '\0')
			continue;
		assert(n_shown < MAX_COLUMNS);
		right[n_shown] = columns[i].kind >= COLUMN_NUMBER;
		shown[n_shown++] = &columns[i];
	}
	table = table_new(n_shown);
	for (size_t i = 0; i < n_shown; i++)
		table_cell(table, shown[i]->title);
	for (size_t row = 0; row < json_object_array_length(rows); row++) {
		for (size_t i = 0; i < n_shown; i++)
			print_cell(table, json_object_array_get_idx(rows, row), shown[i]);
	}
	table_print(table, right);
	return EXIT_FINE;
}

static uint64_t number_at(struct json_object *root, const char *name)
{
	struct json_object *value = NULL;

	(void)json_object_object_get_ex(root, name, &value);
	return json_object_get_uint64(value);
}

static int list(struct context *context, int argc, char **argv, const struct column *columns,
		size_t n)
{
	const char *name = context->command->name;
	struct json_object *root;
	struct reply reply;
	int r;

	(void)context_option(context, argc, argv, "", NULL);
	no_more_arguments(context, argc, argv);
	r = ask(context, 1, &name, &reply);
	if (r == EXIT_FINE && context->json) {
		fputs(reply.text, stdout);
	} else if (r == EXIT_FINE) {
		root = json_tokener_parse(reply.text);
		r = print_rows(root, name, columns, n);
		if (r != EXIT_FINE)
			fprintf(stderr, "kvtierctl: the reply is not JSON with \"%s\" in it\n",
				name);
		json_object_put(root);
	}
	free(reply.text);
	return r;
}

int command_clients(struct context *context, int argc, char **argv)
{
	static const struct column columns[] = {
#define CLIENTS_COLUMN(title, name, kind, value) { title, #name, COLUMN_##kind },
#include "daemon/admin/tbl_lists.h"
	};

	return list(context, argc, argv, columns, sizeof(columns) / sizeof(columns[0]));
}

int command_spaces(struct context *context, int argc, char **argv)
{
	static const struct column columns[] = {
#define SPACES_COLUMN(title, name, kind, value) { title, #name, COLUMN_##kind },
#include "daemon/admin/tbl_lists.h"
	};

	return list(context, argc, argv, columns, sizeof(columns) / sizeof(columns[0]));
}

/* --- evict --- */

static void print_evicted(const char *text)
{
	struct json_object *root = json_tokener_parse(text), *complete = NULL;
	char bytes[32];

	(void)json_object_object_get_ex(root, "complete", &complete);
	printf("evicted %" PRIu64 " blocks (%" PRIu64 " stay on NVMe), %s%s\n",
	       number_at(root, "evicted_blocks"), number_at(root, "demoted_blocks"),
	       text_bytes(number_at(root, "freed_bytes"), bytes, sizeof(bytes)),
	       json_object_get_boolean(complete) ?
		       "" :
		       "; the rest is in use, or it would have taken too long");
	json_object_put(root);
}

int command_evict(struct context *context, int argc, char **argv)
{
	static const struct option options[] = {
		{ "all", no_argument, NULL, 'a' },
		{ "bytes", required_argument, NULL, 'b' },
		{ "tier", required_argument, NULL, 't' },
		{ 0 },
	};
	const char *words[5] = { "evict", NULL, NULL, NULL, NULL }, *tier = NULL;
	struct reply reply;
	char number[32];
	uint64_t bytes;
	int option, n, r;

	while ((option = context_option(context, argc, argv, "", options)) != -1) {
		if (option == 't') {
			tier = optarg;
			continue;
		}
		if (words[1])
			usage_error(context, "evict takes --all or --bytes, once");
		words[1] = "--all";
		if (option == 'a')
			continue;
		if (!parse_bytes(optarg, &bytes))
			usage_error(context,
				    "--bytes %s: a number above 0, such as 1000000, 512M or 2GiB",
				    optarg);
		words[1] = "--bytes";
		snprintf(number, sizeof(number), "%" PRIu64, bytes);
		words[2] = number;
	}
	no_more_arguments(context, argc, argv);
	if (!words[1])
		usage_error(context, "evict needs --all or --bytes N");
	n = words[2] ? 3 : 2;
	if (tier) {
		words[n++] = "--tier";
		words[n++] = tier;
	}
	r = ask(context, n, words, &reply);
	if (r == EXIT_FINE && context->json)
		fputs(reply.text, stdout);
	else if (r == EXIT_FINE)
		print_evicted(reply.text);
	free(reply.text);
	return r;
}

/* --- the NVMe tier --- */

int command_disks(struct context *context, int argc, char **argv)
{
	static const struct column columns[] = {
#define DISKS_COLUMN(title, name, kind, value) { title, #name, COLUMN_##kind },
#include "daemon/admin/tbl_lists.h"
	};

	return list(context, argc, argv, columns, sizeof(columns) / sizeof(columns[0]));
}

int command_devices(struct context *context, int argc, char **argv)
{
	static const struct column columns[] = {
#define DEVICES_COLUMN(title, name, kind, value) { title, #name, COLUMN_##kind },
#include "daemon/admin/tbl_lists.h"
	};

	return list(context, argc, argv, columns, sizeof(columns) / sizeof(columns[0]));
}

/* All blocks that could be looked at are good. False also if there were blocks and none could be
 * looked at. */
static bool is_verified(struct json_object *root)
{
	return number_at(root, "bad_blocks") == 0 &&
	       (number_at(root, "checked_blocks") > 0 || number_at(root, "skipped_blocks") == 0);
}

static void print_verified(struct json_object *root)
{
	static const struct column columns[] = {
#define BAD_COLUMN(title, name, kind, value) { title, #name, COLUMN_##kind },
#include "daemon/admin/tbl_lists.h"
	};
	const uint64_t bad = number_at(root, "bad_blocks");
	const uint64_t skipped = number_at(root, "skipped_blocks");
	const uint64_t dropped = number_at(root, "dropped_blocks");
	char bytes[32], age[32];

	if (bad > 0)
		(void)print_rows(root, "bad", columns, sizeof(columns) / sizeof(columns[0]));
	printf("%" PRIu64 " copies, %s, in %s: ", number_at(root, "checked_blocks"),
	       text_bytes(number_at(root, "checked_bytes"), bytes, sizeof(bytes)),
	       text_age(number_at(root, "ms") / 1000, age, sizeof(age)));
	if (bad == 0)
		printf("%s\n", is_verified(root) ? "all are good" : "nothing could be checked");
	else
		printf("%" PRIu64 " bad, %" PRIu64 " dropped; %s\n", bad, dropped,
		       dropped == bad ? "a block without another copy is a miss now" :
					"kvtierctl verify --scrub drops all");
	if (skipped > 0)
		printf("not checked: %" PRIu64
		       ", which went or moved meanwhile, lie on a disk that is away, or are of a "
		       "model that no engine has opened\n",
		       skipped);
}

int command_verify(struct context *context, int argc, char **argv)
{
	static const struct option options[] = { { "scrub", no_argument, NULL, 's' }, { 0 } };
	const char *words[2] = { "verify", NULL };
	struct reply reply;
	int r;

	while (context_option(context, argc, argv, "", options) != -1)
		words[1] = "--scrub";
	no_more_arguments(context, argc, argv);
	r = ask(context, words[1] ? 2 : 1, words, &reply);
	if (r == EXIT_FINE) {
		struct json_object *root = json_tokener_parse(reply.text);

		if (context->json)
			fputs(reply.text, stdout);
		else
			print_verified(root);
		r = is_verified(root) ? EXIT_FINE : EXIT_FAILED;
		json_object_put(root);
	}
	free(reply.text);
	return r;
}

int command_flush(struct context *context, int argc, char **argv)
{
	const char *word = "flush";
	struct reply reply;
	int r;

	(void)context_option(context, argc, argv, "", NULL);
	no_more_arguments(context, argc, argv);
	r = ask(context, 1, &word, &reply);
	if (r == EXIT_FINE)
		fputs(context->json ? reply.text : "all that was in memory is on NVMe\n", stdout);
	free(reply.text);
	return r;
}

int command_purge(struct context *context, int argc, char **argv)
{
	static const struct option options[] = { { "tenant", required_argument, NULL, 't' },
						 { 0 } };
	const char *words[3] = { "purge", "--tenant", NULL };
	struct json_object *root;
	struct reply reply;
	int r;

	while (context_option(context, argc, argv, "", options) != -1) {
		if (words[2])
			usage_error(context, "--tenant: once");
		words[2] = optarg;
	}
	no_more_arguments(context, argc, argv);
	if (!words[2])
		usage_error(context, "purge needs --tenant NAME; kvtierctl spaces shows names");
	r = ask(context, 3, words, &reply);
	if (r == EXIT_FINE && context->json) {
		fputs(reply.text, stdout);
	} else if (r == EXIT_FINE) {
		root = json_tokener_parse(reply.text);
		printf("purged %" PRIu64 " blocks\n", number_at(root, "purged_blocks"));
		json_object_put(root);
	}
	free(reply.text);
	return r;
}

/* --- the Redis tier --- */

int command_endpoints(struct context *context, int argc, char **argv)
{
	static const struct column columns[] = {
#define ENDPOINTS_COLUMN(title, name, kind, value) { title, #name, COLUMN_##kind },
#include "daemon/admin/tbl_lists.h"
	};

	return list(context, argc, argv, columns, sizeof(columns) / sizeof(columns[0]));
}

/* --- ops --- */

int command_trace(struct context *context, int argc, char **argv)
{
	static const struct column columns[] = {
#define TRACE_COLUMN(title, name, kind, value) { title, #name, COLUMN_##kind },
#include "daemon/admin/tbl_lists.h"
	};

	return list(context, argc, argv, columns, sizeof(columns) / sizeof(columns[0]));
}
