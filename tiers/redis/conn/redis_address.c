/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_address.c - addresses as text, and the look-up of names. Contract, and the life of a
 * look-up: redis_address.h.
 *
 * getaddrinfo() may block for as long as a name server pleases, so each look-up has a detached
 * thread that is never waited for. There is at most one for each endpoint. Endpoints name other
 * endpoints, so all look-ups together are bounded. Configured endpoints have room beside that
 * bound.
 */
#include "redis_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/thread.h"

static const char unix_prefix[] = "unix:/";

static bool is_path(const char *address)
{
	return strncmp(address, unix_prefix, sizeof(unix_prefix) - 1) == 0;
}

bool redis_address_split(const char *address, char host[REDIS_ADDRESS_BYTES],
			 char port[REDIS_PORT_BYTES])
{
	const char *colon = strrchr(address, ':');
	size_t n = colon ? (size_t)(colon - address) : 0;
	unsigned int number = 0;

	if (n == 0 || n >= REDIS_ADDRESS_BYTES || strlen(colon + 1) - 1 > 4)
		return false;
	for (const char *p = colon + 1; *p; p++) {
		if (*p < '0' || *p > '9')
			return false;
		number = number * 10 + (unsigned int)(*p - '0');
	}
	if (number == 0 || number > 65535)
		return false;
	if (address[0] == '[' && n > 2 && address[n - 1] == ']') {
		address++;
		n -= 2;
	} else if (memchr(address, ':', n)) {
		return false; /* v6 without brackets: its port might begin anywhere */
	}
	memcpy(host, address, n);
	host[n] = 0;
	(void)snprintf(port, REDIS_PORT_BYTES, "%u", number);
	return true;
}

bool redis_address_valid(const char *address)
{
	char host[REDIS_ADDRESS_BYTES], port[REDIS_PORT_BYTES];

	if (!address || strlen(address) >= REDIS_ADDRESS_BYTES)
		return false;
	if (is_path(address))
		return strlen(address + 5) < sizeof((struct sockaddr_un *)NULL)->sun_path;
	return redis_address_split(address, host, port);
}

void redis_address_host(const char *address, char ret[REDIS_ADDRESS_BYTES])
{
	char port[REDIS_PORT_BYTES];

	if (is_path(address) || !redis_address_split(address, ret, port))
		ret[0] = 0;
}

bool redis_host_numeric(const char *host)
{
	struct in6_addr binary;

	return inet_pton(AF_INET, host, &binary) == 1 || inet_pton(AF_INET6, host, &binary) == 1;
}

bool redis_address_numeric(const char *address)
{
	char host[REDIS_ADDRESS_BYTES], port[REDIS_PORT_BYTES];

	return is_path(address) ||
	       (redis_address_split(address, host, port) && redis_host_numeric(host));
}

/* --- look-ups --- */

enum { RUNNING, DONE, ABANDONED };

/* How many threads of this process look a name up. They may outlive the tier that started them. */
static atomic_uint under_way;

struct redis_lookup {
	char host[REDIS_ADDRESS_BYTES], port[REDIS_PORT_BYTES]; /* constant */
	atomic_int state; /* the second to leave RUNNING, thread or caller, frees the look-up */
	int n;            /* DONE: addresses, or -errno */
	char address[REDIS_RESOLVED][REDIS_ADDRESS_BYTES];
};

static void format(const struct addrinfo *info, const char *port, char ret[REDIS_ADDRESS_BYTES])
{
	char host[INET6_ADDRSTRLEN] = "";

	if (info->ai_family == AF_INET6) {
		const struct sockaddr_in6 *in6 =
			(const struct sockaddr_in6 *)(const void *)info->ai_addr;

		(void)inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
		(void)snprintf(ret, REDIS_ADDRESS_BYTES, "[%s]:%s", host, port);
	} else {
		const struct sockaddr_in *in =
			(const struct sockaddr_in *)(const void *)info->ai_addr;

		(void)inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
		(void)snprintf(ret, REDIS_ADDRESS_BYTES, "%s:%s", host, port);
	}
}

static void *work(void *arg)
{
	const struct addrinfo hints = { .ai_family = AF_UNSPEC,
					.ai_socktype = SOCK_STREAM,
					.ai_flags = AI_ADDRCONFIG };
	struct redis_lookup *l = arg;
	struct addrinfo *found = NULL;
	const int error = getaddrinfo(l->host, l->port, &hints, &found);

	for (const struct addrinfo *i = found; i && l->n < REDIS_RESOLVED; i = i->ai_next)
		if (i->ai_family == AF_INET || i->ai_family == AF_INET6)
			format(i, l->port, l->address[l->n++]);
	if (l->n == 0)
		l->n = error == EAI_AGAIN ? -EAGAIN : -ENOENT;
	if (!error)
		freeaddrinfo(found);
	if (atomic_exchange(&l->state, DONE) == ABANDONED)
		free(l);
	(void)atomic_fetch_sub(&under_way, 1);
	return NULL;
}

int redis_lookup_start(const char *address, uint32_t limit, struct redis_lookup **ret)
{
	struct redis_lookup *l;
	int r = -EINVAL;

	if (atomic_load(&under_way) >= limit)
		return -EAGAIN;
	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	if (redis_address_split(address, l->host, l->port)) {
		(void)atomic_fetch_add(&under_way, 1);
		r = thread_start(NULL, 0, work, l);
		if (r)
			(void)atomic_fetch_sub(&under_way, 1);
	}
	if (r)
		free(l);
	else
		*ret = l;
	return r;
}

int redis_lookup_poll(struct redis_lookup *l, char (*ret)[REDIS_ADDRESS_BYTES], uint32_t n)
{
	int found;

	if (atomic_load(&l->state) != DONE)
		return -EINPROGRESS;
	found = l->n < (int)n ? l->n : (int)n;
	for (int i = 0; i < found; i++)
		memcpy(ret[i], l->address[i], REDIS_ADDRESS_BYTES);
	free(l);
	return found;
}

void redis_lookup_abandon(struct redis_lookup *l)
{
	if (l && atomic_exchange(&l->state, ABANDONED) == DONE)
		free(l);
}
