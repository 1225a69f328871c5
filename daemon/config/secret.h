/* SPDX-License-Identifier: Apache-2.0 */
/*
 * secret.h - tenants' secrets, on which the keys of their blocks depend. A secret is either this
 * node's alone, from a file that the first start makes, or follows from a secret that several nodes
 * have. space.c calls this, at start only.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { SECRET_BYTES = 32, SECRET_TENANT_BYTES = 32, SECRET_SHARED_BYTES = 512 };

/* A secret that several nodes have: the content of a file. It lies in the vault. */
struct secret_shared {
	size_t n;                               /* 0: there is none */
	uint8_t bytes[SECRET_SHARED_BYTES + 1]; /* one more, to see that a file is too long */
};

/* Reads state_dir/secret-TENANT, which it makes (0600, random) if it is absent. The tenant's name
 * has no / in it. 0, or -errno with text (>= 256 bytes): -EPERM: others may read the file;
 * -EBADMSG: it has not 32 bytes; or the error of open(), write()... */
int secret_load(const char *state_dir, const char *tenant, uint8_t ret[SECRET_BYTES], char *text,
		size_t n);
/* HMAC-SHA256(shared, "kvtier tenant 1" | 0 | tenant): nodes with the same `shared` agree on it. */
void secret_derive(const uint8_t *shared, size_t bytes, const char *tenant,
		   uint8_t ret[SECRET_BYTES]);
