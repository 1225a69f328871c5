/* SPDX-License-Identifier: Apache-2.0 */
/* process.h - a client belongs to the process that made it. */
#ifndef KVTIER_LIB_PROCESS_H
#define KVTIER_LIB_PROCESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* this process's number, 0: none yet. No use before process_begin() */
extern _Atomic uint64_t *process_mark;
/* gives this process a number, > 0; each client made in it has the same */
uint64_t process_begin(void);
int process_refuse(void); /* -EPERM with its sentence */

static inline bool process_ours(uint64_t made_in)
{
	return atomic_load_explicit(process_mark, memory_order_relaxed) == made_in;
}

#endif
