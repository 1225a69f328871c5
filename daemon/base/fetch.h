/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch.h - cache lines that a client had last, fetched while there is other work.
 *
 * For x86-64 compilers take __builtin_prefetch(p, 1) for a fetch to read, unless they are told that
 * the processor has PREFETCHW. Then the store that follows waits once more, until the client's copy
 * is gone. Processors without it do nothing there.
 */
#ifndef KVTIER_FETCH_H
#define KVTIER_FETCH_H

/* Of a function whose prefetches for writing are to be such. */
#if defined(__x86_64__)
#define FETCHES_TO_WRITE __attribute__((target("prfchw")))
#else
#define FETCHES_TO_WRITE
#endif

#endif
