/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.c - spaces (identities of interchangeable blocks) and tenants' secrets. Core thread only.
 *
 * Invariants
 *   S1 a space number is reused only when nobody has it open and no block carries it.
 *   S2 a tenant's secret is the same at every start (secret.h), so keys survive restarts.
 *   S3 a client that opens a space which was found, unknown, on a device gets its number and its blocks.
 */
#include "space.h"

#include <assert.h>
#include <errno.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "../client/kvtier.h"
#include "../tiers/tier.h"
#include "secret.h"

enum { MAX_TENANTS = 64, OWNER_HALF = 16 };

struct tenant {
	char name[32];
	uint8_t secret[SECRET_BYTES];
};

struct spaces {
	char state_dir[256];
	uint8_t start[32];			/* this start's secret: all index keys follow from it */
	uint8_t shared[SPACES_SHARED_BYTES];
	size_t shared_bytes;			/* 0: each tenant's secret is in a file of its own */
	EVP_MD_CTX *sha;
	uint32_t n_tenants, n_spaces;		/* n_spaces: high-water mark */
	uint32_t found;				/* number that the last record belonged to: likely the next one's */
	struct tenant tenants[MAX_TENANTS];
	struct space *at[TIER_MAX_SPACES];
	struct spaces_blocks blocks;		/* zeros: nobody to ask */
};

int spaces_open(const char *state_dir, struct spaces **ret, char *text, size_t n)
{
	struct spaces *s = calloc(1, sizeof *s);

	if (!s || !(s->sha = EVP_MD_CTX_new())) {
		spaces_close(s);
		snprintf(text, n, "out of memory for the table of spaces");
		return -ENOMEM;
	}
	if (getrandom(s->start, sizeof s->start, 0) != sizeof s->start) {
		snprintf(text, n, "getrandom: %s", strerror(errno));
		spaces_close(s);
		return -EIO;
	}
	if (strlen(state_dir) >= sizeof s->state_dir - 64) {
		snprintf(text, n, "[daemon] state_dir is longer than %zu bytes", sizeof s->state_dir - 64);
		spaces_close(s);
		return -ENAMETOOLONG;
	}
	strcpy(s->state_dir, state_dir);
	*ret = s;
	return 0;
}

void spaces_close(struct spaces *s)
{
	if (!s)
		return;
	for (uint32_t i = 0; i < s->n_spaces; i++)
		free(s->at[i]);
	EVP_MD_CTX_free(s->sha);
	explicit_bzero(s->tenants, sizeof s->tenants);
	explicit_bzero(s->shared, sizeof s->shared);
	explicit_bzero(s->start, sizeof s->start);
	free(s);
}

void spaces_attach(struct spaces *s, const struct spaces_blocks *blocks)
{
	assert(s->n_spaces == 0);
	s->blocks = *blocks;
}

/* --- tenants --- */

static bool tenant_name_ok(const char *name)
{
	const size_t n = strlen(name);

	return n > 0 && n < sizeof ((struct tenant *)0)->name && name[0] != '.' &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == n;
}

static struct tenant *tenant_find(struct spaces *s, const char *name)
{
	for (uint32_t i = 0; i < s->n_tenants; i++)
		if (strcmp(s->tenants[i].name, name) == 0)
			return &s->tenants[i];
	return NULL;
}

void spaces_share(struct spaces *s, const uint8_t *secret, size_t n)
{
	assert(s->n_tenants == 0 && n > 0 && n <= sizeof s->shared);
	memcpy(s->shared, secret, n);
	s->shared_bytes = n;
}

int spaces_tenant(struct spaces *s, const char *name, char *text, size_t n)
{
	struct tenant *t = &s->tenants[s->n_tenants];
	int r = 0;

	if (!tenant_name_ok(name)) {
		snprintf(text, n, "tenant must be 1 to 31 of A-Z a-z 0-9 - _ . and not begin with .");
		return -EINVAL;
	}
	if (tenant_find(s, name))
		return 0;
	if (s->n_tenants == MAX_TENANTS) {
		snprintf(text, n, "more than %d tenants", MAX_TENANTS);
		return -ENOSPC;
	}
	if (s->shared_bytes > 0)
		secret_derive(s->shared, s->shared_bytes, name, t->secret);
	else
		r = secret_load(s->state_dir, name, t->secret, text, n);
	if (r)
		return r;
	strcpy(t->name, name);
	s->n_tenants++;
	return 0;
}

/* --- identity --- */

static void sha256(EVP_MD_CTX *ctx, const void *a, size_t na, const void *b, size_t nb, const void *c, size_t nc,
		   uint8_t ret[32])
{
	unsigned got = 0;
	const int ok = EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) && EVP_DigestUpdate(ctx, a, na) &&
		       EVP_DigestUpdate(ctx, b, nb) && EVP_DigestUpdate(ctx, c, nc) &&
		       EVP_DigestFinal_ex(ctx, ret, &got);

	assert(ok && got == 32);	/* SHA-256 of memory cannot fail */
}

static const char *string_error(const char *s)
{
	const char *end = memchr(s, 0, WIRE_STRING_BYTES);

	if (!end)
		return "must be at most 255 bytes";
	for (const char *p = end; p < s + WIRE_STRING_BYTES; p++)
		if (*p)
			return "must be zero-padded";
	for (const char *p = s; p < end; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			return "must not contain control characters";
	return NULL;
}

static int refuse(char *text, size_t n, const char *field, const char *why)
{
	snprintf(text, n, "geometry.%s %s", field, why);
	return -EINVAL;
}

struct field_limit {
	const char *name;
	uint32_t value, min, max;
};

static int check_limits(const struct wire_geometry *w, char *text, size_t n)
{
	const uint32_t planes = w->head_dim_k || w->head_dim_v;	/* without any, a block is typed or opaque alone */
	const struct field_limit limits[] = {
		{ "dtype", w->dtype, DTYPE_BF16, DTYPE_INT8 },
		{ "codec", w->codec, 0, CODEC_FP8_NATIVE },
		{ "layers", w->layers, planes, IMAGE_MAX_LAYERS },
		{ "kv_heads", w->kv_heads, planes, IMAGE_MAX_HEADS },
		{ "head_dim_k", w->head_dim_k, 0, IMAGE_MAX_HEAD_DIM },
		{ "head_dim_v", w->head_dim_v, 0, IMAGE_MAX_HEAD_DIM },
		{ "block_tokens", w->block_tokens, 1, IMAGE_MAX_TOKENS },
		{ "world", w->world, 1, 4096 },
		{ "rank", w->rank, 0, w->world - 1 },
		{ "typed_segments", w->typed_segments, 0, WIRE_MAX_SEGMENTS },
		{ "typed_values", w->typed_values, 0, IMAGE_MAX_BYTES },
		{ "opaque_bytes", w->opaque_bytes, 0, IMAGE_MAX_BYTES },
	};

	for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
		const struct field_limit *l = &limits[i];

		if (l->value < l->min || l->value > l->max) {
			snprintf(text, n, "geometry.%s is %u; must be %u to %u", l->name, l->value, l->min, l->max);
			return -EINVAL;
		}
	}
	return 0;
}

static enum image_codec default_codec(uint32_t dtype)
{
	switch (dtype) {
	case DTYPE_BF16:
	case DTYPE_FP16:
		return CODEC_FP8;
	case DTYPE_E4M3:
	case DTYPE_E5M2:
	case DTYPE_INT8:
		return CODEC_FP8_NATIVE;
	default:
		return CODEC_RAW;
	}
}

static int check(const struct wire_geometry *w, struct space *ret, char *text, size_t n)
{
	const struct { const char *name, *value; } strings[] = {
		{ "model", w->model }, { "convention", w->convention }, { "extras", w->extras },
	};
	const char *field = NULL;
	int r;

	for (size_t i = 0; i < sizeof strings / sizeof *strings; i++)
		if (string_error(strings[i].value))
			return refuse(text, n, strings[i].name, string_error(strings[i].value));
	if (!w->model[0])
		return refuse(text, n, "model", "must not be empty");
	r = check_limits(w, text, n);
	if (r)
		return r;
	ret->geometry = (struct image_geometry){
		.dtype = w->dtype, .layers = w->layers, .kv_heads = w->kv_heads,
		.head_dim_k = w->head_dim_k, .head_dim_v = w->head_dim_v, .block_tokens = w->block_tokens,
		.typed_segments = w->typed_segments, .typed_values = w->typed_values,
		.opaque_bytes = w->opaque_bytes,
	};
	ret->codec = w->codec ? (enum image_codec)w->codec : default_codec(w->dtype);
	r = image_shape(&ret->geometry, ret->codec, ret->codec, &ret->shape, &field);
	if (r == 0)
		r = image_shape(&ret->geometry, CODEC_RAW, CODEC_RAW, &ret->raw_shape, &field);
	if (r == -EOVERFLOW) {
		snprintf(text, n, "geometry: one block is larger than %u bytes; use fewer block_tokens",
			 (unsigned)IMAGE_MAX_BYTES);
		return -EINVAL;
	}
	if (r)
		return refuse(text, n, field ? field : "codec",
			      "does not go with the rest: fp8 takes BF16 and FP16, fp8-native 8-bit dtypes, and a "
			      "block has K, V, typed or opaque bytes");
	return 0;
}

static void identify(struct spaces *s, const struct tenant *tenant, struct space *space)
{
	static const char id_label[] = "kvtier space 1", salt_label[] = "kvtier salt 1";
	struct wire_geometry w = space->wire;

	w.codec = (uint32_t)space->codec;	/* default and explicit are the same space */
	sha256(s->sha, id_label, sizeof id_label, &w, sizeof w, "", 0, space->id);
	sha256(s->sha, salt_label, sizeof salt_label, tenant->secret, SECRET_BYTES, space->id, 32, space->salt);
	spaces_tenant_owner(s, tenant->name, space->owner);
	memcpy(space->owner + OWNER_HALF, space->id, OWNER_HALF);
}

void spaces_tenant_owner(struct spaces *s, const char *tenant, uint8_t ret[16])
{
	static const char label[] = "kvtier tenant 1";
	uint8_t digest[32];

	sha256(s->sha, label, sizeof label, tenant, strlen(tenant), "", 0, digest);
	memcpy(ret, digest, OWNER_HALF);
}

/* The order of image sizes is as its blocks have it, if it has any from before it was known; `before` may be NULL. A
 * size that is none of the two is overwritten: to read such a block then fails, which is a miss. */
static void order_variants(struct space *space, const struct space *before)
{
	const uint32_t usual = space->shape.image_bytes, raw = space->raw_shape.image_bytes;
	const bool swapped = before && (before->variant_bytes[0] == raw || before->variant_bytes[1] == usual);

	space->variant_bytes[0] = swapped ? raw : usual;
	space->variant_bytes[1] = swapped ? usual : raw;
}

uint32_t space_variant(const struct space *space, enum image_codec codec)
{
	const struct image_shape *shape = codec == CODEC_RAW ? &space->raw_shape : &space->shape;

	assert(space->known);
	return shape->image_bytes == space->variant_bytes[0] ? 0 : 1;
}

static bool reusable(const struct spaces *s, const struct space *space)
{
	return space->opened == 0 && (!s->blocks.count || s->blocks.count(s->blocks.arg, space->number) == 0);
}

/* 1: the space with this owner, and with this id if it is known (id NULL: any; the owner has but half of it); 0: a
 * number for it (NULL in *at: never used); -ENOSPC. */
static int find(const struct spaces *s, const uint8_t owner[32], const uint8_t *id, uint32_t *ret)
{
	int64_t idle = -1;

	for (uint32_t i = 0; i < s->n_spaces; i++) {
		const struct space *space = s->at[i];

		if (memcmp(space->owner, owner, sizeof space->owner) == 0 &&
		    (!id || !space->known || memcmp(space->id, id, sizeof space->id) == 0)) {
			*ret = i;
			return 1;
		}
		if (idle < 0 && reusable(s, space))
			idle = i;
	}
	if (s->n_spaces < TIER_MAX_SPACES)
		*ret = s->n_spaces;
	else if (idle >= 0)
		*ret = (uint32_t)idle;
	else
		return -ENOSPC;
	return 0;
}

static void derive_index_key(struct spaces *s, struct space *space)
{
	static const char label[] = "kvtier index 1";
	uint8_t digest[32];

	sha256(s->sha, label, sizeof label, s->start, sizeof s->start, space->owner, sizeof space->owner, digest);
	memcpy(space->index_key, digest, sizeof space->index_key);
}

/* In place of what was at this number: the same space, unknown so far, or another one without blocks. */
static void put(struct spaces *s, struct space *space, uint32_t number)
{
	const bool same = number < s->n_spaces && memcmp(s->at[number]->owner, space->owner, sizeof space->owner) == 0;

	derive_index_key(s, space);
	space->number = number;
	if (number == s->n_spaces)
		s->n_spaces++;
	else
		free(s->at[number]);
	s->at[number] = space;
	if (!same && s->blocks.is)
		s->blocks.is(s->blocks.arg, number, space->index_key);
}

int space_acquire(struct spaces *s, const char *tenant, const struct wire_geometry *wire, struct space **ret,
		  char *text, size_t n)
{
	const struct tenant *t = tenant_find(s, tenant);
	struct space *space = calloc(1, sizeof *space);
	uint32_t at = 0;
	int r;

	assert(t);
	if (!space) {
		snprintf(text, n, "out of memory for a space");
		return -ENOMEM;
	}
	space->wire = *wire;
	strcpy(space->tenant, tenant);
	r = check(&space->wire, space, text, n);
	if (r == 0) {
		identify(s, t, space);
		r = find(s, space->owner, space->id, &at);
		if (r == -ENOSPC)
			snprintf(text, n, "%d spaces are in use, the most this daemon holds", TIER_MAX_SPACES);
	}
	if (r < 0 || (r == 1 && s->at[at]->known)) {
		free(space);
		if (r < 0)
			return r;
	} else {
		order_variants(space, r == 1 ? s->at[at] : NULL);
		space->known = true;
		put(s, space, at);
	}
	s->at[at]->opened++;
	*ret = s->at[at];
	return 0;
}

static int found_variant(struct space *space, uint32_t image_bytes)
{
	for (uint32_t i = 0; i < 2; i++) {
		if (!space->known && space->variant_bytes[i] == 0)
			space->variant_bytes[i] = image_bytes;
		if (space->variant_bytes[i] == image_bytes)
			return (int)i;
	}
	return -EBADMSG;
}

int space_found(struct spaces *s, const uint8_t owner[32], uint32_t image_bytes, uint32_t *ret_number,
		uint32_t *ret_variant)
{
	uint32_t at = s->found;
	int r = 1;

	if (image_bytes == 0)
		return -EBADMSG;
	if (at >= s->n_spaces || memcmp(s->at[at]->owner, owner, sizeof s->at[at]->owner) != 0)
		r = find(s, owner, NULL, &at);
	if (r == 0) {
		struct space *space = calloc(1, sizeof *space);

		r = space ? 0 : -ENOMEM;
		if (space) {
			memcpy(space->owner, owner, sizeof space->owner);
			put(s, space, at);
		}
	}
	if (r < 0)
		return r;
	s->found = at;
	r = found_variant(s->at[at], image_bytes);
	if (r < 0)
		return r;
	*ret_number = at;
	*ret_variant = (uint32_t)r;
	return 0;
}

void space_release(struct spaces *s, struct space *space)
{
	assert(s->at[space->number] == space && space->opened > 0);
	space->opened--;	/* the entry stays for its blocks; find() reuses it when they are gone */
}

struct space *space_at(struct spaces *s, uint32_t number)
{
	return number < s->n_spaces ? s->at[number] : NULL;
}
