/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_health.h - the health of an endpoint (redis_endpoint.h). I/O thread only.
 */
#ifndef KVTIER_REDIS_HEALTH_H
#define KVTIER_REDIS_HEALTH_H

#include <stdbool.h>

#include "redis_breaker.h"

struct redis_command;
struct redis_endpoint;

/* has answered, and its breaker is closed */
bool redis_health_usable(const struct redis_endpoint *endpoint);
/* The end of a command is news of the endpoint's health. */
void redis_health_answered(struct redis_endpoint *endpoint);
void redis_health_stored(struct redis_endpoint *endpoint);
void redis_health_failed(struct redis_endpoint *endpoint, const char *why);
/* Besides failed() or verdict(): a store was not taken. refused: an answer said so. */
void redis_health_untaken(struct redis_endpoint *endpoint, bool refused, const char *why);
/* A connection was closed for bytes that are no reply; its commands tell of their own ends. */
void redis_health_babbled(struct redis_endpoint *endpoint, const char *why);
void redis_health_verdict(struct redis_endpoint *endpoint, enum redis_verdict verdict, bool store,
			  const char *words);
/* in words: why c ended without a reply */
const char *redis_health_why(const struct redis_command *c);

#endif
