/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_seal.h - the binding of a value in Redis to its tenant and to the secret of its nodes: the
 * tenant's part of its name, and a MAC around the packed image. Format and reasons:
 * daemon/IMAGE.md, "In Redis".
 *
 *	envelope (32) | header (128) | scales | payload | MAC (16)
 *
 * A MAC is made in pieces, in the order of the value, as they go out or come in: one struct
 * redis_mac for each direction of a connection, one value at a time. Any thread, but each struct
 * one; nothing blocks.
 */
#ifndef KVTIER_REDIS_SEAL_H
#define KVTIER_REDIS_SEAL_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct image_header;
struct redis_mac;

enum {
	REDIS_VALUE_MAGIC = 0x5652564b, /* "KVRV" */
	/* 1: the packed image alone, as earlier versions wrote it */
	REDIS_VALUE_FORM = 2,
	REDIS_NONCE_BYTES = 16,
	REDIS_MAC_BYTES = 16,
	REDIS_TAG_BYTES = 16, /* hex digits */
};

/* A tenant's, derived from its secret; for as long as the tier is open. It is itself a secret. */
struct redis_seal {
	uint8_t key[32];           /* of the MACs */
	char tag[REDIS_TAG_BYTES]; /* in the names of its values; not terminated */
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

/* With a fresh nonce. -EIO: the system gives no random bytes. */
int redis_envelope_make(struct redis_envelope *ret);
/* 0: of this form. -ENOTSUP: of another one, older or newer. -EBADMSG: not ours. */
int redis_envelope_check(const struct redis_envelope *e);

/* NULL: no memory. */
struct redis_mac *redis_mac_open(void);
void redis_mac_close(struct redis_mac *mac); /* NULL is fine */
/* A value with this envelope and header; a value begun before is forgotten. false, here and below:
 * OpenSSL has no memory. */
bool redis_mac_begin(struct redis_mac *mac, const struct redis_seal *seal,
		     const struct redis_envelope *envelope, const struct image_header *header);
/* the bytes behind the header */
bool redis_mac_add(struct redis_mac *mac, const void *bytes, size_t n);
bool redis_mac_end(struct redis_mac *mac, uint8_t ret[REDIS_MAC_BYTES]);
/* In constant time. */
bool redis_mac_equal(const uint8_t a[REDIS_MAC_BYTES], const uint8_t b[REDIS_MAC_BYTES]);

#endif
