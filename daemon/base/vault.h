/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vault.h - memory that must not end up in a core dump. Secrets, passwords and private keys lie in
 * one place, which is also kept out of swap; a piece is wiped when it is given back. Buffers
 * through which engines' bytes go are only kept out of dumps; each is a mapping of its own, taken
 * at start or per connection. Any thread.
 *
 * vault_open() makes the place, and gives OpenSSL buffers that are not dumped. OpenSSL wipes the
 * rest when it frees it. The keys of a live TLS session are in the ordinary heap all the same.
 */
#ifndef KVTIER_VAULT_H
#define KVTIER_VAULT_H

#include <stdbool.h>
#include <stddef.h>

/* Once, before threads and before OpenSSL is used. false: the system locks no memory
 * (RLIMIT_MEMLOCK), and secrets may be swapped out; they are left out of dumps all the same. */
bool vault_open(void);
/* Zeroed, for secrets: of the place, or a locked mapping where it is full, or before vault_open().
 * NULL: no memory. */
void *vault_alloc(size_t n);
void *vault_buffer(size_t n);       /* zeroed, for bytes that pass; not locked */
void vault_free(void *p, size_t n); /* of either, with its size: wiped; NULL is fine */
/* whole pages of somebody's mapping: from now on left out of dumps */
void vault_hide(void *p, size_t n);

#endif
