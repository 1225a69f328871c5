/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vault.h - memory that must not end up in a core dump: secrets, which are also kept out of swap and wiped when
 * they are given back, and buffers through which engines' bytes go. Any thread; at start, or per connection: each
 * is a mapping.
 *
 * OpenSSL gets memory of this kind from vault_open(): a locked heap for private keys; buffers that are not dumped;
 * and the rest is wiped when it is freed. The keys of a TLS session that lives are in the ordinary heap all the
 * same.
 */
#ifndef KVTIER_VAULT_H
#define KVTIER_VAULT_H

#include <stdbool.h>
#include <stddef.h>

/* Once, before threads and before OpenSSL is used. false: the system locks no memory (RLIMIT_MEMLOCK), and secrets
 * may be swapped out; they are left out of dumps all the same. */
bool  vault_open(void);
void *vault_alloc(size_t n);		/* zeroed, for secrets; NULL: no memory */
void *vault_buffer(size_t n);		/* zeroed, for bytes that pass; not locked */
void  vault_free(void *p, size_t n);	/* of either, with its size: wiped; NULL is fine */
void  vault_hide(void *p, size_t n);	/* whole pages of somebody's mapping: from now on left out of dumps */

#endif
