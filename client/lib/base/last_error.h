/* SPDX-License-Identifier: Apache-2.0 */
/* last_error.h - the sentence behind this thread's last failure; and how structs that grow are
 * read. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Sets this thread's sentence and returns error. */
int error_set(int error, const char *format, ...) __attribute__((format(printf, 2, 3), cold));
/* Copies a caller's struct, which begins with its size, over one of ours, which has `known` bytes.
 * A smaller struct is an older program's, and the rest of ours becomes 0. A larger one is a newer
 * program's. Then all bytes that we do not know must be 0, else it is -E2BIG, as in Linux. */
int error_struct_in(void *ret, size_t known, const void *in, const char *name);
/* The same for an element of an array, whose size the first element gives. */
int error_struct_of(void *ret, size_t known, const void *in, uint32_t size, const char *name);
