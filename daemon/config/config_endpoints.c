/* SPDX-License-Identifier: Apache-2.0 */
/* config_endpoints.c - see config_endpoints.h. Runs once, before there are threads. */
#include "config_endpoints.h"

#include <arpa/inet.h>
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tiers/redis/redis_hosts.h"

enum { DIGITS_OF_A_PORT = 5 };

/* ":6379" or nothing. */
static const char *port_fault(const char *port)
{
	const size_t digits = *port == ':' ? strspn(port + 1, "0123456789") : 0;
	long number;

	if (*port == '\0')
		return NULL;
	if (digits == 0 || digits > DIGITS_OF_A_PORT || port[1 + digits] != '\0')
		return "has a port in it that is no number";
	number = strtol(port + 1, NULL, 10);
	return number < 1 || number > 65535 ? "has a port in it that is not 1 to 65535" : NULL;
}

static const char *unix_fault(const char *path)
{
	if (*path != '/')
		return "has unix: in it without a path that begins with /";
	return strlen(path) > CONFIG_SUN_PATH_MAX ?
		       "has a unix: path of more than 107 bytes in it" :
		       NULL;
}

/* "[v6]" or "[v6]:port"; *ret_port: the text behind the ]. */
static const char *v6_fault(const char *item, const char **ret_port)
{
	const size_t length = strcspn(item + 1, "]");
	char address[INET6_ADDRSTRLEN];
	struct in6_addr binary;

	if (item[1 + length] != ']' || length >= sizeof(address))
		return "has [ in it without an IPv6 address and ]";
	memcpy(address, item + 1, length);
	address[length] = '\0';
	*ret_port = item + length + 2;
	return inet_pton(AF_INET6, address, &binary) == 1 ?
		       NULL :
		       "has something in [ ] that is no IPv6 address";
}

static const char *host_fault(const char *item, const char **ret_port)
{
	static const char letters[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
	const size_t length = strspn(item, letters);

	*ret_port = item + length;
	if (length == 0 || (item[length] != '\0' && item[length] != ':'))
		return "has something in it that is none of host:port, [v6]:port, unix:/path";
	return strchr(item + length + (item[length] != '\0'), ':') ?
		       "has an IPv6 address in it that is not in [ ], or a port too many" :
		       NULL;
}

/* Why an item is no endpoint; NULL: it is, and stands in `ret` with its port. */
static const char *endpoint_take(const char *item, char ret[CONFIG_ENDPOINT_BYTES])
{
	const char *port = "", *fault;

	for (const char *c = item; *c != '\0'; c++) {
		if (iscntrl((unsigned char)*c))
			return "has a control character in it";
	}
	if (strstr(item, "://"))
		return "has a URL in it: give host:port alone; rediss:// is [redis] tls = yes, and "
		       "a password stands in [redis] password_file";
	if (strchr(item, ','))
		return "has a comma in it: put blanks between endpoints, or a line for each";
	if (strncmp(item, "unix:", 5) == 0) {
		fault = unix_fault(item + 5);
		port = NULL;
	} else {
		fault = item[0] == '[' ? v6_fault(item, &port) : host_fault(item, &port);
		if (!fault)
			fault = port_fault(port);
	}
	if (!fault && snprintf(ret, CONFIG_ENDPOINT_BYTES, "%s%s", item,
			       port && *port == '\0' ? ":6379" : "") >= CONFIG_ENDPOINT_BYTES)
		fault = "has an endpoint of more than 255 bytes in it";
	return fault;
}

bool config_endpoints_next(const char **cursor, char ret[CONFIG_ENDPOINT_BYTES])
{
	const size_t length = strcspn(*cursor, " ");

	if (**cursor == '\0')
		return false;
	assert(length < CONFIG_ENDPOINT_BYTES);
	memcpy(ret, *cursor, length);
	ret[length] = '\0';
	*cursor += length + ((*cursor)[length] == ' ');
	return true;
}

static bool listed(const char *list, const char *endpoint)
{
	char other[CONFIG_ENDPOINT_BYTES];

	while (config_endpoints_next(&list, other)) {
		if (strcmp(other, endpoint) == 0)
			return true;
	}
	return false;
}

int config_endpoints_value(const char *text, char field[CONFIG_ENDPOINTS_BYTES], char *why,
			   size_t n)
{
	char list[CONFIG_ENDPOINTS_BYTES] = "", item[CONFIG_ENDPOINT_BYTES],
	     endpoint[CONFIG_ENDPOINT_BYTES];
	const char *fault = NULL;
	size_t used = 0;
	int items = 0;

	for (text += strspn(text, " \t"); *text != '\0' && !fault; text += strspn(text, " \t")) {
		const size_t length = strcspn(text, " \t");

		snprintf(item, sizeof(item), "%.*s", (int)length, text);
		fault = length < sizeof(item) ? endpoint_take(item, endpoint) :
						"has an endpoint of more than 255 bytes in it";
		if (!fault && listed(list, endpoint))
			fault = "has the same endpoint twice";
		if (!fault && ++items > CONFIG_ENDPOINTS_MAX)
			fault = "has more than 16 endpoints";
		if (!fault) /* 16 of 255 bytes and their separators fit */
			used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s",
						 used > 0 ? " " : "", endpoint);
		text += length;
	}
	if (fault) {
		snprintf(why, n, "%s", fault);
		return -EINVAL;
	}
	memcpy(field, list, used + 1);
	return 0;
}

int config_hosts_value(const char *text, char field[CONFIG_HOSTS_BYTES], char *why, size_t n)
{
	static struct redis_hosts hosts; /* large; there are no threads yet */
	char list[CONFIG_HOSTS_BYTES] = "";
	const char *fault;
	size_t used = 0;

	memset(&hosts, 0, sizeof(hosts));
	fault = redis_hosts_parse(text, &hosts);
	for (text += strspn(text, " \t"); *text != '\0' && !fault; text += strspn(text, " \t")) {
		const size_t length = strcspn(text, " \t");

		if (used + length + 2 > sizeof(list))
			fault = "is longer than 2047 bytes";
		else
			used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%.*s",
						 used > 0 ? " " : "", (int)length, text);
		text += length;
	}
	if (fault) {
		snprintf(why, n, "%s", fault);
		return -EINVAL;
	}
	memcpy(field, list, used + 1);
	return 0;
}
