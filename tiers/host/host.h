/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.h - the host tier: its ops table, and the calls that only this tier has. Core thread only.
 */
#pragma once

#include "tiers/tier.h"

extern const struct tier_ops host_ops;

/* A sentence for the operator about a state that is no error (huge pages without effect...), or "".
 * This call and the next ones take the tier itself, not a wrapper of it. */
const char *host_note(const struct tier *t);
/* The unit of the tier that lies at this NUMA node. TIER_ANY_UNIT: the node (-1), or where memory
 * lies, is not known; TIER_NO_UNIT: the tier has no memory there. */
uint8_t host_unit(const struct tier *t, int32_t node);
/* Bytes of slabs that lie on another node than they should: their own had too little left. */
uint64_t host_astray_bytes(const struct tier *t);
/* "0: 8192 MiB, 1: 4096 MiB", by NUMA node; "": nodes are not known. Returns ret. */
char *host_nodes_text(const struct tier *t, char *ret, size_t n);
