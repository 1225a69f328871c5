/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_connect.c - a connection up to UP: address, connect (hiredis), TLS, AUTH. Contract:
 * redis_connect.h; states: redis_conn.h.
 *
 * The password is kept, as AUTH needs it, until the endpoint has answered, and is then overwritten.
 * No text that leaves here contains it, even where an endpoint repeats it.
 */
#include "redis_connect.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/vault.h"
#include "redis_row.h"
#include "redis_send.h"
#include "redis_tls_stream.h"

/* --- greeting --- */

static void enter(struct redis_conn *c, enum redis_conn_state state)
{
	c->state = state;
	if (state == REDIS_CONN_UP)
		redis_row_forget(c);
	c->conf.changed(c, c->conf.arg);
}

/* An endpoint that does not know AUTH repeats its arguments. */
static void refused(struct redis_conn *c, char *words)
{
	/* an endpoint says this to a new connection, before any command */
	const bool full = strncmp(words, "ERR max number", 14) == 0;
	char *echo = strstr(words, "args beginning");

	if (echo)
		explicit_bzero(echo, strlen(echo));
	if (redis_words_betray(words, c->secret->password))
		(void)strcpy(words,
			     "AUTH refused; the words are not shown, as they repeat the password");
	redis_row_down(c, full ? -ECONNREFUSED : -EACCES, words);
}

static void greeting_done(struct redis_command *command)
{
	struct redis_conn *c = command->conn;

	if (c->state == REDIS_CONN_DOWN)
		return;
	if (command->status == -EREMOTEIO)
		refused(c, command->error);
	else if (command->reply->type != REDIS_REPLY_STATUS)
		redis_row_down(c, -EPROTO, "not a reply to AUTH");
	else
		enter(c, REDIS_CONN_UP);
}

/* Socket and TLS are ready: AUTH comes next, or commands. */
static void greet(struct redis_conn *c)
{
	if (!c->secret) {
		enter(c, REDIS_CONN_UP);
		return;
	}
	c->greeting.pieces[0] = (struct iovec){ c->secret->auth, c->secret->auth_bytes };
	c->greeting.n_pieces = 1;
	c->greeting.deadline_ns = c->conf.deadline_ns;
	c->greeting.done = greeting_done;
	redis_row_push(c, &c->greeting);
	enter(c, REDIS_CONN_GREETING);
}

static void secure(struct redis_conn *c)
{
	const int r = redis_tls_stream_handshake(c->tls);

	if (r < 0) {
		redis_row_failed(c, r);
		return;
	}
	redis_send_want(c, redis_tls_stream_unsent(c->tls));
	if (r == 0 || c->state == REDIS_CONN_DOWN)
		return;
	redis_send_after_read(c); /* more bytes may have come with the end of the handshake */
	if (c->state != REDIS_CONN_DOWN)
		greet(c);
}

static void begin_tls(struct redis_conn *c)
{
	const int r = redis_tls_stream_open(c->conf.tls, c->watch.fd, c->host, &c->tls);

	if (r) {
		redis_row_down(c, r, strerror(-r));
		return;
	}
	enter(c, REDIS_CONN_SECURING);
	secure(c);
}

static void connected(struct redis_conn *c)
{
	socklen_t n = sizeof(int);
	int error = 0;

	if (getsockopt(c->watch.fd, SOL_SOCKET, SO_ERROR, &error, &n))
		error = errno;
	if (error) {
		redis_row_down(c, -error, strerror(error));
		return;
	}
	redis_send_want(c, false);
	if (c->state == REDIS_CONN_DOWN)
		return;
	if (c->conf.tls)
		begin_tls(c);
	else
		greet(c);
}

void redis_connect_ready(struct redis_conn *c)
{
	if (c->state == REDIS_CONN_CONNECTING)
		connected(c);
	else
		secure(c);
}

/* --- address, socket, secret --- */

static redisContext *context_of(const char *address)
{
	const char *colon = strrchr(address, ':'), *end;
	char host[INET6_ADDRSTRLEN + 2];
	struct in6_addr v6;
	struct in_addr v4;
	char *rest;
	long port;

	errno = EINVAL;
	if (strncmp(address, "unix:", 5) == 0) {
		const size_t n = strlen(address + 5);

		return n > 0 && n < sizeof(((struct sockaddr_un *)NULL)->sun_path) ?
			       redisConnectUnixNonBlock(address + 5) :
			       NULL;
	}
	if (!colon || (size_t)(colon - address) >= sizeof(host) || colon[1] < '0' || colon[1] > '9')
		return NULL;
	port = strtol(colon + 1, &rest, 10);
	if (*rest || port < 1 || port > 65535)
		return NULL;
	end = address[0] == '[' && colon[-1] == ']' ? colon - 1 : colon;
	address += end < colon;
	memcpy(host, address, (size_t)(end - address));
	host[end - address] = 0;
	/* The host must be numeric: for a name hiredis would ask a name server, and wait. */
	if (inet_pton(end < colon ? AF_INET6 : AF_INET, host,
		      end < colon ? (void *)&v6 : (void *)&v4) != 1)
		return NULL;
	errno = ENOMEM; /* of hiredis, if it says nothing better */
	return redisConnectNonBlock(host, (int)port);
}

/* 0: fd, or -1 and *ret_why: refused at once. */
static int connect_to(const char *address, int *ret_fd, int *ret_why)
{
	redisContext *context = context_of(address);
	const int error = errno;

	if (!context)
		return -error;
	if (context->err) {
		redisFree(context);
		*ret_fd = -1;
		*ret_why = error ? -error : -ECONNREFUSED;
		return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM ?
			       -error :
			       0;
	}
	*ret_fd = redisFreeKeepFd(context); /* hiredis's own reading and writing are not used */
	(void)fcntl(*ret_fd, F_SETFD, FD_CLOEXEC);
	return 0;
}

/* hiredis does not make this command: the secret would then lie in the heap. */
static void put_word(struct redis_secret *s, const char *word)
{
	const int n = snprintf(s->auth + s->auth_bytes, sizeof(s->auth) - s->auth_bytes,
			       "$%zu\r\n%s\r\n", strlen(word), word);

	assert(n > 0 && (size_t)n < sizeof(s->auth) - s->auth_bytes);
	s->auth_bytes += (size_t)n;
}

static int prepare_auth(struct redis_conn *c, const struct redis_conn_conf *conf)
{
	const bool named = conf->username && conf->username[0];
	struct redis_secret *s;

	if (!conf->password || !conf->password[0])
		return 0;
	if (strlen(conf->password) >= sizeof(s->password) ||
	    (named && strlen(conf->username) >= sizeof(s->password)))
		return -EINVAL;
	s = c->secret = vault_alloc(sizeof(*s));
	if (!s)
		return -ENOMEM;
	memcpy(s->password, conf->password, strlen(conf->password) + 1);
	s->auth_bytes = (size_t)snprintf(s->auth, sizeof(s->auth), "*%d\r\n", named ? 3 : 2);
	put_word(s, "AUTH");
	if (named)
		put_word(s, conf->username);
	put_word(s, conf->password);
	return 0;
}

int redis_connect_begin(struct redis_conn *c, const struct redis_conn_conf *conf)
{
	int r = prepare_auth(c, conf);

	if (r == 0 && c->conf.tls) {
		c->host = strdup(conf->host);
		r = c->host ? 0 : -ENOMEM;
	}
	return r ? r : connect_to(conf->address, &c->watch.fd, &c->why);
}
