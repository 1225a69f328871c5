/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refusals.h - the clients that were refused or cut lately, and why: a client that runs without the
 * daemon has nobody else to tell it. The last REFUSALS of them, for REFUSALS_KEPT_NS each; a
 * process that comes again and again has one row. Core thread only.
 */
#ifndef KVTIER_REFUSALS_H
#define KVTIER_REFUSALS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/wire.h"

enum { REFUSALS = 16 };
#define REFUSALS_KEPT_NS (600 * 1000000000ull)

struct refusal {
	uint64_t at_ns; /* 0: no such row */
	uint32_t times;
	pid_t pid;
	uid_t uid;
	char name[WIRE_NAME_BYTES];        /* "": it had not said it */
	uint32_t version_min, version_max; /* of its HELLO; 0: it had said none */
	char why[200];
};

struct refusals {
	struct refusal rows[REFUSALS];
};

/* times is not read. */
void refusals_add(struct refusals *all, const struct refusal *refusal);
/* The i-th that is not older than REFUSALS_KEPT_NS, the last one first; NULL: there are no more. */
const struct refusal *refusals_at(const struct refusals *all, uint32_t i, uint64_t now_ns);
/* A sentence about the last one, and how many there are; "" if there is none. */
void refusals_text(const struct refusals *all, uint64_t now_ns, char *ret, size_t n);

#endif
