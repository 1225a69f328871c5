/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_row.c - the row of a connection: commands in it, their deadlines and ends, and the end of
 * the connection. Contract and invariants: redis_row.h.
 */
#include "redis_row.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/container_of.h"
#include "daemon/base/vault.h"
#include "redis_tls_stream.h"

/* How long an ended entry stays in the row for its reply. An endpoint that does not answer in this
 * time is given up. */
#define ENDED_PATIENCE_NS (30 * 1000000000ull)

/* --- ends --- */

static void command_end(struct redis_command *command, int status, const struct redisReply *reply)
{
	command->status = status;
	command->reply = reply;
	command->lent = false;
	command->done(command);
}

void redis_row_answered(struct redis_conn *c, int status, const struct redisReply *reply)
{
	const struct redis_row_entry p = *redis_row_at(c, c->first);

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

void redis_row_forget(struct redis_conn *c)
{
	vault_free(c->secret, sizeof(*c->secret));
	c->secret = NULL;
}

/* Nothing of the connection is left in the loop, and all lent commands end. */
void redis_row_shut(struct redis_conn *c)
{
	loop_timer_unset(c->loop, &c->timer);
	loop_timer_unset(c->loop, &c->flush);
	loop_timer_unset(c->loop, &c->again);
	if (c->watch.fd >= 0) {
		loop_remove(c->loop, &c->watch);
		(void)close(c->watch.fd);
	}
	c->watch.fd = -1;
	redis_tls_stream_close(c->tls);
	c->tls = NULL;
	c->unsent_bytes = c->expected_bytes = 0;
	while (c->first != c->last) {
		struct redis_command *command = redis_row_at(c, c->first++)->command;

		if (command)
			command_end(command, -ECONNRESET, NULL);
	}
	c->unsent = c->last;
	redis_row_forget(c);
}

void redis_row_down(struct redis_conn *c, int why, const char *text)
{
	if (c->state == REDIS_CONN_DOWN)
		return;
	c->state = REDIS_CONN_DOWN;
	c->why = why;
	if (text != c->text)
		(void)snprintf(c->text, sizeof(c->text), "%s", text);
	if (why == -EPROTO)
		c->counters.protocol_errors++;
	redis_row_shut(c);
	c->conf.changed(c, c->conf.arg);
}

void redis_row_failed(struct redis_conn *c, int why)
{
	const char *words = c->tls ? redis_tls_stream_words(c->tls) : "";
	char text[REDIS_TEXT_BYTES];

	redis_words_clean(text, sizeof(text), words, strlen(words));
	redis_row_down(c, why, text[0] ? text : strerror(-why));
}

/* --- deadlines --- */

void redis_row_arm(struct redis_conn *c, uint64_t due_ns)
{
	if (c->timer.position == 0 || c->timer.due_ns > due_ns)
		loop_timer_set(c->loop, &c->timer, due_ns);
}

static bool half_sent(const struct redis_conn *c, uint32_t number)
{
	return number == c->unsent && c->out_at > 0;
}

/* When something must be done about this entry; UINT64_MAX: never. */
static uint64_t entry_due(struct redis_conn *c, uint32_t number)
{
	const struct redis_row_entry *p = redis_row_at(c, number);

	if (!p->command)
		return p->ended_ns + ENDED_PATIENCE_NS;
	return p->canceled && !half_sent(c, number) ? 0 : p->command->deadline_ns;
}

/* An entry that was not sent at all leaves the row; the entries behind it move up. */
static void take_out(struct redis_conn *c, uint32_t number)
{
	c->unsent_bytes -= redis_row_at(c, number)->bytes;
	c->expected_bytes -= redis_row_at(c, number)->expects;
	for (c->last--; number != c->last; number++) {
		struct redis_row_entry *p = redis_row_at(c, number);

		*p = *redis_row_at(c, number + 1);
		p->command->number = number; /* R2: it has one */
	}
}

static void entry_expired(struct redis_conn *c, uint32_t number)
{
	struct redis_row_entry *p = redis_row_at(c, number);
	struct redis_command *command = p->command;
	const int status = p->canceled ? -ECANCELED : -ETIMEDOUT;

	if (!command) {
		redis_row_down(c, -ETIMEDOUT, "no reply for 30 s");
		return;
	}
	if (half_sent(c, number)) {
		p->command = NULL;
		p->ended_ns = loop_now(c->loop);
		command_end(command, status, NULL);
		redis_row_down(c, -ETIMEDOUT, "a command could not be sent in time");
		return;
	}
	if ((int32_t)(number - c->unsent) >= 0) {
		take_out(c, number);
	} else {
		p->command = NULL;
		p->ended_ns = loop_now(c->loop);
	}
	command_end(command, status, NULL);
}

/* The first entry that is due, if any; and when the next one will be. */
static bool find_due(struct redis_conn *c, uint32_t *ret, uint64_t *ret_next_ns)
{
	*ret_next_ns = UINT64_MAX;
	for (uint32_t number = c->first; number != c->last; number++) {
		const uint64_t due_ns = entry_due(c, number);

		if (due_ns < *ret_next_ns)
			*ret_next_ns = due_ns;
		if (due_ns <= loop_now(c->loop)) {
			*ret = number;
			return true;
		}
	}
	return false;
}

void redis_row_on_timer(struct loop_timer *timer)
{
	struct redis_conn *c = container_of(timer, struct redis_conn, timer);
	uint64_t next_ns = 0;
	uint32_t number;

	if (c->why) {
		redis_row_down(c, c->why, c->text);
		return;
	}
	if (c->state != REDIS_CONN_UP) {
		if (loop_now(c->loop) >= c->conf.deadline_ns)
			redis_row_down(c, -ETIMEDOUT,
				       c->state == REDIS_CONN_SECURING ?
					       "no TLS handshake in time; is this its TLS port?" :
					       "no connection in time");
		else
			redis_row_arm(c, c->conf.deadline_ns);
		return;
	}
	/* Bounded: done() may submit another command that is due already; its turn comes in the
	 * next round. */
	for (int n = 0; n < REDIS_CONN_COMMANDS && find_due(c, &number, &next_ns); n++) {
		entry_expired(c, number);
		if (c->state == REDIS_CONN_DOWN)
			return;
	}
	if (next_ns != UINT64_MAX)
		redis_row_arm(c, next_ns);
}

/* --- commands --- */

void redis_row_push(struct redis_conn *c, struct redis_command *command)
{
	struct redis_row_entry *p = redis_row_at(c, c->last);

	loop_timer_set(c->loop, &c->flush, 0);
	*p = (struct redis_row_entry){ .command = command };
	if (command->value)
		p->expects = command->value->room;
	for (uint32_t i = 0; i < command->n_pieces; i++)
		p->bytes += command->pieces[i].iov_len;
	assert(p->bytes > 0 && !command->lent);
	command->conn = c;
	command->number = c->last++;
	command->lent = true;
	command->status = 0;
	command->reply = NULL;
	command->error[0] = 0;
	command->sealing.done = 0;
	command->sealing.ended = false;
	c->unsent_bytes += p->bytes;
	c->expected_bytes += p->expects;
	redis_row_arm(c, command->deadline_ns);
}

void redis_row_cancel(struct redis_conn *c, struct redis_command *command)
{
	struct redis_row_entry *entry = redis_row_at(c, command->number);

	assert(entry->command == command);
	entry->canceled = true;
	redis_row_arm(c, 0);
}
