/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_redis.c - [redis]: what an endpoint looks like, what does not go together, and the files
 * with secrets. Contracts: config_redis.h, config_table.h. Runs once, before there are threads.
 *
 * Invariant: a secret is in its caller's struct or in a buffer that is wiped; it is in no message.
 */
#include "config_redis.h"

#include <arpa/inet.h>
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tiers/redis/redis_hosts.h"
#include "config_table.h"
#include "daemon/base/log.h"

enum { DIGITS_OF_A_PORT = 5 };

static_assert((int)CONFIG_ENDPOINT_BYTES == REDIS_ADDRESS_BYTES, "an endpoint is an address");
static_assert((int)CONFIG_ENDPOINTS_MAX == REDIS_ENDPOINTS, "as many as the tier takes");
static_assert((int)CONFIG_STRING_BYTES <= REDIS_PREFIX_BYTES, "a prefix fits");

/* --- endpoints --- */

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

/* "[v6]" or "[v6]:port"; *ret_port: what follows the ]. */
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
	return strchr(item + length + (item[length] != '\0'), ':') != NULL ?
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
		if (!fault) /* 16 of 255 bytes and what is between fit */
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

/* --- the section as a whole --- */

static bool plain(const char *text)
{
	while (*text > 0x20 && *text < 0x7f)
		text++;
	return *text == '\0';
}

/* Not to be ignored: whoever set it believes that it is in use. */
static const char *tls_fault(const struct config *config, enum config_row_index *ret)
{
	static const char unused[] =
		"is set, and [redis] tls is no: set tls = yes, or leave it out";

	*ret = CONFIG_ROW_redis_tls_ca_file;
	if (config->redis_tls_ca_file[0] != '\0' && !config->redis_tls)
		return unused;
	*ret = CONFIG_ROW_redis_tls_cert_file;
	if (config->redis_tls_cert_file[0] != '\0' && !config->redis_tls)
		return unused;
	if (config->redis_tls_cert_file[0] != '\0' && config->redis_tls_key_file[0] == '\0')
		return "needs [redis] tls_key_file";
	*ret = CONFIG_ROW_redis_tls_key_file;
	if (config->redis_tls_key_file[0] != '\0' && config->redis_tls_cert_file[0] == '\0')
		return "needs [redis] tls_cert_file";
	*ret = CONFIG_ROW_redis_tls_name;
	if (config->redis_tls_name[0] != '\0' && !config->redis_tls)
		return unused;
	if (!plain(config->redis_tls_name))
		return "has a blank in it, or a character that is not printable ASCII";
	if (strcmp(config->redis_tls_name, "*") == 0 && config->redis_tls_ca_file[0] == '\0')
		return "* needs [redis] tls_ca_file: any certificate that the system trusts would "
		       "do";
	if (config->redis_tls_name[0] == '.')
		return "begins with a dot: certificates for any name below it would do. Give a "
		       "whole name";
	return NULL;
}

const char *config_redis_fault(const struct config *config, enum config_row_index *ret)
{
	const char *fault = tls_fault(config, ret);

	if (fault)
		return fault;
	*ret = CONFIG_ROW_redis_cluster_hosts;
	if (config->redis_cluster_hosts[0] != '\0' && config->redis_cluster == REDIS_CLUSTER_NO)
		return "is set, and [redis] cluster is no: leave one of them out";
	*ret = CONFIG_ROW_redis_key_prefix;
	if (!plain(config->redis_key_prefix))
		return "has a blank in it, or a character that is not printable ASCII";
	*ret = CONFIG_ROW_redis_username;
	if (!plain(config->redis_username))
		return "has a blank in it, or a character that is not printable ASCII";
	if (config->redis_username[0] != '\0' && config->redis_password_file[0] == '\0')
		return "needs [redis] password_file: nobody can log in by name alone";
	return NULL;
}

/* What a Cluster hashes of a name, if not all of it: what is in the first { }, if that is not
 * empty. */
static bool has_hash_tag(const char *prefix)
{
	const char *open = strchr(prefix, '{'), *close = open != NULL ? strchr(open, '}') : NULL;

	return close != NULL && close > open + 1;
}

static bool any_is_a_path(const char *endpoints)
{
	char endpoint[CONFIG_ENDPOINT_BYTES];

	while (config_endpoints_next(&endpoints, endpoint)) {
		if (strncmp(endpoint, "unix:", 5) == 0)
			return true;
	}
	return false;
}

static void warnings(const struct config *config, char *text, size_t n)
{
	char shown[2 * CONFIG_STRING_BYTES];

	text[0] = '\0';
	if (config->redis_endpoints[0] == '\0')
		return;
	if (config->redis_secret_file[0] == '\0')
		snprintf(
			text, n,
			"[redis] secret_file is not set: other nodes find nothing of what this one "
			"writes, nor it of theirs");
	if (config->redis_cluster != REDIS_CLUSTER_NO && has_hash_tag(config->redis_key_prefix))
		snprintf(text + strlen(text), n - strlen(text),
			 "%s[redis] key_prefix \"%s\" has a hash tag { } in it: of a Cluster, one "
			 "node gets all blocks",
			 text[0] != '\0' ? "; " : "",
			 log_escape(config->redis_key_prefix, shown, sizeof(shown)));
	if (config->redis_tls && any_is_a_path(config->redis_endpoints))
		snprintf(text + strlen(text), n - strlen(text),
			 "%s[redis] tls is yes, but not for unix: endpoints",
			 text[0] != '\0' ? "; " : "");
}

/* --- files --- */

static int check_file(int fd, const char *option, const char *path, char *text, size_t n)
{
	struct stat st;

	if (fstat(fd, &st) < 0) {
		snprintf(text, n, "[redis] %s: %s: %s", option, path, strerror(errno));
		return -errno;
	}
	if (!S_ISREG(st.st_mode)) {
		snprintf(text, n, "[redis] %s: %s is no regular file", option, path);
		return -EPERM;
	}
	if ((st.st_mode & S_IRWXO) != 0) {
		snprintf(text, n,
			 "[redis] %s: %s has mode %04o, others than its owner and group have "
			 "access: chmod o= it",
			 option, path, (unsigned)(st.st_mode & 07777));
		return -EPERM;
	}
	return 0;
}

/* As much of the file as there is room for. */
static int read_file(const char *option, const char *path, uint8_t *ret, size_t room,
		     size_t *ret_bytes, char *text, size_t n)
{
	/* not blocking: it might be a FIFO */
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	ssize_t got = 1;
	int r;

	if (fd < 0) {
		r = -errno;
		snprintf(text, n, "[redis] %s: %s: %s", option, path, strerror(errno));
		return r;
	}
	r = check_file(fd, option, path, text, n);
	*ret_bytes = 0;
	while (r == 0 && got > 0 && *ret_bytes < room) {
		got = read(fd, ret + *ret_bytes, room - *ret_bytes);
		if (got > 0)
			*ret_bytes += (size_t)got;
		else if (got < 0) {
			r = -errno;
			snprintf(text, n, "[redis] %s: %s: %s", option, path, strerror(errno));
		}
	}
	(void)close(fd);
	return r;
}

/* The first line; an end of line as Windows has it is one, too. */
static int read_password(const char *path, char ret[REDIS_SECRET_BYTES], char *text, size_t n)
{
	uint8_t line[REDIS_SECRET_BYTES + 2];
	const uint8_t *end;
	size_t bytes, length;
	int r = read_file("password_file", path, line, sizeof(line), &bytes, text, n);

	if (r < 0)
		goto done;
	end = memchr(line, '\n', bytes);
	length = end != NULL ? (size_t)(end - line) : bytes;
	if (length > 0 && line[length - 1] == '\r')
		length--;
	r = -EBADMSG;
	if (length == 0)
		snprintf(text, n, "[redis] password_file: the first line of %s is empty", path);
	else if (length >= REDIS_SECRET_BYTES)
		snprintf(text, n,
			 "[redis] password_file: the first line of %s is longer than %d bytes",
			 path, REDIS_SECRET_BYTES - 1);
	else if (memchr(line, '\0', length) != NULL)
		snprintf(text, n,
			 "[redis] password_file: the first line of %s has a NUL byte in it", path);
	else
		r = 0;
	if (r == 0) {
		memcpy(ret, line, length);
		ret[length] = '\0';
	}
done:
	explicit_bzero(line, sizeof(line));
	return r;
}

static int read_shared(const char *path, struct config_redis *ret, char *text, size_t n)
{
	uint8_t bytes[CONFIG_SHARED_BYTES + 1];
	size_t got;
	int r = read_file("secret_file", path, bytes, sizeof(bytes), &got, text, n);

	if (r == 0 && (got < CONFIG_SHARED_MIN || got > CONFIG_SHARED_BYTES)) {
		snprintf(text, n,
			 "[redis] secret_file: %s has %s%zu bytes; it must have %d to %d, such as "
			 "head -c 32 /dev/urandom gives",
			 path, got > CONFIG_SHARED_BYTES ? "at least " : "", got,
			 (int)CONFIG_SHARED_MIN, (int)CONFIG_SHARED_BYTES);
		r = -EBADMSG;
	}
	if (r == 0) {
		memcpy(ret->shared, bytes, got);
		ret->shared_bytes = got;
	}
	explicit_bzero(bytes, sizeof(bytes));
	return r;
}

int config_redis(const struct config *config, struct config_redis *redis,
		 struct redis_tier_conf *ret, char *text, size_t n)
{
	const char *cursor = config->redis_endpoints;
	uint32_t endpoints = 0;
	int r = 0;

	/* without endpoints, too: a node's keys are the same before it gets a Redis */
	if (config->redis_secret_file[0] != '\0')
		r = read_shared(config->redis_secret_file, redis, text, n);
	if (r == 0 && config->redis_endpoints[0] != '\0' && config->redis_password_file[0] != '\0')
		r = read_password(config->redis_password_file, redis->password, text, n);
	if (r < 0)
		return r;
	while (endpoints < REDIS_ENDPOINTS &&
	       config_endpoints_next(&cursor, redis->endpoints[endpoints])) {
		ret->endpoints[endpoints] = redis->endpoints[endpoints];
		endpoints++;
	}
	ret->n_endpoints = endpoints;
	ret->cluster = (enum redis_cluster)config->redis_cluster;
	ret->cluster_hosts = config->redis_cluster_hosts;
	ret->username = config->redis_username;
	ret->password = redis->password;
	ret->tls = config->redis_tls;
	ret->tls_conf = (struct redis_tls_conf){
		.ca_file = config->redis_tls_ca_file,
		.cert_file = config->redis_tls_cert_file,
		.key_file = config->redis_tls_key_file,
		.name = config->redis_tls_name,
	};
	ret->key_prefix = config->redis_key_prefix;
	ret->ttl_ms = (uint64_t)config->redis_ttl * 1000;
	ret->connections = config->redis_connections;
	ret->timeout_ms = config->redis_timeout_ms;
	warnings(config, text, n);
	return 0;
}

void config_redis_close(struct config_redis *redis)
{
	explicit_bzero(redis, sizeof(*redis));
}
