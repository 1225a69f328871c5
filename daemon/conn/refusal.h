/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refusal.h - the clients that were refused or cut lately. They run without a cache, and only the
 * daemon can tell people so. There are few rows, one for each process, the last one first. Core
 * thread only.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/abi/wire.h"

struct stats;

/* Why: REASON(name, remedy). "": the sentence of each case says the remedy. */
#define REFUSAL_REASONS(REASON)                                                      \
	REASON(version, "")                                                          \
	REASON(full, "")                                                             \
	REASON(protocol, "; restart that engine, and report it if it happens again") \
	REASON(permission, "; give kvtierd and the engine one user namespace")       \
	REASON(resources, "; see the daemon's log, its limits and the machine's memory")

enum refusal_reason {
#define REASON(name, remedy) REFUSAL_##name,
	REFUSAL_REASONS(REASON)
#undef REASON
		REFUSAL_REASON_COUNT
};

enum { REFUSALS = 16 };
#define REFUSALS_KEPT_NS (600 * 1000000000ull)

struct refusal {
	uint64_t at_ns; /* 0: the row is empty */
	uint32_t times;
	pid_t pid;
	uid_t uid;
	/* the client's, or else the process's; "": neither is known. Printable ASCII. */
	char name[WIRE_NAME_BYTES];
	enum refusal_reason reason;
	uint32_t version_min, version_max; /* of its HELLO; 0: it had sent no HELLO */
	char why[200];
};

struct refusals {
	struct refusal rows[REFUSALS];
};

/* Adds a copy. `times` is that of the process's row, and one more; a name that is "" becomes the
 * process's. */
void refusals_add(struct refusals *all, const struct refusal *refusal);
/* Counts a connection that was refused before it was open. */
void refusals_count(struct stats *stats, enum refusal_reason reason);
/* The i-th one that is not older than REFUSALS_KEPT_NS, the last one first; NULL: there are no
 * more. */
const struct refusal *refusals_at(const struct refusals *all, uint32_t i, uint64_t now_ns);
/* A sentence that says how many there were, and tells the last one and the remedy; "" if all are
 * old. */
void refusals_text(const struct refusals *all, uint64_t now_ns, char *ret, size_t n);
const char *refusal_reason_name(enum refusal_reason reason);
/* Copies a name that comes from outside as printable ASCII; ret is zeroed and has n + 1 bytes. */
void refusal_copy_name(const char *from, size_t n, char *ret);
