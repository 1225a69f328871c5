/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys.c - a space's chain of keys: key[i] = SHA-256(key[i-1] | tokens of block i as LE32), and
 * key[-1] is the salt or a parent.
 *
 * Each space has one digest context, which is fetched and allocated once, so that a key costs its
 * hash and no more. The lock guards the context and the salt, which a reconnection may replace. It
 * is a leaf: take no locks while holding it.
 */
#include "keys.h"

#include <assert.h>
#include <errno.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "last_error.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
	      "tokens are hashed as they lie in memory, which is LE32");

struct keys {
	pthread_mutex_t lock;
	EVP_MD *md;
	EVP_MD_CTX *ctx;
	uint32_t block_tokens;
	struct kvtier_key salt;
};

int keys_open(uint32_t block_tokens, struct keys **ret)
{
	struct keys *keys = calloc(1, sizeof(*keys));

	if (!keys)
		return error_set(-ENOMEM, "out of memory");
	(void)pthread_mutex_init(&keys->lock, NULL);
	keys->block_tokens = block_tokens;
	keys->md = EVP_MD_fetch(NULL, "SHA256", NULL);
	keys->ctx = EVP_MD_CTX_new();
	if (!keys->md || !keys->ctx || EVP_DigestInit_ex2(keys->ctx, keys->md, NULL) != 1) {
		keys_close(keys);
		return error_set(-ENOSYS, "OpenSSL has no SHA-256 here");
	}
	*ret = keys;
	return 0;
}

void keys_close(struct keys *keys)
{
	if (!keys)
		return;
	EVP_MD_CTX_free(keys->ctx);
	EVP_MD_free(keys->md);
	(void)pthread_mutex_destroy(&keys->lock);
	free(keys);
}

void keys_salt(struct keys *keys, const uint8_t salt[32])
{
	(void)pthread_mutex_lock(&keys->lock);
	memcpy(keys->salt.bytes, salt, sizeof(keys->salt.bytes));
	(void)pthread_mutex_unlock(&keys->lock);
}

static int key_next(struct keys *keys, const struct kvtier_key *before, const uint32_t *tokens,
		    struct kvtier_key *ret)
{
	const size_t bytes = (size_t)keys->block_tokens * sizeof(*tokens);

	/* A NULL type means the type as before: no fetch, no allocation. */
	if (EVP_DigestInit_ex2(keys->ctx, NULL, NULL) != 1 ||
	    EVP_DigestUpdate(keys->ctx, before->bytes, sizeof(before->bytes)) != 1 ||
	    EVP_DigestUpdate(keys->ctx, tokens, bytes) != 1 ||
	    EVP_DigestFinal_ex(keys->ctx, ret->bytes, NULL) != 1)
		return error_set(-EIO, "OpenSSL's SHA-256 failed");
	return 0;
}

int keys_chain(struct keys *keys, const struct kvtier_key *parent, const uint32_t *tokens,
	       size_t n_tokens, struct kvtier_key *ret, size_t *ret_n)
{
	const size_t n = n_tokens / keys->block_tokens;
	struct kvtier_key before;
	int rc = 0;

	if (n > *ret_n)
		return error_set(-ENOSPC, "%zu tokens make %zu keys, there is room for %zu",
				 n_tokens, n, *ret_n);
	(void)pthread_mutex_lock(&keys->lock);
	before = parent ? *parent : keys->salt;
	for (size_t i = 0; i < n && !rc; i++) {
		rc = key_next(keys, &before, tokens + i * keys->block_tokens, &ret[i]);
		before = ret[i];
	}
	(void)pthread_mutex_unlock(&keys->lock);
	if (!rc)
		*ret_n = n;
	return rc;
}
