/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_redis.c - real redis-servers for tests: see lib_redis.h. Each request opens a connection of
 * its own through the Unix socket, which costs nothing here and leaves nothing to repair when a
 * server was killed meanwhile.
 */
#include "lib_redis.h"

#include <arpa/inet.h>
#include <hiredis/hiredis.h>
#include <openssl/evp.h>
#include <strings.h>

#include "base/clock.h"
#include "kernels/image.h"
#include "lib_scratch.h"
#include "test.h"

enum { PATIENCE_MS = 60000, NAP_US = 5000, ASK_SECONDS = 60, WORDS = 64, BUS_PORT = 10000 };

void redis_needed(void)
{
	if (system("command -v redis-server >/dev/null 2>&1") == 0)
		return;
	if (getenv("KVTIER_NEED_REDIS")) {
		printf("redis-server is needed (KVTIER_NEED_REDIS is set) and not there\n");
		exit(1);
	}
	printf("skipped: there is no redis-server\n");
	exit(77);
}

/* --- values --- */

size_t redis_sealed(const struct redis_seal *seal, const uint8_t *packed, size_t n, uint8_t *ret)
{
	return redis_sealed_as(seal, REDIS_VALUE_FORM, packed, n, ret);
}

size_t redis_sealed_as(const struct redis_seal *seal, uint16_t form, const uint8_t *packed,
		       size_t n, uint8_t *ret)
{
	EVP_MAC_CTX *mac = redis_mac_open();
	struct redis_envelope envelope;
	struct image_header header;

	assert_non_null(mac);
	assert_int_equal(redis_envelope_make(&envelope, form), 0);
	memcpy(&header, packed, sizeof(header));
	memcpy(ret, &envelope, sizeof(envelope));
	memcpy(ret + sizeof(envelope), packed, n);
	assert_true(redis_mac_begin(mac, seal, &envelope, &header));
	assert_true(redis_mac_add(mac, packed + sizeof(header), n - sizeof(header)));
	assert_true(redis_mac_end(mac, ret + sizeof(envelope) + n));
	EVP_MAC_CTX_free(mac);
	return n + REDIS_SEAL_BYTES;
}

/* --- questions --- */

/* Splits in place at blanks. */
static int split(char *line, const char *words[WORDS])
{
	int n = 0;
	char *rest = NULL;

	for (char *word = strtok_r(line, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
		assert_true(n < WORDS);
		words[n++] = word;
	}
	return n;
}

static bool option(const struct redis_server *s, const char *name, char *ret, size_t n)
{
	char line[sizeof(s->options)];
	const char *words[WORDS];
	int count;

	(void)snprintf(line, sizeof(line), "%s", s->options);
	count = split(line, words);
	for (int i = 0; i + 1 < count; i++)
		if (strcmp(words[i], name) == 0) {
			(void)snprintf(ret, n, "%s", words[i + 1]);
			return true;
		}
	return false;
}

/* NULL: it does not take connections. */
static redisContext *reach(const struct redis_server *s)
{
	const struct timeval patience = { .tv_sec = ASK_SECONDS };
	redisContext *context = redisConnectUnixWithTimeout(s->socket, patience);
	char password[256];

	assert_non_null(context);
	if (context->err || redisSetTimeout(context, patience) != REDIS_OK) {
		redisFree(context);
		return NULL;
	}
	if (option(s, "--requirepass", password, sizeof(password))) {
		redisReply *reply = redisCommand(context, "AUTH %s", password);

		if (reply)
			freeReplyObject(reply);
	}
	return context;
}

static redisReply *ask(const struct redis_server *s, int n, const char **words, const size_t *bytes)
{
	redisContext *context = reach(s);
	redisReply *reply;

	if (!context)
		fail_msg("%s does not take connections", s->address);
	reply = redisCommandArgv(context, n, words, bytes);
	if (!reply)
		fail_msg("%s does not answer %s: %s", s->address, words[0], context->errstr);
	redisFree(context);
	return reply;
}

/* Appends the reply's text, as lib_redis.h has it. */
static void tell(const redisReply *reply, char *ret, size_t n)
{
	const size_t used = strlen(ret);
	char *const at = ret + used;
	const size_t room = n - used;

	switch (reply->type) {
	case REDIS_REPLY_INTEGER:
		(void)snprintf(at, room, "%lld", reply->integer);
		break;
	case REDIS_REPLY_NIL:
		(void)snprintf(at, room, "(nil)");
		break;
	case REDIS_REPLY_ERROR:
		(void)snprintf(at, room, "-%s", reply->str);
		break;
	case REDIS_REPLY_ARRAY:
		for (size_t i = 0; i < reply->elements; i++) {
			if (i > 0)
				(void)strncat(ret, "\n", n - strlen(ret) - 1);
			tell(reply->element[i], ret, n);
		}
		break;
	default:
		(void)snprintf(at, room, "%s", reply->str);
		break;
	}
}

static void say(const struct redis_server *s, char *ret, size_t n, const char *format, va_list args)
{
	char line[4096];
	const char *words[WORDS];
	redisReply *reply;
	const int length = vsnprintf(line, sizeof(line), format, args);

	assert_true(length > 0 && (size_t)length < sizeof(line));
	reply = ask(s, split(line, words), words, NULL);
	ret[0] = 0;
	tell(reply, ret, n);
	freeReplyObject(reply);
}

void redis_say(const struct redis_server *s, char *ret, size_t n, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say(s, ret, n, format, args);
	va_end(args);
}

long long redis_ask(const struct redis_server *s, const char *format, ...)
{
	char text[256], *end;
	long long number;
	va_list args;

	va_start(args, format);
	say(s, text, sizeof(text), format, args);
	va_end(args);
	number = strtoll(text, &end, 10);
	if (end == text || *end)
		fail_msg("%s: no number in reply to \"%s\": %s", s->address, format, text);
	return number;
}

void redis_put(const struct redis_server *s, const char *key, const void *value, size_t n)
{
	const char *words[3] = { "SET", key, value };
	const size_t bytes[3] = { 3, strlen(key), n };
	redisReply *reply = ask(s, 3, words, bytes);

	if (reply->type != REDIS_REPLY_STATUS)
		fail_msg("SET %s: %s", key, reply->str ? reply->str : "?");
	freeReplyObject(reply);
}

long redis_get(const struct redis_server *s, const char *key, void *ret, size_t n)
{
	const char *words[2] = { "GET", key };
	redisReply *reply = ask(s, 2, words, NULL);
	long length = -1;

	if (reply->type == REDIS_REPLY_STRING) {
		length = (long)reply->len;
		memcpy(ret, reply->str, (size_t)length < n ? (size_t)length : n);
	} else if (reply->type != REDIS_REPLY_NIL) {
		fail_msg("GET %s: %s", key, reply->str ? reply->str : "not a string");
	}
	freeReplyObject(reply);
	return length;
}

bool redis_any_key(const struct redis_server *s, const char *pattern, char *ret, size_t n)
{
	char cursor[32] = "0";
	bool found = false;

	do {
		const char *words[6] = { "SCAN", cursor, "MATCH", pattern, "COUNT", "1000" };
		redisReply *reply = ask(s, 6, words, NULL);

		assert_int_equal(reply->type, REDIS_REPLY_ARRAY);
		(void)snprintf(cursor, sizeof(cursor), "%s", reply->element[0]->str);
		if (reply->element[1]->elements > 0) {
			(void)snprintf(ret, n, "%s", reply->element[1]->element[0]->str);
			found = true;
		}
		freeReplyObject(reply);
	} while (!found && strcmp(cursor, "0") != 0);
	return found;
}

/* --- lives --- */

static bool port_is_free(uint16_t port, uint16_t *ret)
{
	struct sockaddr_in a = { .sin_family = AF_INET,
				 .sin_port = htons(port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t n = sizeof(a);
	bool good;

	assert_true(fd >= 0);
	good = bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 &&
	       getsockname(fd, (struct sockaddr *)&a, &n) == 0;
	*ret = ntohs(a.sin_port);
	(void)close(fd);
	return good;
}

/* A port that a server of a Cluster can have, too: its bus listens on the port 10,000 above. */
static uint16_t free_port(void)
{
	for (int i = 0; i < 1000; i++) {
		uint16_t port, bus;

		if (port_is_free(0, &port) && port <= 65535 - BUS_PORT &&
		    port_is_free((uint16_t)(port + BUS_PORT), &bus))
			return port;
	}
	fail_msg("no free port");
	return 0;
}

static void exec_server(const struct redis_server *s)
{
	const bool tls = strstr(s->options, "--tls-cert-file") != NULL;
	char line[sizeof(s->options)], port[8], log[REDIS_TEST_PATH + 8];
	const char *words[WORDS], *args[2 * WORDS] = {
		"redis-server",
		"--bind",
		"127.0.0.1",
		"--port",
		tls ? "0" : port,
		"--tls-port",
		tls ? port : "0",
		"--unixsocket",
		s->socket,
		"--dir",
		s->dir,
		"--logfile",
		log,
		"--save",
		"",
		"--appendonly",
		"no",
		"--protected-mode",
		"no",
	};
	size_t n = 0;
	int count;

	(void)snprintf(port, sizeof(port), "%u", s->port);
	(void)snprintf(log, sizeof(log), "%s/log", s->dir);
	(void)snprintf(line, sizeof(line), "%s", s->options);
	while (args[n])
		n++;
	count = split(line, words);
	memcpy(args + n, words, (size_t)count * sizeof(words[0]));
	(void)execvp(args[0], (char *const *)args);
	_exit(127);
}

static bool answers(const struct redis_server *s)
{
	redisContext *context = reach(s);
	redisReply *reply = context ? redisCommand(context, "PING") : NULL;
	const bool good = reply && (reply->type != REDIS_REPLY_ERROR ||
				    strncmp(reply->str, "LOADING", 7) != 0);

	if (reply)
		freeReplyObject(reply);
	if (context)
		redisFree(context);
	return good;
}

/* False: it ended by itself, as when somebody else has taken the port. */
static bool launch(struct redis_server *s)
{
	const uint64_t until = clock_ns() + ms_to_ns(PATIENCE_MS);

	(void)unlink(s->socket);
	s->pid = fork();
	assert_true(s->pid >= 0);
	if (s->pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		exec_server(s);
	}
	while (!answers(s)) {
		if (waitpid(s->pid, NULL, WNOHANG) == s->pid) {
			s->pid = 0;
			return false;
		}
		if (clock_ns() > until)
			fail_msg("redis-server does not answer within %d ms", PATIENCE_MS);
		(void)usleep(NAP_US);
	}
	return true;
}

void redis_start(struct redis_server *s, const char *options)
{
	memset(s, 0, sizeof(*s));
	assert_true(snprintf(s->options, sizeof(s->options), "%s", options ? options : "") <
		    (int)sizeof(s->options));
	s->cluster = strstr(s->options, "--cluster-enabled yes") != NULL;
	scratch_make(scratch_parent("/tmp"), s->dir, sizeof(s->dir));
	assert_true(snprintf(s->socket, sizeof(s->socket), "%s/s", s->dir) <
		    (int)sizeof(s->socket));
	for (int i = 0; i < 5; i++) {
		s->port = free_port();
		(void)snprintf(s->address, sizeof(s->address), "127.0.0.1:%u", s->port);
		if (launch(s))
			return;
	}
	fail_msg("redis-server does not start; options: %s", s->options);
}

void redis_restart(struct redis_server *s)
{
	const uint64_t until = clock_ns() + ms_to_ns(PATIENCE_MS);

	assert_int_equal(s->pid, 0);
	while (!launch(s)) {
		if (clock_ns() > until)
			fail_msg("redis-server does not start again on port %u", s->port);
		(void)usleep(NAP_US);
	}
}

void redis_signal(const struct redis_server *s, int number)
{
	assert_true(s->pid > 0);
	assert_int_equal(kill(s->pid, number), 0);
}

void redis_kill(struct redis_server *s)
{
	redis_signal(s, SIGKILL);
	assert_int_equal(waitpid(s->pid, NULL, 0), s->pid);
	s->pid = 0;
}

void redis_stop(struct redis_server *s)
{
	if (!s || !s->dir[0])
		return;
	if (s->pid > 0)
		redis_kill(s);
	scratch_remove(s->dir);
	memset(s, 0, sizeof(*s));
}
