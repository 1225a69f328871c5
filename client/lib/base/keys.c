/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys.c - a space's chain of keys: key[i] = SHA-256(key[i-1] | tokens of block i as LE32), and
 * key[-1] is the salt or a parent.
 *
 * The lock guards the salt, which a reconnection may replace. It is a leaf: take no locks while
 * holding it.
 */
#include "keys.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "last_error.h"
#include "sha256.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
	      "tokens are hashed as they lie in memory, which is LE32");

struct keys {
	pthread_mutex_t lock;
	sha256_way *way;
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
	keys->way = sha256_best();
	*ret = keys;
	return 0;
}

void keys_close(struct keys *keys)
{
	if (!keys)
		return;
	(void)pthread_mutex_destroy(&keys->lock);
	free(keys);
}

void keys_salt(struct keys *keys, const uint8_t salt[32])
{
	(void)pthread_mutex_lock(&keys->lock);
	memcpy(keys->salt.bytes, salt, sizeof(keys->salt.bytes));
	(void)pthread_mutex_unlock(&keys->lock);
}

static void key_next(const struct keys *keys, const struct kvtier_key *before,
		     const uint32_t *tokens, struct kvtier_key *ret)
{
	struct sha256 sha;

	sha256_begin(&sha, keys->way);
	sha256_add(&sha, before->bytes, sizeof(before->bytes));
	sha256_add(&sha, tokens, (size_t)keys->block_tokens * sizeof(*tokens));
	sha256_end(&sha, ret->bytes);
}

int keys_chain(struct keys *keys, const struct kvtier_key *parent, const uint32_t *tokens,
	       size_t n_tokens, struct kvtier_key *ret, size_t *ret_n)
{
	const size_t n = n_tokens / keys->block_tokens;
	struct kvtier_key before;

	if (n > *ret_n)
		return error_set(-ENOSPC, "%zu tokens make %zu keys, there is room for %zu",
				 n_tokens, n, *ret_n);
	(void)pthread_mutex_lock(&keys->lock);
	before = parent ? *parent : keys->salt;
	(void)pthread_mutex_unlock(&keys->lock);
	for (size_t i = 0; i < n; i++) {
		key_next(keys, &before, tokens + i * keys->block_tokens, &ret[i]);
		before = ret[i];
	}
	*ret_n = n;
	return 0;
}
