/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reserve.h - memory for tables that may grow large: reserved as a whole when they are opened, and
 * taken from the machine page by page as it is touched.
 */
#ifndef KVTIER_RESERVE_H
#define KVTIER_RESERVE_H

#include <stdint.h>

void *reserve(uint64_t bytes);              /* zeros; NULL: -ENOMEM */
void unreserve(void *base, uint64_t bytes); /* NULL is fine */

#endif
