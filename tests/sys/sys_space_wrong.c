/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_space_wrong.c - goal: a bad description of a space is refused with a sentence that names the
 * field, whether the library or the daemon looks at it. Method: one good description; each case
 * spoils one thing of it and looks for the field's name.
 */
#include "tests/lib/lib.h"

static struct daemon kvtierd;
static struct kvtier_client *client;

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

static int open_space(const struct description *its)
{
	struct kvtier_space *space;
	const int rc = kvtier_space_open(client, &its->g, its->r, its->n_regions, its->s,
					 its->n_segments, &space);

	return rc ? rc : kvtier_space_close(space);
}

static void refused(const struct description *its, const char *field)
{
	assert_int_equal(open_space(its), -EINVAL);
	if (!strstr(kvtier_last_error(), field))
		fail_msg("\"%s\" does not name %s", kvtier_last_error(), field);
}

FIXTURE(set_up)
{
	daemon_start(&kvtierd, HOST("16M", "1M"));
	return client_dial(kvtierd.socket, NULL, 0, &client);
}

FIXTURE_DO(tear_down, kvtier_close(client); daemon_remove(&kvtierd));

TEST_GROUP(set_up, tear_down);

TEST(good_description_passes)
{
	const struct description d = good();

	assert_int_equal(open_space(&d), 0);
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
	SPOIL(d.g.layers = KVTIER_MAX_LAYERS + 1, "1 to 1024");
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
	assert_int_equal(open_space(&d), 0);
	text[255] = 'x';
	text[256] = 0;
	refused(&d, "geometry.extras");
}

TEST(region_errors_name_the_field)
{
	SPOIL(d.r[1].memory = 3, "regions[1].memory");
	SPOIL(d.r[1].memory = KVTIER_MEMFD, "cannot be mixed");
	SPOIL(d.r[0].length = 0, "its region of 0 bytes");
	SPOIL(d.r[0].base = NULL, "regions[0].base");
	SPOIL(d.r[0].reserved = 1, "regions[0].reserved");
	SPOIL(d.n_regions = 65, "n_regions");
	SPOIL(d.n_segments = 0, "both or neither");
}

TEST(memory_file_errors_name_the_field)
{
	struct description d = good();
	struct kvtier_memory *memory;

	assert_int_equal(kvtier_memory_alloc(1 << 16, NULL, &memory), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(kvtier_memory_region(memory, &d.r[i]), 0);
	assert_int_equal(open_space(&d), 0);
	d.r[1].offset = 100;
	refused(&d, "offset 100 (a multiple of 4096)");
	d.r[1].offset = 4096;
	refused(&d, "regions[1]"); /* it ends behind the file */
	d.r[1].offset = 0;
	d.r[1].length = 0;
	refused(&d, "length 0 must lie in");
	d.r[1].fd = -1;
	assert_int_equal(open_space(&d), -EBADF);
	assert_non_null(strstr(kvtier_last_error(), "regions[1].fd"));
	kvtier_memory_free(memory);
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
	SPOIL(d.s[2] = d.s[0], "layer 0 has two k");
	SPOIL(d.s[3] = d.s[5], "3 of 4 k and v");
	SPOIL(d.n_segments = 5, "opaque_bytes");
}

TEST(the_first_size_of_an_array_is_that_of_all)
{
	struct description one = good();

	one.r[1].size = one.s[3].size = 0;
	assert_int_equal(open_space(&one), 0);
	SPOIL(d.r[0].size = 0, "regions.size");
}
