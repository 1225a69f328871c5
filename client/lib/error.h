/* SPDX-License-Identifier: Apache-2.0 */
/* error.h - this thread's sentence, kvtier_last_error(); structs that grow. */
#ifndef KVTIER_LIB_ERROR_H
#define KVTIER_LIB_ERROR_H

#include <stddef.h>

/* Sets this thread's sentence and returns error. */
int error_set(int error, const char *format, ...) __attribute__((format(printf, 2, 3), cold));
/* Copies a caller's struct, which begins with its size, over a zeroed one of ours (`known` bytes).
 * A smaller struct is of an older program. A larger one is of a newer program, and all bytes that
 * we do not know must be 0 (else -E2BIG, as in Linux). */
int error_struct_in(void *ret, size_t known, const void *in, const char *name);

#endif
