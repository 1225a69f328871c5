/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_space.c - goal: an identity is all of geometry, codec and tenant and nothing else; its
 * number is stable while it is used, also from before its geometry was known. Method: a state
 * directory of one's own. Tenants' secrets: unit_secret.c.
 */
#include "tests/lib/lib_space.h"

#include "client/kvtier.h"

static struct wire_geometry g;

static void geometry(void)
{
	g = home_geometry();
	g.world = 2;
	strcpy(g.convention, "hf");
}

static struct space *acquire(void)
{
	struct space *space = NULL;

	if (space_acquire(home.spaces, "default", &g, &space, home_text, sizeof(home_text)))
		fail_msg("%s", home_text);
	return space;
}

FIXTURE(begin)
{
	geometry();
	return home_set_up(state);
}

TEST_EACH(begin, home_tear_down);

TEST(same_geometry_same_space)
{
	struct space *a = acquire(), *b = acquire();

	assert_ptr_equal(a, b);
	assert_int_equal(a->opened, 2);
}

TEST(default_codec_is_the_same_as_said)
{
	struct space *a = acquire();

	g.codec = KVTIER_CODEC_FP8;
	assert_ptr_equal(acquire(), a);
	g.codec = KVTIER_CODEC_RAW;
	assert_ptr_not_equal(acquire(), a);
}

TEST(a_codec_that_is_not_allowed_is_refused_by_name)
{
	struct space *space = NULL;

	spaces_codecs(home.spaces, 1u << CODEC_RAW | 1u << CODEC_LOSSLESS, CODEC_LOSSLESS);
	g.codec = KVTIER_CODEC_INT8;
	assert_int_equal(space_acquire(home.spaces, "default", &g, &space, home_text,
				       sizeof(home_text)),
			 -EACCES);
	assert_string_equal(home_text,
			    "geometry.codec: int8 is not allowed here; [codec] allow is raw "
			    "lossless");
	g.codec = KVTIER_CODEC_DEFAULT;
	assert_int_equal(acquire()->codec, CODEC_LOSSLESS);
	g.codec = KVTIER_CODEC_RAW;
	assert_int_equal(acquire()->codec, CODEC_RAW);
}

/* Values of other types have no codec that an operator could forbid, and int8 needs channels. */
TEST(a_codec_that_does_not_apply_is_not_asked_for)
{
	spaces_codecs(home.spaces, 1u << CODEC_INT8 | 1u << CODEC_FP8, CODEC_INT8);
	assert_int_equal(acquire()->codec, CODEC_INT8);
	g.dtype = KVTIER_FP32;
	assert_int_equal(acquire()->codec, CODEC_RAW);
	g.codec = KVTIER_CODEC_RAW;
	assert_int_equal(acquire()->codec, CODEC_RAW);
	g.codec = KVTIER_CODEC_DEFAULT;
	g.dtype = KVTIER_E4M3;
	assert_int_equal(acquire()->codec, CODEC_FP8_NATIVE);
	g.dtype = KVTIER_BF16;
	g.layers = g.kv_heads = g.head_dim_k = g.head_dim_v = 0;
	g.typed_segments = 1;
	g.typed_values = 2048;
	assert_int_equal(acquire()->codec, CODEC_FP8);
	spaces_codecs(home.spaces, 1u << CODEC_INT8, CODEC_INT8);
	assert_int_equal(acquire()->codec, CODEC_RAW);
}

static bool salts_equal(const struct space *a, const struct space *b)
{
	uint8_t one[32], other[32];

	space_salt(home.spaces, a, one);
	space_salt(home.spaces, b, other);
	return memcmp(one, other, sizeof(one)) == 0;
}

/* One field changed a time: each makes another space, with another salt. */
TEST(every_field_counts)
{
#define FIELD(name) offsetof(struct wire_geometry, name)
	static const struct {
		size_t at;
		uint32_t value;
	} fields[] = {
		{ FIELD(dtype), KVTIER_FP16 },
		{ FIELD(layers), 3 },
		{ FIELD(kv_heads), 4 },
		{ FIELD(head_dim_k), 64 },
		{ FIELD(head_dim_v), 64 },
		{ FIELD(block_tokens), 32 },
		{ FIELD(rank), 1 },
		{ FIELD(world), 4 },
		/* "M2" */
		{ FIELD(model), 0x324d },
		{ FIELD(convention), 0x324d },
		{ FIELD(extras), 0x324d },
	};
#undef FIELD
	const struct wire_geometry base = g;
	struct space *first = acquire();

	for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
		struct space *other;

		g = base;
		memcpy((char *)&g + fields[i].at, &fields[i].value, sizeof(fields[i].value));
		other = acquire();
		assert_ptr_not_equal(other, first);
		assert_memory_not_equal(other->id, first->id, 32);
		assert_false(salts_equal(other, first));
		assert_memory_not_equal(other->owner, first->owner, 32);
	}
}

TEST(tenants_share_an_id_but_no_salt)
{
	struct space *a = acquire(), *b = NULL;

	assert_int_equal(spaces_tenant(home.spaces, "other", home_text, sizeof(home_text)), 0);
	assert_int_equal(space_acquire(home.spaces, "other", &g, &b, home_text, sizeof(home_text)),
			 0);
	assert_ptr_not_equal(a, b);
	assert_memory_equal(a->id, b->id, 32);
	assert_false(salts_equal(a, b));
}

/* A file makes the MACs that it would make as secret_file, and names are as before. */
TEST(seals_of_other_secrets)
{
	static const struct secret_shared from[REDIS_SEALS_EACH] = { { 32, "the newer one" },
								     { 40, "the older one" } };
	struct redis_seals seals;
	const struct redis_seal *of[REDIS_SEALS_EACH], *own = acquire()->seal;
	struct redis_seal want;
	uint8_t secret[SECRET_BYTES];

	assert_int_equal(spaces_tenant(home.spaces, "other", home_text, sizeof(home_text)), 0);
	spaces_seals(home.spaces, from, &seals);
	assert_int_equal(seals.n, 4);
	assert_int_equal(redis_seals_of(&seals, own, of), 2);
	for (size_t i = 0; i < REDIS_SEALS_EACH; i++) {
		secret_derive(from[i].bytes, from[i].n, "default", secret);
		redis_seal_derive(secret, sizeof(secret), &want);
		assert_memory_equal(of[i]->key, want.key, sizeof(want.key));
		assert_memory_equal(of[i]->tag, own->tag, sizeof(own->tag));
	}
	spaces_seals(home.spaces, (const struct secret_shared[REDIS_SEALS_EACH]){ 0 }, &seals);
	assert_int_equal(redis_seals_of(&seals, own, of), 1);
	assert_ptr_equal(of[0], own);
}

TEST(salt_survives_a_restart)
{
	uint8_t salt[32], again[32];

	space_salt(home.spaces, acquire(), salt);
	spaces_close(home.spaces);
	home_open();
	space_salt(home.spaces, acquire(), again);
	assert_memory_equal(again, salt, sizeof(salt));
}

TEST(refused_geometry_takes_no_number)
{
	struct space *space = NULL;

	g.kv_heads = 0;
	assert_int_equal(space_acquire(home.spaces, "default", &g, &space, home_text,
				       sizeof(home_text)),
			 -EINVAL);
	assert_non_null(strstr(home_text, "geometry.kv_heads is 0; must be 1 to 1024"));
	geometry();
	assert_int_equal(acquire()->number, 0);
}

/* --- spaces found on a device --- */

/* Of the usual geometry, as a daemon before us would have computed them. */
static struct {
	uint8_t owner[32];
	uint32_t usual, raw;
} b;

FIXTURE(begin_after_another)
{
	struct quota quota = { 0 };
	struct spaces *other;
	struct space *space;

	(void)begin(state);
	assert_int_equal(spaces_open(home.dir, MAX, &quota, &other, home_text, sizeof(home_text)),
			 0);
	assert_int_equal(spaces_tenant(other, "default", home_text, sizeof(home_text)), 0);
	assert_int_equal(space_acquire(other, "default", &g, &space, home_text, sizeof(home_text)),
			 0);
	assert_true(space->known);
	memcpy(b.owner, space->owner, 32);
	b.usual = space->shape.image_bytes;
	b.raw = space->raw_shape.image_bytes;
	spaces_close(other);
	return 0;
}

#define FOUND(name) TEST_WITH(name, begin_after_another, home_tear_down)

static uint32_t found(const uint8_t owner[32], uint32_t bytes, uint32_t variant)
{
	uint32_t number = 77, got = 77;

	assert_int_equal(space_found(home.spaces, owner, bytes, 1, &number, &got), 0);
	assert_int_equal(got, variant);
	return number;
}

TEST(owner_is_tenant_and_id)
{
	const struct space *space = acquire();
	uint8_t tenant[16];

	spaces_tenant_owner(home.spaces, "default", tenant);
	assert_memory_equal(space->owner, tenant, 16);
	assert_memory_equal(space->owner + 16, space->id, 16);
	spaces_tenant_owner(home.spaces, "other", tenant);
	assert_memory_not_equal(space->owner, tenant, 16);
}

FOUND(found_is_unknown_until_opened_and_keeps_its_number)
{
	const uint32_t number = found(b.owner, b.usual, 0);
	const struct space *space = space_at(home.spaces, number);

	assert_false(space->known);
	assert_memory_equal(space->owner, b.owner, 32);
	assert_int_equal(space->variant_bytes[0], b.usual);
	assert_int_equal(found(b.owner, b.usual, 0), number);
	space = acquire();
	assert_true(space->known);
	assert_int_equal(space->number, number);
	assert_ptr_equal(space_at(home.spaces, number), space);
	assert_int_equal(space->opened, 1);
	assert_int_equal(space->variant_bytes[0], b.usual);
	assert_int_equal(space->variant_bytes[1], b.raw);
	assert_int_equal(found(b.owner, b.raw, 1), number);
	assert_int_equal(space->opened, 1);
}

/* Of the found owner alone, so that it is the same when its engine comes; of each space another,
 * after each start another. The table of blocks knows it before there can be a block. */
FOUND(index_keys_follow_from_the_owner_and_the_start)
{
	const uint32_t number = found(b.owner, b.usual, 0);
	struct fingerprint_key told;
	uint8_t key[16];

	memcpy(key, space_at(home.spaces, number)->index_key, 16);
	told = fingerprint_key_of(key);
	assert_memory_equal(counts_index_key(home.counts, number), &told, sizeof(told));
	home_set_blocks(number, 1);
	assert_memory_equal(acquire()->index_key, key, 16);
	strcpy(g.model, "another@1");
	assert_memory_not_equal(acquire()->index_key, key, 16);
	home_set_blocks(number, 0);
	spaces_close(home.spaces);
	home_open();
	geometry();
	assert_memory_not_equal(acquire()->index_key, key, 16);
}

FOUND(the_order_of_sizes_stays_as_found)
{
	const struct space *space;

	(void)found(b.owner, b.raw, 0);
	(void)found(b.owner, b.usual, 1);
	space = acquire();
	assert_int_equal(space->variant_bytes[0], b.raw);
	assert_int_equal(space->variant_bytes[1], b.usual);
	assert_int_equal(space_variant(space, CODEC_RAW), 0);
	assert_int_equal(space_variant(space, CODEC_FP8), 1);
}

FOUND(one_found_size_says_the_order)
{
	(void)found(b.owner, b.raw, 0);
	assert_int_equal(acquire()->variant_bytes[0], b.raw);
}

FOUND(sizes_that_do_not_fit_are_overwritten)
{
	const struct space *space;

	(void)found(b.owner, 12345, 0);
	(void)found(b.owner, b.usual, 1);
	space = acquire();
	assert_int_equal(space->variant_bytes[0], b.raw);
	assert_int_equal(space->variant_bytes[1], b.usual);
}

FOUND(a_third_size_is_refused)
{
	uint32_t number = 77, variant = 77;

	assert_int_equal(space_found(home.spaces, b.owner, 0, 1, &number, &variant), -EBADMSG);
	(void)found(b.owner, 4096, 0);
	(void)found(b.owner, 8192, 1);
	assert_int_equal(space_found(home.spaces, b.owner, 12288, 1, &number, &variant), -EBADMSG);
	(void)acquire();
	assert_int_equal(space_found(home.spaces, b.owner, 4096, 1, &number, &variant), -EBADMSG);
	assert_int_equal(number, 77);
	assert_int_equal(variant, 77);
}

TEST(one_size_is_one_variant)
{
	const struct space *space;

	g.codec = KVTIER_CODEC_RAW;
	space = acquire();
	assert_int_equal(space_variant(space, CODEC_RAW), 0);
	assert_int_equal(space->variant_bytes[0], space->raw_shape.image_bytes);
	assert_int_equal(space->variant_bytes[1], space->raw_shape.image_bytes);
	(void)found(space->owner, space->raw_shape.image_bytes, 0);
}
