/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_setup.h - which endpoints the tier has, what it logs in with, and its seals: all that a
 * reload may replace while the tier runs. A setup is constant once it is made. The core and the I/O
 * thread each have a pointer to one; the core's is the newer one until the I/O thread has taken it
 * over.
 */
#pragma once

#include "tiers/redis/redis.h"

struct redis_setup {
	char endpoint[REDIS_ENDPOINTS][REDIS_ADDRESS_BYTES];
	uint64_t hash[REDIS_ENDPOINTS];
	uint32_t n_endpoints;
	char username[REDIS_SECRET_BYTES], password[REDIS_SECRET_BYTES];
	char *cluster_hosts;   /* NULL: hosts near the endpoints */
	struct redis_tls *tls; /* may be NULL */
	struct redis_seals seals;
};

/* Takes endpoints, login, TLS and seals of conf, and copies them. It reads the files of TLS, so
 * once the tier is open it is called on a thread that may block. 0, or -errno with text naming the
 * option. */
int redis_setup_new(const struct redis_tier_conf *conf, struct redis_setup **ret, char *text,
		    size_t n);
void redis_setup_free(struct redis_setup *setup); /* may be NULL */

/* Whether both mean the same endpoints, the same login and the same seals. With TLS it is false:
 * the files may have changed. */
bool redis_setup_same(const struct redis_setup *a, const struct redis_setup *b);
/* Which endpoint has the key where there is no Cluster: its number. */
uint32_t redis_setup_endpoint(const struct redis_setup *setup, const uint8_t key[32]);
