/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_up.h - brings the Redis tier and the outbox up at the start, and takes them down at the
 * end. Core thread only.
 */
#ifndef KVTIER_REDIS_UP_H
#define KVTIER_REDIS_UP_H

#include <stddef.h>

struct kvtierd;
struct redis_tier_conf;

/* Opens the tier and the outbox; does nothing where `conf` (config_redis.h) names no endpoint. An
 * endpoint that does not answer is no error. -errno, and text (>= 512 bytes) names the option: the
 * configuration cannot be. */
int redis_up(struct kvtierd *d, struct redis_tier_conf *conf, char *text, size_t n);
/* Drops queued blocks, ends transfers that are on their way with -ECANCELED, and closes both. No op
 * is outstanding; the host tier is still open. */
void redis_down(struct kvtierd *d);

#endif
