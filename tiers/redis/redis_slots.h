/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_slots.h - Redis Cluster: which slot a name has, and which endpoint has a slot. The
 * functions are pure. Source: Redis Cluster specification (key distribution model, hash tags, MOVED
 * and ASK).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "redis.h"

struct redisReply;

enum { REDIS_SLOTS = 16384, REDIS_NO_ENDPOINT = 0xff, REDIS_REPLICAS = 128 };

struct redis_map {
	uint32_t n_endpoints;                                   /* masters that have slots */
	char address[REDIS_MAP_ENDPOINTS][REDIS_ADDRESS_BYTES]; /* "host:port", v6 in brackets */
	uint32_t slots[REDIS_MAP_ENDPOINTS];                    /* how many each has */
	uint8_t endpoint[REDIS_SLOTS]; /* REDIS_NO_ENDPOINT: it is not served */
	uint32_t n_replicas;
	/* may be masters soon; more are left out */
	char replica[REDIS_REPLICAS][REDIS_ADDRESS_BYTES];
};

/* With hash tags: only the bytes between the first { and the next } count, if there are any. */
uint32_t redis_slot(const void *name, size_t n);

/* From a reply to CLUSTER SLOTS. `asked` is the address of the endpoint that replied; its host
 * stands for an empty or nil host or "?" (127.0.0.1 for a Unix socket). Hosts may be names. A
 * replica with a wrong address is left out, and the map stays good. 0; -EPROTO: not of that shape,
 * a port or slot out of range, a slot twice, a host that is no host; -E2BIG: more than
 * REDIS_MAP_ENDPOINTS masters; -ENOENT: no slot has an endpoint. On error *ret is undefined. */
int redis_map_parse(const struct redisReply *reply, const char *asked, struct redis_map *ret);

enum redis_redirect { REDIS_REDIRECT_NONE, REDIS_REDIRECT_MOVED, REDIS_REDIRECT_ASK };

/* "MOVED 3999 127.0.0.1:6381", without the '-'. ret_address of REDIS_ADDRESS_BYTES, as in the map;
 * an empty host or "?" is that of `asked`. NONE: it is neither, or malformed; the outputs are
 * untouched. */
enum redis_redirect redis_redirect_parse(const char *text, const char *asked, uint32_t *ret_slot,
					 char *ret_address);

/* A slot on its way from one endpoint to another, or a Cluster that is voting: -TRYAGAIN,
 * -CLUSTERDOWN. */
bool redis_slots_pass(const char *words);
