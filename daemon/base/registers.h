/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registers.h - vector registers without secrets in them. memcpy(), SHA-256 and TLS move bytes
 * through these registers, where the last ones stay until something else needs the register; and a
 * core dump has the registers of all threads. The vault (vault.h) has the memory.
 */
#ifndef KVTIER_REGISTERS_H
#define KVTIER_REGISTERS_H

/* After a secret was read, copied or computed with: zeroes this thread's vector registers. It takes
 * some cycles; the ABI keeps none of these registers across a call. */
void registers_forget(void);

#endif
