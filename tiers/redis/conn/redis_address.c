/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_address.c - addresses as text. Contract: redis_address.h.
 */
#include "redis_address.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

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
		return false; /* v6 without brackets: nobody knows where its port begins */
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

bool redis_address_numeric(const char *address)
{
	char host[REDIS_ADDRESS_BYTES], port[REDIS_PORT_BYTES];
	struct in6_addr binary;

	if (is_path(address))
		return true;
	return redis_address_split(address, host, port) &&
	       (inet_pton(AF_INET, host, &binary) == 1 || inet_pton(AF_INET6, host, &binary) == 1);
}
