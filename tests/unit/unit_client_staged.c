/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) link=client.a (the library's inner names) */
/*
 * Goal: copies between an engine's pages and the staging memory move the right bytes, all of them
 * and no others. Method: random geometries and strides (seed printed); every byte checked against
 * the address formula of kvtier.h.
 */

#include "client/lib/base/pages.h"
#include "client/lib/memory/staged.h"
#include "tests/lib/test.h"

enum { ENGINE_PAGES = 3 };

struct engine {
	struct kvtier_geometry g;
	struct kvtier_region region;
	struct kvtier_segment s[5];
	size_t n;
	uint8_t *memory;
};

/* Token-major or head-major, with gaps, in a layer-by-layer or page-by-page arrangement. */
static struct engine engine_random(struct random *random)
{
	struct engine e = { .n = 4 };
	uint64_t at = 2 * random_below(random, 50);

	e.g = (struct kvtier_geometry){ .dtype = KVTIER_BF16,
					.layers = 1,
					.kv_heads = 1 + random_below(random, 4),
					.head_dim_k = 1 + random_below(random, 9),
					.head_dim_v = 1 + random_below(random, 9),
					.block_tokens = 1 + random_below(random, 20),
					.typed_values = 1 + random_below(random, 99),
					.typed_segments = 1 };
	for (uint32_t i = 0; i < e.n; i++) {
		struct kvtier_segment *s = &e.s[i];
		const uint64_t dim = 2ull * (i == 0 ? e.g.head_dim_k : e.g.head_dim_v);
		uint64_t extent;

		*s = (struct kvtier_segment){ .kind = i + 1, .offset = at };
		if (i < 2) {
			const uint64_t gap =
				random_below(random, 2) ? 2 * random_below(random, 9) : 0;
			const bool token_major = random_below(random, 2);

			s->head_stride = token_major ? dim + gap : (dim + gap) * e.g.block_tokens;
			s->token_stride = token_major ? (dim + gap) * e.g.kv_heads : dim + gap;
			extent = (dim + gap) * e.g.kv_heads * e.g.block_tokens;
		} else if (i == 2) {
			s->length = e.g.typed_values;
			extent = 2 * s->length;
		} else {
			s->length = 1 + random_below(random, 20);
			s->token_stride =
				random_below(random, 2) ? s->length + random_below(random, 5) : 0;
			extent = s->token_stride ? s->token_stride * e.g.block_tokens : s->length;
			e.g.opaque_bytes =
				(uint32_t)(s->length * (s->token_stride ? e.g.block_tokens : 1));
		}
		s->page_stride = (extent + 2 * random_below(random, 30) + 1) & ~1ull;
		at += s->page_stride * ENGINE_PAGES;
	}
	e.memory = calloc(1, at);
	assert_non_null(e.memory);
	e.region =
		(struct kvtier_region){ .memory = KVTIER_PRIVATE, .length = at, .base = e.memory };
	return e;
}

/* Calls for each byte of a page: where it is in the engine, and where in the staging memory. */
static size_t walk(const struct engine *e, const struct staged *staged, uint64_t user_page,
		   uint64_t page, size_t *user, size_t *ours)
{
	size_t n = 0;

	for (size_t i = 0; i < e->n; i++) {
		const struct kvtier_segment *s = &e->s[i];
		const bool plane = s->kind <= KVTIER_V;
		const uint64_t tokens = plane || s->token_stride ? e->g.block_tokens : 1;
		const uint64_t heads = plane ? e->g.kv_heads : 1;
		const uint64_t bytes =
			plane ? 2ull * (s->kind == KVTIER_K ? e->g.head_dim_k : e->g.head_dim_v) :
			s->kind == KVTIER_TYPED ? 2 * s->length :
						  s->length;
		struct wire_segment w;

		staged_segment(staged, i, &w);
		for (uint64_t t = 0; t < tokens; t++)
			for (uint64_t h = 0; h < heads; h++)
				for (uint64_t b = 0; b < bytes; b++, n++) {
					user[n] = s->offset + user_page * s->page_stride +
						  t * s->token_stride + h * s->head_stride + b;
					ours[n] = w.offset + page * w.page_stride +
						  t * w.token_stride + h * w.head_stride + b;
				}
	}
	return n;
}

static int open_staged(const struct engine *e, uint64_t staging_bytes, struct staged **ret)
{
	static struct space_layout l;

	l.geometry = e->g;
	l.regions[0] = e->region;
	l.n_regions = 1;
	l.n_segments = e->n;
	memcpy(l.segments, e->s, sizeof(e->s));
	return staged_open(&l, staging_bytes, NULL, ret);
}

TEST(random_layouts_byte_by_byte)
{
	struct random random = random_seeded("unit_client_staged");
	static size_t user[1 << 16], ours[1 << 16];

	for (int round = 0; round < 300; round++) {
		struct engine e = engine_random(&random);
		struct staged *staged;
		uint8_t *memory, *before;
		size_t n;

		assert_int_equal(open_staged(&e, 1 << 20, &staged), 0);
		assert_int_equal(staged->user_pages, ENGINE_PAGES);
		assert_int_equal(staged_renew(staged), 0);
		memory = mmap(NULL, staged->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, staged->fd,
			      0);
		assert_true(memory != MAP_FAILED);
		n = walk(&e, staged, 2, staged->pages - 1, user, ours);
		for (size_t i = 0; i < e.region.length; i++)
			e.memory[i] = (uint8_t)random_next(&random);
		staged_copy(staged, 2, staged->pages - 1, false);
		for (size_t i = 0; i < n; i++)
			assert_int_equal(memory[ours[i]], e.memory[user[i]]);

		before = malloc(e.region.length);
		assert_non_null(before);
		memcpy(before, e.memory, e.region.length);
		for (size_t i = 0; i < n; i++)
			before[user[i]] = memory[ours[i]] = (uint8_t)random_next(&random);
		staged_copy(staged, 2, staged->pages - 1, true);
		/* gaps and other pages too */
		assert_memory_equal(e.memory, before, e.region.length);
		free(before);
		(void)munmap(memory, staged->bytes);
		staged_close(staged);
		free(e.memory);
	}
}

TEST(page_outside_its_region_is_refused)
{
	struct random random = { 1 };
	struct engine e = engine_random(&random);
	struct staged *staged;

	e.s[1].offset = e.region.length - 1;
	assert_int_equal(open_staged(&e, 1 << 20, &staged), -EINVAL);
	assert_non_null(strstr(kvtier_last_error(), "segments[1]"));
	e.s[1].offset = 0;
	e.g.block_tokens = 2;
	e.s[1].token_stride = UINT64_MAX - 1; /* wraps, in careless arithmetic */
	assert_int_equal(open_staged(&e, 1 << 20, &staged), -EINVAL);
	free(e.memory);
}

TEST(staging_holds_at_least_one_page)
{
	struct random random = { 2 };
	struct engine e = engine_random(&random);
	struct staged *staged;

	assert_int_equal(open_staged(&e, 1, &staged), 0);
	assert_int_equal(staged->pages, 1);
	staged_close(staged);
	free(e.memory);
}
