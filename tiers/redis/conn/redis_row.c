/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_row.c - the row of a connection: commands in it, their deadlines and ends, the bytes that
 * are sent, and the end of the connection. Contract and invariants: redis_row.h. Values are sealed
 * here (redis_seal.h), piece by piece, while they are sent through the socket or TLS.
 */
#include "redis_row.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/list.h"
#include "base/vault.h"
#include "redis_tls.h"

enum {
	SEND_PIECES = 32,
	SEND_PER_ITERATION = 512 << 10, /* sent in one iteration; then others are served */
};

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
		c->conf.counters->late++;
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
		c->conf.counters->protocol_errors++;
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
	/* Bounded: done() may submit another command that is due already; it is sent in the
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

/* --- sending --- */

/* n bytes of a piece, from `from` on, go out now. Some may have been here before, when the socket
 * did not take them. The new ones go through the MAC while they are in the cache. Piece 3 is the
 * MAC itself; it is reached when all bytes of the value have been gathered. */
static bool seal(struct redis_conn *c, struct redis_command *command, uint32_t piece, uint64_t from,
		 uint64_t n)
{
	struct redis_sealing *s = &command->sealing;
	const struct redis_seal *of[REDIS_SEALS_EACH];
	struct redis_envelope envelope;

	if (!s->seal || s->ended || piece == 0)
		return true;
	if (s->done == 0) {
		c->sealing = command;
		s->done = sizeof(struct image_header);
		memcpy(&envelope, s->envelope, sizeof(envelope));
		(void)redis_seals_of(c->conf.seals, s->seal, of);
		if (!redis_mac_begin(c->mac, of[0], &envelope, command->pieces[1].iov_base))
			return false;
	}
	assert(c->sealing == command);
	if (piece == 3) {
		s->ended = true;
		c->sealing = NULL;
		return redis_mac_end(c->mac, (uint8_t *)s->mac);
	}
	if (piece == 2)
		from += command->pieces[1].iov_len;
	if (from + n <= s->done)
		return true;
	n = from + n - s->done;
	from = s->done - (piece == 2 ? command->pieces[1].iov_len : 0);
	s->done += n;
	return redis_mac_add(c->mac, (const char *)command->pieces[piece].iov_base + from, n);
}

/* The bytes to send next. ret: how many pieces, or -ENOMEM. */
static int gather(struct redis_conn *c, struct iovec iov[SEND_PIECES], size_t *ret_bytes)
{
	uint64_t skip = c->out_at;
	int n = 0;

	*ret_bytes = 0;
	for (uint32_t number = c->unsent; number != c->last; number++) {
		struct redis_command *command = redis_row_at(c, number)->command;

		for (uint32_t i = 0; i < command->n_pieces; i++) {
			const struct iovec *piece = &command->pieces[i];
			size_t left;

			if (skip >= piece->iov_len) {
				skip -= piece->iov_len;
				continue;
			}
			if (n == SEND_PIECES || *ret_bytes == SEND_PER_ITERATION)
				return n;
			left = piece->iov_len - skip;
			if (left > SEND_PER_ITERATION - *ret_bytes)
				left = SEND_PER_ITERATION - *ret_bytes;
			if (!seal(c, command, i, skip, left))
				return -ENOMEM;
			iov[n++] = (struct iovec){ (char *)piece->iov_base + skip, left };
			*ret_bytes += left;
			skip = 0;
		}
	}
	return n;
}

/* Bytes of values: of pieces that do not lie in the command's text. */
static uint64_t value_bytes(const struct redis_command *command)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < command->n_pieces; i++) {
		const char *at = command->pieces[i].iov_base;

		if (at < command->text || at >= command->text + sizeof(command->text))
			n += command->pieces[i].iov_len;
	}
	return n;
}

static void went_out(struct redis_conn *c, uint64_t n)
{
	c->unsent_bytes -= n;
	while (n > 0) {
		struct redis_row_entry *p = redis_row_at(c, c->unsent);
		const uint64_t left = p->bytes - c->out_at;

		if (n < left) {
			c->out_at += n;
			return;
		}
		n -= left;
		c->out_at = 0;
		c->unsent++;
		if (p->command != &c->greeting)
			c->conf.counters->sent_bytes += value_bytes(p->command);
		if (p->canceled)
			redis_row_arm(c, 0); /* now it can end */
	}
}

void redis_row_want(struct redis_conn *c, bool writable)
{
	int r;

	if (c->wants_writable == writable)
		return;
	c->wants_writable = writable;
	r = loop_modify(c->loop, &c->watch, EPOLLIN | (writable ? (uint32_t)EPOLLOUT : 0));
	if (r)
		redis_row_down(c, r, "epoll cannot watch the connection");
}

static ssize_t put(struct redis_conn *c, struct iovec *iov, size_t n)
{
	const struct msghdr message = { .msg_iov = iov, .msg_iovlen = n };

	return c->tls ? redis_tls_stream_send(c->tls, iov, n) :
			sendmsg(c->watch.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* TLS has records that are not out yet. */
static bool holds_back(const struct redis_conn *c)
{
	return c->tls && redis_tls_stream_unsent(c->tls);
}

/* Where TLS has to read first, it does not help that the socket takes bytes. */
static bool wants_to_send(const struct redis_conn *c)
{
	return holds_back(c) ||
	       (c->unsent != c->last && !(c->tls && redis_tls_stream_must_read(c->tls)));
}

/* Not at once: a timer that is due now would come before all others again and again. */
void redis_row_after_read(struct redis_conn *c)
{
	if (redis_tls_stream_pending(c->tls))
		loop_timer_set(c->loop, &c->again, loop_now(c->loop) + 1);
	redis_row_want(c, wants_to_send(c));
}

int redis_row_send(struct redis_conn *c)
{
	size_t asked = 0, sent = 0;
	ssize_t n = 0;

	/* Less went out than was gathered: the socket is full, and a second call would only say
	 * so. */
	while ((c->unsent != c->last || holds_back(c)) && sent < SEND_PER_ITERATION &&
	       (size_t)n == asked) {
		struct iovec iov[SEND_PIECES];
		const int pieces = gather(c, iov, &asked);

		if (pieces < 0) {
			redis_row_failed(c, pieces);
			return 0;
		}
		n = put(c, iov, (size_t)pieces);
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
			break;
		if (n < 0)
			return -errno;
		sent += (size_t)n;
		went_out(c, (uint64_t)n);
	}
	redis_row_want(c, wants_to_send(c));
	return 0;
}
