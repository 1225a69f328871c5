/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_redis_lies.h - a Redis that lies by chance: other values, changed ones, ones that are cut;
 * wrong lengths, types and nestings; errors, redirects, noise; answers that come late, twice, never
 * or without end. For a test that holds the clock, as lib_redis_tier.h says.
 */
#pragma once

#include <stdint.h>

#include "random.h"

/* So many servers, one after the other, with a tier each that loads from it and stores to it; how
 * many lies were told. A wrong byte, or an xfer that does not end, ends the test. */
uint64_t redis_lies_by_chance(struct random *random, uint32_t servers);
