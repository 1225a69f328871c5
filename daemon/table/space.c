/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.c - see space.h. A space is allocated when it is opened or found; all other memory is
 * reserved at the start.
 *
 * The states of a space's number:
 *
 *   ┌── closed, and without blocks ──┐
 *   v                                │
 *  free ── table_put ────────────> in use ─ table full: recycled ───> going ─ empty ─> free
 *                                    ^                                     │
 *                                    └─────── table_keep (opened again) ───┘
 *
 * Invariants
 *   S1 a tenant's secret is the same at every start (secret.h), so keys survive restarts.
 *   S2 when a client opens a space that was found on a disk and is unknown, it gets the number and
 *      the blocks of that space.
 *   T1 at most `max` spaces are in use. There are half as many further numbers, for spaces that are
 *      going: their blocks are dropped a slice per iteration (purge.c), and no caller waits for
 *      that.
 *   T2 a number is used again only when no block carries it, and no condemned block that is pinned.
 *   T3 an open space is never recycled. From a sample of the other spaces one is recycled by these
 *      rules, of which an earlier one counts more: first a space of a tenant beyond its guarantee
 *      (`max` divided by the number of tenants); first a space without blocks, then one with few,
 *      which cost little to compute again, so that a client that opens thousands of spaces
 *      displaces these; first a space that was not opened since the start; first the least recent
 *      one.
 *   T4 a space that is found on a disk takes the place of a less recent space that was found there,
 *      and of no other.
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

#include "client/abi/fingerprint.h"
#include "client/abi/tbl_geometry.h"
#include "client/kvtier.h"
#include "space_counts.h"
#include "base/text.h"
#include "base/clock.h"
#include "base/vault.h"
#include "tiers/tier.h"

enum {
	OWNER_HALF = 16,
	MEASURES_KEPT = 64, /* a measure of so many blocks ago counts a third */
	/* spaces looked at to find a victim: the least of n is among the least n-th */
	SAMPLE = 256,
	FEW_BLOCKS = 16,
	NO_SPACE = 0, /* in chains, which hold numbers + 1 */
};
static_assert(SPACES_MAX + SPACES_MAX / 2 + 64 <= TIER_MAX_SPACES, "numbers");

#define MEASURE_NS   1000000000u
#define RECYCLING_NS 60000000000ull
#define FOUND_USE    (1ull << 48) /* `used` of found spaces is below, of opened ones above */

struct tenant {
	char name[32];
	uint8_t owner[OWNER_HALF]; /* bytes 0..15 of its spaces' owner */
	uint8_t secret[SECRET_BYTES];
	struct redis_seal seal;
};

TAILQ_HEAD(space_list, space);

struct space_table {
	uint32_t max, numbers; /* spaces in use at most; all numbers */
	uint32_t in_use, going;
	uint32_t high;         /* numbers from here on were never used */
	uint32_t n_free, hand; /* hand: where the next sample begins */
	uint64_t uses, recycled;
	uint64_t recycled_ns; /* when the last one went; 0: never */
	/* as long as the table has the same spaces, no found space up to this tick displaces one */
	uint64_t refused_tick;
	struct quota *quota;
	struct fingerprint_key hash;
	uint32_t buckets;            /* a power of two */
	struct space **at;           /* [numbers] */
	uint32_t *free;              /* [n_free] */
	uint32_t *head;              /* [buckets]: number + 1 */
	uint32_t *revision_head;     /* the same for known spaces */
	struct space_list leaving;   /* the going ones */
	struct space_counts *counts; /* NULL: no number has blocks */
};

struct spaces {
	char state_dir[256];
	/* this start's secret: all index keys follow from it */
	uint8_t start[32];
	struct secret_shared shared; /* none: each tenant's secret is in a file of its own */
	EVP_MD_CTX *sha;
	uint32_t max, n_tenants;
	uint32_t codecs; /* allowed, 1 << enum kvtier_codec each */
	uint32_t codec;  /* of spaces that ask for none */
	/* the number of the last record's space, which is likely that of the next record, too */
	uint32_t found;
	struct tenant tenants[QUOTA_OTHERS];
	struct space_table *table;
};

/* --- the table of spaces --- */

static void table_close(struct space_table *t)
{
	if (!t)
		return;
	for (uint32_t i = 0; i < t->high; i++)
		free(t->at[i]);
	free(t->at);
	free(t->free);
	free(t->head);
	free(t->revision_head);
	free(t);
}

static int table_open(uint32_t max, struct quota *quota, const uint8_t secret[16],
		      struct space_table **ret)
{
	struct space_table *t;

	if (max == 0 || max > SPACES_MAX)
		return -EINVAL;
	t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	TAILQ_INIT(&t->leaving);
	t->max = max;
	t->quota = quota;
	quota_set(quota, QUOTA_spaces, max, quota_lines[QUOTA_spaces].percent);
	t->numbers = max + max / 2 + 64;
	t->hash = fingerprint_key_of(secret);
	for (t->buckets = 64; t->buckets < t->numbers; t->buckets *= 2)
		;
	t->at = calloc(t->numbers, sizeof(*t->at));
	t->free = calloc(t->numbers, sizeof(*t->free));
	t->head = calloc(t->buckets, sizeof(*t->head));
	t->revision_head = calloc(t->buckets, sizeof(*t->revision_head));
	if (!t->at || !t->free || !t->head || !t->revision_head) {
		table_close(t);
		return -ENOMEM;
	}
	*ret = t;
	return 0;
}

static uint32_t held(const struct space_table *t, const struct space *space)
{
	return t->counts ? counts_held(t->counts, space->number) : 0;
}

static uint32_t *bucket_of(const struct space_table *t, const uint8_t owner[32])
{
	return &t->head[fingerprint(&t->hash, owner).half[0] & (t->buckets - 1)];
}

static struct space *table_find(const struct space_table *t, const uint8_t owner[32],
				const uint8_t *id)
{
	for (uint32_t n = *bucket_of(t, owner); n != NO_SPACE; n = t->at[n - 1]->chain) {
		struct space *space = t->at[n - 1];

		if (memcmp(space->owner, owner, sizeof(space->owner)) == 0 &&
		    (!id || !space->known || memcmp(space->id, id, sizeof(space->id)) == 0))
			return space;
	}
	return NULL;
}

static uint32_t *revision_bucket(const struct space_table *t, const uint8_t revision[32])
{
	return &t->revision_head[fingerprint(&t->hash, revision).half[0] & (t->buckets - 1)];
}

static void enchain(struct space_table *t, struct space *space)
{
	uint32_t *head = bucket_of(t, space->owner);

	space->chain = *head;
	*head = space->number + 1;
	if (!space->known)
		return;
	head = revision_bucket(t, space->revision);
	space->revision_chain = *head;
	*head = space->number + 1;
}

static void unchain(struct space_table *t, const struct space *space)
{
	uint32_t *at = bucket_of(t, space->owner);

	while (*at != space->number + 1)
		at = &t->at[*at - 1]->chain;
	*at = space->chain;
	if (!space->known)
		return;
	at = revision_bucket(t, space->revision);
	while (*at != space->number + 1)
		at = &t->at[*at - 1]->revision_chain;
	*at = space->revision_chain;
}

static void count_in(struct space_table *t, struct space *space)
{
	quota_take(t->quota, QUOTA_spaces, space->tenant_number, 1);
	t->in_use++;
	t->refused_tick = 0;
}

static void count_out(struct space_table *t, const struct space *space)
{
	quota_give(t->quota, QUOTA_spaces, space->tenant_number, 1);
	t->in_use--;
	t->refused_tick = 0;
}

static void number_free(struct space_table *t, struct space *space)
{
	unchain(t, space);
	t->at[space->number] = NULL;
	t->free[t->n_free++] = space->number;
	free(space);
}

static void go(struct space_table *t, struct space *space)
{
	count_out(t, space);
	t->recycled++;
	t->recycled_ns = clock_ns();
	if (held(t, space) == 0) {
		number_free(t, space);
		return;
	}
	space->going = true;
	t->going++;
	TAILQ_INSERT_TAIL(&t->leaving, space, leaving);
	counts_doom(t->counts, space->number, true);
}

static void table_sweep(struct space_table *t)
{
	struct space *space = TAILQ_FIRST(&t->leaving);

	while (space) {
		struct space *next = TAILQ_NEXT(space, leaving);

		if (held(t, space) == 0) {
			TAILQ_REMOVE(&t->leaving, space, leaving);
			t->going--;
			number_free(t, space);
		}
		space = next;
	}
}

/* The order in which spaces are recycled, as a number: the smallest is first (T3). */
static uint32_t worth(const struct space_table *t, const struct space *space)
{
	const uint32_t blocks = held(t, space);
	const bool over = t->quota->tenant[space->tenant_number].used[QUOTA_spaces] >
			  quota_of_tenant(t->quota, QUOTA_spaces, space->tenant_number);

	return (over ? 0u : 3u) + (blocks == 0 ? 0u : blocks <= FEW_BLOCKS ? 1u : 2u);
}

/* The space to recycle; NULL: no space of the sample may be. found: for the sake of this found
 * space only (T4). */
static struct space *victim(struct space_table *t, const struct space *found)
{
	struct space *best = NULL;
	uint32_t best_worth = 0, seen = 0;

	for (uint32_t i = 0; i < t->high && seen < SAMPLE; i++) {
		struct space *space = t->at[t->hand];

		t->hand = t->hand + 1 < t->high ? t->hand + 1 : 0;
		if (!space || space->opened || space->going)
			continue;
		seen++;
		if (found && (space->used >= FOUND_USE || space->used >= found->used))
			continue;
		const uint32_t w = worth(t, space);

		if (!best || w < best_worth || (w == best_worth && space->used < best->used)) {
			best = space;
			best_worth = w;
		}
	}
	return best;
}

static int make_room(struct space_table *t, const struct space *found)
{
	struct space *space;

	if (t->in_use < t->max)
		return 0;
	if (found && found->used <= t->refused_tick)
		return -ENOSPC;
	space = victim(t, found);
	if (!space && found) {
		t->recycled_ns = clock_ns(); /* the found space itself is turned away */
		t->refused_tick = found->used;
	}
	if (!space)
		return -ENOSPC;
	go(t, space);
	return 0;
}

static int table_put(struct space_table *t, struct space *space, bool found)
{
	int r;

	/* First: else a space would be recycled in vain. */
	if (t->n_free == 0 && t->high == t->numbers && t->going > 0)
		table_sweep(t);
	if (t->n_free == 0 && t->high == t->numbers)
		return -EAGAIN;
	r = make_room(t, found ? space : NULL);
	if (r)
		return r;
	space->number = t->n_free > 0 ? t->free[--t->n_free] : t->high++;
	t->at[space->number] = space;
	enchain(t, space);
	count_in(t, space);
	if (t->counts)
		counts_space_is(t->counts, space->number, space->index_key, space->tenant_number);
	return 0;
}

static void table_replace(struct space_table *t, struct space *old, struct space *space)
{
	assert(!old->going && old->opened == 0);
	unchain(t, old);
	space->number = old->number;
	space->tenant_number = old->tenant_number;
	t->at[space->number] = space;
	enchain(t, space);
	free(old);
}

static int table_keep(struct space_table *t, struct space *space)
{
	const int r = make_room(t, NULL);

	assert(space->going);
	if (r)
		return r;
	TAILQ_REMOVE(&t->leaving, space, leaving);
	t->going--;
	space->going = false;
	count_in(t, space);
	counts_doom(t->counts, space->number, false);
	return 0;
}

static void table_released(struct space_table *t, struct space *space)
{
	if (held(t, space) == 0) {
		count_out(t, space);
		number_free(t, space);
		return;
	}
	space->used = FOUND_USE + ++t->uses;
	space->idle_ns = clock_ns();
}

/* --- life --- */

int spaces_open(const char *state_dir, uint32_t max, struct quota *quota, struct spaces **ret,
		char *text, size_t n)
{
	struct spaces *s = vault_alloc(sizeof(*s));
	int r = -ENOMEM;

	snprintf(text, n, "[index] max_spaces: out of memory for the table of %u spaces", max);
	if (!s || !(s->sha = EVP_MD_CTX_new()))
		goto fail;
	if (getrandom(s->start, sizeof(s->start), 0) != sizeof(s->start)) {
		r = text_fail(text, n, -EIO, "getrandom: %s", strerror(errno));
		goto fail;
	}
	assert(strlen(state_dir) < sizeof(s->state_dir));
	strcpy(s->state_dir, state_dir);
	s->max = max;
	spaces_codecs(s, UINT32_MAX, CODEC_FP8);
	r = table_open(max, quota, s->start, &s->table);
	if (r)
		goto fail;
	*ret = s;
	return 0;
fail:
	spaces_close(s);
	return r;
}

void spaces_close(struct spaces *s)
{
	if (!s)
		return;
	table_close(s->table);
	EVP_MD_CTX_free(s->sha);
	vault_free(s, sizeof(*s));
}

void spaces_attach(struct spaces *s, struct space_counts *counts)
{
	assert(s->table->high == 0);
	s->table->counts = counts;
}

/* --- tenants --- */

static struct tenant *tenant_find(struct spaces *s, const char *name)
{
	for (uint32_t i = 0; i < s->n_tenants; i++)
		if (strcmp(s->tenants[i].name, name) == 0)
			return &s->tenants[i];
	return NULL;
}

void spaces_shared_secret(struct spaces *s, const uint8_t *secret, size_t n)
{
	assert(s->n_tenants == 0 && n > 0 && n <= SECRET_SHARED_BYTES);
	memcpy(s->shared.bytes, secret, n);
	s->shared.n = n;
	registers_forget();
}

int spaces_tenant(struct spaces *s, const char *name, char *text, size_t n)
{
	struct tenant *t = &s->tenants[s->n_tenants];
	int r = 0;

	/* config.c has checked the name, and that there are no more, and no two of one name */
	assert(s->n_tenants < QUOTA_OTHERS && strlen(name) < sizeof(t->name) && name[0] != '.' &&
	       !strchr(name, '/') && !tenant_find(s, name));
	if (s->shared.n > 0)
		secret_derive(s->shared.bytes, s->shared.n, name, t->secret);
	else
		r = secret_load(s->state_dir, name, t->secret, text, n);
	if (r)
		return r;
	redis_seal_derive(t->secret, sizeof(t->secret), &t->seal);
	strcpy(t->name, name);
	spaces_tenant_owner(s, name, t->owner);
	s->n_tenants++;
	return 0;
}

static_assert((int)REDIS_SEAL_TENANTS == (int)QUOTA_OTHERS, "seals of all tenants fit");

void spaces_seals(const struct spaces *s, const struct secret_shared from[REDIS_SEALS_EACH],
		  struct redis_seals *ret)
{
	uint8_t secret[SECRET_BYTES];

	ret->n = 0;
	for (uint32_t i = 0; i < REDIS_SEALS_EACH * s->n_tenants; i++) {
		const struct secret_shared *shared = &from[i / s->n_tenants];
		const struct tenant *t = &s->tenants[i % s->n_tenants];
		struct redis_seal *seal = &ret->all[ret->n];

		if (shared->n == 0)
			continue;
		secret_derive(shared->bytes, shared->n, t->name, secret);
		redis_seal_derive(secret, sizeof(secret), seal);
		memcpy(seal->tag, t->seal.tag, sizeof(seal->tag));
		ret->n++;
	}
	explicit_bzero(secret, sizeof(secret));
	registers_forget();
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
	return text_fail(text, n, -EINVAL, "geometry.%s %s", field, why);
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
		{ "codec", w->codec, 0, KVTIER_CODEC_INT8V4 },
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

		if (l->value < l->min || l->value > l->max)
			return text_fail(text, n, -EINVAL, "geometry.%s is %u; must be %u to %u",
					 l->name, l->value, l->min, l->max);
	}
	return 0;
}

void spaces_codecs(struct spaces *s, uint32_t allowed, uint32_t otherwise)
{
	s->codecs = allowed | 1u << CODEC_FP8_NATIVE; /* which no 16-bit type has */
	s->codec = otherwise;
}

#define SAME_NUMBER(NUMBER, name) \
	static_assert((int)CODECS_##NUMBER == (int)KVTIER_CODEC_##NUMBER, name);
GEOMETRY_CODECS(SAME_NUMBER)

uint32_t spaces_allowed(const struct spaces *s)
{
	return s->codecs;
}

static int refuse_codec(const struct spaces *s, uint32_t codec, char *text, size_t n)
{
#define NAME(NUMBER, name) [KVTIER_CODEC_##NUMBER] = name,
	static const char *const names[] = { GEOMETRY_CODECS(NAME) };
	const uint32_t all = sizeof(names) / sizeof(*names);
	char allowed[96] = "";

	for (uint32_t i = 1; i < all; i++)
		if (i != CODEC_FP8_NATIVE && s->codecs >> i & 1)
			strcat(strcat(allowed, " "), names[i]);
	return text_fail(text, n, -EACCES,
			 "geometry.codec: %s is not allowed here; [codec] allow is%s", names[codec],
			 allowed);
}

/* What a geometry gets that asks for none. */
static uint32_t default_codec(const struct spaces *s, const struct image_geometry *g)
{
	const struct image_codecs codecs = image_codecs(s->codec);
	struct image_shape shape;

	switch (g->dtype) {
	case DTYPE_BF16:
	case DTYPE_FP16:
		if (image_shape(g, codecs.k, codecs.v, &shape, NULL) != -EINVAL)
			return s->codec;
		return s->codecs >> CODEC_FP8 & 1 ? CODEC_FP8 : CODEC_RAW;
	case DTYPE_E4M3:
	case DTYPE_E5M2:
	case DTYPE_INT8:
		return CODEC_FP8_NATIVE;
	default:
		return CODEC_RAW;
	}
}

static int check(const struct spaces *s, const struct wire_geometry *w, struct space *ret,
		 char *text, size_t n)
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
	ret->geometry = IMAGE_GEOMETRY(w);
	if (image_element_bytes(w->dtype) == 2 && w->codec && !(s->codecs >> w->codec & 1))
		return refuse_codec(s, w->codec, text, n);
	ret->codec = w->codec ? w->codec : default_codec(s, &ret->geometry);
	ret->codecs = image_codecs(ret->codec);
	r = image_shape(&ret->geometry, ret->codecs.k, ret->codecs.v, &ret->shape, &field);
	if (r == 0)
		r = image_shape(&ret->geometry, CODEC_RAW, CODEC_RAW, &ret->raw_shape, &field);
	if (r == -EOVERFLOW)
		return text_fail(
			text, n, -EINVAL,
			"geometry: one block is larger than %u bytes; use fewer block_tokens",
			(unsigned)IMAGE_MAX_BYTES);
	if (r)
		return refuse(
			text, n, field ? field : "codec",
			"does not go with the rest: fp8 and lossless take BF16 and FP16, int8, q4 "
			"and int8v4 the same with K or V planes, fp8-native 8-bit dtypes, and a "
			"block has K, V, typed or opaque bytes");
	return 0;
}

static void identify(struct spaces *s, const struct tenant *tenant, struct space *space)
{
	static const char id_label[] = "kvtier space 1";
	struct wire_geometry w = space->wire;

	w.codec = space->codec; /* default and explicit are the same space */
	sha256(s->sha, id_label, sizeof(id_label), &w, sizeof(w), "", 0, space->id);
	space->seal = &tenant->seal;
	space->tenant_number = (uint32_t)(tenant - s->tenants);
	memcpy(space->owner, tenant->owner, OWNER_HALF);
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
	const struct space_table *t = s->table;
	uint32_t n = before ? before->revision_chain : *revision_bucket(t, revision);

	for (; n != NO_SPACE; n = t->at[n - 1]->revision_chain)
		if (memcmp(t->at[n - 1]->revision, revision, 32) == 0)
			return t->at[n - 1];
	return NULL;
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
 * `before` may be NULL. A size that differs from both is overwritten: to read such a block then
 * fails, which is a miss. */
static void order_variants(struct space *space, const struct space *before)
{
	const uint32_t usual = space->shape.image_bytes, raw = space->raw_shape.image_bytes;
	const bool swapped =
		before && (before->variant_bytes[0] == raw || before->variant_bytes[1] == usual);

	space->variant_bytes[0] = swapped ? raw : usual;
	space->variant_bytes[1] = swapped ? usual : raw;
}

bool space_has(const struct space *space, enum image_codec codec_k, enum image_codec codec_v)
{
	return (codec_k == CODEC_RAW && codec_v == CODEC_RAW) ||
	       (codec_k == space->codecs.k && codec_v == space->codecs.v);
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

/* Puts a space that was just described into the table, in the place of `old` if that is an
 * unknown one (may be NULL), which is then no longer about to be removed. */
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
	if (!space)
		return text_fail(text, n, -ENOMEM, "out of memory for a space");
	space->wire = *wire;
	strcpy(space->tenant, tenant);
	r = check(s, &space->wire, space, text, n);
	if (r == 0) {
		identify(s, t, space);
		there = table_find(s->table, space->owner, space->id);
		known = there && there->known;
		if (known)
			r = there->going ? table_keep(s->table, there) : 0;
		else
			r = enter(s, there, space);
		r = say_full(s, r, text, n);
		if (r == -ENOSPC || r == -EAGAIN)
			quota_refused(s->table->quota, QUOTA_spaces, space->tenant_number);
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

static uint32_t tenant_number(const struct spaces *s, const uint8_t owner[32])
{
	for (uint32_t i = 0; i < s->n_tenants; i++)
		if (memcmp(s->tenants[i].owner, owner, OWNER_HALF) == 0)
			return i;
	return QUOTA_OTHERS;
}

/* A new unknown space. */
static int unknown(struct spaces *s, const uint8_t owner[32], uint64_t tick, struct space **ret)
{
	struct space *space = calloc(1, sizeof(*space));
	int r;

	if (!space)
		return -ENOMEM;
	memcpy(space->owner, owner, sizeof(space->owner));
	space->tenant_number = tenant_number(s, owner);
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
	struct space *space = space_at(s, s->found);
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
	const struct space *space = space_at(s, s->found);

	if (!space || memcmp(space->owner, owner, sizeof(space->owner)) != 0)
		space = table_find(s->table, owner, NULL);
	if (space)
		*ret_number = s->found = space->number;
	return space != NULL;
}

void space_release(struct spaces *s, struct space *space)
{
	assert(space_at(s, space->number) == space && space->opened > 0);
	if (--space->opened == 0)
		table_released(s->table, space);
}

struct space *space_at(const struct spaces *s, uint32_t number)
{
	return number < s->table->high ? s->table->at[number] : NULL;
}

uint32_t spaces_numbers(const struct spaces *s)
{
	return s->table->high;
}

void spaces_sweep(struct spaces *s)
{
	table_sweep(s->table);
}

void spaces_count(const struct spaces *s, struct spaces_count *ret)
{
	const struct space_table *t = s->table;
	const bool lately = t->recycled_ns && clock_ns() - t->recycled_ns < RECYCLING_NS;

	*ret = (struct spaces_count){ .in_use = t->in_use,
				      .going = t->going,
				      .recycled = t->recycled,
				      .recycling = t->going > 0 || lately };
}

/* --- the error of fp8 and int8 --- */

bool space_measures(struct space *space, uint64_t now_ns)
{
	if (!image_codec_scales(space->codecs.k) || now_ns - space->measured_ns < MEASURE_NS)
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
	space->error.int8_errors += error->int8_errors - space->error.int8_errors / MEASURES_KEPT;
	space->error.k_errors += error->k_errors - space->error.k_errors / MEASURES_KEPT;
	space->error.k4_errors += error->k4_errors - space->error.k4_errors / MEASURES_KEPT;
}

double space_error(const struct space *space)
{
	return space->error.squares > 0 ? sqrt(space->error.errors / space->error.squares) : -1;
}

double space_int8_gain(const struct space *space)
{
	return space->codec == CODEC_FP8 && space->error.int8_errors > 0 ?
		       sqrt(space->error.errors / space->error.int8_errors) :
		       -1;
}
