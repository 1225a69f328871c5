/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) link=client.a (the library's inner names) */
/*
 * Goal: bad arguments get an error that names the field and the limit; structs of older and newer
 * programs are taken as kvtier.h says. Method: one good description; each case spoils one thing of
 * it and looks for the field's name.
 */
#include <errno.h>
#include <string.h>

#include "client/lib/check.h"
#include "client/lib/error.h"
#include "tests/lib/test.h"

struct description {
	struct kvtier_geometry g;
	struct kvtier_region r[2];
	struct kvtier_segment s[6];
	size_t n_regions, n_segments;
};

static struct description good(void)
{
	static char memory[1 << 16];
	struct description d = {
		.g = { .size = sizeof(d.g),
		       .dtype = KVTIER_BF16,
		       .model = "m",
		       .convention = "hf",
		       .layers = 2,
		       .kv_heads = 2,
		       .head_dim_k = 8,
		       .head_dim_v = 4,
		       .block_tokens = 4,
		       .world = 1,
		       .typed_segments = 1,
		       .typed_values = 10,
		       .opaque_bytes = 5 + 4 * 3 - 5 },
		.n_regions = 2,
		.n_segments = 6,
	};

	for (int i = 0; i < 2; i++)
		d.r[i] = (struct kvtier_region){ .size = sizeof(d.r[0]),
						 .memory = KVTIER_PRIVATE,
						 .length = sizeof(memory),
						 .base = memory };
	for (uint32_t i = 0; i < 4; i++)
		d.s[i] = (struct kvtier_segment){ .size = sizeof(d.s[0]),
						  .layer = i / 2,
						  .kind = 1 + i % 2,
						  .page_stride = 4096,
						  .head_stride = 16,
						  .token_stride = 32,
						  .offset = i * 256 };
	d.s[4] = (struct kvtier_segment){ .size = sizeof(d.s[0]),
					  .kind = KVTIER_TYPED,
					  .page_stride = 4096,
					  .offset = 1024,
					  .length = 10,
					  .region = 1 };
	d.s[5] = (struct kvtier_segment){ .size = sizeof(d.s[0]),
					  .kind = KVTIER_OPAQUE,
					  .page_stride = 4096,
					  .offset = 2048,
					  .length = 3,
					  .token_stride = 7 };
	return d;
}

static int check(const struct description *d)
{
	static struct kvtier_region regions[KVTIER_MAX_REGIONS];
	static struct kvtier_segment segments[KVTIER_MAX_SEGMENTS];
	struct kvtier_geometry g;
	struct wire_geometry wire;
	uint32_t memory;
	int rc = check_geometry(&d->g, &g, &wire);

	if (!rc)
		rc = check_layout(&g, d->r, d->n_regions, d->s, d->n_segments, regions, segments,
				  &memory);
	return rc;
}

static void refused(const struct description *d, const char *field)
{
	assert_int_equal(check(d), -EINVAL);
	if (!strstr(kvtier_last_error(), field))
		fail_msg("\"%s\" does not name %s", kvtier_last_error(), field);
}

TEST(good_description_passes)
{
	const struct description d = good();

	assert_int_equal(check(&d), 0);
}

#define SPOIL(change, field)                   \
	do {                                   \
		struct description d = good(); \
		change;                        \
		refused(&d, field);            \
	} while (0)

TEST(geometry_errors_name_the_field)
{
	SPOIL(d.g.dtype = 0, "geometry.dtype");
	SPOIL(d.g.dtype = 7, "geometry.dtype");
	SPOIL(d.g.layers = 0, "geometry.layers");
	SPOIL(d.g.layers = KVTIER_MAX_LAYERS + 1, "1..1024");
	SPOIL(d.g.kv_heads = 0, "geometry.kv_heads");
	SPOIL(d.g.head_dim_k = 4097, "geometry.head_dim_k");
	SPOIL(d.g.block_tokens = 0, "geometry.block_tokens");
	SPOIL(d.g.world = 0, "geometry.world");
	SPOIL(d.g.rank = 1, "geometry.rank");
	SPOIL(d.g.codec = 9, "geometry.codec");
	SPOIL(d.g.model = NULL, "geometry.model");
	SPOIL(d.g.convention = "", "geometry.convention");
}

TEST(string_limit_is_255_bytes)
{
	struct description d = good();
	char text[257];

	memset(text, 'x', sizeof(text));
	text[255] = 0;
	d.g.extras = text;
	assert_int_equal(check(&d), 0);
	text[255] = 'x';
	text[256] = 0;
	refused(&d, "geometry.extras");
}

TEST(region_errors_name_the_field)
{
	SPOIL(d.r[1].memory = 3, "regions[1].memory");
	SPOIL(d.r[1].memory = KVTIER_MEMFD, "cannot be mixed");
	SPOIL(d.r[0].length = 0, "regions[0].length");
	SPOIL(d.r[0].base = NULL, "regions[0].base");
	SPOIL(d.r[0].reserved = 1, "regions[0].reserved");
	SPOIL(d.n_regions = 65, "n_regions");
	SPOIL(d.n_segments = 0, "both or neither");
	SPOIL((d.r[0].memory = d.r[1].memory = KVTIER_MEMFD, d.r[0].fd = -1), "regions[0].fd");
	SPOIL((d.r[0].memory = d.r[1].memory = KVTIER_MEMFD, d.r[0].offset = 100),
	      "regions[0].offset");
}

TEST(segment_errors_name_the_field)
{
	SPOIL(d.s[0].region = 2, "segments[0].region");
	SPOIL(d.s[1].kind = 5, "segments[1].kind");
	SPOIL(d.s[1].layer = 2, "segments[1].layer");
	SPOIL(d.s[4].layer = 1, "segments[4].layer");
	SPOIL(d.s[2].page_stride = 0, "segments[2].page_stride");
	SPOIL(d.s[2].offset = 1, "multiples of 2");
	SPOIL(d.s[4].length = 9, "typed_values");
	SPOIL(d.s[5].length = 0, "segments[5].length");
	SPOIL(d.s[5].length = 2, "opaque_bytes");
	SPOIL(d.s[2] = d.s[0], "layer 0 has a K");
	SPOIL(d.s[3] = d.s[5], "planes");
	SPOIL(d.n_segments = 5, "opaque_bytes");
}

TEST(older_struct_means_zero_for_the_rest)
{
	struct kvtier_op_options o = { .size = 8, .timeout_ms = 7, .priority = 99 }, ret;

	assert_int_equal(error_struct_in(&ret, sizeof(ret), &o, "options"), 0);
	assert_int_equal(ret.timeout_ms, 7);
	assert_int_equal(ret.priority, 0);
}

TEST(newer_struct_may_ask_for_nothing_new)
{
	struct {
		struct kvtier_hit hit;
		uint32_t more;
	} newer = { .hit.size = sizeof(newer) };
	struct kvtier_hit ret;

	assert_int_equal(error_struct_in(&ret, sizeof(ret), &newer, "hit"), 0);
	newer.more = 1;
	assert_int_equal(error_struct_in(&ret, sizeof(ret), &newer, "hit"), -E2BIG);
	assert_non_null(strstr(kvtier_last_error(), "hit.size"));
}

TEST(size_zero_and_wild_sizes_are_refused)
{
	uint32_t size = 0;
	uint8_t ret[16];

	assert_int_equal(error_struct_in(ret, sizeof(ret), &size, "options"), -EINVAL);
	size = UINT32_MAX;
	assert_int_equal(error_struct_in(ret, sizeof(ret), &size, "options"), -E2BIG);
	assert_int_equal(error_struct_in(ret, sizeof(ret), NULL, "options"), -EINVAL);
}

TEST(elements_of_one_array_have_one_size)
{
	SPOIL(d.s[3].size--, "segments[3].size");
	SPOIL(d.r[0].size = 0, "regions.size");
}
