/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vault.h - memory that must not end up in a core dump. Secrets, passwords and private keys lie in
 * the vault, which is also kept out of swap; a piece of it is wiped when it is freed. Buffers
 * through which engines' bytes pass are only kept out of dumps. Each of these is a mapping of its
 * own, made at start or for a connection. Any thread may call.
 *
 * Secrets also lie in vector registers. memcpy(), SHA-256 and TLS move bytes through them, and the
 * last bytes stay there until the register is needed again. A core dump has the registers of all
 * threads.
 *
 * vault_open() makes the vault, and gives OpenSSL buffers that are not dumped. OpenSSL wipes its
 * other memory when it frees it. The keys of a live TLS session stay in the ordinary heap.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Call it once, before there are threads and before OpenSSL is used. False: the system locks no
 * memory (RLIMIT_MEMLOCK), and secrets may be swapped out; they are left out of dumps all the
 * same. */
bool vault_open(void);
/* Zeroed memory for secrets. It is a locked mapping of its own where the vault is full, and before
 * vault_open(). NULL: no memory. */
void *vault_alloc(size_t n);
void *vault_buffer(size_t n);       /* zeroed, not locked: for bytes that pass */
void vault_free(void *p, size_t n); /* wipes and frees either kind; p may be NULL */
/* Leaves the whole pages of a mapping out of dumps from now on. */
void vault_hide(void *p, size_t n);
/* Reads as many bytes of a file with a secret as fit. The path may lead to a FIFO: it does not
 * wait. 0, or -errno with the reason in words that follow the path: -EPERM, it is no regular file,
 * or others than its owner and group have access. */
int vault_read(const char *path, void *ret, size_t room, size_t *ret_bytes, char *why, size_t n);
/* Zeroes this thread's vector registers. Call it after a secret was read, copied or computed with.
 * It takes a few cycles; the ABI does not preserve these registers across a call. */
void registers_forget(void);
