/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.h - the host tier beyond its ops table. Core thread only.
 */
#ifndef KVTIER_HOST_H
#define KVTIER_HOST_H

#include "tiers/tier.h"

/* What an operator should know though it is no error (huge pages without effect...), or "". Not of
 * a wrapped tier. */
const char *host_note(const struct tier *t);

#endif
