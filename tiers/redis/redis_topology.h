/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_topology.h - which endpoint has a key, and which endpoints there are. redis_topology.c
 * tells the modes, and which redirects are followed. I/O thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/loop.h"
#include "redis_slots.h"

struct redis_endpoint;
struct redis_io;
struct redis_job;
struct redis_name;

enum redis_mode { REDIS_MODE_UNKNOWN, REDIS_MODE_SPREAD, REDIS_MODE_CLUSTER };

/* Listed by the map, configured, and replicas of the map that a redirect calls masters. */
enum { REDIS_ALL_ENDPOINTS = REDIS_MAP_ENDPOINTS + REDIS_ENDPOINTS + 16 };
static_assert((int)REDIS_ALL_ENDPOINTS < (int)REDIS_NO_ENDPOINT, "an endpoint's number is a byte");

struct redis_topology {
	uint8_t slot[REDIS_SLOTS]; /* number of an endpoint */
	bool wanted;               /* a reply or a failure said that the map is old */
	struct loop_timer due;     /* set: the map is asked for, if that is due */
	bool asking;               /* CLUSTER SLOTS is on its way */
	bool holes;                /* slots without an endpoint */
	uint64_t asked_ns;
	uint32_t next; /* number of the endpoint to ask */
	char text[REDIS_TEXT_BYTES + REDIS_ADDRESS_BYTES];
	uint32_t n_replicas; /* of the map in force */
	char replica[REDIS_REPLICAS][REDIS_ADDRESS_BYTES];
	struct redis_map scratch;
};

void redis_topology_start(struct redis_io *io); /* opens the configured endpoints */
void redis_topology_close(struct redis_io *io); /* closes all endpoints: their jobs end */
void redis_topology_tick(struct redis_io *io);  /* ten times a second */
/* NULL: the key has no endpoint now. */
struct redis_endpoint *redis_topology_find(struct redis_io *io, const struct redis_name *name);
/* Sends the job to its endpoint, or ends it. */
void redis_topology_route(struct redis_io *io, struct redis_job *job);
/* The job is routed again in 50 ms, or ends at its deadline. */
void redis_topology_delay(struct redis_io *io, struct redis_job *job);
/* An error reply to a job. True: it was a redirect; the job is on its way elsewhere, or ended. */
bool redis_topology_redirected(struct redis_io *io, struct redis_job *job, const char *words);
