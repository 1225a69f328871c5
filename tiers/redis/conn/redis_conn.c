/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_conn.c - a connection as its owner sees it: address, connect (hiredis), TLS and AUTH up to
 * UP, and the functions that the loop calls. Contract, states and invariants: redis_conn.h. The row
 * and sending are in redis_row.c, receiving is in redis_recv.c.
 *
 * The password is kept, as AUTH needs it, until the endpoint has answered, and is then overwritten.
 * No text that leaves here contains it, even where an endpoint repeats it.
 */
#include "redis_conn.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/list.h"
#include "base/vault.h"
#include "redis_address.h"
#include "redis_recv.h"
#include "redis_row.h"
#include "redis_tls.h"

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
		redis_row_down(c, -EPROTO, "its answer to AUTH makes no sense");
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
	redis_row_want(c, redis_tls_stream_unsent(c->tls));
	if (r == 0 || c->state == REDIS_CONN_DOWN)
		return;
	redis_row_after_read(c); /* more bytes may have come with the end of the handshake */
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
	redis_row_want(c, false);
	if (c->state == REDIS_CONN_DOWN)
		return;
	if (c->conf.tls)
		begin_tls(c);
	else
		greet(c);
}

/* --- address, socket, secret --- */

/* The host must be numeric: for a name hiredis would ask a name server, and wait. */
static redisContext *context_of(const char *address)
{
	char host[REDIS_ADDRESS_BYTES], port[REDIS_PORT_BYTES];

	errno = EINVAL;
	if (!redis_address_valid(address) || !redis_address_numeric(address))
		return NULL;
	errno = ENOMEM; /* of hiredis, unless it says better */
	if (!redis_address_split(address, host, port))
		return redisConnectUnixNonBlock(address + strlen("unix:"));
	return redisConnectNonBlock(host, atoi(port));
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

/* hiredis makes AUTH in the heap, from where it is moved and wiped. */
static int prepare_auth(struct redis_conn *c, const struct redis_conn_conf *conf)
{
	const bool named = conf->username && conf->username[0];
	const char *words[] = { "AUTH", named ? conf->username : conf->password, conf->password };
	char *text = NULL;
	long long n;

	if (!conf->password || !conf->password[0])
		return 0;
	if (strlen(conf->password) >= REDIS_SECRET_BYTES ||
	    (named && strlen(conf->username) >= REDIS_SECRET_BYTES))
		return -EINVAL;
	c->secret = vault_alloc(sizeof(*c->secret));
	n = c->secret ? redisFormatCommandArgv(&text, named ? 3 : 2, words, NULL) : -1;
	if (n < 0)
		return -ENOMEM;
	memcpy(c->secret->password, conf->password, strlen(conf->password) + 1);
	assert((size_t)n <= sizeof(c->secret->auth));
	c->secret->auth_bytes = (size_t)n;
	memcpy(c->secret->auth, text, (size_t)n);
	explicit_bzero(text, (size_t)n);
	redisFreeCommand(text);
	return 0;
}

/* --- called by the loop --- */

static void send_some(struct redis_conn *c)
{
	const int r = redis_row_send(c);

	if (!r)
		return;
	/* The endpoint may have said why before it closed: its words come before the end of
	 * file. */
	redis_recv_poll(c);
	if (r == -EPIPE)
		redis_row_down(c, -ECONNRESET, strerror(EPIPE));
	else
		redis_row_failed(c, r);
}

static void on_flush(struct loop_timer *timer)
{
	struct redis_conn *c = container_of(timer, struct redis_conn, flush);

	if (!c->wants_writable)
		send_some(c);
}

static void on_ready(struct loop_watch *watch, uint32_t events)
{
	struct redis_conn *c = container_of(watch, struct redis_conn, watch);

	if (c->state == REDIS_CONN_CONNECTING) {
		connected(c);
		return;
	}
	if (c->state == REDIS_CONN_SECURING) {
		secure(c);
		return;
	}
	if (events & ~(uint32_t)EPOLLOUT)
		redis_recv_poll(c);
	if (c->state != REDIS_CONN_DOWN && (events & EPOLLOUT))
		send_some(c);
}

static void on_again(struct loop_timer *timer)
{
	redis_recv_poll(container_of(timer, struct redis_conn, again));
}

/* --- life --- */

/* c is zeroed. On error its owner closes it. */
static int begin(struct redis_conn *c, struct loop *loop, const struct redis_conn_conf *conf)
{
	int r;

	c->loop = loop;
	c->watch = (struct loop_watch){ .fd = -1, .ready = on_ready };
	c->timer.fire = redis_row_on_timer;
	c->flush.fire = on_flush;
	c->again.fire = on_again;
	c->wants_writable = true;
	c->conf = *conf;
	c->conf.address = c->conf.username = c->conf.password = c->conf.host = NULL;
	if (strncmp(conf->address, "unix:", 5) == 0)
		c->conf.tls = NULL;
	else
		c->sleeps_long = !conf->tls;
	r = redis_recv_open(&c->in);
	if (r)
		return r;
	c->mac = redis_mac_open();
	if (!c->mac)
		return -ENOMEM;
	r = prepare_auth(c, conf);
	if (r)
		return r;
	if (c->conf.tls) {
		c->host = strdup(conf->host);
		if (!c->host)
			return -ENOMEM;
	}
	r = connect_to(conf->address, &c->watch.fd, &c->why);
	if (r)
		return r;
	if (c->why)
		(void)snprintf(c->text, sizeof(c->text), "%s", strerror(-c->why));
	loop_timer_set(loop, &c->timer, c->why ? 0 : conf->deadline_ns);
	return c->watch.fd >= 0 ? loop_add(loop, &c->watch, EPOLLOUT) : 0;
}

int redis_conn_open(struct loop *loop, const struct redis_conn_conf *conf, struct redis_conn **ret)
{
	struct redis_conn *c = vault_buffer(sizeof(*c));
	int r;

	if (!c)
		return -ENOMEM;
	r = begin(c, loop, conf);
	if (r)
		redis_conn_close(c);
	else
		*ret = c;
	return r;
}

void redis_conn_close(struct redis_conn *c)
{
	if (!c)
		return;
	c->state = REDIS_CONN_DOWN;
	redis_row_shut(c);
	redis_recv_close(&c->in);
	EVP_MAC_CTX_free(c->mac);
	free(c->host);
	vault_free(c, sizeof(*c));
}

/* --- commands --- */

int redis_conn_submit(struct redis_conn *c, struct redis_command *command)
{
	loop_assert_core(c->loop);
	if (c->state != REDIS_CONN_UP)
		return -ENOTCONN;
	if (c->last - c->first == REDIS_CONN_COMMANDS)
		return -EAGAIN;
	if (command->value) {
		command->value->bytes = 0;
		command->value->length = 0;
		command->value->hashed = false;
		command->value->part = REDIS_PART_WHOLE;
	}
	redis_row_push(c, command);
	return 0;
}

void redis_conn_cancel(struct redis_command *command)
{
	struct redis_conn *c = command->conn;
	struct redis_row_entry *entry;

	if (!command->lent || c->state == REDIS_CONN_DOWN)
		return; /* DOWN: the command ends with all others, right now */
	entry = redis_row_at(c, command->number);
	assert(entry->command == command);
	entry->canceled = true;
	redis_row_arm(c, 0);
}

/* --- questions --- */

enum redis_conn_state redis_conn_state(const struct redis_conn *c)
{
	return c->state;
}

int redis_conn_why(const struct redis_conn *c, const char **ret_text)
{
	*ret_text = c->text;
	return c->why;
}

const char *redis_conn_tls(const struct redis_conn *c)
{
	return c->tls ? redis_tls_stream_version(c->tls) : "";
}

uint32_t redis_conn_in_flight(const struct redis_conn *c)
{
	return c->last - c->first;
}

uint64_t redis_conn_unsent_bytes(const struct redis_conn *c)
{
	return c->unsent_bytes;
}

uint64_t redis_conn_expected_bytes(const struct redis_conn *c)
{
	return c->expected_bytes;
}
