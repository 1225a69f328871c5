/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_seal.h - the binding of a value in Redis to its tenant and to the secret of its nodes: the
 * tenant's part of its name, and a MAC around the packed image. Format and reasons:
 * daemon/IMAGE.md, "In Redis".
 *
 *	envelope (32) | header (128) | scales | payload | MAC (16)	also of a lesser image
 *	envelope (32) | header (128) | coded form of both | MAC (16)
 *
 * A MAC is made piece by piece, in the order of the value, while the pieces go out or come in. Each
 * direction of a connection has a context of its own, for one value at a time. Any thread may call
 * these functions, but one thread at a time for each context. No function blocks.
 */
#pragma once

#include <assert.h>
#include <openssl/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct image_header;

enum {
	REDIS_VALUE_MAGIC = 0x5652564b, /* "KVRV" */
	/* 1: the packed image alone, as earlier versions wrote it */
	REDIS_VALUE_FORM = 2,
	REDIS_VALUE_CODED = 3, /* header, and the coded form of the rest (kernels/form.h) */
	/* a packed image that lost values (recode.h): its V is v4, and its space's is not */
	REDIS_VALUE_LESSER = 4,
	REDIS_NONCE_BYTES = 16,
	REDIS_MAC_BYTES = 16,
	REDIS_TAG_BYTES = 16, /* hex digits */
	REDIS_SEALS_EACH = 2, /* a tenant has at most */
	REDIS_SEAL_TENANTS = 16,
};

/* A tenant's seal, derived from its secret. It lasts as long as the tier is open, and is itself a
 * secret. */
struct redis_seal {
	uint8_t key[32];           /* of the MACs */
	char tag[REDIS_TAG_BYTES]; /* in the names of its values; not terminated */
};

/* The seals that take the place of the tenants' own: for each file of [redis] seal_files, the
 * newest first, one of each tenant. Their tags are the tenants' own, so names stay as they are. */
struct redis_seals {
	uint32_t n; /* 0: tenants' own seals are in use */
	struct redis_seal all[REDIS_SEALS_EACH * REDIS_SEAL_TENANTS];
};

struct redis_envelope {
	uint32_t magic;
	uint16_t form;
	uint16_t reserved0; /* 0, as is the next */
	uint64_t reserved1;
	uint8_t nonce[REDIS_NONCE_BYTES];
};
static_assert(sizeof(struct redis_envelope) == 32, "redis_envelope");

/* beyond the packed image */
enum { REDIS_SEAL_BYTES = sizeof(struct redis_envelope) + REDIS_MAC_BYTES };

void redis_seal_derive(const uint8_t *secret, size_t n, struct redis_seal *ret);
/* Returns how many seals a value of the tenant with this seal may have, 1 or 2. ret[0] is the one
 * that is written. `seals` may be NULL, as if it had none. */
uint32_t redis_seals_of(const struct redis_seals *seals, const struct redis_seal *own,
			const struct redis_seal *ret[REDIS_SEALS_EACH]);

/* Makes an envelope of a form with a fresh nonce. -EIO: the system gives no random bytes. */
int redis_envelope_make(struct redis_envelope *ret, uint16_t form);
/* 0: the value is of one of the forms 2 to 4. -ENOTSUP: it is of another one, older or newer.
 * -EBADMSG: it is not ours. */
int redis_envelope_check(const struct redis_envelope *e);

/* NULL: no memory. EVP_MAC_CTX_free() frees it. */
EVP_MAC_CTX *redis_mac_open(void);
/* Begins the MAC of a value with this envelope and header; a value that was begun before is
 * forgotten. false, here and below: OpenSSL has no memory. */
bool redis_mac_begin(EVP_MAC_CTX *mac, const struct redis_seal *seal,
		     const struct redis_envelope *envelope, const struct image_header *header);
/* Adds bytes behind the header, in order. */
bool redis_mac_add(EVP_MAC_CTX *mac, const void *bytes, size_t n);
bool redis_mac_end(EVP_MAC_CTX *mac, uint8_t ret[REDIS_MAC_BYTES]);
/* In constant time. */
bool redis_mac_equal(const uint8_t a[REDIS_MAC_BYTES], const uint8_t b[REDIS_MAC_BYTES]);
