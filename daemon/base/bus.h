/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bus.h - a mapped file that somebody else may truncate. A touch of a page that is gone is SIGBUS,
 * which would end the process. Here private memory takes the place of the whole mapping, with the
 * bytes that its owner copied last, and its owner goes on. One mapping a process.
 */
#ifndef KVTIER_BUS_H
#define KVTIER_BUS_H

#include <stdbool.h>
#include <stddef.h>

/* n bytes at `at`, and a copy of them that the owner brings up to date; NULL: no mapping any more.
 * Before there are threads. 0 or -errno. */
int bus_watch(void *at, size_t n, const void *copy);
/* In a handler of SIGBUS: the touched address was in the mapping, and can be touched again. */
bool bus_mend(const void *touched);
/* It has happened since the last call. */
bool bus_mended(void);

#endif
