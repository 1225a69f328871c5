/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bus.h - a mapped file that somebody else may truncate. When the process then touches a page that
 * is gone, the kernel sends SIGBUS, which would end the process. The handler here puts private
 * memory in the place of the whole mapping, with the bytes that the owner copied last, and the
 * owner continues. A process can have one such mapping.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Watches the n bytes at `at`. `copy` has the same bytes; the owner brings it up to date. at NULL
 * ends the watching. Call this before there are threads. 0 or -errno. */
int bus_watch(void *at, size_t n, const void *copy);
/* For a handler of SIGBUS. True: the address is in the mapping, and can be touched again. */
bool bus_mend(const void *touched);
/* Whether memory has taken the mapping's place since the last call. */
bool bus_mended(void);
