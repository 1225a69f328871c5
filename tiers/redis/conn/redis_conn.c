/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_conn.c - one connection: the row of places, deadlines, its end. Contract and states:
 * redis_conn.h; the row: redis_conn_inner.h; connecting, TLS and AUTH: redis_open.c; sending:
 * redis_send.c; receiving: redis_recv.c.
 *
 * Invariants, beside C1 to C5
 *   R1 first <= unsent <= last: replies are taken for places before `unsent` only.
 *   R2 a place without a command lies before `unsent`: what was not sent at all leaves the row when
 *      it ends.
 *   R3 only the loop's callbacks end commands. submit and cancel set a timer, which fires in the
 *      same turn of the loop or the next; done() may call both.
 */
#include "redis_conn_inner.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/container_of.h"
#include "daemon/base/vault.h"

/* A place that nobody waits for any more: an endpoint that does not answer it in this time is not
 * one to wait for. */
#define ENDED_PATIENCE_NS (30 * 1000000000ull)

/* --- ends --- */

void conn_words(char *ret, size_t room, const char *words, size_t n)
{
	size_t i;

	for (i = 0; i < n && i + 1 < room; i++)
		ret[i] = words[i] >= ' ' && words[i] <= '~' ? words[i] : '?';
	ret[i] = 0;
}

static void command_end(struct redis_command *command, int status, const struct redisReply *reply)
{
	command->status = status;
	command->reply = reply;
	command->lent = false;
	command->done(command);
}

void conn_answered(struct redis_conn *c, int status, const struct redisReply *reply)
{
	const struct place p = *conn_place(c, c->first);

	assert(c->first != c->unsent);
	c->first++;
	c->expected_bytes -= p.expects;
	if (!p.command) {
		c->counters.late++;
		if (p.expects > 0 && c->conf.room)
			c->conf.room(c, c->conf.arg);
	} else if (p.canceled)
		command_end(p.command, -ECANCELED, NULL);
	else
		command_end(p.command, status, reply);
}

/* Nothing of it is left in the loop; all that is lent ends. */
static void shut(struct redis_conn *c)
{
	loop_timer_unset(c->loop, &c->timer);
	loop_timer_unset(c->loop, &c->flush);
	loop_timer_unset(c->loop, &c->again);
	if (c->watch.fd >= 0) {
		loop_remove(c->loop, &c->watch);
		(void)close(c->watch.fd);
	}
	c->watch.fd = -1;
	tls_stream_close(c->tls);
	c->tls = NULL;
	c->unsent_bytes = c->expected_bytes = 0;
	while (c->first != c->last) {
		struct redis_command *command = conn_place(c, c->first++)->command;

		if (command)
			command_end(command, -ECONNRESET, NULL);
	}
	c->unsent = c->last;
	conn_forget_secret(c);
}

void conn_down(struct redis_conn *c, int why, const char *text)
{
	if (c->state == REDIS_CONN_DOWN)
		return;
	c->state = REDIS_CONN_DOWN;
	c->why = why;
	if (text != c->text)
		(void)snprintf(c->text, sizeof c->text, "%s", text);
	if (why == -EPROTO)
		c->counters.protocol_errors++;
	shut(c);
	c->conf.changed(c, c->conf.arg);
}

void conn_failed(struct redis_conn *c, int why)
{
	const char *words = c->tls ? tls_stream_words(c->tls) : "";
	char text[REDIS_TEXT_BYTES];

	conn_words(text, sizeof text, words, strlen(words));
	conn_down(c, why, text[0] ? text : strerror(-why));
}

/* --- deadlines --- */

void conn_arm(struct redis_conn *c, uint64_t due_ns)
{
	if (c->timer.position == 0 || c->timer.due_ns > due_ns)
		loop_timer_set(c->loop, &c->timer, due_ns);
}

static bool half_sent(const struct redis_conn *c, uint32_t number)
{
	return number == c->unsent && c->out_at > 0;
}

/* When something must be done about this place; UINT64_MAX: never. */
static uint64_t place_due(struct redis_conn *c, uint32_t number)
{
	const struct place *p = conn_place(c, number);

	if (!p->command)
		return p->ended_ns + ENDED_PATIENCE_NS;
	return p->canceled && !half_sent(c, number) ? 0 : p->command->deadline_ns;
}

/* A place that was not sent at all leaves the row; those behind it move up. */
static void take_out(struct redis_conn *c, uint32_t number)
{
	c->unsent_bytes -= conn_place(c, number)->bytes;
	c->expected_bytes -= conn_place(c, number)->expects;
	for (c->last--; number != c->last; number++) {
		struct place *p = conn_place(c, number);

		*p = *conn_place(c, number + 1);
		p->command->place = number; /* R2: it has one */
	}
}

static void place_expired(struct redis_conn *c, uint32_t number)
{
	struct place *p = conn_place(c, number);
	struct redis_command *command = p->command;
	const int status = p->canceled ? -ECANCELED : -ETIMEDOUT;

	if (!command) {
		conn_down(c, -ETIMEDOUT, "no reply for 30 s");
		return;
	}
	if (half_sent(c, number)) {
		p->command = NULL;
		p->ended_ns = loop_now(c->loop);
		command_end(command, status, NULL);
		conn_down(c, -ETIMEDOUT, "a command could not be sent in time");
		return;
	}
	if ((int32_t)(number - c->unsent) >= 0) {
		take_out(c, number);
	} else {
		if (number == c->first)
			recv_abandon(c);
		p->command = NULL;
		p->ended_ns = loop_now(c->loop);
	}
	command_end(command, status, NULL);
}

/* The first place that is due, if any; and when the next one will be. */
static bool find_due(struct redis_conn *c, uint32_t *ret, uint64_t *ret_next_ns)
{
	*ret_next_ns = UINT64_MAX;
	for (uint32_t number = c->first; number != c->last; number++) {
		const uint64_t due_ns = place_due(c, number);

		if (due_ns < *ret_next_ns)
			*ret_next_ns = due_ns;
		if (due_ns <= loop_now(c->loop)) {
			*ret = number;
			return true;
		}
	}
	return false;
}

static void on_timer(struct loop_timer *timer)
{
	struct redis_conn *c = container_of(timer, struct redis_conn, timer);
	uint64_t next_ns = 0;
	uint32_t number;

	if (c->why) {
		conn_down(c, c->why, c->text);
		return;
	}
	if (c->state != REDIS_CONN_UP) {
		if (loop_now(c->loop) >= c->conf.deadline_ns)
			conn_down(c, -ETIMEDOUT,
				  c->state == REDIS_CONN_SECURING
					  ? "no TLS handshake in time; is this its TLS port?"
					  : "no connection in time");
		else
			conn_arm(c, c->conf.deadline_ns);
		return;
	}
	/* Bounded: done() may have submitted another that is due already; that one has its turn in
	 * the next round. */
	for (int n = 0; n < REDIS_CONN_COMMANDS && find_due(c, &number, &next_ns); n++) {
		place_expired(c, number);
		if (c->state == REDIS_CONN_DOWN)
			return;
	}
	if (next_ns != UINT64_MAX)
		conn_arm(c, next_ns);
}

/* --- the row --- */

static void on_flush(struct loop_timer *timer)
{
	struct redis_conn *c = container_of(timer, struct redis_conn, flush);

	if (!c->wants_writable)
		conn_send(c);
}

void conn_push(struct redis_conn *c, struct redis_command *command)
{
	struct place *p = conn_place(c, c->last);

	loop_timer_set(c->loop, &c->flush, 0);
	*p = (struct place){ .command = command, .expects = command->value ? command->value->room : 0 };
	for (uint32_t i = 0; i < command->n_pieces; i++)
		p->bytes += command->pieces[i].iov_len;
	assert(p->bytes > 0 && !command->lent);
	command->conn = c;
	command->place = c->last++;
	command->lent = true;
	command->status = 0;
	command->reply = NULL;
	command->error[0] = 0;
	command->sealing.done = 0;
	command->sealing.ended = false;
	c->unsent_bytes += p->bytes;
	c->expected_bytes += p->expects;
	conn_arm(c, command->deadline_ns);
}

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
	conn_push(c, command);
	return 0;
}

void redis_conn_cancel(struct redis_command *command)
{
	struct redis_conn *c = command->conn;
	struct place *p;

	if (!command->lent || c->state == REDIS_CONN_DOWN)
		return; /* DOWN: it ends with the others, right now */
	p = conn_place(c, command->place);
	assert(p->command == command);
	p->canceled = true;
	conn_arm(c, 0);
}

static void on_ready(struct loop_watch *watch, uint32_t events)
{
	struct redis_conn *c = container_of(watch, struct redis_conn, watch);

	if (c->state == REDIS_CONN_CONNECTING || c->state == REDIS_CONN_SECURING) {
		if (c->state == REDIS_CONN_CONNECTING)
			conn_connected(c);
		else
			conn_secure(c);
		return;
	}
	if (events & ~(uint32_t)EPOLLOUT)
		recv_turn(c);
	if (c->state != REDIS_CONN_DOWN && (events & EPOLLOUT))
		conn_send(c);
}

static void on_again(struct loop_timer *timer)
{
	recv_turn(container_of(timer, struct redis_conn, again));
}

void conn_prepare(struct redis_conn *c)
{
	c->watch = (struct loop_watch){ .fd = -1, .ready = on_ready };
	c->timer.fire = on_timer;
	c->flush.fire = on_flush;
	c->again.fire = on_again;
	c->wants_writable = true;
}

void redis_conn_close(struct redis_conn *c)
{
	if (!c)
		return;
	c->state = REDIS_CONN_DOWN;
	shut(c);
	recv_close(&c->in);
	redis_mac_close(c->mac);
	free(c->host);
	vault_free(c, sizeof *c);
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
	return c->tls ? tls_stream_version(c->tls) : "";
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
