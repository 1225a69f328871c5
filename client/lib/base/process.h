/* SPDX-License-Identifier: Apache-2.0 */
/* process.h - a client belongs to the process that made it. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The number of this process; 0 until process_begin() has given it one. */
extern _Atomic uint64_t *process_mark;
/* Returns this process's number, > 0, and gives it one if it has none. */
uint64_t process_begin(void);
int process_refuse(void); /* returns -EPERM and sets its sentence */

static inline bool process_ours(uint64_t made_in)
{
	return atomic_load_explicit(process_mark, memory_order_relaxed) == made_in;
}
