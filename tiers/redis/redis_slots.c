/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_slots.c - which slot a name has, the slot map, and redirects, as Redis Cluster sends them.
 * Contract: redis_slots.h.
 */
#include "redis_slots.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>

enum { PORT_MAX = 65535, PORT_BYTES = sizeof ":65535" };

/* --- slots --- */

/* XMODEM; of "123456789": 0x31c3. */
static uint16_t crc16(const void *bytes, size_t n)
{
	/* x^16 + x^12 + x^5 + 1, half a byte at a time: names are short. */
	static const uint16_t table[16] = {
		0x0000, 0x1021, 0x2042, 0x3063, 0x4084, 0x50a5, 0x60c6, 0x70e7,
		0x8108, 0x9129, 0xa14a, 0xb16b, 0xc18c, 0xd1ad, 0xe1ce, 0xf1ef,
	};
	const uint8_t *p = bytes;
	uint32_t crc = 0;

	for (size_t i = 0; i < n; i++) {
		crc = (crc << 4 ^ table[(crc >> 12 ^ p[i] >> 4) & 15]) & 0xffff;
		crc = (crc << 4 ^ table[(crc >> 12 ^ p[i]) & 15]) & 0xffff;
	}
	return (uint16_t)crc;
}

uint32_t redis_slot(const void *name, size_t n)
{
	const char *p = name, *open = memchr(p, '{', n);
	const char *end = open ? memchr(open + 1, '}', n - (size_t)(open + 1 - p)) : NULL;

	if (end && end > open + 1)
		return crc16(open + 1, (size_t)(end - open - 1)) % REDIS_SLOTS;
	return crc16(p, n) % REDIS_SLOTS;
}

/* --- addresses --- */

/* Names, v4, and v6 with a zone: bytes that do not surprise a log or a resolver. */
static bool is_host(const char *host, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const char c = host[i];

		if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') &&
		    (c == 0 || !strchr(".-_:%", c)))
			return false;
	}
	return n > 0;
}

/* The address of the n bytes of `host`, and the port. 0, or -EPROTO and ret is undefined. An empty
 * host, or "?", is that of `asked`; the host of a Unix socket is this machine. */
static int address_of(const char *host, size_t n, int64_t port, const char *asked, char *ret)
{
	char own[REDIS_ADDRESS_BYTES];

	if (n == 0 || (n == 1 && host[0] == '?')) {
		redis_address_host(asked, own);
		host = strncmp(asked, "unix:", 5) == 0 ? "127.0.0.1" : own;
		n = strlen(host);
	}
	if (!is_host(host, n) || n + sizeof "[]" + PORT_BYTES > REDIS_ADDRESS_BYTES || port < 1 ||
	    port > PORT_MAX)
		return -EPROTO;
	(void)snprintf(ret, REDIS_ADDRESS_BYTES, memchr(host, ':', n) ? "[%.*s]:%d" : "%.*s:%d",
		       (int)n, host, (int)port);
	return 0;
}

/* --- CLUSTER SLOTS --- */

static bool is_array(const redisReply *r, size_t min)
{
	return r->type == REDIS_REPLY_ARRAY && r->elements >= min;
}

/* A master's host and port: [host, port, id, ...] */
static int endpoint_address(const redisReply *endpoint, const char *asked, char *ret)
{
	const redisReply *host;
	bool nil;

	if (!is_array(endpoint, 2) || endpoint->element[1]->type != REDIS_REPLY_INTEGER)
		return -EPROTO;
	host = endpoint->element[0];
	nil = host->type == REDIS_REPLY_NIL;
	if (!nil && host->type != REDIS_REPLY_STRING && host->type != REDIS_REPLY_STATUS)
		return -EPROTO;
	return address_of(nil ? "" : host->str, nil ? 0 : host->len, endpoint->element[1]->integer,
			  asked, ret);
}

/* Its number, a new one if need be; -E2BIG. */
static int endpoint_number(struct redis_map *map, const char *address)
{
	for (uint32_t i = 0; i < map->n_endpoints; i++)
		if (strcmp(map->address[i], address) == 0)
			return (int)i;
	if (map->n_endpoints == REDIS_MAP_ENDPOINTS)
		return -E2BIG;
	memcpy(map->address[map->n_endpoints], address, strlen(address) + 1);
	return (int)map->n_endpoints++;
}

static void take_replica(struct redis_map *map, const redisReply *replica, const char *asked)
{
	char address[REDIS_ADDRESS_BYTES];

	if (map->n_replicas == REDIS_REPLICAS || endpoint_address(replica, asked, address))
		return;
	for (uint32_t i = 0; i < map->n_replicas; i++)
		if (strcmp(map->replica[i], address) == 0)
			return;
	memcpy(map->replica[map->n_replicas++], address, strlen(address) + 1);
}

/* [first slot, last slot, master, replicas...] */
static int take_range(struct redis_map *map, const redisReply *range, const char *asked)
{
	char address[REDIS_ADDRESS_BYTES];
	int64_t first, last;
	int endpoint, r;

	if (!is_array(range, 3) || range->element[0]->type != REDIS_REPLY_INTEGER ||
	    range->element[1]->type != REDIS_REPLY_INTEGER)
		return -EPROTO;
	first = range->element[0]->integer;
	last = range->element[1]->integer;
	if (first < 0 || first > last || last >= REDIS_SLOTS)
		return -EPROTO;
	r = endpoint_address(range->element[2], asked, address);
	if (r)
		return r;
	endpoint = endpoint_number(map, address);
	if (endpoint < 0)
		return endpoint;
	for (int64_t slot = first; slot <= last; slot++) {
		if (map->endpoint[slot] != REDIS_NO_ENDPOINT)
			/* A slot twice. So ranges are few, and each endpoint that is listed has
			 * slots. */
			return -EPROTO;
		map->endpoint[slot] = (uint8_t)endpoint;
	}
	map->slots[endpoint] += (uint32_t)(last - first + 1);
	for (size_t i = 3; i < range->elements; i++)
		take_replica(map, range->element[i], asked);
	return 0;
}

int redis_map_parse(const redisReply *reply, const char *asked, struct redis_map *ret)
{
	memset(ret, 0, sizeof(*ret));
	memset(ret->endpoint, REDIS_NO_ENDPOINT, sizeof(ret->endpoint));
	if (!is_array(reply, 0))
		return -EPROTO;
	for (size_t i = 0; i < reply->elements; i++) {
		const int r = take_range(ret, reply->element[i], asked);

		if (r)
			return r;
	}
	return ret->n_endpoints ? 0 : -ENOENT;
}

/* --- MOVED, ASK --- */

enum redis_redirect redis_redirect_parse(const char *text, const char *asked, uint32_t *ret_slot,
					 char *ret_address)
{
	char kind[6] = "", slot[6] = "", address[REDIS_ADDRESS_BYTES];
	const char *host, *colon;
	int at = 0;
	size_t n;

	(void)sscanf(text, "%5[A-Z]%*1[ ]%5[0-9]%*1[ ]%n", kind, slot, &at);
	host = text + at;
	colon = strrchr(host, ':'); /* the last: Redis writes v6 without brackets */
	if (at == 0 || (strcmp(kind, "MOVED") != 0 && strcmp(kind, "ASK") != 0) ||
	    atoi(slot) >= REDIS_SLOTS || !colon || strlen(colon) >= PORT_BYTES ||
	    colon[1 + strspn(colon + 1, "0123456789")])
		return REDIS_REDIRECT_NONE;
	n = (size_t)(colon - host);
	if (n >= 2 && host[0] == '[' && host[n - 1] == ']') {
		host++;
		n -= 2;
	}
	if (address_of(host, n, atoi(colon + 1), asked, address))
		return REDIS_REDIRECT_NONE;
	*ret_slot = (uint32_t)atoi(slot);
	memcpy(ret_address, address, strlen(address) + 1);
	return kind[0] == 'M' ? REDIS_REDIRECT_MOVED : REDIS_REDIRECT_ASK;
}

bool redis_slots_pass(const char *words)
{
	return strncmp(words, "TRYAGAIN", 8) == 0 || strncmp(words, "CLUSTERDOWN", 11) == 0;
}
