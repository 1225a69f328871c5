/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_seal.c - see redis_seal.h.
 *
 * Poly1305 (RFC 8439) under a key that is used for one value only: the HMAC-SHA-256 of envelope and
 * header. The envelope has a random nonce. So the MAC's key binds the header, with space, block key
 * and checksum, and the MAC binds the rest. Poly1305 is seven times as fast as SHA-256 with the
 * CPU's instructions for it. All bytes of a value must go through it: a party that chooses the
 * bytes can make the header's checksum right.
 */
#include "redis_seal.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/base/registers.h"
#include "kernels/image.h"

enum { HASH_BYTES = 32 };

struct redis_mac {
	EVP_MAC_CTX *poly1305;
};

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

int redis_envelope_make(struct redis_envelope *ret)
{
	*ret = (struct redis_envelope){ .magic = REDIS_VALUE_MAGIC, .form = REDIS_VALUE_FORM };
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
	if (e->form != REDIS_VALUE_FORM)
		return -ENOTSUP;
	return e->reserved0 || e->reserved1 ? -EBADMSG : 0;
}

struct redis_mac *redis_mac_open(void)
{
	EVP_MAC *poly1305 = EVP_MAC_fetch(NULL, "POLY1305", NULL);
	struct redis_mac *mac = calloc(1, sizeof(*mac));

	if (mac && poly1305)
		mac->poly1305 = EVP_MAC_CTX_new(poly1305);
	EVP_MAC_free(poly1305);
	if (!mac || !mac->poly1305) {
		redis_mac_close(mac);
		return NULL;
	}
	return mac;
}

void redis_mac_close(struct redis_mac *mac)
{
	if (!mac)
		return;
	EVP_MAC_CTX_free(mac->poly1305);
	free(mac);
}

bool redis_mac_begin(struct redis_mac *mac, const struct redis_seal *seal,
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
	good = good && EVP_MAC_init(mac->poly1305, once, sizeof(once), NULL) == 1;
	explicit_bzero(once, sizeof(once));
	registers_forget();
	return good;
}

bool redis_mac_add(struct redis_mac *mac, const void *bytes, size_t n)
{
	return n == 0 || EVP_MAC_update(mac->poly1305, bytes, n) == 1;
}

bool redis_mac_end(struct redis_mac *mac, uint8_t ret[REDIS_MAC_BYTES])
{
	size_t got = 0;

	return EVP_MAC_final(mac->poly1305, ret, &got, REDIS_MAC_BYTES) == 1 &&
	       got == REDIS_MAC_BYTES;
}

bool redis_mac_equal(const uint8_t a[REDIS_MAC_BYTES], const uint8_t b[REDIS_MAC_BYTES])
{
	return CRYPTO_memcmp(a, b, REDIS_MAC_BYTES) == 0;
}
