/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_conn.c - a connection as its owner sees it, and the functions that the loop calls.
 * Contract, states and invariants: redis_conn.h. The parts: redis_connect.h up to UP, redis_row.h
 * the row, redis_send.h, redis_recv.h.
 */
#include "redis_conn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "daemon/base/container_of.h"
#include "daemon/base/vault.h"
#include "redis_connect.h"
#include "redis_recv.h"
#include "redis_row.h"
#include "redis_send.h"
#include "redis_tls_stream.h"

/* --- called by the loop --- */

static void send_turn(struct redis_conn *c)
{
	const int r = redis_send_turn(c);

	if (!r)
		return;
	/* The endpoint may have said why before it closed: its words come before the end of
	 * file. */
	redis_recv_turn(c);
	if (r == -EPIPE)
		redis_row_down(c, -ECONNRESET, strerror(EPIPE));
	else
		redis_row_failed(c, r);
}

static void on_flush(struct loop_timer *timer)
{
	struct redis_conn *c = container_of(timer, struct redis_conn, flush);

	if (!c->wants_writable)
		send_turn(c);
}

static void on_ready(struct loop_watch *watch, uint32_t events)
{
	struct redis_conn *c = container_of(watch, struct redis_conn, watch);

	if (c->state == REDIS_CONN_CONNECTING || c->state == REDIS_CONN_SECURING) {
		redis_connect_ready(c);
		return;
	}
	if (events & ~(uint32_t)EPOLLOUT)
		redis_recv_turn(c);
	if (c->state != REDIS_CONN_DOWN && (events & EPOLLOUT))
		send_turn(c);
}

static void on_again(struct loop_timer *timer)
{
	redis_recv_turn(container_of(timer, struct redis_conn, again));
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
	r = redis_connect_begin(c, conf);
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
	redis_mac_close(c->mac);
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
		command->value->hashed = command->value->packed = false;
	}
	redis_row_push(c, command);
	return 0;
}

void redis_conn_cancel(struct redis_command *command)
{
	struct redis_conn *c = command->conn;

	if (!command->lent || c->state == REDIS_CONN_DOWN)
		return; /* DOWN: the command ends with all others, right now */
	redis_row_cancel(c, command);
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

void redis_conn_counters(const struct redis_conn *c, struct redis_conn_counters *ret)
{
	*ret = c->counters;
}
