/* SPDX-License-Identifier: Apache-2.0 */
/* shared_memory.h - memory of this process that the daemon can map. */
#pragma once

#include <stdint.h>

/* A memfd of so many bytes, zeroed, with these seals; the caller closes it. -errno with
 * kvtier_last_error(). */
int memory_file_make(const char *name, uint64_t bytes, int seals, int *ret);
