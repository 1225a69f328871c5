/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_send.c - the bytes that go out on a connection: the unsent entries of its row, in order,
 * through the socket or TLS. Contract: redis_conn.h; the row: redis_row.h. Values are sealed here
 * (redis_seal.h), piece by piece.
 */
#include "redis_send.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "redis_row.h"
#include "redis_tls_stream.h"

enum {
	SEND_PIECES = 32,
	SEND_TURN_BYTES = 512 << 10, /* sent in one turn; then other connections have theirs */
};

/* n bytes of a piece, from `from` on, go out now. Some may have been here before, when the socket
 * did not take them. The new ones go through the MAC while they are in the cache. Piece 3 is the
 * MAC itself; it is reached when all bytes of the value have been gathered. */
static bool seal(struct redis_conn *c, struct redis_command *command, uint32_t piece, uint64_t from,
		 uint64_t n)
{
	struct redis_sealing *s = &command->sealing;
	struct redis_envelope envelope;

	if (!s->seal || s->ended || piece == 0)
		return true;
	if (s->done == 0) {
		c->sealing = command;
		s->done = sizeof(struct image_header);
		memcpy(&envelope, s->envelope, sizeof(envelope));
		if (!redis_mac_begin(c->mac, s->seal, &envelope, command->pieces[1].iov_base))
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
			if (n == SEND_PIECES || *ret_bytes == SEND_TURN_BYTES)
				return n;
			left = piece->iov_len - skip;
			if (left > SEND_TURN_BYTES - *ret_bytes)
				left = SEND_TURN_BYTES - *ret_bytes;
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
			c->counters.sent_bytes += value_bytes(p->command);
		if (p->canceled)
			redis_row_arm(c, 0); /* now it can end */
	}
}

void redis_send_want(struct redis_conn *c, bool writable)
{
	int r;

	if (c->wants_writable == writable)
		return;
	c->wants_writable = writable;
	r = loop_modify(c->loop, &c->watch, EPOLLIN | (writable ? (uint32_t)EPOLLOUT : 0));
	if (r)
		redis_row_down(c, r, "epoll");
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
void redis_send_after_read(struct redis_conn *c)
{
	if (redis_tls_stream_pending(c->tls))
		loop_timer_set(c->loop, &c->again, loop_now(c->loop) + 1);
	redis_send_want(c, wants_to_send(c));
}

int redis_send_turn(struct redis_conn *c)
{
	size_t asked = 0, sent = 0;
	ssize_t n = 0;

	/* Less went out than was gathered: the socket is full, and a second call would only say
	 * so. */
	while ((c->unsent != c->last || holds_back(c)) && sent < SEND_TURN_BYTES &&
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
	redis_send_want(c, wants_to_send(c));
	return 0;
}
