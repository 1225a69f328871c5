/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_slots.c - Redis Cluster's slots and addresses. Contract: redis_slots.h.
 */
#include "redis_slots.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <hiredis/hiredis.h>

enum { PORT_MAX = 65535, PORT_BYTES = sizeof ":65535" };

/* --- slots --- */

uint16_t redis_crc16(const void *bytes, size_t n)
{
	/* Of x^16 + x^12 + x^5 + 1, half a byte at a time: names are short. */
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
		return redis_crc16(open + 1, (size_t)(end - open - 1)) % REDIS_SLOTS;
	return redis_crc16(p, n) % REDIS_SLOTS;
}

/* --- addresses --- */

/* Text that is not terminated. */
struct text_piece {
	const char *text;
	size_t n;
};

/* Names, v4 and v6 with a zone: nothing that would surprise a log or a resolver. */
static bool is_host(struct text_piece host)
{
	for (size_t i = 0; i < host.n; i++) {
		const char c = host.text[i];

		if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') &&
		    (c == 0 || !strchr(".-_:%", c)))
			return false;
	}
	return host.n > 0;
}

/* The host of one of our own addresses. That of a Unix socket is this machine. */
static struct text_piece host_of(const char *address)
{
	const char *colon = strrchr(address, ':');
	struct text_piece host = { address, colon ? (size_t)(colon - address) : strlen(address) };

	if (strncmp(address, "unix:", 5) == 0)
		return (struct text_piece){ "127.0.0.1", sizeof "127.0.0.1" - 1 };
	if (host.n >= 2 && address[0] == '[' && address[host.n - 1] == ']')
		return (struct text_piece){ address + 1, host.n - 2 };
	return host;
}

/* 0, or -EPROTO and ret is undefined. An empty host, or "?", is that of `asked`. */
static int address_of(struct text_piece host, int64_t port, const char *asked, char *ret)
{
	const bool unknown = host.n == 0 || (host.n == 1 && host.text[0] == '?');

	if (unknown)
		host = host_of(asked);
	if (!is_host(host) || host.n + sizeof "[]" + PORT_BYTES > REDIS_ADDRESS_BYTES || port < 1 ||
	    port > PORT_MAX)
		return -EPROTO;
	(void)snprintf(ret, REDIS_ADDRESS_BYTES,
		       memchr(host.text, ':', host.n) ? "[%.*s]:%d" : "%.*s:%d", (int)host.n,
		       host.text, (int)port);
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
	struct text_piece host = { "", 0 };

	if (!is_array(endpoint, 2) || endpoint->element[1]->type != REDIS_REPLY_INTEGER)
		return -EPROTO;
	switch (endpoint->element[0]->type) {
	case REDIS_REPLY_NIL:
		break;
	case REDIS_REPLY_STRING:
	case REDIS_REPLY_STATUS:
		host = (struct text_piece){ endpoint->element[0]->str, endpoint->element[0]->len };
		break;
	default:
		return -EPROTO;
	}
	return address_of(host, endpoint->element[1]->integer, asked, ret);
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

/* The whole of it digits, at least one; at most max. */
static bool number(struct text_piece p, uint32_t max, uint32_t *ret)
{
	uint32_t value = 0;

	for (size_t i = 0; i < p.n; i++) {
		if (p.text[i] < '0' || p.text[i] > '9')
			return false;
		value = value * 10 + (uint32_t)(p.text[i] - '0');
		if (value > max)
			return false;
	}
	*ret = value;
	return p.n > 0;
}

/* Cuts the word before the blank off *rest; all of *rest if there is no blank. */
static struct text_piece word(struct text_piece *rest)
{
	const char *blank = memchr(rest->text, ' ', rest->n);
	const struct text_piece w = { rest->text, blank ? (size_t)(blank - rest->text) : rest->n };
	const size_t used = w.n + (blank ? 1 : 0);

	*rest = (struct text_piece){ rest->text + used, rest->n - used };
	return w;
}

static bool is(struct text_piece p, const char *text)
{
	return p.n == strlen(text) && memcmp(p.text, text, p.n) == 0;
}

enum redis_redirect redis_redirect_parse(const char *text, size_t n, const char *asked,
					 uint32_t *ret_slot, char *ret_address)
{
	struct text_piece rest = { text, n };
	const struct text_piece kind = word(&rest), slot_text = word(&rest);
	/* the last: Redis writes v6 without brackets */
	const char *colon = memrchr(rest.text, ':', rest.n);
	struct text_piece host = { rest.text, colon ? (size_t)(colon - rest.text) : 0 };
	char address[REDIS_ADDRESS_BYTES];
	uint32_t slot, port;

	if ((!is(kind, "MOVED") && !is(kind, "ASK")) || !colon ||
	    !number(slot_text, REDIS_SLOTS - 1, &slot) ||
	    !number((struct text_piece){ colon + 1, rest.n - host.n - 1 }, PORT_MAX, &port))
		return REDIS_REDIRECT_NONE;
	if (host.n >= 2 && host.text[0] == '[' && host.text[host.n - 1] == ']')
		host = (struct text_piece){ host.text + 1, host.n - 2 };
	if (address_of(host, port, asked, address))
		return REDIS_REDIRECT_NONE;
	*ret_slot = slot;
	memcpy(ret_address, address, strlen(address) + 1);
	return is(kind, "MOVED") ? REDIS_REDIRECT_MOVED : REDIS_REDIRECT_ASK;
}

bool redis_slots_pass(const char *words)
{
	return strncmp(words, "TRYAGAIN", 8) == 0 || strncmp(words, "CLUSTERDOWN", 11) == 0;
}
