/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtierctl_prefetch.h - hint prefetch: kvtierctl opens the space as an engine does, and says the
 * hint there. So the bounds of a client hold (daemon/HINTS.md).
 */
#ifndef KVTIERCTL_PREFETCH_H
#define KVTIERCTL_PREFETCH_H

#include <stddef.h>
#include <stdint.h>

struct context;

struct prefetch {
	const char *space;           /* its number, as text */
	const char *tenant;          /* NULL: any */
	const char *session, *turn;  /* NULL: not given */
	const char *const *key_list; /* in hex; n_keys 0: the session's blocks */
	size_t n_keys;
};

/* Blocks by enum kvtier_hint_answer, which are complete where this is EXIT_FINE. Else the exit
 * status, with the reason on stderr; ret_answers has the answers until then. A request that makes
 * no sense is a usage error. */
int prefetch_say(const struct context *context, const struct prefetch *prefetch,
		 uint64_t ret_answers[5]);

#endif
