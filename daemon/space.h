/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.h - identities under which blocks are interchangeable, and tenants' secrets. Core thread only.
 *
 * A space is found by (tenant, SHA-256 of its geometry). It stays while a connection has it open or a block
 * of it is held. What a client may not see (the tenant secret) never leaves this file; what it may (the
 * chain's salt) is SHA-256("kvtier salt 1" | secret | space id).
 */
#ifndef KVTIER_SPACE_H
#define KVTIER_SPACE_H

#include "../client/wire.h"
#include "../kernels/image.h"

struct spaces;

struct space {
	char     tenant[32];
	uint8_t  id[32];
	uint8_t  salt[32];
	struct wire_geometry wire;		/* as checked: strings terminated */
	struct image_geometry geometry;
	enum image_codec codec;			/* resolved: never 0 */
	struct image_shape shape;		/* with that codec */
	struct image_shape raw_shape;		/* for blocks that it cannot hold */
	uint32_t number;			/* < TIER_MAX_SPACES */
	uint32_t opened;			/* times, by connections */
	uint64_t stored_blocks, loaded_blocks, raw_blocks;	/* raw: fp8 could not hold them */
};

/* state_dir/secret-TENANT is made (0600, 32 random bytes) when absent. text says what went wrong. */
int  spaces_open(const char *state_dir, struct spaces **ret, char *text, size_t n);
void spaces_close(struct spaces *spaces);
int  spaces_tenant(struct spaces *spaces, const char *tenant, char *text, size_t n);	/* load or make its secret */

/* Checks every field (0, or -EINVAL with text naming the field and the limit; -ENOSPC: too many spaces), then
 * finds or makes the space and counts one opening. */
int  space_acquire(struct spaces *spaces, const char *tenant, const struct wire_geometry *wire,
		   struct space **ret, char *text, size_t n);
void space_release(struct spaces *spaces, struct space *space);
/* NULL: no such number. Spaces that nobody opened and that hold no blocks may be reused. */
struct space *space_at(struct spaces *spaces, uint32_t number);
void spaces_in_use(struct spaces *spaces, uint32_t (*blocks_of)(void *arg, uint32_t space), void *arg);

#endif
