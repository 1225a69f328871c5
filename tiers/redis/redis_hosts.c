/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_hosts.c - which hosts a slot map may name. Contract: redis_hosts.h.
 */
#include "redis_hosts.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { ADDRESS_BITS = 128, MAPPED_BITS = 96, NEAR_V4 = 24, NEAR_V6 = 64 };

static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
static const uint8_t loopback_v6[16] = { [15] = 1 };

/* Numeric, without port and [ ]. */
static bool to_binary(const char *text, uint8_t ret[16], bool *ret_v4)
{
	uint8_t address[16];

	*ret_v4 = inet_pton(AF_INET, text, address + sizeof(mapped)) == 1;
	if (*ret_v4)
		memcpy(address, mapped, sizeof(mapped));
	else if (inet_pton(AF_INET6, text, address) != 1)
		return false;
	memcpy(ret, address, sizeof(address));
	return true;
}

static bool is_inside(const struct redis_network *n, const uint8_t address[16])
{
	const uint32_t bytes = n->bits / 8, rest = n->bits % 8;

	if (memcmp(n->address, address, bytes) != 0)
		return false;
	return rest == 0 ||
	       ((n->address[bytes] ^ address[bytes]) & (0xff << (8 - rest) & 0xff)) == 0;
}

static const char *take_network(struct redis_hosts *h, const char *item, const char *slash)
{
	struct redis_network network = { .bits = ADDRESS_BITS };
	char host[REDIS_HOST_BYTES], *end;
	bool v4;

	(void)snprintf(host, sizeof(host), "%.*s",
		       (int)(slash ? (size_t)(slash - item) : strlen(item)), item);
	if (!to_binary(host, network.address, &v4))
		return "has a network in it whose address is not valid: write one such as "
		       "10.0.0.0/8 or fd00::/8";
	if (slash) {
		const unsigned long bits = strtoul(slash + 1, &end, 10), most = v4 ? 32 : 128;

		if (slash[1] < '0' || slash[1] > '9' || *end || bits > most)
			return "has a network in it whose length is not 0 to 32, or 0 to 128 for "
			       "IPv6";
		network.bits = (uint32_t)bits + (v4 ? MAPPED_BITS : 0);
	}
	h->network[h->n_networks++] = network;
	return NULL;
}

static const char *take(struct redis_hosts *h, const char *item)
{
	static const char letters[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
	const char *slash = strchr(item, '/');
	uint8_t address[16];
	bool v4;

	if (h->n_names + h->n_networks == REDIS_HOSTS)
		return "has more than 64 entries";
	if (slash || to_binary(item, address, &v4))
		return take_network(h, item, slash);
	if (strchr(item, ':'))
		return "has a port in it, or a colon that is not part of an IPv6 address: entries "
		       "are hosts, without port and [ ]";
	if (item[strspn(item, letters)] || strcmp(item, ".") == 0)
		return "has something in it that is no name, address or network";
	memcpy(h->name[h->n_names++], item, strlen(item) + 1);
	return NULL;
}

const char *redis_hosts_parse(const char *list, struct redis_hosts *ret)
{
	const char *fault = NULL;

	for (list += strspn(list, " \t"); *list && !fault; list += strspn(list, " \t")) {
		const size_t n = strcspn(list, " \t");
		char item[REDIS_HOST_BYTES];

		if (n >= sizeof(item))
			return "has an entry of more than 255 bytes in it";
		memcpy(item, list, n);
		item[n] = 0;
		fault = take(ret, item);
		list += n;
	}
	return fault;
}

void redis_hosts_add_name(struct redis_hosts *h, const char *name)
{
	if (h->n_names < REDIS_HOST_NAMES && name[0] && strlen(name) < REDIS_HOST_BYTES)
		memcpy(h->name[h->n_names++], name, strlen(name) + 1);
}

void redis_hosts_add_near(struct redis_hosts *h, const char *address)
{
	struct redis_network network;
	bool v4;

	if (!to_binary(address, network.address, &v4))
		return;
	network.bits = v4 ? MAPPED_BITS + NEAR_V4 : NEAR_V6;
	if ((v4 && network.address[sizeof(mapped)] == 127) ||
	    memcmp(network.address, loopback_v6, 16) == 0)
		network.bits = ADDRESS_BITS;
	for (uint32_t i = 0; i < h->n_networks; i++)
		if (h->network[i].bits == network.bits &&
		    is_inside(&h->network[i], network.address))
			return;
	h->network[h->next] = network;
	h->next = (h->next + 1) % REDIS_NETWORKS;
	if (h->n_networks < REDIS_NETWORKS)
		h->n_networks++;
}

static bool is_name(const char *entry, const char *host)
{
	const size_t n = strlen(entry), length = strlen(host);

	if (entry[0] != '.')
		return strcasecmp(entry, host) == 0;
	return length > n && strcasecmp(host + length - n, entry) == 0;
}

bool redis_hosts_allow(const struct redis_hosts *h, const char *host, const char *address)
{
	uint8_t binary[16];
	bool v4;

	for (uint32_t i = 0; i < h->n_names; i++)
		if (is_name(h->name[i], host))
			return true;
	if (!to_binary(address, binary, &v4))
		return false;
	for (uint32_t i = 0; i < h->n_networks; i++)
		if (is_inside(&h->network[i], binary))
			return true;
	return false;
}
