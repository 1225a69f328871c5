/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_keys.c - keys: kvtier_keys() of a prompt of 131,072 tokens in blocks of 16, by one thread.
 * The daemon only opened the space; the figure has no call of it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "bench_daemon.h"

enum { PROMPT = 8192, PROMPTS = 20, RUNS = 15 };

static int time_run(const struct bench_daemon *d, const uint32_t *tokens, struct kvtier_key *keys,
		    double *ret)
{
	const uint64_t start = bench_now_ns();

	for (int i = 0; i < PROMPTS; i++) {
		size_t n = PROMPT;
		const int r = kvtier_keys(d->space, i ? &keys[PROMPT - 1] : NULL, tokens,
					  PROMPT * BENCH_TOKENS, keys, &n);

		if (r)
			return r;
	}
	*ret = PROMPT * PROMPTS * 1e3 / (double)(bench_now_ns() - start);
	return 0;
}

static int run_keys(const struct bench_case *self, struct bench_result *ret)
{
	uint32_t *tokens = malloc(PROMPT * BENCH_TOKENS * sizeof(*tokens));
	struct kvtier_key *keys = malloc(PROMPT * sizeof(*keys));
	struct bench_daemon *d = calloc(1, sizeof(*d));
	int r = -ENOMEM;

	(void)self;
	if (tokens && keys && d)
		r = bench_daemon_open(d, 32, NULL, "[host]\nbytes = 64M\n[nvme]\nbytes = 0\n");
	for (uint32_t i = 0; !r && i < PROMPT * BENCH_TOKENS; i++)
		tokens[i] = i * 2654435761u >> 15;
	for (int run = 0; !r && run < RUNS; run++) {
		double rate = 0;

		r = time_run(d, tokens, keys, &rate);
		(void)bench_add(ret, rate, 2.5);
	}
	(void)snprintf(ret->note, sizeof(ret->note), "%d blocks of %d tokens a call, one thread",
		       PROMPT, BENCH_TOKENS);
	if (d)
		bench_daemon_close(d);
	free(d);
	free(keys);
	free(tokens);
	return r;
}

const struct bench_case bench_keys_cases[] = {
	{ "keys", run_keys, "kvtier_keys() of 131,072 tokens, millions of blocks a second", 1,
	  BENCH_MORE, "M/s", NULL },
	{ 0 },
};
