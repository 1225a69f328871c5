/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_recv.c - the receiving side of a connection. Contract: redis_recv.h.
 *
 *	   ┌────────────────── the reply has ended ─────────────────────┐
 *	   v                                                            │
 *	 LINE ──no value is asked for──> SMALL ──whole──────────────────┤ hiredis, done()
 *	   ├──bulk, length good──> HEADER ──good, room──> BODY ──whole──┤ done(0), or see below
 *	   │                          └──no──> SKIP ──whole─────────────┤ done(-EBADMSG, -EFBIG...)
 *	   ├──another kind, a bad length, a push, nobody waits──> SKIP
 *	   └──nil, an error: done(-ENOENT, -EREMOTEIO)
 *
 * BODY whole, but its MAC is wrong: done(-EKEYREJECTED). If its checksum is wrong, too:
 * done(-EBADMSG). HEADER, BODY, SMALL whose command ended (deadline, cancel) become SKIP.
 *
 * The body of a value is read straight into the image. All other bytes are read into `bytes`, also
 * bytes that follow a body in the same call. An endpoint decides the size of nothing here: lines
 * and framing are bounded by resp.h; small replies, and pushes between two replies, by
 * REDIS_SMALL_BYTES; values by the caller's room.
 *
 * Each step returns 1: it took something, go on; 0: more bytes are needed; -EPROTO: this is no
 * reply; -ENOMEM.
 */
#include "redis_recv.h"

#include <assert.h>
#include <errno.h>
#include <hiredis/hiredis.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/socket.h>

#include "redis_row.h"
#include "redis_send.h"
#include "redis_tls_stream.h"

enum {
	HEADER_BYTES = sizeof(struct image_header),
	FRONT_BYTES = sizeof(struct redis_front),
	CRLF_BYTES = 2,
	TURN_BYTES = 512 << 10, /* read in one turn; then other connections have theirs */
	WAKE_BYTES = 512 << 10, /* of a body: the thread sleeps until so many are there */
};

int redis_recv_open(struct redis_recv *in)
{
	in->sha1 = EVP_MD_CTX_new();
	in->reader = redisReaderCreate();
	in->mac = redis_mac_open();
	return in->sha1 && in->reader && in->mac ? 0 : -ENOMEM;
}

static void forget_reader(struct redis_recv *in)
{
	if (in->reader)
		redisReaderFree(in->reader);
	in->reader = NULL;
	in->small_bytes = 0;
}

void redis_recv_close(struct redis_recv *in)
{
	EVP_MD_CTX_free(in->sha1);
	in->sha1 = NULL;
	redis_mac_close(in->mac);
	in->mac = NULL;
	forget_reader(in);
}

static uint32_t available(const struct redis_recv *in)
{
	return in->end - in->at;
}

/* The entry whose reply comes next; NULL: nobody waits for a reply. */
static struct redis_row_entry *first_entry(struct redis_conn *c)
{
	return c->first == c->unsent ? NULL : redis_row_at(c, c->first);
}

/* --- SKIP --- */

/* From here on bytes are thrown away up to the reply's end. Then the command, if it is still there,
 * ends with this status. */
static void skip_with(struct redis_recv *in, int status)
{
	in->state = RECV_SKIP;
	in->status = status;
	in->push = false;
	in->hashing = false;
	in->hash_left = 0;
}

static void hash(struct redis_recv *in, const void *bytes, size_t n)
{
	if (in->hashing && n > 0)
		in->hashing = EVP_DigestUpdate(in->sha1, bytes, n) == 1;
}

/* The rest of a bulk, of which `taken` bytes are in `header`. */
static void skip_value(struct redis_conn *c, int status, const void *header, uint32_t taken)
{
	struct redis_recv *in = &c->in;

	skip_with(in, status);
	resp_skip_begin(&in->skip);
	resp_skip_body(&in->skip, in->length - taken + CRLF_BYTES);
	if (status == -EBADMSG && in->length <= c->conf.max_value_bytes) {
		in->hashing = EVP_DigestInit_ex(in->sha1, EVP_sha1(), NULL) == 1;
		in->hash_left = in->length - taken;
		hash(in, header, taken);
	}
}

static int step_skip(struct redis_conn *c)
{
	struct redis_recv *in = &c->in;
	size_t used = 0, hashed;
	struct redis_row_entry *p;
	const int r = resp_skip(&in->skip, in->bytes + in->at, available(in), &used);

	if (r < 0)
		return r;
	hashed = used < in->hash_left ? used : (size_t)in->hash_left;
	hash(in, in->bytes + in->at, hashed);
	in->hash_left -= hashed;
	in->at += (uint32_t)used;
	in->push_bytes += in->push ? used : 0;
	if (in->push_bytes > REDIS_SMALL_BYTES)
		return -EPROTO;
	if (r == 0)
		return 0;
	in->state = RECV_LINE;
	if (in->push)
		return 1;
	p = first_entry(c);
	if (p->command && p->command->value && in->hashing)
		p->command->value->hashed =
			EVP_DigestFinal_ex(in->sha1, p->command->value->sha1, NULL) == 1;
	redis_row_answered(c, in->status, NULL);
	return 1;
}

/* The command ended before its reply was whole: neither the command nor its buffers are touched any
 * more. */
static void abandon(struct redis_conn *c)
{
	struct redis_recv *in = &c->in;

	in->hashing = false;
	switch (in->state) {
	case RECV_SMALL: /* `skip` knows how far the reply is */
		forget_reader(in);
		skip_with(in, 0);
		break;
	case RECV_HEADER:
		skip_value(c, 0, NULL, 0);
		break;
	case RECV_BODY:
		skip_value(c, 0, NULL, FRONT_BYTES + (uint32_t)in->body);
		break;
	case RECV_LINE:
	case RECV_SKIP:
		break;
	}
}

/* --- SMALL --- */

static void small_answered(struct redis_conn *c)
{
	struct redis_command *command = first_entry(c)->command;
	struct redis_recv *in = &c->in;
	redisReply *reply = NULL;
	void *tree = NULL;
	int status = 0;

	/* hiredis may refuse a reply that is framed well: one of a later protocol's kind, or one
	 * with too many levels. */
	if (redisReaderGetReply(in->reader, &tree) == REDIS_OK)
		reply = tree;
	in->state = RECV_LINE;
	in->small_bytes = 0;
	if (!reply) {
		forget_reader(in);
		redis_words_clean(command->error, sizeof(command->error), "unexpected reply", 16);
		redis_row_answered(c, -EREMOTEIO, NULL);
		return;
	}
	if (reply->type == REDIS_REPLY_ERROR) {
		redis_words_clean(command->error, sizeof(command->error), reply->str,
				  (size_t)reply->len);
		status = -EREMOTEIO;
	}
	redis_row_answered(c, status, reply);
	freeReplyObject(reply);
}

static int step_small(struct redis_conn *c)
{
	struct redis_recv *in = &c->in;
	size_t used = 0;
	const int r = resp_skip(&in->skip, in->bytes + in->at, available(in), &used);

	if (r < 0 || in->small_bytes + used > REDIS_SMALL_BYTES)
		return -EPROTO;
	if (used > 0 && redisReaderFeed(in->reader, (char *)in->bytes + in->at, used) != REDIS_OK)
		return -ENOMEM;
	in->small_bytes += used;
	in->at += (uint32_t)used;
	if (r == 1)
		small_answered(c);
	return r;
}

static int begin_small(struct redis_recv *in)
{
	if (!in->reader)
		in->reader = redisReaderCreate();
	if (!in->reader)
		return -ENOMEM;
	in->state = RECV_SMALL;
	resp_skip_begin(&in->skip);
	return 1;
}

/* --- values --- */

static int step_header(struct redis_conn *c)
{
	struct redis_value *value = first_entry(c)->command->value;
	struct redis_recv *in = &c->in;
	struct redis_front front;
	int r;

	if (available(in) < FRONT_BYTES)
		return 0;
	memcpy(&front, in->bytes + in->at, FRONT_BYTES);
	in->at += FRONT_BYTES;
	r = redis_front_check(&front, value->identity, value->geometry, &in->shape);
	if (r == 0 && in->shape.packed_bytes + REDIS_SEAL_BYTES != in->length)
		r = -EBADMSG;
	if (r == 0) {
		value->bytes = in->shape.image_bytes;
		r = value->room < value->bytes ? -EFBIG : 0;
	}
	if (r) {
		skip_value(c, r, &front, FRONT_BYTES);
		return 1;
	}
	memcpy(value->buffer, &front.header, HEADER_BYTES);
	in->body = in->maced = 0;
	in->state = RECV_BODY;
	return redis_mac_begin(in->mac, value->seal, &front.envelope, &front.header) ? 1 : -ENOMEM;
}

/* Where the rest of the body goes: the scales lie behind the header, the payload on a page of its
 * own. */
static int body_pieces(const struct redis_recv *in, const struct redis_value *value,
		       struct iovec iov[2])
{
	const uint64_t scales = in->shape.scale_bytes;
	const uint64_t payload = in->body > scales ? in->body - scales : 0;
	int n = 0;

	if (in->body < scales)
		iov[n++] = (struct iovec){ value->buffer + HEADER_BYTES + in->body,
					   scales - in->body };
	if (payload < in->shape.payload_bytes)
		iov[n++] = (struct iovec){ value->buffer + in->shape.payload_offset + payload,
					   in->shape.payload_bytes - payload };
	return n;
}

static uint64_t body_left(const struct redis_recv *in)
{
	return in->length - REDIS_SEAL_BYTES - HEADER_BYTES - in->body;
}

/* New bytes of the body go through the MAC while they are in the cache. */
static bool mac_body(struct redis_recv *in, const struct redis_value *value)
{
	const uint64_t scales = in->shape.scale_bytes;
	bool good = true;

	if (in->maced < scales && in->maced < in->body) {
		const uint64_t end = in->body < scales ? in->body : scales;

		good = redis_mac_add(in->mac, value->buffer + HEADER_BYTES + in->maced,
				     end - in->maced);
		in->maced = end;
	}
	if (in->maced < in->body) {
		good = good && redis_mac_add(in->mac,
					     value->buffer + in->shape.payload_offset +
						     (in->maced - scales),
					     in->body - in->maced);
		in->maced = in->body;
	}
	return good;
}

/* All of the value is there, and this is its MAC. If the MAC is wrong, the checksum tells whether
 * the value was damaged by chance or made by somebody without the secret. */
static int judge(struct redis_recv *in, struct redis_value *value,
		 const uint8_t mac[REDIS_MAC_BYTES], int *ret_status)
{
	const struct image_header *header = (const void *)value->buffer;
	uint8_t right[REDIS_MAC_BYTES];

	*ret_status = 0;
	if (!redis_mac_end(in->mac, right))
		return -ENOMEM;
	if (redis_mac_equal(right, mac))
		return 0;
	if (image_checksum(value->buffer, &in->shape) == header->checksum)
		*ret_status = -EKEYREJECTED;
	else
		*ret_status = -EBADMSG;
	redis_image_sha1(value->buffer, &in->shape, value->sha1);
	value->hashed = value->packed = true;
	return 0;
}

/* The gap before the payload, and the rest of its last page. */
static void zero_padding(const struct image_shape *shape, uint8_t *buffer)
{
	const uint32_t scales_end = HEADER_BYTES + shape->scale_bytes;

	memset(buffer + scales_end, 0, shape->payload_offset - scales_end);
	memset(buffer + shape->image_bytes, 0, -shape->image_bytes % IMAGE_ALIGN);
}

static int step_body(struct redis_conn *c)
{
	struct redis_value *value = first_entry(c)->command->value;
	struct redis_recv *in = &c->in;
	struct iovec iov[2];
	const int n = body_pieces(in, value, iov);
	int status;

	for (int i = 0; i < n && available(in) > 0; i++) {
		const uint32_t take =
			iov[i].iov_len < available(in) ? (uint32_t)iov[i].iov_len : available(in);

		memcpy(iov[i].iov_base, in->bytes + in->at, take);
		in->at += take;
		in->body += take;
	}
	if (!mac_body(in, value))
		return -ENOMEM;
	if (body_left(in) > 0 || available(in) < REDIS_MAC_BYTES + CRLF_BYTES)
		return 0;
	if (memcmp(in->bytes + in->at + REDIS_MAC_BYTES, "\r\n", CRLF_BYTES) != 0)
		return -EPROTO;
	if (judge(in, value, in->bytes + in->at, &status))
		return -ENOMEM;
	in->at += REDIS_MAC_BYTES + CRLF_BYTES;
	zero_padding(&in->shape, value->buffer);
	c->counters.received_bytes += in->shape.packed_bytes;
	in->state = RECV_LINE;
	redis_row_answered(c, status, NULL);
	return 1;
}

static void value_error(struct redis_conn *c, const struct resp_line *line)
{
	struct redis_command *command = first_entry(c)->command;
	int status;

	redis_words_clean(command->error, sizeof(command->error), line->text, line->text_bytes);
	status = strncmp(command->error, "WRONGTYPE", 9) == 0 ? -EBADMSG : -EREMOTEIO;
	c->in.at += line->bytes;
	redis_row_answered(c, status, NULL);
}

static int begin_value(struct redis_conn *c)
{
	struct redis_value *value = first_entry(c)->command->value;
	struct redis_recv *in = &c->in;
	struct resp_line line;
	int r;

	/* it belongs to the reply behind it, which resp_line() does not see */
	if (in->bytes[in->at] == RESP_ATTRIBUTE) {
		skip_with(in, -EBADMSG);
		resp_skip_begin(&in->skip);
		return 1;
	}
	r = resp_line(in->bytes + in->at, available(in), &line);
	if (r <= 0)
		return r;
	switch (line.kind) {
	case RESP_BULK:
		in->at += line.bytes;
		value->length = in->length = line.count;
		in->state = RECV_HEADER;
		if (line.count < FRONT_BYTES || line.count > c->conf.max_value_bytes)
			skip_value(c, -EBADMSG, NULL, 0);
		break;
	case RESP_NIL:
		in->at += line.bytes;
		redis_row_answered(c, -ENOENT, NULL);
		break;
	case RESP_ERROR:
		value_error(c, &line);
		break;
	default:
		skip_with(in, -EBADMSG);
		resp_skip_begin(&in->skip);
		break;
	}
	return 1;
}

/* --- LINE --- */

/* A reply that nobody asked for. An endpoint that refuses us sends an error this way, and
 * closes. */
static int unasked(struct redis_conn *c)
{
	struct redis_recv *in = &c->in;
	struct resp_line line;
	char words[REDIS_TEXT_BYTES];
	const int r = resp_line(in->bytes + in->at, available(in), &line);

	if (r <= 0)
		return r;
	if (line.kind != RESP_ERROR)
		return -EPROTO;
	redis_words_clean(words, sizeof(words), line.text, line.text_bytes);
	redis_row_down(c, -ECONNREFUSED, words);
	return 0;
}

static int step_line(struct redis_conn *c)
{
	const struct redis_row_entry *p = first_entry(c);
	struct redis_recv *in = &c->in;
	bool push;

	if (available(in) == 0)
		return 0;
	push = in->bytes[in->at] == RESP_PUSH;
	if (!push)
		in->push_bytes = 0;
	if (push || (p && !p->command)) {
		skip_with(in, 0);
		in->push = push;
		resp_skip_begin(&in->skip);
		return 1;
	}
	if (!p)
		return unasked(c);
	return p->command->value ? begin_value(c) : begin_small(in);
}

static int step(struct redis_conn *c)
{
	switch (c->in.state) {
	case RECV_SMALL:
		return step_small(c);
	case RECV_HEADER:
		return step_header(c);
	case RECV_BODY:
		return step_body(c);
	case RECV_SKIP:
		return step_skip(c);
	case RECV_LINE:
	default:
		return step_line(c);
	}
}

/* A TLS port of Redis closes without a word when it gets bytes that are no TLS. */
static const char *why_closed(const struct redis_conn *c)
{
	const bool mute = !c->tls && c->first == 0; /* no command was ever answered */

	return mute ? "closed by the endpoint before it answered anything; does it want [redis] "
		      "tls?" :
		      "closed by the endpoint";
}

/* --- reading --- */

/* Reads once. 1: there may be more. 0: no more now. -errno, -ECONNRESET: the connection has
 * ended. */
static int read_once(struct redis_conn *c, size_t *budget)
{
	struct redis_recv *in = &c->in;
	struct iovec iov[3];
	struct msghdr message = { .msg_iov = iov };
	size_t asked = 0, into_body = 0;
	uint64_t body;
	ssize_t n;

	/* The bytes that are left are part of a line, a header or a CR LF: they are few. */
	memmove(in->bytes, in->bytes + in->at, available(in));
	in->end -= in->at;
	in->at = 0;
	if (in->state == RECV_BODY)
		message.msg_iovlen = (size_t)body_pieces(in, first_entry(c)->command->value, iov);
	for (size_t i = 0; i < message.msg_iovlen; i++) {
		if (iov[i].iov_len > *budget - into_body)
			iov[i].iov_len = *budget - into_body;
		into_body += iov[i].iov_len;
	}
	asked = into_body;
	if (in->state != RECV_BODY || into_body == body_left(in)) {
		iov[message.msg_iovlen++] =
			(struct iovec){ in->bytes + in->end, sizeof(in->bytes) - in->end };
		asked += sizeof(in->bytes) - in->end;
	}
	n = c->tls ? redis_tls_stream_recv(c->tls, iov, message.msg_iovlen) :
		     recvmsg(c->watch.fd, &message, MSG_DONTWAIT);
	if (n < 0)
		return errno == EINTR ? 1 : errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
	if (n == 0)
		return -ECONNRESET;
	body = (size_t)n < into_body ? (size_t)n : into_body;
	in->body += body;
	in->end += (uint32_t)((size_t)n - body);
	*budget -= (size_t)n < *budget ? (size_t)n : *budget;
	return (size_t)n == asked;
}

/* Redis writes a value in many pieces. To wake up for each costs both sides more than the copying
 * does. So the thread sleeps until WAKE_BYTES are there; the value's length says that they will
 * come. Epoll heeds SO_RCVLOWAT for TCP only, and OpenSSL may have read some of the bytes
 * already. */
static void wake_when(struct redis_conn *c)
{
	const uint64_t left = c->in.state == RECV_BODY ? body_left(&c->in) : 1;
	/* 0: only the CR LF is to come */
	const int bytes = left == 0 ? 1 : left < WAKE_BYTES ? (int)left : WAKE_BYTES;

	if (!c->sleeps_long || bytes == c->wake_bytes)
		return;
	if (setsockopt(c->watch.fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof(bytes)) == 0)
		c->wake_bytes = bytes;
	else
		c->sleeps_long = false;
}

void redis_recv_turn(struct redis_conn *c)
{
	const struct redis_row_entry *p = first_entry(c);
	size_t budget = TURN_BYTES;
	int r = 1;

	if (p && !p->command)
		abandon(c);
	while (budget > 0 && r == 1) {
		int taken;

		r = read_once(c, &budget);
		if (r == -ECONNRESET)
			redis_row_down(c, r, why_closed(c));
		else if (r < 0)
			redis_row_failed(c, r);
		if (r < 0)
			return;
		do
			taken = step(c);
		while (taken == 1 && c->state != REDIS_CONN_DOWN);
		if (taken < 0)
			redis_row_down(c, taken,
				       taken == -EPROTO ? "not the Redis protocol" :
							  strerror(-taken));
		if (c->state == REDIS_CONN_DOWN)
			return;
	}
	wake_when(c);
	if (c->tls)
		redis_send_after_read(c);
}
