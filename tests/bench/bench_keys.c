/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_keys.c - keys: kvtier_keys() of a prompt of 131,072 tokens in blocks of 16, by one thread.
 * The daemon only opened the space; the figure has no call of it.
 */

#include "bench_daemon.h"

enum { PROMPT = 8192, PROMPTS = 20, RUNS = 15 };

static double time_run(const struct bench_daemon *d, const uint32_t *tokens,
		       struct kvtier_key *keys)
{
	const uint64_t start = bench_now_ns();

	for (int i = 0; i < PROMPTS; i++) {
		size_t n = PROMPT;

		bench_must(kvtier_keys(d->space, i ? &keys[PROMPT - 1] : NULL, tokens,
				       PROMPT * BENCH_TOKENS, keys, &n));
	}
	return PROMPT * PROMPTS * 1e3 / (double)(bench_now_ns() - start);
}

static void run_keys(const struct bench_case *self, struct bench_result *ret)
{
	uint32_t *tokens = bench_alloc(PROMPT * BENCH_TOKENS * sizeof(*tokens));
	struct kvtier_key *keys = bench_alloc(PROMPT * sizeof(*keys));
	struct bench_daemon *d = bench_alloc(sizeof(*d));

	(void)self;
	bench_daemon_open(d, "[host]\nbytes = 64M\n[nvme]\nbytes = 0\n", &bench_shape_1mib, 32);
	for (uint32_t i = 0; i < PROMPT * BENCH_TOKENS; i++)
		tokens[i] = i * 2654435761u >> 15;
	for (int run = 0; run < RUNS; run++)
		bench_add(ret, time_run(d, tokens, keys), 2.5);
	bench_note(ret, "%d blocks of %d tokens a call, one thread", PROMPT, BENCH_TOKENS);
}

const struct bench_case bench_keys_cases[] = {
	{ "keys", run_keys, "kvtier_keys() of 131,072 tokens, millions of blocks a second", 1,
	  BENCH_MORE, "M/s", NULL },
	{ 0 },
};
