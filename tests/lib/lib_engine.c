/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_engine.c - the engine side of lib.h: pages in a memfd (or private memory) and payloads that
 * say whose they are.
 */
#include "lib.h"

enum { VALUE_BYTES = 2 };

int client_dial(const char *socket, const char *name, uint32_t timeout_ms,
		struct kvtier_client **ret)
{
	const struct kvtier_options o = {
		.size = sizeof(o), .socket_path = socket, .name = name, .timeout_ms = timeout_ms
	};

	return kvtier_connect(&o, ret);
}

#define GEOMETRY(name, depth, heads, dim, tokens, its_codec)                                 \
	{                                                                                    \
		.size = sizeof(struct kvtier_geometry), .dtype = KVTIER_BF16, .model = name, \
		.convention = "test", .layers = depth, .kv_heads = heads, .head_dim_k = dim, \
		.head_dim_v = dim, .block_tokens = tokens, .world = 1, .codec = its_codec    \
	}

const struct kvtier_geometry tiny_raw = GEOMETRY("tiny@1", 2, 2, 32, 16, KVTIER_CODEC_RAW);
const struct kvtier_geometry tiny_fp8 = GEOMETRY("tiny@1", 2, 2, 32, 16, KVTIER_CODEC_FP8);
const struct kvtier_geometry large_raw = GEOMETRY("large@1", 4, 4, 64, 32, KVTIER_CODEC_RAW);
const struct kvtier_geometry large_fp8 = GEOMETRY("large@1", 4, 4, 64, 32, KVTIER_CODEC_FP8);
const struct kvtier_geometry two_lanes_raw = GEOMETRY("large@1", 8, 6, 256, 32, KVTIER_CODEC_RAW);
const struct kvtier_geometry many_lanes_raw = GEOMETRY("large@1", 16, 8, 256, 32, KVTIER_CODEC_RAW);

struct kvtier_geometry tiny_geometry(uint32_t codec)
{
	struct kvtier_geometry g = tiny_raw;

	g.codec = codec;
	return g;
}

struct kvtier_geometry large_geometry(uint32_t codec)
{
	struct kvtier_geometry g = large_raw;

	g.codec = codec;
	return g;
}

static size_t plane_bytes(const struct kvtier_geometry *g, uint32_t kind)
{
	return (size_t)g->block_tokens * g->kv_heads *
	       (kind == KVTIER_K ? g->head_dim_k : g->head_dim_v) * VALUE_BYTES;
}

size_t engine_page_bytes(const struct kvtier_geometry *g)
{
	return g->layers * (plane_bytes(g, KVTIER_K) + plane_bytes(g, KVTIER_V));
}

size_t engine_segments(const struct kvtier_geometry *g, struct kvtier_segment *ret, size_t max)
{
	uint64_t offset = 0;
	size_t n = 0;

	for (uint32_t layer = 0; layer < g->layers; layer++)
		for (uint32_t kind = KVTIER_K; kind <= KVTIER_V; kind++) {
			const uint64_t dim = kind == KVTIER_K ? g->head_dim_k : g->head_dim_v;

			assert_true(n < max);
			ret[n++] = (struct kvtier_segment){
				.size = sizeof(*ret),
				.layer = layer,
				.kind = kind,
				.offset = offset,
				.page_stride = engine_page_bytes(g),
				.head_stride = dim * VALUE_BYTES,
				.token_stride = g->kv_heads * dim * VALUE_BYTES,
			};
			offset += plane_bytes(g, kind);
		}
	return n;
}

int memfd_make(size_t bytes, int seals)
{
	const int fd = memfd_create("engine", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, (off_t)bytes) || (seals && fcntl(fd, F_ADD_SEALS, seals)))
		fail_msg("memfd: %s", strerror(errno));
	return fd;
}

static void open_space(struct engine *e, const char *socket, const char *name,
		       struct kvtier_region *region, uint64_t staging_bytes)
{
	const struct kvtier_options o = {
		.size = sizeof(o),
		.socket_path = socket,
		.name = name,
		.timeout_ms = PATIENT_MS,
		.staging_bytes = staging_bytes,
	};
	static struct kvtier_segment segments[KVTIER_MAX_SEGMENTS];
	const size_t n = engine_segments(&e->geometry, segments, KVTIER_MAX_SEGMENTS);

	if (kvtier_connect(&o, &e->client))
		fail_msg("kvtier_connect: %s", kvtier_last_error());
	if (kvtier_space_open(e->client, &e->geometry, region, 1, segments, n, &e->space))
		fail_msg("kvtier_space_open: %s", kvtier_last_error());
}

static void set_up(struct engine *e, const struct kvtier_geometry *geometry, uint32_t pages)
{
	*e = (struct engine){ .geometry = *geometry,
			      .pages = pages,
			      .page_bytes = engine_page_bytes(geometry),
			      .fd = -1 };
}

void engine_open(struct engine *e, const char *socket, const char *name,
		 const struct kvtier_geometry *geometry, uint32_t pages)
{
	const size_t bytes = (engine_page_bytes(geometry) * pages + 4095) & ~(size_t)4095;
	struct kvtier_region region = { .size = sizeof(region),
					.memory = KVTIER_MEMFD,
					.length = bytes };

	set_up(e, geometry, pages);
	e->fd = region.fd = memfd_make(bytes, F_SEAL_SHRINK | F_SEAL_GROW);
	e->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, e->fd, 0);
	assert_ptr_not_equal(e->memory, MAP_FAILED);
	open_space(e, socket, name, &region, 0);
}

void engine_open_staged(struct engine *e, const char *socket, const char *name,
			const struct kvtier_geometry *geometry, uint32_t pages,
			uint64_t staging_bytes)
{
	struct kvtier_region region = { .size = sizeof(region),
					.memory = KVTIER_PRIVATE,
					.fd = -1 };

	set_up(e, geometry, pages);
	region.length = e->page_bytes * pages;
	e->memory = region.base = malloc(region.length);
	assert_non_null(e->memory);
	open_space(e, socket, name, &region, staging_bytes);
}

void engine_close(struct engine *e)
{
	kvtier_close(e->client);
	if (e->fd >= 0) {
		(void)munmap(e->memory, (e->page_bytes * e->pages + 4095) & ~(size_t)4095);
		(void)close(e->fd);
	} else {
		free(e->memory);
	}
	*e = (struct engine){ .fd = -1 };
}

static int finish(struct engine *e, int r, uint64_t op, int32_t *blocks, size_t n)
{
	struct kvtier_result result = {
		.size = sizeof(result),
		.blocks = blocks,
		.blocks_max = blocks ? (uint32_t)n : 0,
	};

	if (r == 0)
		r = kvtier_wait(e->client, op, -1, &result);
	return r ? r : result.status;
}

int engine_store(struct engine *e, const struct kvtier_key *keys, const uint32_t *pages, size_t n,
		 const struct kvtier_key *parent, int32_t *blocks)
{
	const struct kvtier_op o = { .size = sizeof(o), .parent = parent };
	uint64_t op = 0;
	const int r = kvtier_store(e->space, keys, pages, n, &o, &op);

	return finish(e, r, op, blocks, n);
}

int engine_load(struct engine *e, const struct kvtier_key *keys, const uint32_t *pages, size_t n,
		int32_t *blocks)
{
	uint64_t op = 0;
	const int r = kvtier_load(e->space, keys, pages, n, NULL, &op);

	return finish(e, r, op, blocks, n);
}

uint32_t engine_lookup(struct engine *e, const struct kvtier_key *keys, size_t n)
{
	struct kvtier_hit hit = { .size = sizeof(hit) };

	assert_int_equal(kvtier_lookup(e->space, keys, n, &hit), 0);
	return hit.blocks;
}

void engine_lookup_becomes(struct engine *e, const struct kvtier_key *keys, size_t n, uint32_t hits)
{
	AWAIT(engine_lookup(e, keys, n) == hits);
}

/* --- payloads --- */

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static uint64_t seed_of(const struct kvtier_key *key, uint64_t salt)
{
	uint64_t word;

	memcpy(&word, key->bytes + 8, sizeof(word));
	return mix(word ^ mix(salt));
}

/* Four values of 16 bits, values 4 * i and up. Sign, exponent within 2^0 .. 2^3, 3 mantissa bits:
 * whole eighths below 16. At any scale that holds them E4M3 and int8 are exact. */
static uint64_t four_at(uint64_t seed, size_t i)
{
	return (mix(seed + i * 0x9e3779b97f4a7c15u) & 0x81f081f081f081f0u) + 0x3f803f803f803f80u;
}

static uint16_t value_at(uint64_t seed, size_t i)
{
	return (uint16_t)(four_at(seed, i / 4) >> i % 4 * 16);
}

/* Where a layer's values begin in a page; `layers`: where they end. */
static size_t layer_at(const struct engine *e, uint32_t layer)
{
	return e->page_bytes / VALUE_BYTES / e->geometry.layers * layer;
}

/* A whole four is written or compared at once, a value beside the fours alone. */
static bool is_four(size_t i, size_t end)
{
	return i % 4 == 0 && i + 4 <= end;
}

void page_fill_layers(struct engine *e, uint32_t page, const struct kvtier_key *key, uint64_t salt,
		      uint32_t first, uint32_t end)
{
	uint16_t *values = (uint16_t *)(void *)(e->memory + (size_t)page * e->page_bytes);
	const uint64_t seed = seed_of(key, salt);
	const size_t last = layer_at(e, end);

	for (size_t i = layer_at(e, first); i < last; i++) {
		if (is_four(i, last)) {
			const uint64_t four = four_at(seed, i / 4);

			memcpy(values + i, &four, sizeof(four));
			i += 3;
		} else {
			values[i] = value_at(seed, i);
		}
	}
}

bool page_has_layers(const struct engine *e, uint32_t page, const struct kvtier_key *key,
		     uint64_t salt, uint32_t first, uint32_t end)
{
	const uint16_t *values =
		(const uint16_t *)(void *)(e->memory + (size_t)page * e->page_bytes);
	const uint64_t seed = seed_of(key, salt);
	const size_t last = layer_at(e, end);

	for (size_t i = layer_at(e, first); i < last; i++) {
		if (is_four(i, last)) {
			const uint64_t four = four_at(seed, i / 4);

			if (memcmp(values + i, &four, sizeof(four)) != 0)
				return false;
			i += 3;
		} else if (values[i] != value_at(seed, i)) {
			return false;
		}
	}
	return true;
}

void page_fill(struct engine *e, uint32_t page, const struct kvtier_key *key, uint64_t salt)
{
	page_fill_layers(e, page, key, salt, 0, e->geometry.layers);
}

bool page_is(const struct engine *e, uint32_t page, const struct kvtier_key *key, uint64_t salt)
{
	return page_has_layers(e, page, key, salt, 0, e->geometry.layers);
}

void page_poison(struct engine *e, uint32_t page)
{
	memset(e->memory + (size_t)page * e->page_bytes, 0xa5, e->page_bytes);
}

bool page_is_poison(const struct engine *e, uint32_t page)
{
	const uint8_t *bytes = e->memory + (size_t)page * e->page_bytes;

	/* The first byte, and each other byte equals the byte before it. */
	return bytes[0] == 0xa5 && memcmp(bytes, bytes + 1, e->page_bytes - 1) == 0;
}

bool page_is_part(const struct engine *e, uint32_t page, const struct kvtier_key *key,
		  uint64_t salt)
{
	const uint16_t *values =
		(const uint16_t *)(void *)(e->memory + (size_t)page * e->page_bytes);
	const uint64_t seed = seed_of(key, salt);

	for (size_t i = 0; i < e->page_bytes / VALUE_BYTES; i++)
		if (values[i] != value_at(seed, i) && values[i] != 0xa5a5)
			return false;
	return true;
}

void chain_keys(struct engine *e, uint64_t chain, size_t n, struct kvtier_key *ret)
{
	const size_t n_tokens = n * e->geometry.block_tokens;
	uint32_t *tokens = calloc(n_tokens, sizeof(*tokens));
	size_t got = n;

	assert_non_null(tokens);
	for (size_t i = 0; i < n_tokens; i++)
		tokens[i] = (uint32_t)mix(chain * 0x100000001b3u + i);
	assert_int_equal(kvtier_keys(e->space, NULL, tokens, n_tokens, ret, &got), 0);
	assert_int_equal(got, n);
	free(tokens);
}

void pages_from(uint32_t first, uint32_t *ret, size_t n)
{
	for (size_t i = 0; i < n; i++)
		ret[i] = first + (uint32_t)i;
}

int chain_store(struct engine *e, const struct kvtier_key *keys, uint32_t first, uint32_t n)
{
	uint32_t pages[KVTIER_MAX_BLOCKS];

	assert_true(first + n <= e->pages);
	pages_from(first, pages, n);
	for (uint32_t i = 0; i < n; i++)
		page_fill(e, pages[i], &keys[i], 0);
	return engine_store(e, keys, pages, n, NULL, NULL);
}

static void poison(struct engine *e, uint32_t first, uint32_t *ret_pages, uint32_t n)
{
	assert_true(first + n <= e->pages);
	pages_from(first, ret_pages, n);
	for (uint32_t i = 0; i < n; i++)
		page_poison(e, first + i);
}

/* How many of them came; each page is right. */
static uint32_t came(const struct engine *e, const struct kvtier_key *keys, uint32_t first,
		     uint32_t n, const int32_t *blocks)
{
	uint32_t hits = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (blocks[i] == 0 ? !page_is(e, first + i, &keys[i], 0) :
				     !page_is_poison(e, first + i))
			fail_msg("block %u with status %d: its page holds the wrong bytes", i,
				 blocks[i]);
		hits += blocks[i] == 0;
	}
	return hits;
}

uint32_t chain_load(struct engine *e, const struct kvtier_key *keys, uint32_t first, uint32_t n)
{
	uint32_t pages[KVTIER_MAX_BLOCKS];
	int32_t blocks[KVTIER_MAX_BLOCKS];

	poison(e, first, pages, n);
	for (uint32_t i = 0; i < n; i++)
		blocks[i] = -EINPROGRESS;
	(void)engine_load(e, keys, pages, n, blocks);
	return came(e, keys, first, n, blocks);
}

uint64_t chain_load_begin(struct engine *e, const struct kvtier_key *keys, uint32_t first,
			  uint32_t n, uint32_t timeout_ms)
{
	const struct kvtier_op o = { .size = sizeof(o), .timeout_ms = timeout_ms };
	uint32_t pages[KVTIER_MAX_BLOCKS];
	uint64_t op;

	poison(e, first, pages, n);
	assert_int_equal(kvtier_load(e->space, keys, pages, n, &o, &op), 0);
	return op;
}

uint32_t chain_load_end(struct engine *e, uint64_t op, const struct kvtier_key *keys,
			uint32_t first, uint32_t n, int32_t otherwise)
{
	int32_t blocks[KVTIER_MAX_BLOCKS];
	struct kvtier_result result = { .size = sizeof(result), .blocks = blocks, .blocks_max = n };

	assert_int_equal(kvtier_wait(e->client, op, -1, &result), 0);
	for (uint32_t i = 0; i < n; i++)
		if (blocks[i] != 0 && blocks[i] != otherwise)
			fail_msg("block %u has status %d, not %d", i, blocks[i], otherwise);
	return came(e, keys, first, n, blocks);
}

void engine_works(const char *socket)
{
	engine_works_for(socket, "tiny@1");
}

void engine_works_for(const char *socket, const char *model)
{
	struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct kvtier_key keys[4];
	struct engine e;

	g.model = model;
	engine_open(&e, socket, "honest", &g, 8);
	chain_keys(&e, 1, 4, keys);
	assert_int_equal(chain_store(&e, keys, 0, 4), 0);
	assert_int_equal(chain_load(&e, keys, 4, 4), 4);
	engine_close(&e);
}

/* --- an engine that others are to do no harm --- */

void honest_begin(struct honest *h, const char *program)
{
	daemon_place(&h->d, false);
	h->d.program = program;
	daemon_configure(&h->d, SMALL_HOST);
	daemon_restart(&h->d);
	engine_open(&h->e, h->d.socket, "honest", &tiny_raw, 2 * HONEST_BLOCKS);
	chain_keys(&h->e, 1, HONEST_BLOCKS, h->keys);
	assert_int_equal(chain_store(&h->e, h->keys, 0, HONEST_BLOCKS), 0);
}

void honest_is_served(struct honest *h)
{
	engine_lookup_becomes(&h->e, h->keys, HONEST_BLOCKS, HONEST_BLOCKS);
	for (int i = 0; i < 50; i++)
		assert_int_equal(chain_load(&h->e, h->keys, HONEST_BLOCKS, HONEST_BLOCKS),
				 HONEST_BLOCKS);
	for (int i = 0; i < 3; i++) {
		struct engine late;

		engine_open(&late, h->d.socket, "late", &tiny_raw, 2 * HONEST_BLOCKS);
		assert_int_equal(chain_load(&late, h->keys, 0, HONEST_BLOCKS), HONEST_BLOCKS);
		engine_close(&late);
	}
}

void honest_end(struct honest *h)
{
	engine_close(&h->e);
	daemon_remove(&h->d);
}
