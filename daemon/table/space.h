/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.h - spaces, which are identities under which blocks are interchangeable; and tenants'
 * secrets. Core thread only.
 *
 * A space is found by its tenant and the SHA-256 of its geometry. It stays while a connection has
 * it open or it has blocks. When there are more spaces than may be, the least used space that is
 * not open is recycled with its blocks, so that a new one finds room (space.c).
 *
 * A record that is found on a disk at start names its space only by `owner`. Such a space is
 * *unknown*: it has a number and image sizes, but no geometry. When a client opens it, it keeps its
 * number and its blocks. A pointer to a space that is not open is valid until the next
 * space_acquire(), space_found() or spaces_sweep().
 *
 * The tenant's secret never leaves this file. A client sees the chain's salt, which is
 * SHA-256("kvtier salt 1" | secret | space id).
 */
#pragma once

#include <stdbool.h>
#include <sys/queue.h>

#include "client/abi/wire.h"
#include "daemon/config/secret.h"
#include "kernels/kernels.h"
#include "tiers/redis/conn/redis_seal.h"

struct space_counts;
struct quota;
struct spaces;

struct space {
	char tenant[32];
	uint8_t id[32];
	struct wire_geometry wire; /* as checked: strings terminated */
	struct image_geometry geometry;
	uint32_t codec;                /* enum kvtier_codec, resolved: never 0 */
	struct image_codecs codecs;    /* that codec of its images */
	struct image_shape shape;      /* with these */
	struct image_shape raw_shape;  /* for blocks that it cannot hold */
	const struct redis_seal *seal; /* its tenant's, as long as struct spaces */
	/* 0..15: SHA-256("kvtier tenant 1" | name), 16..31: id, each cut */
	uint8_t owner[32];
	/* SHA-256("kvtier index 1" | this start's secret | owner), cut */
	uint8_t index_key[16];
	/* of its tenant and model: SHA-256("kvtier revision 1" | owner 0..15 | model) */
	uint8_t revision[32];
	bool known; /* if not, all above but owner and index_key is zero */
	/* the image sizes of its blocks, by blocks_variant(); 0: not seen yet. They are equal if
	 * both codecs make images of one size */
	uint32_t variant_bytes[2];
	uint32_t number; /* < TIER_MAX_SPACES */
	uint32_t opened; /* times, by connections */
	/* the rest is for the table. going: its blocks are being dropped; then its number is
	 * free */
	bool going;
	uint32_t chain, revision_chain;
	uint32_t tenant_number; /* quota.h */
	/* the order in which spaces were closed; of a space that was found, the latest tick of a
	 * record */
	uint64_t used;
	/* when it was closed, by CLOCK_MONOTONIC; 0: it is open, or was not opened yet */
	uint64_t idle_ns;
	TAILQ_ENTRY(space) leaving;
	uint64_t looked_up_blocks, hit_blocks;
	uint64_t stored_blocks, loaded_blocks, raw_blocks; /* raw: its codec could not hold them */
	/* sums over the blocks that were measured, in which recent blocks count most; and when the
	 * latest measurement began */
	struct codec_error error;
	uint64_t measured_ns;
	bool on_gpu; /* a GPU had pages of it since the start */
};

enum {
	SPACES_MAX = 20000,
	SPACE_FIRST_TOKENS = 64, /* of a prompt, which four bits do not hold well enough */
};

/* At most `max` spaces, 1 .. SPACES_MAX. quota stays the caller's. text names the error. */
int spaces_open(const char *state_dir, uint32_t max, struct quota *quota, struct spaces **ret,
		char *text, size_t n);
void spaces_close(struct spaces *spaces);
/* Makes tenants' secrets follow from a secret that nodes share, of 1 to SECRET_SHARED_BYTES bytes,
 * which is copied. Call it before the first spaces_tenant(). Without it each tenant's secret is in
 * state_dir/secret-TENANT, which is made (0600, 32 random bytes) if it is absent. */
void spaces_shared_secret(struct spaces *spaces, const uint8_t *secret, size_t n);
/* Which codecs a space of 16-bit values may have, 1 << enum kvtier_codec each, and the codec that
 * it gets if its geometry asks for none, which is one of them. Without this call: all, and fp8. */
void spaces_codecs(struct spaces *spaces, uint32_t allowed, uint32_t otherwise);
uint32_t spaces_allowed(const struct spaces *spaces); /* of these */
/* Loads or makes its secret. The name is a tenant's of the configuration, which this is called for
 * once. Tenants have the numbers 0, 1... in the order of these calls. */
int spaces_tenant(struct spaces *spaces, const char *tenant, char *text, size_t n);
/* The seals that follow from secrets other than the tenants' own, the newest first; secrets with
 * n 0 give none. Call it after the last spaces_tenant(); from then on any thread may. */
void spaces_seals(const struct spaces *spaces, const struct secret_shared from[REDIS_SEALS_EACH],
		  struct redis_seals *ret);

/* Checks every field (0, or -EINVAL with text naming the field and the limit; -EACCES, with text:
 * the codec is not allowed), then finds or makes the space and counts one opening. -ENOSPC: as many
 * as may be are open; -EAGAIN: more than that are just going; -ENOMEM. */
int space_acquire(struct spaces *spaces, const char *tenant, const struct wire_geometry *wire,
		  struct space **ret, char *text, size_t n);
/* The root of the keys of its chains. It is computed each time, so that memory has no copy of
 * it. */
void space_salt(struct spaces *spaces, const struct space *space, uint8_t ret[32]);
/* Counts one opening less. The pointer may be invalid then. */
void space_release(struct spaces *spaces, struct space *space);
/* The space that a found record of this tick (< 2^48) belongs to, which is made if need be, and the
 * variant of its image size. -ENOSPC: there are too many spaces, and no found one is less recent;
 * -EAGAIN: the same, for now; -ESTALE: the space is going; -EBADMSG: it has two other sizes, or the
 * size is 0; -ENOMEM. */
int space_found(struct spaces *spaces, const uint8_t owner[32], uint32_t image_bytes, uint64_t tick,
		uint32_t *ret_number, uint32_t *ret_variant);
/* Whether the block that is stored now shall be measured: one block a second, in a space whose
 * codec is fp8 or int8. If it is true, the next second begins now. */
bool space_measures(struct space *space, uint64_t now_ns);
void space_measured(struct space *space, const struct codec_error *error);
/* The root mean square of the differences between values stored and values loaded, divided by that
 * of the values stored; < 0: no block was measured. */
double space_error(const struct space *space);
/* How many times less that would be in int8; < 0: not known, or the codec is not fp8. */
double space_int8_gain(const struct space *space);
/* The known spaces of a revision, one after the other. `before` is NULL for the first one; NULL is
 * returned after the last. */
struct space *space_of_revision(const struct spaces *spaces, const uint8_t revision[32],
				const struct space *before);
/* The revision of a model's name, as a geometry has it. */
void spaces_revision(struct spaces *spaces, const char *tenant, const char *model, uint8_t ret[32]);
/* The number of the space with this owner; false: there is no such space. */
bool space_of_owner(struct spaces *spaces, const uint8_t owner[32], uint32_t *ret_number);
/* Whether images of the space may have these codecs: its own, or raw where they cannot hold a block
 * or may not (the first tokens of a prompt in four bits). */
bool space_has(const struct space *space, enum image_codec codec_k, enum image_codec codec_v);
/* The variant of images with this codec of K; the space is known. */
uint32_t space_variant(const struct space *space, enum image_codec codec);
/* Writes bytes 0..15 of `owner`, which all spaces of this tenant have. */
void spaces_tenant_owner(struct spaces *spaces, const char *tenant, uint8_t ret[16]);
/* NULL: no such number. The space may be unknown, or going. */
struct space *space_at(const struct spaces *spaces, uint32_t number);
uint32_t spaces_numbers(const struct spaces *spaces); /* above all numbers in use */

/* The counts that the table of blocks keeps for each space, and which outlive the space. A number
 * is free when no block carries it, and the counts are told of new and of doomed spaces. Call it
 * before the first space is made; without it no number has blocks. */
void spaces_attach(struct spaces *spaces, struct space_counts *counts);
/* Blocks of going spaces were dropped, so that their numbers may be free now. */
void spaces_sweep(struct spaces *spaces);

struct spaces_count {
	uint32_t in_use, going;
	uint64_t recycled; /* spaces that went for others, since the start */
	bool recycling;    /* some are going, or went in the last minute */
};
void spaces_count(const struct spaces *spaces, struct spaces_count *ret);
