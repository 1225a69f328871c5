/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.c - spaces (identities of interchangeable blocks) and tenants' secrets. Core thread only.
 *
 * Invariants
 *   S1 numbers, and which space goes when there are too many: space_table.h.
 *   S2 a tenant's secret is the same at every start (secret.h), so keys survive restarts.
 *   S3 a client that opens a space which was found, unknown, on a disk gets its number and its
 *      blocks.
 */
#include "space.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "client/kvtier.h"
#include "secret.h"
#include "space_table.h"
#include "daemon/base/registers.h"
#include "daemon/base/vault.h"

enum {
	MAX_TENANTS = 64,
	OWNER_HALF = 16,
	MEASURES_KEPT = 64, /* a measure of so many blocks ago counts a third */
};

#define MEASURE_NS 1000000000u

struct tenant {
	char name[32];
	uint8_t secret[SECRET_BYTES];
	struct redis_seal seal;
};

struct spaces {
	char state_dir[256];
	/* this start's secret: all index keys follow from it */
	uint8_t start[32];
	uint8_t shared[SPACES_SHARED_BYTES];
	/* 0: each tenant's secret is in a file of its own */
	size_t shared_bytes;
	EVP_MD_CTX *sha;
	uint32_t max, n_tenants;
	/* number that the last record belonged to: likely the next one's */
	uint32_t found;
	struct tenant tenants[MAX_TENANTS];
	struct space_table *table;
};

int spaces_open(const char *state_dir, uint32_t max, struct spaces **ret, char *text, size_t n)
{
	struct spaces *s = vault_alloc(sizeof(*s));

	if (!s || !(s->sha = EVP_MD_CTX_new())) {
		spaces_close(s);
		snprintf(text, n, "out of memory for the table of spaces");
		return -ENOMEM;
	}
	if (getrandom(s->start, sizeof(s->start), 0) != sizeof(s->start)) {
		snprintf(text, n, "getrandom: %s", strerror(errno));
		spaces_close(s);
		return -EIO;
	}
	if (strlen(state_dir) >= sizeof(s->state_dir) - 64) {
		snprintf(text, n, "[daemon] state_dir is longer than %zu bytes",
			 sizeof(s->state_dir) - 64);
		spaces_close(s);
		return -ENAMETOOLONG;
	}
	strcpy(s->state_dir, state_dir);
	s->max = max;
	const int r = table_open(max, s->start, &s->table);

	if (r) {
		snprintf(text, n, "[index] max_spaces: out of memory for the table of %u spaces",
			 max);
		spaces_close(s);
		return r;
	}
	*ret = s;
	return 0;
}

void spaces_close(struct spaces *s)
{
	if (!s)
		return;
	table_close(s->table);
	EVP_MD_CTX_free(s->sha);
	vault_free(s, sizeof(*s));
}

void spaces_attach(struct spaces *s, const struct spaces_blocks *blocks)
{
	table_attach(s->table, blocks);
}

/* --- tenants --- */

static bool tenant_name_ok(const char *name)
{
	const size_t n = strlen(name);

	return n > 0 && n < sizeof((struct tenant *)0)->name && name[0] != '.' &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") ==
		       n;
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
	assert(s->n_tenants == 0 && n > 0 && n <= sizeof(s->shared));
	memcpy(s->shared, secret, n);
	s->shared_bytes = n;
	registers_forget();
}

int spaces_tenant(struct spaces *s, const char *name, char *text, size_t n)
{
	struct tenant *t = &s->tenants[s->n_tenants];
	int r = 0;

	if (!tenant_name_ok(name)) {
		snprintf(text, n,
			 "tenant must be 1 to 31 of A-Z a-z 0-9 - _ . and not begin with .");
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
	redis_seal_derive(t->secret, sizeof(t->secret), &t->seal);
	strcpy(t->name, name);
	s->n_tenants++;
	return 0;
}

/* --- identity --- */

static void sha256(EVP_MD_CTX *ctx, const void *a, size_t na, const void *b, size_t nb,
		   const void *c, size_t nc, uint8_t ret[32])
{
	unsigned got = 0;
	const int ok = EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) && EVP_DigestUpdate(ctx, a, na) &&
		       EVP_DigestUpdate(ctx, b, nb) && EVP_DigestUpdate(ctx, c, nc) &&
		       EVP_DigestFinal_ex(ctx, ret, &got);

	assert(ok && got == 32); /* SHA-256 of memory cannot fail */
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
	/* without any, a block is typed or opaque alone */
	const uint32_t planes = w->head_dim_k || w->head_dim_v;
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

	for (size_t i = 0; i < sizeof(limits) / sizeof(*limits); i++) {
		const struct field_limit *l = &limits[i];

		if (l->value < l->min || l->value > l->max) {
			snprintf(text, n, "geometry.%s is %u; must be %u to %u", l->name, l->value,
				 l->min, l->max);
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
	const struct {
		const char *name, *value;
	} strings[] = {
		{ "model", w->model },
		{ "convention", w->convention },
		{ "extras", w->extras },
	};
	const char *field = NULL;
	int r;

	for (size_t i = 0; i < sizeof(strings) / sizeof(*strings); i++)
		if (string_error(strings[i].value))
			return refuse(text, n, strings[i].name, string_error(strings[i].value));
	if (!w->model[0])
		return refuse(text, n, "model", "must not be empty");
	r = check_limits(w, text, n);
	if (r)
		return r;
	ret->geometry = (struct image_geometry){
		.dtype = w->dtype,
		.layers = w->layers,
		.kv_heads = w->kv_heads,
		.head_dim_k = w->head_dim_k,
		.head_dim_v = w->head_dim_v,
		.block_tokens = w->block_tokens,
		.typed_segments = w->typed_segments,
		.typed_values = w->typed_values,
		.opaque_bytes = w->opaque_bytes,
	};
	ret->codec = w->codec ? (enum image_codec)w->codec : default_codec(w->dtype);
	r = image_shape(&ret->geometry, ret->codec, ret->codec, &ret->shape, &field);
	if (r == 0)
		r = image_shape(&ret->geometry, CODEC_RAW, CODEC_RAW, &ret->raw_shape, &field);
	if (r == -EOVERFLOW) {
		snprintf(text, n,
			 "geometry: one block is larger than %u bytes; use fewer block_tokens",
			 (unsigned)IMAGE_MAX_BYTES);
		return -EINVAL;
	}
	if (r)
		return refuse(
			text, n, field ? field : "codec",
			"does not go with the rest: fp8 takes BF16 and FP16, fp8-native 8-bit "
			"dtypes, and a block has K, V, typed or opaque bytes");
	return 0;
}

static void identify(struct spaces *s, const struct tenant *tenant, struct space *space)
{
	static const char id_label[] = "kvtier space 1";
	struct wire_geometry w = space->wire;

	w.codec = (uint32_t)space->codec; /* default and explicit are the same space */
	sha256(s->sha, id_label, sizeof(id_label), &w, sizeof(w), "", 0, space->id);
	space->seal = &tenant->seal;
	spaces_tenant_owner(s, tenant->name, space->owner);
	memcpy(space->owner + OWNER_HALF, space->id, OWNER_HALF);
	spaces_revision(s, tenant->name, space->wire.model, space->revision);
}

void spaces_revision(struct spaces *s, const char *tenant, const char *model, uint8_t ret[32])
{
	static const char label[] = "kvtier revision 1";
	uint8_t owner[OWNER_HALF];

	spaces_tenant_owner(s, tenant, owner);
	sha256(s->sha, label, sizeof(label), owner, sizeof(owner), model, strlen(model), ret);
}

struct space *space_of_revision(const struct spaces *s, const uint8_t revision[32],
				const struct space *before)
{
	return table_revision(s->table, revision, before);
}

void space_salt(struct spaces *s, const struct space *space, uint8_t ret[32])
{
	static const char label[] = "kvtier salt 1";
	const struct tenant *tenant = tenant_find(s, space->tenant);

	assert(space->known && tenant);
	sha256(s->sha, label, sizeof(label), tenant->secret, SECRET_BYTES, space->id, 32, ret);
	registers_forget();
}

void spaces_tenant_owner(struct spaces *s, const char *tenant, uint8_t ret[16])
{
	static const char label[] = "kvtier tenant 1";
	uint8_t digest[32];

	sha256(s->sha, label, sizeof(label), tenant, strlen(tenant), "", 0, digest);
	memcpy(ret, digest, OWNER_HALF);
}

/* The order of image sizes is as its blocks have it, if it has any from before it was known;
 * `before` may be NULL. A size that is none of the two is overwritten: to read such a block then
 * fails, which is a miss. */
static void order_variants(struct space *space, const struct space *before)
{
	const uint32_t usual = space->shape.image_bytes, raw = space->raw_shape.image_bytes;
	const bool swapped =
		before && (before->variant_bytes[0] == raw || before->variant_bytes[1] == usual);

	space->variant_bytes[0] = swapped ? raw : usual;
	space->variant_bytes[1] = swapped ? usual : raw;
}

uint32_t space_variant(const struct space *space, enum image_codec codec)
{
	const struct image_shape *shape = codec == CODEC_RAW ? &space->raw_shape : &space->shape;

	assert(space->known);
	return shape->image_bytes == space->variant_bytes[0] ? 0 : 1;
}

static void derive_index_key(struct spaces *s, struct space *space)
{
	static const char label[] = "kvtier index 1";
	uint8_t digest[32];

	sha256(s->sha, label, sizeof(label), s->start, sizeof(s->start), space->owner,
	       sizeof(space->owner), digest);
	memcpy(space->index_key, digest, sizeof(space->index_key));
}

/* A space that was just described becomes one of the table's, at the place of `old` if that is an
 * unknown one (NULL: none), which goes no more. */
static int enter(struct spaces *s, struct space *old, struct space *space)
{
	int r = old && old->going ? table_keep(s->table, old) : 0;

	if (r)
		return r;
	order_variants(space, old);
	derive_index_key(s, space);
	space->known = true;
	if (!old)
		return table_put(s->table, space, false);
	table_replace(s->table, old, space);
	return 0;
}

static int say_full(const struct spaces *s, int error, char *text, size_t n)
{
	if (error == -ENOSPC)
		snprintf(text, n,
			 "%u spaces are open, the most there can be: see [index] max_spaces",
			 s->max);
	else if (error == -EAGAIN)
		snprintf(text, n,
			 "[index] max_spaces is %u and as many are in use; blocks of unused ones "
			 "are being dropped, try again",
			 s->max);
	return error;
}

int space_acquire(struct spaces *s, const char *tenant, const struct wire_geometry *wire,
		  struct space **ret, char *text, size_t n)
{
	const struct tenant *t = tenant_find(s, tenant);
	struct space *space = calloc(1, sizeof(*space)), *there = NULL;
	bool known = false;
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
		there = table_find(s->table, space->owner, space->id);
		known = there && there->known;
		if (known)
			r = there->going ? table_keep(s->table, there) : 0;
		else
			r = enter(s, there, space);
		r = say_full(s, r, text, n);
	}
	if (r || known)
		free(space);
	if (r)
		return r;
	*ret = known ? there : space;
	(*ret)->opened++;
	(*ret)->idle_ns = 0;
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

/* A new unknown space. */
static int unknown(struct spaces *s, const uint8_t owner[32], uint64_t tick, struct space **ret)
{
	struct space *space = calloc(1, sizeof(*space));
	int r;

	if (!space)
		return -ENOMEM;
	memcpy(space->owner, owner, sizeof(space->owner));
	space->used = tick;
	derive_index_key(s, space);
	r = table_put(s->table, space, true);
	if (r)
		free(space);
	else
		*ret = space;
	return r;
}

int space_found(struct spaces *s, const uint8_t owner[32], uint32_t image_bytes, uint64_t tick,
		uint32_t *ret_number, uint32_t *ret_variant)
{
	struct space *space = table_at(s->table, s->found);
	int r = 0;

	if (image_bytes == 0)
		return -EBADMSG;
	if (!space || memcmp(space->owner, owner, sizeof(space->owner)) != 0)
		space = table_find(s->table, owner, NULL);
	if (!space)
		r = unknown(s, owner, tick, &space);
	else if (space->going)
		r = -ESTALE;
	if (r)
		return r;
	s->found = space->number;
	if (!space->known && tick > space->used)
		space->used = tick;
	r = found_variant(space, image_bytes);
	if (r < 0)
		return r;
	*ret_number = space->number;
	*ret_variant = (uint32_t)r;
	return 0;
}

bool space_of_owner(struct spaces *s, const uint8_t owner[32], uint32_t *ret_number)
{
	const struct space *space = table_at(s->table, s->found);

	if (!space || memcmp(space->owner, owner, sizeof(space->owner)) != 0)
		space = table_find(s->table, owner, NULL);
	if (space)
		*ret_number = s->found = space->number;
	return space != NULL;
}

void space_release(struct spaces *s, struct space *space)
{
	assert(table_at(s->table, space->number) == space && space->opened > 0);
	if (--space->opened == 0)
		table_released(s->table, space);
}

struct space *space_at(const struct spaces *s, uint32_t number)
{
	return table_at(s->table, number);
}

uint32_t spaces_numbers(const struct spaces *s)
{
	return table_numbers(s->table);
}

void spaces_sweep(struct spaces *s)
{
	table_sweep(s->table);
}

void spaces_count(const struct spaces *s, struct spaces_count *ret)
{
	table_count(s->table, ret);
}

/* --- the error of fp8 --- */

bool space_measures(struct space *space, uint64_t now_ns)
{
	if (space->codec != CODEC_FP8 || now_ns - space->measured_ns < MEASURE_NS)
		return false;
	space->measured_ns = now_ns;
	return true;
}

void space_measured(struct space *space, const struct codec_error *error)
{
	if (error->squares <= 0)
		return;
	space->error.squares += error->squares - space->error.squares / MEASURES_KEPT;
	space->error.errors += error->errors - space->error.errors / MEASURES_KEPT;
}

double space_error(const struct space *space)
{
	return space->error.squares > 0 ? sqrt(space->error.errors / space->error.squares) : -1;
}
