/* SPDX-License-Identifier: Apache-2.0 */
/*
 * llama_kvtier.c - an engine of llama.cpp in C that keeps the KV of its prompts in kvtier. It
 * answers a text file. Run it twice: the second process computes only the tokens behind the last
 * full block.
 *
 *	cc -D_GNU_SOURCE llama_kvtier.c $(pkg-config --cflags --libs kvtier llama) -o llama_kvtier
 *	./llama_kvtier model.gguf prompt.txt 40
 *
 * A page holds the bytes that llama_state_seq_get_data_ext() writes for the 64 cells of a block, as
 * they are. To write one block alone, its cells are copied (by reference) to a second sequence. The
 * context needs kv_unified and two sequences; a model with a sliding window gives no whole blocks.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <ggml-backend.h>
#include <llama.h>

#include "kvtier.h"

enum {
	BLOCK = 64,   /* tokens */
	PAGES = 16,   /* blocks under way at once */
	CTX = 4096,   /* tokens */
	SEQUENCE = 0, /* the conversation */
	SCRATCH = 1,  /* one block, while it is copied */
};

struct engine {
	struct llama_model *model;
	struct llama_context *ctx;
	llama_memory_t memory;
	const struct llama_vocab *vocab;
};

/* If it is all zero there is no daemon, and the engine works without a cache. */
struct cache {
	struct kvtier_client *client;
	struct kvtier_space *space;
	struct kvtier_memory *shared;
	uint8_t *pages;
	size_t page_bytes;
};

static bool complain(const char *call)
{
	(void)fprintf(stderr, "kvtier: %s: %s\n", call, kvtier_last_error());
	return false;
}

static bool decode(struct engine *e, llama_token *tokens, size_t n)
{
	for (size_t i = 0, step; i < n; i += step) {
		step = n - i < 512 ? n - i : 512;
		if (llama_decode(e->ctx, llama_batch_get_one(tokens + i, (int32_t)step)) != 0)
			return false;
	}
	return true;
}

/* --- blocks of the sequence --- */

static void drop_scratch(struct engine *e)
{
	(void)llama_memory_seq_rm(e->memory, SCRATCH, -1, -1);
}

static bool block_out(struct engine *e, const struct cache *c, size_t block, uint8_t *page)
{
	const llama_pos start = (llama_pos)(block * BLOCK);

	llama_memory_seq_cp(e->memory, SEQUENCE, SCRATCH, start, start + BLOCK);
	const bool whole =
		llama_state_seq_get_size(e->ctx, SCRATCH) == c->page_bytes &&
		llama_state_seq_get_data(e->ctx, page, c->page_bytes, SCRATCH) == c->page_bytes;
	drop_scratch(e);
	return whole;
}

static bool block_in(struct engine *e, const struct cache *c, const uint8_t *page)
{
	const bool whole =
		llama_state_seq_set_data(e->ctx, page, c->page_bytes, SCRATCH) == c->page_bytes;
	if (whole)
		llama_memory_seq_cp(e->memory, SCRATCH, SEQUENCE, -1, -1);
	drop_scratch(e);
	return whole;
}

/* Bytes of a block: the bytes of one token, and for each other token as many as a second one
 * adds. */
static size_t block_bytes(struct engine *e)
{
	llama_token two[2] = { 0, 0 };
	size_t size[2];

	for (size_t i = 0; i < 2; i++) {
		if (!decode(e, &two[i], 1))
			return 0;
		size[i] = llama_state_seq_get_size(e->ctx, SEQUENCE);
	}
	llama_memory_clear(e->memory, true);
	return size[0] + (BLOCK - 1) * (size[1] - size[0]);
}

/* --- kvtier --- */

/* Equal text must mean equal weights, and equal bytes of equal tokens. */
static bool name_model(const char *path, char *ret, size_t n)
{
	const char *slash = strrchr(path, '/');
	struct stat s;

	if (stat(path, &s) < 0)
		return false;
	const int length =
		snprintf(ret, n, "%s@%lld-%lld.%09ld", slash ? slash + 1 : path,
			 (long long)s.st_size, (long long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
	return length > 0 && (size_t)length < n;
}

static bool cache_open(struct cache *c, struct engine *e, const char *path)
{
	const struct kvtier_options options = KVTIER_INIT(kvtier_options, .name = "llama_kvtier");
	struct kvtier_region region = KVTIER_INIT(kvtier_region);
	char model[KVTIER_MAX_STRING + 1];

	c->page_bytes = block_bytes(e);
	if (!c->page_bytes || c->page_bytes > UINT32_MAX || !name_model(path, model, sizeof(model)))
		return false;
	const struct kvtier_geometry geometry =
		KVTIER_INIT(kvtier_geometry, .dtype = KVTIER_INT8, .model = model,
			    .convention = "llama_kvtier.c", .layers = 1, .kv_heads = 1,
			    .block_tokens = BLOCK, .world = 1, .codec = KVTIER_CODEC_RAW,
			    .opaque_bytes = (uint32_t)c->page_bytes);
	const struct kvtier_segment segment =
		KVTIER_INIT(kvtier_segment, .kind = KVTIER_OPAQUE, .page_stride = c->page_bytes,
			    .length = c->page_bytes);
	if (kvtier_memory_alloc(PAGES * c->page_bytes, "pages", &c->shared) < 0 ||
	    kvtier_memory_region(c->shared, &region) < 0)
		return complain("memory");
	c->pages = kvtier_memory_address(c->shared);
	if (kvtier_connect(&options, &c->client) < 0)
		return complain("connect");
	if (kvtier_space_open(c->client, &geometry, &region, 1, &segment, 1, &c->space) < 0)
		return complain("space");
	return true;
}

/* No page of a closed cache is used again, so it does not matter if some are lent still. */
static void cache_close(struct cache *c)
{
	if (c->space)
		(void)kvtier_space_close(c->space);
	if (c->client)
		kvtier_close(c->client);
	if (c->shared)
		kvtier_memory_free(c->shared);
	*c = (struct cache){ 0 };
}

/* Keys of the full blocks of tokens; 0: no full block, or no cache. */
static size_t keys_of(struct cache *c, const llama_token *tokens, size_t n, struct kvtier_key *ret)
{
	size_t n_keys = n / BLOCK;

	if (!c->space || !n_keys ||
	    kvtier_keys(c->space, NULL, (const uint32_t *)tokens, n, ret, &n_keys) < 0)
		return 0;
	return n_keys;
}

typedef int (*submit_fn)(struct kvtier_space *, const struct kvtier_key *, const uint32_t *, size_t,
			 const struct kvtier_op *, uint64_t *);

/* Loads or stores n <= PAGES blocks from key `first` on, from or to the first pages. How many
 * leading ones are good. When that fails, the daemon may use the pages still, so the cache is
 * closed. */
static size_t run(struct cache *c, submit_fn submit, const struct kvtier_key *keys, size_t first,
		  size_t n)
{
	const struct kvtier_op options =
		KVTIER_INIT(kvtier_op, .parent = first ? &keys[first - 1] : NULL,
			    .timeout_ms = 2000);
	struct kvtier_result result = KVTIER_INIT(kvtier_result);
	uint32_t pages[PAGES];
	uint64_t op;

	for (uint32_t i = 0; i < n; i++)
		pages[i] = i;
	if (submit(c->space, keys + first, pages, n, &options, &op) < 0 ||
	    kvtier_wait(c->client, op, -1, &result) < 0) {
		(void)complain("op");
		cache_close(c);
		return 0;
	}
	return result.prefix;
}

/* Puts the KV of leading tokens into the sequence, which is empty; of how many. */
static size_t fetch(struct cache *c, struct engine *e, const llama_token *tokens, size_t n)
{
	struct kvtier_key keys[CTX / BLOCK];
	struct kvtier_hit hit = KVTIER_INIT(kvtier_hit);
	const size_t n_keys = keys_of(c, tokens, n, keys);
	size_t done = 0;

	if (!n_keys || kvtier_lookup(c->space, keys, n_keys, &hit) < 0)
		return 0;
	while (done < hit.blocks && c->space) {
		const size_t want = hit.blocks - done < PAGES ? hit.blocks - done : PAGES;
		const size_t got = run(c, kvtier_load, keys, done, want);

		for (size_t i = 0; i < got; i++, done++)
			if (!block_in(e, c, c->pages + i * c->page_bytes))
				return done * BLOCK;
		if (got < want)
			break;
	}
	return done * BLOCK;
}

/* Stores the full blocks that kvtier has not. How many. */
static size_t store(struct cache *c, struct engine *e, const llama_token *tokens, size_t n)
{
	struct kvtier_key keys[CTX / BLOCK];
	struct kvtier_hit hit = KVTIER_INIT(kvtier_hit);
	const size_t n_keys = keys_of(c, tokens, n, keys);
	size_t stored = 0;

	if (!n_keys || kvtier_lookup(c->space, keys, n_keys, &hit) < 0)
		return 0;
	for (size_t done = hit.blocks, part; done < n_keys && c->space; done += part) {
		for (part = 0; part < PAGES && done + part < n_keys; part++)
			if (!block_out(e, c, done + part, c->pages + part * c->page_bytes))
				break;
		if (!part)
			break;
		stored += run(c, kvtier_store, keys, done, part);
	}
	return stored;
}

/* --- the engine --- */

static void silence(enum ggml_log_level level, const char *text, void *data)
{
	(void)data;
	if (level == GGML_LOG_LEVEL_ERROR)
		(void)fputs(text, stderr);
}

static bool engine_open(struct engine *e, const char *path)
{
	struct llama_context_params params = llama_context_default_params();

	llama_log_set(silence, NULL);
	ggml_backend_load_all();
	llama_backend_init();
	e->model = llama_model_load_from_file(path, llama_model_default_params());
	if (!e->model)
		return false;
	params.n_ctx = CTX;
	params.n_batch = 512;
	params.n_seq_max = 2;
	params.kv_unified = true;
	e->ctx = llama_init_from_model(e->model, params);
	if (!e->ctx)
		return false;
	e->memory = llama_get_memory(e->ctx);
	e->vocab = llama_model_get_vocab(e->model);
	return true;
}

static void engine_close(struct engine *e)
{
	if (e->ctx)
		llama_free(e->ctx);
	if (e->model)
		llama_model_free(e->model);
}

/* The most likely next token. */
static llama_token greedy(const struct engine *e)
{
	const float *logits = llama_get_logits_ith(e->ctx, -1);
	llama_token best = 0;

	for (llama_token t = 1; t < llama_vocab_n_tokens(e->vocab); t++)
		if (logits[t] > logits[best])
			best = t;
	return best;
}

/* The tokens behind the last block boundary are a batch of their own: llama.cpp rounds differently
 * in batches of different size. So a warm answer equals the cold one bit for bit. */
static bool prefill(struct engine *e, llama_token *tokens, size_t n, size_t have)
{
	const size_t cut = (n - 1) / BLOCK * BLOCK;

	if (have < cut && !decode(e, tokens + have, cut - have))
		return false;
	return decode(e, tokens + (have > cut ? have : cut), n - (have > cut ? have : cut));
}

/* Tokens in the sequence afterwards; the answer's text goes to standard output. */
static size_t answer(struct engine *e, llama_token *tokens, size_t n, size_t limit)
{
	for (; limit && n < CTX; limit--) {
		char piece[256];
		const llama_token next = greedy(e);
		const int length =
			llama_token_to_piece(e->vocab, next, piece, sizeof(piece), 0, false);
		if (llama_vocab_is_eog(e->vocab, next))
			break;
		if (length > 0)
			(void)fwrite(piece, 1, (size_t)length, stdout);
		tokens[n] = next;
		if (!decode(e, &tokens[n], 1))
			break;
		n++;
	}
	(void)putchar('\n');
	return n;
}

static size_t read_prompt(const struct engine *e, const char *path, llama_token *ret, size_t max)
{
	static char text[64 << 10];
	FILE *file = fopen(path, "r");

	if (!file)
		return 0;
	const size_t length = fread(text, 1, sizeof(text), file);
	(void)fclose(file);
	const int32_t n =
		llama_tokenize(e->vocab, text, (int32_t)length, ret, (int32_t)max, true, false);
	return n > 0 ? (size_t)n : 0;
}

int main(int argc, char **argv)
{
	static llama_token tokens[CTX];
	struct engine engine = { 0 };
	struct cache cache = { 0 };
	int code = 1;

	if (argc != 4) {
		(void)fprintf(stderr, "usage: llama_kvtier MODEL.gguf PROMPT.txt ANSWER_TOKENS\n");
		return 2;
	}
	if (!engine_open(&engine, argv[1])) {
		(void)fprintf(stderr, "llama.cpp cannot load %s\n", argv[1]);
		goto out;
	}
	size_t n = read_prompt(&engine, argv[2], tokens, CTX - 1);
	if (!n) {
		(void)fprintf(stderr, "%s: no prompt of 1 to %d tokens\n", argv[2], CTX - 1);
		goto out;
	}
	if (!cache_open(&cache, &engine, argv[1]))
		cache_close(&cache); /* the engine answers all the same */
	/* One token at least is left to compute, for its logits. */
	const size_t have = fetch(&cache, &engine, tokens, n - 1);
	if (!prefill(&engine, tokens, n, have))
		goto out;
	(void)fprintf(stderr, "%zu of %zu tokens came from kvtier\n", have, n);
	n = answer(&engine, tokens, n, strtoul(argv[3], NULL, 10));
	(void)fprintf(stderr, "%zu blocks stored\n", store(&cache, &engine, tokens, n));
	code = 0;
out:
	cache_close(&cache);
	engine_close(&engine);
	return code;
}
