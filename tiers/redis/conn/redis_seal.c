/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_seal.c - names and MACs of values in Redis. Contract: redis_seal.h.
 *
 * A MAC is Poly1305 (RFC 8439) under a key that is used for one value only: the HMAC-SHA-256 of
 * envelope and header. The envelope has a random nonce. So the MAC's key binds the header, with
 * space, block key and checksum, and the MAC binds the rest. Poly1305 is seven times as fast as
 * SHA-256 with the CPU's instructions for it. All bytes of a value must go through it: a party that
 * chooses the bytes can make the header's checksum right.
 */
#include "redis_seal.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>
#include <sys/random.h>

#include "base/vault.h"
#include "kernels/image.h"

enum { HASH_BYTES = 32 };

/* HMAC-SHA256(secret, label | 0): each label gives another key, and no key tells of another. */
static void derive(const uint8_t *secret, size_t n, const char *label, uint8_t ret[HASH_BYTES])
{
	unsigned got = 0;
	const uint8_t *done = HMAC(EVP_sha256(), secret, (int)n, (const uint8_t *)label,
				   strlen(label) + 1, ret, &got);

	/* to end here is better than to write values that no other node takes */
	assert(done && got == HASH_BYTES);
}

void redis_seal_derive(const uint8_t *secret, size_t n, struct redis_seal *ret)
{
	static const char digits[] = "0123456789abcdef";
	uint8_t name[HASH_BYTES];

	derive(secret, n, "kvtier redis mac 2", ret->key);
	derive(secret, n, "kvtier redis name 2", name);
	for (size_t i = 0; i < REDIS_TAG_BYTES; i++)
		ret->tag[i] = digits[i % 2 ? name[i / 2] & 15 : name[i / 2] >> 4];
	explicit_bzero(name, sizeof(name));
	registers_forget();
}

uint32_t redis_seals_of(const struct redis_seals *seals, const struct redis_seal *own,
			const struct redis_seal *ret[REDIS_SEALS_EACH])
{
	uint32_t n = 0;

	if (!seals || seals->n == 0)
		ret[n++] = own;
	for (uint32_t i = 0; seals && i < seals->n && n < REDIS_SEALS_EACH; i++)
		if (memcmp(seals->all[i].tag, own->tag, sizeof(own->tag)) == 0)
			ret[n++] = &seals->all[i];
	assert(n > 0); /* they are of all tenants */
	return n;
}

int redis_envelope_make(struct redis_envelope *ret, uint16_t form)
{
	*ret = (struct redis_envelope){ .magic = REDIS_VALUE_MAGIC, .form = form };
	return getrandom(ret->nonce, sizeof(ret->nonce), GRND_NONBLOCK) ==
			       (ssize_t)sizeof(ret->nonce) ?
		       0 :
		       -EIO;
}

int redis_envelope_check(const struct redis_envelope *e)
{
	if (e->magic == IMAGE_MAGIC)
		return -ENOTSUP; /* form 1 began with the image */
	if (e->magic != REDIS_VALUE_MAGIC)
		return -EBADMSG;
	if (e->form < REDIS_VALUE_FORM || e->form > REDIS_VALUE_LESSER)
		return -ENOTSUP;
	return e->reserved0 || e->reserved1 ? -EBADMSG : 0;
}

EVP_MAC_CTX *redis_mac_open(void)
{
	EVP_MAC *poly1305 = EVP_MAC_fetch(NULL, "POLY1305", NULL);
	EVP_MAC_CTX *mac = poly1305 ? EVP_MAC_CTX_new(poly1305) : NULL;

	EVP_MAC_free(poly1305);
	return mac;
}

bool redis_mac_begin(EVP_MAC_CTX *mac, const struct redis_seal *seal,
		     const struct redis_envelope *envelope, const struct image_header *header)
{
	uint8_t once[HASH_BYTES], front[sizeof(*envelope) + sizeof(*header)];
	unsigned got = 0;
	bool good;

	memcpy(front, envelope, sizeof(*envelope));
	memcpy(front + sizeof(*envelope), header, sizeof(*header));
	/* No context is kept: the tenant's key would lie in it, in the heap. */
	good = HMAC(EVP_sha256(), seal->key, sizeof(seal->key), front, sizeof(front), once, &got) &&
	       got == sizeof(once);
	good = good && EVP_MAC_init(mac, once, sizeof(once), NULL) == 1;
	explicit_bzero(once, sizeof(once));
	registers_forget();
	return good;
}

bool redis_mac_add(EVP_MAC_CTX *mac, const void *bytes, size_t n)
{
	return n == 0 || EVP_MAC_update(mac, bytes, n) == 1;
}

bool redis_mac_end(EVP_MAC_CTX *mac, uint8_t ret[REDIS_MAC_BYTES])
{
	size_t got = 0;

	return EVP_MAC_final(mac, ret, &got, REDIS_MAC_BYTES) == 1 && got == REDIS_MAC_BYTES;
}

bool redis_mac_equal(const uint8_t a[REDIS_MAC_BYTES], const uint8_t b[REDIS_MAC_BYTES])
{
	return CRYPTO_memcmp(a, b, REDIS_MAC_BYTES) == 0;
}
