/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.h - identities under which blocks are interchangeable, and tenants' secrets. Core thread
 * only.
 *
 * A space is found by (tenant, SHA-256 of its geometry). It stays while a connection has it open or
 * it has blocks. When there are more spaces than may be, the least used one that is not open goes
 * with its blocks, so that a new one finds room (space_table.h).
 *
 * A record that is found on a disk at start names its space only by `owner`. Such a space is
 * *unknown* (number and image sizes, no geometry) until a client opens it; then it keeps number and
 * blocks. A pointer to a space that is not open is good until the next space_acquire(),
 * space_found() or spaces_sweep().
 *
 * The tenant's secret never leaves this file. A client sees the chain's salt, which is
 * SHA-256("kvtier salt 1" | secret | space id).
 */
#ifndef KVTIER_SPACE_H
#define KVTIER_SPACE_H

#include <stdbool.h>
#include <sys/queue.h>

#include "client/wire.h"
#include "kernels/kernels.h"
#include "tiers/redis/redis_seal.h"

struct spaces;

struct space {
	char tenant[32];
	uint8_t id[32];
	struct wire_geometry wire; /* as checked: strings terminated */
	struct image_geometry geometry;
	enum image_codec codec;        /* resolved: never 0 */
	struct image_shape shape;      /* with that codec */
	struct image_shape raw_shape;  /* for blocks that it cannot hold */
	const struct redis_seal *seal; /* its tenant's, as long as struct spaces */
	/* 0..15: SHA-256("kvtier tenant 1" | name), 16..31: id, each cut */
	uint8_t owner[32];
	/* SHA-256("kvtier index 1" | this start's secret | owner), cut */
	uint8_t index_key[16];
	/* of its tenant and model: SHA-256("kvtier revision 1" | owner 0..15 | model) */
	uint8_t revision[32];
	bool known; /* else all above but owner and index_key is zero */
	/* its blocks' image sizes, by blocks_variant(); 0: not seen yet. Equal where both codecs
	 * make images of one size */
	uint32_t variant_bytes[2];
	uint32_t number; /* < TIER_MAX_SPACES */
	uint32_t opened; /* times, by connections */
	/* space_table.c's */
	/* its blocks are being dropped, then its number is free */
	bool going;
	uint32_t chain, revision_chain;
	uint32_t share; /* which tenant's, < SPACES_TENANTS; more tenants share the last */
	/* order in which spaces were closed; below, the latest tick of a record */
	uint64_t used;
	/* CLOCK_MONOTONIC, when it was closed; 0: open, or not opened yet */
	uint64_t idle_ns;
	TAILQ_ENTRY(space) leaving;
	uint64_t stored_blocks, loaded_blocks, raw_blocks; /* raw: fp8 could not hold them */
	/* sums over the blocks that were measured, in which recent blocks count most; and when the
	 * latest measurement began */
	struct codec_error error;
	uint64_t measured_ns;
};

enum { SPACES_SHARED_BYTES = 512, SPACES_MAX = 20000, SPACES_TENANTS = 64 };

/* At most `max` spaces, 1 .. SPACES_MAX. text names the error. */
int spaces_open(const char *state_dir, uint32_t max, struct spaces **ret, char *text, size_t n);
void spaces_close(struct spaces *spaces);
/* Makes tenants' secrets follow from a secret that nodes share, of 1 to SPACES_SHARED_BYTES bytes,
 * copied; before the first spaces_tenant(). Without it each tenant's is in state_dir/secret-TENANT,
 * made (0600, 32 random bytes) when absent. */
void spaces_share(struct spaces *spaces, const uint8_t *secret, size_t n);
/* load or make its secret */
int spaces_tenant(struct spaces *spaces, const char *tenant, char *text, size_t n);

/* Checks every field (0, or -EINVAL with text naming the field and the limit), then finds or makes
 * the space and counts one opening. -ENOSPC: as many as may be are open; -EAGAIN: more than that
 * are just going; -ENOMEM. */
int space_acquire(struct spaces *spaces, const char *tenant, const struct wire_geometry *wire,
		  struct space **ret, char *text, size_t n);
/* The root of the keys of its chains; made each time, so that no copy of it lies about. */
void space_salt(struct spaces *spaces, const struct space *space, uint8_t ret[32]);
/* one opening less; the pointer may be bad then */
void space_release(struct spaces *spaces, struct space *space);
/* The space that a found record of this tick (< 2^48) belongs to, made if there is none, and the
 * variant of its image size. -ENOSPC: too many spaces, none of them found and less recent; -EAGAIN:
 * likewise, for now; -ESTALE: the space is going; -EBADMSG: a third size, or 0; -ENOMEM. */
int space_found(struct spaces *spaces, const uint8_t owner[32], uint32_t image_bytes, uint64_t tick,
		uint32_t *ret_number, uint32_t *ret_variant);
/* Whether the block that is stored now shall be measured: one block a second, in a space whose
 * codec is fp8. True: the second begins. */
bool space_measures(struct space *space, uint64_t now_ns);
void space_measured(struct space *space, const struct codec_error *error);
/* The root mean square of the differences between values stored and values loaded, divided by that
 * of the values stored; < 0: nothing was measured. */
double space_error(const struct space *space);
/* The known spaces of a revision, one after the other: NULL before the first, and after the
 * last. */
struct space *space_of_revision(const struct spaces *spaces, const uint8_t revision[32],
				const struct space *before);
/* Of a model's name and revision, as a geometry has it. */
void spaces_revision(struct spaces *spaces, const char *tenant, const char *model, uint8_t ret[32]);
/* The number of the space with this owner; false: there is none. */
bool space_of_owner(struct spaces *spaces, const uint8_t owner[32], uint32_t *ret_number);
/* The variant of images with this codec; the space is known. */
uint32_t space_variant(const struct space *space, enum image_codec codec);
/* bytes 0..15 of the owner of all spaces of this tenant. */
void spaces_tenant_owner(struct spaces *spaces, const char *tenant, uint8_t ret[16]);
/* NULL: no such number. The space may be unknown, or going. */
struct space *space_at(const struct spaces *spaces, uint32_t number);
uint32_t spaces_numbers(const struct spaces *spaces); /* above all numbers in use */

/* Questions and messages to the table of blocks: how many blocks carry a space's number; that a
 * number, which none carries, is now that of this space, of this tenant; that all blocks of a
 * number are to go, or to stay after all. Before the first space. */
struct spaces_blocks {
	void *arg;
	uint32_t (*held)(void *arg, uint32_t space);
	void (*is)(void *arg, uint32_t space, const uint8_t index_key[16], uint32_t tenant);
	void (*doom)(void *arg, uint32_t space, bool doomed);
};
void spaces_attach(struct spaces *spaces, const struct spaces_blocks *blocks);
/* blocks of going spaces went: their numbers may be free now */
void spaces_sweep(struct spaces *spaces);

struct spaces_count {
	uint32_t in_use, going;
	uint64_t recycled; /* spaces that went for others, since the start */
	bool recycling;    /* some are going, or went in the last minute */
};
void spaces_count(const struct spaces *spaces, struct spaces_count *ret);

#endif
