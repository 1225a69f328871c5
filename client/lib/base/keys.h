/* SPDX-License-Identifier: Apache-2.0 */
/* keys.h - the keys of a space's blocks, which are a chain of SHA-256. Any thread may call. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/kvtier.h"

struct keys;

int keys_open(uint32_t block_tokens, struct keys **ret);
void keys_close(struct keys *keys);
void keys_salt(struct keys *keys, const uint8_t salt[32]);
int keys_chain(struct keys *keys, const struct kvtier_key *parent, const uint32_t *tokens,
	       size_t n_tokens, struct kvtier_key *ret, size_t *ret_n);
