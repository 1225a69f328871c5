/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_replay.c - `kvtierctl replay`: what hit rate a node would have had for a file of
 * requests, with so much memory. It needs no daemon: daemon/replay/ has the reader and the
 * policies.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/config/config_value.h"
#include "daemon/ctl/kvtierctl.h"
#include "daemon/replay/replay.h"
#include "daemon/replay/requests.h"

enum { ROWS = 6, DEFAULT_TOKENS = 512 };

struct plan {
	const struct context *context;
	const char *file;
	uint64_t memory, token_bytes, block_tokens; /* 0: not given */
	struct requests requests;
	uint32_t rooms[ROWS]; /* blocks */
	size_t n;
	uint64_t ours[ROWS], lru[ROWS], expected[ROWS], bound; /* blocks found */
	struct progress progress;
	uint64_t done, total; /* of the progress */
};

static void read_so_far(void *arg, uint64_t bytes)
{
	struct plan *plan = arg;

	progress_show(&plan->progress, bytes, plan->total, "bytes");
}

static void replayed_so_far(void *arg, uint64_t requests)
{
	struct plan *plan = arg;

	progress_show(&plan->progress, plan->done + requests, plan->total, "requests");
}

static int read_file(struct plan *plan)
{
	FILE *in = fopen(plan->file, "re");
	char why[320];
	struct stat st;
	int r;

	if (!in)
		return tell_error(plan->context, EXIT_FAILED, "%s: %s", plan->file,
				  strerror(errno));
	plan->progress = (struct progress){ .what = "reading" };
	plan->total = fstat(fileno(in), &st) == 0 ? (uint64_t)st.st_size : 0;
	r = requests_read(&plan->requests, in, read_so_far, plan, why, sizeof(why));
	(void)fclose(in);
	progress_end(&plan->progress);
	return r ? tell_error(plan->context, EXIT_FAILED, "%s: %s", plan->file, why) : EXIT_FINE;
}

/* Half of the memory, all of it, and twice as much; or shares of the blocks of the file. */
static void choose_rooms(struct plan *plan)
{
	static const double shares[ROWS] = { .01, .02, .05, .1, .2, .5 };
	const double unique = plan->requests.unique,
		     blocks = plan->memory > 0 ? (double)plan->memory / (double)plan->token_bytes /
							 (double)plan->block_tokens :
						 0;

	plan->n = plan->memory > 0 ? 3 : ROWS;
	for (size_t i = 0; i < plan->n; i++) {
		const double room =
			plan->memory > 0 ? blocks * (double)(1u << i) / 2 : unique * shares[i] + .5;

		plan->rooms[i] = room < UINT32_MAX ? (uint32_t)room : UINT32_MAX;
	}
}

static int replay_all(struct plan *plan)
{
	const struct requests *r = &plan->requests;
	const struct replay_told told = { replayed_so_far, plan };
	int rc = replay_lru(r, r->unique, NULL, &plan->bound);

	plan->progress = (struct progress){ .what = "replay" };
	plan->total = (r->timed_sessions ? 3 : 2) * plan->n * r->n_requests;
	for (size_t i = 0; i < plan->n && rc == 0; i++) {
		rc = replay_ours(r, plan->rooms[i], false, &told, &plan->ours[i]);
		plan->done += r->n_requests;
		if (rc == 0 && r->timed_sessions) {
			rc = replay_ours(r, plan->rooms[i], true, &told, &plan->expected[i]);
			plan->done += r->n_requests;
		}
		if (rc == 0)
			rc = replay_lru(r, plan->rooms[i], &told, &plan->lru[i]);
		plan->done += r->n_requests;
	}
	progress_end(&plan->progress);
	return rc == 0 ? EXIT_FINE : tell_error(plan->context, EXIT_FAILED, "out of memory");
}

static uint64_t bytes_of(const struct plan *plan, uint64_t blocks)
{
	return whole_number((double)blocks * (double)plan->block_tokens *
			    (double)plan->token_bytes);
}

static void print_rows_json(const struct plan *plan)
{
	const struct requests *r = &plan->requests;
	const double all = (double)r->n_ids;

	printf("{\"requests\":%zu,\"blocks\":%zu,\"different_blocks\":%" PRIu32
	       ",\"block_tokens\":%" PRIu64 ",\"bound\":%.4f,\"rows\":[",
	       r->n_requests, r->n_ids, r->unique, plan->block_tokens, (double)plan->bound / all);
	for (size_t i = 0; i < plan->n; i++) {
		printf("%s{\"blocks\":%" PRIu32 ",\"bytes\":%" PRIu64
		       ",\"hit_rate\":%.4f,\"lru_hit_rate\":%.4f",
		       i > 0 ? ",\n" : "", plan->rooms[i], bytes_of(plan, plan->rooms[i]),
		       (double)plan->ours[i] / all, (double)plan->lru[i] / all);
		if (r->timed_sessions)
			printf(",\"expected_back_hit_rate\":%.4f", (double)plan->expected[i] / all);
		printf("}");
	}
	puts("]}");
}

static void print_row(const struct plan *plan, struct table *table, uint64_t blocks, uint64_t ours,
		      uint64_t lru, uint64_t expected)
{
	char text[32];

	table_cell(table, plan->token_bytes > 0 ?
				  text_bytes(bytes_of(plan, blocks), text, sizeof(text)) :
				  "");
	table_number(table, blocks * plan->block_tokens);
	table_cell(table, text_percent(ours, plan->requests.n_ids, text, sizeof(text)));
	table_cell(table, text_percent(lru, plan->requests.n_ids, text, sizeof(text)));
	if (plan->requests.timed_sessions)
		table_cell(table, text_percent(expected, plan->requests.n_ids, text, sizeof(text)));
}

static void print_rows_text(const struct plan *plan)
{
	static const char titles[] = "MEMORY|TOKENS|KVTIERD|EXACT LRU|EXPECTED";
	const struct requests *r = &plan->requests;
	struct table *table = table_new(r->timed_sessions ? "rrrrr" : "rrrr",
					plan->token_bytes > 0 ? titles : strchr(titles, '|'));

	printf("%zu requests of %zu blocks, %" PRIu32 " of these different; a block is %" PRIu64
	       " tokens\n\n",
	       r->n_requests, r->n_ids, r->unique, plan->block_tokens);
	for (size_t i = 0; i < plan->n; i++)
		print_row(plan, table, plan->rooms[i], plan->ours[i], plan->lru[i],
			  plan->expected[i]);
	print_row(plan, table, r->unique, plan->bound, plan->bound, plan->bound);
	table_print(table);
	puts("\nThe last line is the bound: all blocks of the file fit.");
	if (r->timed_sessions)
		puts("EXPECTED: an engine says when each session comes back (expected_back_s).");
}

static void read_words(struct plan *plan, struct context *context, int argc, char **argv)
{
	const char *option;

	while ((option = context_option(context, argc, argv)) != NULL) {
		uint64_t *to = strcmp(option, "--memory") == 0      ? &plan->memory :
			       strcmp(option, "--token-bytes") == 0 ? &plan->token_bytes :
								      &plan->block_tokens;

		if (!config_bytes(optarg, to))
			usage_error(context, "%s takes a number above 0, such as 64G or 40K",
				    option);
	}
	if (optind == argc)
		usage_error(context, "replay needs a file");
	plan->file = argv[optind++];
	no_more_arguments(context, argc, argv);
	if (plan->memory > 0 && plan->token_bytes == 0)
		usage_error(context,
			    "--memory needs --token-bytes: how many bytes of KV a token has "
			    "(kvtierctl spaces: IMAGE / TOKENS)");
	if (plan->block_tokens > 1 << 20 || plan->token_bytes > 1ull << 30)
		usage_error(context, "--block-tokens is at most 1M, --token-bytes 1G");
}

int command_replay(struct context *context, int argc, char **argv)
{
	struct plan plan = { .context = context };
	int r;

	read_words(&plan, context, argc, argv);
	r = read_file(&plan);
	if (plan.block_tokens == 0)
		plan.block_tokens =
			plan.requests.block_tokens ? plan.requests.block_tokens : DEFAULT_TOKENS;
	if (r == EXIT_FINE) {
		choose_rooms(&plan);
		r = replay_all(&plan);
	}
	if (r == EXIT_FINE && context->json)
		print_rows_json(&plan);
	else if (r == EXIT_FINE)
		print_rows_text(&plan);
	requests_free(&plan.requests);
	return r;
}
