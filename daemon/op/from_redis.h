/* SPDX-License-Identifier: Apache-2.0 */
/* from_redis.h - a flight's source: Redis. */
#ifndef KVTIER_FROM_REDIS_H
#define KVTIER_FROM_REDIS_H

#include "flight.h"

extern const struct source_ops from_redis;

#endif
