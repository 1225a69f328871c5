/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config_redis.c - checks the values of [redis] against each other, and reads the files with
 * secrets. Contract: config_redis.h. It runs once, before there are threads.
 *
 * Invariant: a secret is read into the vault and stays there, and no message has it.
 */
#include "config_redis.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "config_value.h"
#include "base/log.h"
#include "base/text.h"
#include "base/vault.h"

static_assert((int)CONFIG_ENDPOINT_BYTES == REDIS_ADDRESS_BYTES, "an endpoint is an address");
static_assert((int)CONFIG_ENDPOINTS_MAX == REDIS_ENDPOINTS, "as many as the tier takes");
static_assert((int)CONFIG_STRING_BYTES <= REDIS_PREFIX_BYTES, "a prefix fits");

/* --- the section as a whole --- */

static bool plain(const char *text)
{
	while (*text > 0x20 && *text < 0x7f)
		text++;
	return *text == '\0';
}

static uint32_t count(const char *list, const char *between)
{
	char item[CONFIG_PATH_BYTES];
	uint32_t n = 0;

	while (config_next_item(&list, between, item))
		n++;
	return n;
}

const char *config_redis_fault(const struct config *config, size_t *cursor,
			       enum config_row_index *ret)
{
	/* an error, and not ignored: an operator who set it believes that it is in use */
	static const char unused[] =
		"is set, and [redis] tls is no: set tls = yes, or leave it out";
	static const char strange[] =
		"has a blank in it, or a character that is not printable ASCII";
	const char *name = config->redis_tls_name, *user = config->redis_username;
	const uint32_t files = count(config->redis_seal_files, ":");
	const bool tls = config->redis_tls, ca = config->redis_tls_ca_file[0] != '\0',
		   cert = config->redis_tls_cert_file[0] != '\0',
		   key = config->redis_tls_key_file[0] != '\0';
	const struct {
		enum config_row_index row;
		bool wrong;
		const char *fault;
	} faults[] = {
		{ CONFIG_ROW_redis_tls_ca_file, ca && !tls, unused },
		{ CONFIG_ROW_redis_tls_cert_file, cert && !tls, unused },
		{ CONFIG_ROW_redis_tls_cert_file, cert && !key, "needs [redis] tls_key_file" },
		{ CONFIG_ROW_redis_tls_key_file, key && !cert, "needs [redis] tls_cert_file" },
		{ CONFIG_ROW_redis_tls_name, name[0] != '\0' && !tls, unused },
		{ CONFIG_ROW_redis_tls_name, !plain(name), strange },
		{ CONFIG_ROW_redis_tls_name, strcmp(name, "*") == 0 && !ca,
		  "* needs [redis] tls_ca_file: any certificate that the system trusts would do" },
		{ CONFIG_ROW_redis_tls_name, name[0] == '.',
		  "begins with a dot: certificates for any name below it would do. Give a "
		  "whole name" },
		{ CONFIG_ROW_redis_seal_files, files > REDIS_SEALS_EACH,
		  "names more than two files: the one to write with, and one that is still read" },
		{ CONFIG_ROW_redis_seal_files, files > 0 && config->redis_secret_file[0] == '\0',
		  "needs [redis] secret_file, which the names of values follow from" },
		{ CONFIG_ROW_redis_key_prefix, !plain(config->redis_key_prefix), strange },
		{ CONFIG_ROW_redis_username, !plain(user), strange },
		{ CONFIG_ROW_redis_username,
		  user[0] != '\0' && config->redis_password_file[0] == '\0',
		  "needs [redis] password_file: nobody can log in by name alone" },
	};

	while (*cursor < sizeof(faults) / sizeof(faults[0])) {
		const size_t i = (*cursor)++;

		*ret = faults[i].row;
		if (faults[i].wrong)
			return faults[i].fault;
	}
	return NULL;
}

/* Whether a Cluster hashes only a piece of the name: the text in its first { }, if that is not
 * empty. */
static bool has_hash_tag(const char *prefix)
{
	const char *open = strchr(prefix, '{'), *close = open ? strchr(open, '}') : NULL;

	return close && close > open + 1;
}

static bool any_is_a_path(const char *endpoints)
{
	char endpoint[CONFIG_ENDPOINT_BYTES];

	while (config_next_item(&endpoints, " ", endpoint)) {
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
	if (has_hash_tag(config->redis_key_prefix))
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

static int no_memory(const char *option, char *text, size_t n)
{
	return text_fail(text, n, -ENOMEM, "[redis] %s: out of memory", option);
}

/* Reads as many bytes of the file as fit. */
static int read_file(const char *option, const char *path, void *ret, size_t room,
		     size_t *ret_bytes, char *text, size_t n)
{
	char why[128];
	const int r = vault_read(path, ret, room, ret_bytes, why, sizeof(why));

	return r ? text_fail(text, n, r, "[redis] %s: %s: %s", option, path, why) : 0;
}

/* The first line of the file. It may end as lines on Windows do. */
static int read_password(const char *path, char ret[REDIS_SECRET_BYTES], char *text, size_t n)
{
	const size_t room = REDIS_SECRET_BYTES + 2;
	uint8_t *line = vault_alloc(room);
	const uint8_t *end;
	size_t bytes, length;
	int r;

	if (!line)
		return no_memory("password_file", text, n);
	r = read_file("password_file", path, line, room, &bytes, text, n);
	if (r < 0)
		goto done;
	end = memchr(line, '\n', bytes);
	length = end ? (size_t)(end - line) : bytes;
	if (length > 0 && line[length - 1] == '\r')
		length--;
	r = -EBADMSG;
	if (length == 0)
		snprintf(text, n, "[redis] password_file: the first line of %s is empty", path);
	else if (length >= REDIS_SECRET_BYTES)
		snprintf(text, n,
			 "[redis] password_file: the first line of %s is longer than %d bytes",
			 path, REDIS_SECRET_BYTES - 1);
	else if (memchr(line, '\0', length))
		snprintf(text, n,
			 "[redis] password_file: the first line of %s has a NUL byte in it", path);
	else
		r = 0;
	if (r == 0) {
		memcpy(ret, line, length);
		ret[length] = '\0';
	}
done:
	vault_free(line, room);
	return r;
}

static int read_shared(const char *option, const char *path, struct secret_shared *ret, char *text,
		       size_t n)
{
	size_t got;
	const int r = read_file(option, path, ret->bytes, sizeof(ret->bytes), &got, text, n);

	if (r < 0)
		return r;
	if (got < CONFIG_SHARED_MIN || got > SECRET_SHARED_BYTES)
		return text_fail(text, n, -EBADMSG,
				 "[redis] %s: %s has %s%zu bytes; it must have %d to %d, such as "
				 "head -c 32 /dev/urandom gives",
				 option, path, got > SECRET_SHARED_BYTES ? "at least " : "", got,
				 (int)CONFIG_SHARED_MIN, (int)SECRET_SHARED_BYTES);
	ret->n = got;
	return 0;
}

int config_redis(const struct config *config, struct config_redis *redis,
		 struct redis_tier_conf *ret, char *text, size_t n)
{
	const char *cursor = config->redis_endpoints, *files = config->redis_seal_files;
	char file[CONFIG_PATH_BYTES];
	uint32_t endpoints = 0;
	int r = 0;

	/* also without endpoints: then a node's keys stay the same when it gets a Redis */
	if (config->redis_secret_file[0] != '\0')
		r = read_shared("secret_file", config->redis_secret_file, &redis->shared, text, n);
	for (uint32_t i = 0; r == 0 && i < REDIS_SEALS_EACH && config_next_item(&files, ":", file);
	     i++)
		r = read_shared("seal_files", file, &redis->sealing[i], text, n);
	if (r == 0 && config->redis_endpoints[0] != '\0' && config->redis_password_file[0] != '\0')
		r = read_password(config->redis_password_file, redis->password, text, n);
	if (r < 0)
		return r;
	while (endpoints < REDIS_ENDPOINTS &&
	       config_next_item(&cursor, " ", redis->endpoints[endpoints])) {
		ret->endpoints[endpoints] = redis->endpoints[endpoints];
		endpoints++;
	}
	ret->n_endpoints = endpoints;
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
	ret->seals = &redis->seals;
	ret->key_prefix = config->redis_key_prefix;
	ret->ttl_ms = (uint64_t)config->redis_ttl * 1000;
	ret->compress = config->redis_compress == CONFIG_COMPRESS_AUTO;
	ret->connections = CONFIG_REDIS_CONNECTIONS;
	ret->timeout_ms = config->redis_timeout_ms;
	warnings(config, text, n);
	return 0;
}

struct config_redis *config_redis_new(void)
{
	return vault_alloc(sizeof(struct config_redis));
}

void config_redis_close(struct config_redis *redis)
{
	vault_free(redis, sizeof(*redis));
}
