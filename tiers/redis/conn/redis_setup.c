/* SPDX-License-Identifier: Apache-2.0 */
/* redis_setup.c - see redis_setup.h. */
#include "redis_setup.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/text.h"
#include "base/vault.h"

/* Rendezvous hashing over all configured endpoints, also over endpoints that are down. While an
 * endpoint is down, its share of the keys are misses. If only the living endpoints were hashed
 * over, its values would be written to others meanwhile, and be looked for in the wrong place
 * later. */
uint32_t redis_setup_endpoint(const struct redis_setup *setup, const uint8_t key[32])
{
	uint64_t best = 0;
	uint32_t ret = 0;

	for (uint32_t i = 0; i < setup->n_endpoints; i++) {
		const uint64_t score = XXH3_64bits_withSeed(key, 32, setup->hash[i]);

		if (i == 0 || score > best) {
			best = score;
			ret = i;
		}
	}
	return ret;
}

/* A string whose length the configuration bounds. */
static void keep(char *ret, size_t room, const char *text)
{
	assert(!text || strlen(text) < room);
	if (text)
		memcpy(ret, text, strlen(text) + 1);
}

int redis_setup_new(const struct redis_tier_conf *c, struct redis_setup **ret, char *text, size_t n)
{
	struct redis_setup *s = vault_alloc(sizeof(*s));
	int r = 0;

	assert(c->n_endpoints > 0 && c->n_endpoints <= REDIS_ENDPOINTS);
	if (!s)
		return text_fail(text, n, -ENOMEM, "[redis] not enough memory");
	s->n_endpoints = c->n_endpoints;
	for (uint32_t i = 0; i < c->n_endpoints; i++) {
		keep(s->endpoint[i], sizeof(s->endpoint[i]), c->endpoints[i]);
		s->hash[i] = XXH3_64bits(c->endpoints[i], strlen(c->endpoints[i]));
	}
	keep(s->username, sizeof(s->username), c->username);
	keep(s->password, sizeof(s->password), c->password);
	if (c->seals)
		s->seals = *c->seals;
	if (c->cluster_hosts && c->cluster_hosts[0]) {
		s->cluster_hosts = strdup(c->cluster_hosts);
		if (!s->cluster_hosts)
			r = text_fail(text, n, -ENOMEM, "[redis] not enough memory");
	}
	if (r == 0 && c->tls)
		r = redis_tls_open(&c->tls_conf, &s->tls, text, n);
	if (r)
		redis_setup_free(s);
	else
		*ret = s;
	return r;
}

void redis_setup_free(struct redis_setup *s)
{
	if (!s)
		return;
	free(s->cluster_hosts);
	redis_tls_close(s->tls);
	vault_free(s, sizeof(*s));
}

static bool same_text(const char *a, const char *b)
{
	return strcmp(a ? a : "", b ? b : "") == 0;
}

bool redis_setup_same(const struct redis_setup *a, const struct redis_setup *b)
{
	bool same = !a->tls && !b->tls && a->n_endpoints == b->n_endpoints;

	for (uint32_t i = 0; same && i < a->n_endpoints; i++)
		same = strcmp(a->endpoint[i], b->endpoint[i]) == 0;
	return same && same_text(a->username, b->username) && same_text(a->password, b->password) &&
	       same_text(a->cluster_hosts, b->cluster_hosts) &&
	       memcmp(&a->seals, &b->seals, sizeof(a->seals)) == 0;
}
