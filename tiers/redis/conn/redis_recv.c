/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_recv.c - the receiving side of a connection. Contract: redis_recv.h.
 *
 * hiredis parses every reply but a value. A value is a bulk "$n" that answers a command with a
 * redis_value, or a command that has ended: its length is read here, and its body is moved
 * straight into the image, or is thrown away.
 *
 *	   ┌─────────────────── the reply has ended ────────────────────┐
 *	   v                                                            │
 *	 LINE ──a value, its length good──> HEADER ──good, room──> BODY─┤ done(0), or see below
 *	   │                                   └──no──┐                 │
 *	   ├──a value, a bad length, or its command ended──> SKIP ──────┤ done(-EBADMSG, -EFBIG...)
 *	   └──any other reply──> SMALL ──hiredis has it whole───────────┘ done()
 *
 * If the BODY is whole, but its MAC is wrong: done(-EKEYREJECTED). If its checksum is wrong as
 * well: done(-EBADMSG). When the command of a value has ended (deadline, cancel), HEADER and BODY
 * become SKIP.
 *
 * The body of a value is read straight into the image; a coded one is staged, and each chunk is
 * unpacked into the image when it is whole, long before the MAC is known: no chunk writes anywhere
 * else. A coded body that is no form of its image becomes SKIP, then done(-EBADMSG). All other
 * bytes are read into `bytes`, also bytes that follow a body in the same call. An endpoint decides
 * no size here: a reply for hiredis has at most REDIS_SMALL_BYTES, an array in it SMALL_ELEMENTS,
 * arrays in arrays SMALL_DEPTH levels; values are bounded by the caller's room.
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

#include "base/vault.h"
#include "redis_row.h"
#include "redis_tls.h"

enum {
	HEADER_BYTES = sizeof(struct image_header),
	FRONT_BYTES = sizeof(struct redis_front),
	CRLF_BYTES = 2,
	BULK_BYTES = 512 << 20, /* of a bulk: the limit of Redis itself */
	SMALL_ELEMENTS = 16384, /* of an array; a slot map has at most one for each slot */
	SMALL_DEPTH = 8,
	BYTES_PER_ITERATION = 512 << 10, /* read in one iteration; then others are served */
	WAKE_BYTES = 512 << 10,          /* of a body: the thread sleeps until so many are there */
};

#if HIREDIS_MAJOR == 0
typedef int array_size;
#else
typedef size_t array_size;
#endif

/* hiredis makes room for all elements as soon as they are announced, and frees arrays in arrays by
 * recursion. */
static void *create_array(const redisReadTask *task, array_size elements)
{
	const redisReplyObjectFunctions *plain = task->privdata;
	uint32_t depth = 1;

	for (const redisReadTask *up = task->parent; up; up = up->parent)
		depth++;
	if (depth > SMALL_DEPTH || (size_t)elements > SMALL_ELEMENTS)
		return NULL;
	return plain->createArray(task, elements);
}

int redis_recv_open(struct redis_recv *in)
{
	in->sha1 = EVP_MD_CTX_new();
	in->reader = redisReaderCreate();
	for (uint32_t i = 0; i < REDIS_SEALS_EACH; i++)
		in->mac[i] = redis_mac_open();
	if (!in->sha1 || !in->reader || !in->mac[0] || !in->mac[REDIS_SEALS_EACH - 1])
		return -ENOMEM;
	in->functions = *in->reader->fn;
	in->functions.createArray = create_array;
	in->reader->privdata = in->reader->fn;
	in->reader->fn = &in->functions;
	return 0;
}

void redis_recv_close(struct redis_recv *in)
{
	EVP_MD_CTX_free(in->sha1);
	in->sha1 = NULL;
	for (uint32_t i = 0; i < REDIS_SEALS_EACH; i++) {
		EVP_MAC_CTX_free(in->mac[i]);
		in->mac[i] = NULL;
	}
	vault_free(in->stage, REDIS_RECV_STAGE_BYTES + FORM_SPARE);
	in->stage = NULL;
	if (in->reader)
		redisReaderFree(in->reader);
	in->reader = NULL;
}

static uint32_t available(const struct redis_recv *in)
{
	return in->end - in->at;
}

/* The entry whose reply comes next; NULL: all replies have come. */
static struct redis_row_entry *first_entry(struct redis_conn *c)
{
	return c->first == c->unsent ? NULL : redis_row_at(c, c->first);
}

/* --- SKIP --- */

static void hash(struct redis_recv *in, const void *bytes, size_t n)
{
	if (in->hashing && n > 0)
		in->hashing = EVP_DigestUpdate(in->sha1, bytes, n) == 1;
}

/* The rest of a value is thrown away; `taken` bytes of it are in `front`, or in the image. Then the
 * command, if it is still there, ends with this status. */
static void skip_value(struct redis_conn *c, int status, const void *front, uint32_t taken)
{
	struct redis_recv *in = &c->in;

	in->state = RECV_SKIP;
	in->status = status;
	in->left = in->length - taken;
	in->hashing = status == -EBADMSG && in->length <= c->conf.max_value_bytes &&
		      EVP_DigestInit_ex(in->sha1, EVP_sha1(), NULL) == 1;
	hash(in, front, taken);
}

static int step_skip(struct redis_conn *c)
{
	struct redis_recv *in = &c->in;
	const uint32_t used = in->left < available(in) ? (uint32_t)in->left : available(in);
	struct redis_row_entry *p = first_entry(c);

	hash(in, in->bytes + in->at, used);
	in->left -= used;
	in->at += used;
	if (in->left > 0 || available(in) < CRLF_BYTES)
		return 0;
	if (memcmp(in->bytes + in->at, "\r\n", CRLF_BYTES) != 0)
		return -EPROTO;
	in->at += CRLF_BYTES;
	in->state = RECV_LINE;
	if (in->hashing)
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
	if (in->state == RECV_HEADER)
		skip_value(c, 0, NULL, 0);
	else if (in->state == RECV_BODY)
		skip_value(c, 0, NULL, FRONT_BYTES + (uint32_t)in->body);
}

/* --- SMALL --- */

/* The meaning of a reply for its command. */
static int meaning(struct redis_command *command, const redisReply *reply)
{
	if (reply->type == REDIS_REPLY_ERROR) {
		redis_words_clean(command->error, sizeof(command->error), reply->str,
				  (size_t)reply->len);
		return command->value && strncmp(command->error, "WRONGTYPE", 9) == 0 ? -EBADMSG :
											-EREMOTEIO;
	}
	if (!command->value)
		return 0;
	return reply->type == REDIS_REPLY_NIL ? -ENOENT : -EBADMSG;
}

static void small_answered(struct redis_conn *c, const redisReply *reply)
{
	const struct redis_row_entry *p = first_entry(c);
	char words[REDIS_TEXT_BYTES];

	c->in.state = RECV_LINE;
	if (p) {
		redis_row_answered(c, p->command ? meaning(p->command, reply) : 0, reply);
		return;
	}
	/* An endpoint that refuses us sends an error that no command asked for, and closes. */
	redis_words_clean(words, sizeof(words), reply->str, (size_t)reply->len);
	redis_row_down(c, -ECONNREFUSED, words);
}

/* A reply ends with CR LF. So hiredis gets the bytes up to one CR LF at a time, and never a byte of
 * the next reply, which may be a value. */
static int step_small(struct redis_conn *c)
{
	struct redis_recv *in = &c->in;
	const uint8_t *from = in->bytes + in->at;
	const uint8_t *end = memmem(from, available(in), "\r\n", CRLF_BYTES);
	uint32_t n = end ? (uint32_t)(end - from) + CRLF_BYTES : available(in);
	void *reply = NULL;
	bool whole;

	if (!end && n > 0 && from[n - 1] == '\r')
		n--; /* its LF may be to come */
	if (n == 0)
		return 0;
	in->small_bytes += n;
	in->at += n;
	if (in->small_bytes > REDIS_SMALL_BYTES)
		return -EPROTO;
	if (redisReaderFeed(in->reader, (const char *)from, n) != REDIS_OK)
		return -ENOMEM;
	if (end && redisReaderGetReply(in->reader, &reply) != REDIS_OK)
		return -EPROTO;
	if (!reply)
		return 1;
	/* hiredis does not look at the CR LF behind a bulk: something else may be there */
	whole = in->reader->pos == in->reader->len;
	if (whole)
		small_answered(c, reply);
	freeReplyObject(reply);
	return whole ? 1 : -EPROTO;
}

/* --- values --- */

/* Whether a value with this front may have this length. */
static bool length_fits(const struct redis_recv *in, bool coded)
{
	const uint64_t plain = in->shape.packed_bytes + REDIS_SEAL_BYTES;

	return coded ? in->length > FRONT_BYTES + REDIS_MAC_BYTES && in->length < plain :
		       in->length == plain;
}

/* false: no memory */
static bool begin_coded(struct redis_recv *in, const struct redis_value *value)
{
	if (!in->stage) {
		in->stage = vault_buffer(REDIS_RECV_STAGE_BYTES + FORM_SPARE);
		in->kernels = codec_kernels(NULL);
	}
	in->staged = 0;
	form_unpack_start(&in->unpack, in->kernels, &in->shape, value->buffer);
	return in->stage;
}

/* Both MACs of a value that may have two seals are made at once: which one is right shows at the
 * end, and the bytes of a coded value are gone then. false: no memory. */
static bool mac_begin(struct redis_recv *in, const struct redis_seals *seals,
		      const struct redis_seal *own)
{
	const struct redis_seal *of[REDIS_SEALS_EACH];
	bool good = true;

	in->macs = redis_seals_of(seals, own, of);
	for (uint32_t i = 0; i < in->macs && good; i++)
		good = redis_mac_begin(in->mac[i], of[i], &in->front.envelope, &in->front.header);
	return good;
}

static bool mac_add(struct redis_recv *in, const uint8_t *bytes, size_t n)
{
	bool good = true;

	for (uint32_t i = 0; i < in->macs && good; i++)
		good = redis_mac_add(in->mac[i], bytes, n);
	return good;
}

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
	in->coded = front.envelope.form == REDIS_VALUE_CODED;
	if (r == 0 && !length_fits(in, in->coded))
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
	in->front = front;
	if (in->coded && !begin_coded(in, value))
		return -ENOMEM;
	return mac_begin(in, c->conf.seals, value->seal) ? 1 : -ENOMEM;
}

static uint64_t body_left(const struct redis_recv *in)
{
	return in->length - REDIS_SEAL_BYTES - HEADER_BYTES - in->body;
}

/* The place of the rest of the body: the scales lie behind the header, the payload on a page of its
 * own. There may be room for a part of a coded one. */
static int body_pieces(const struct redis_recv *in, const struct redis_value *value,
		       struct iovec iov[2])
{
	const uint64_t scales = in->shape.scale_bytes;
	const uint64_t payload = in->body > scales ? in->body - scales : 0;
	int n = 0;

	if (in->coded) {
		const uint64_t room = REDIS_RECV_STAGE_BYTES - in->staged, left = body_left(in);

		iov[0] = (struct iovec){ in->stage + in->staged, left < room ? left : room };
		return iov[0].iov_len > 0;
	}
	if (in->body < scales)
		iov[n++] = (struct iovec){ value->buffer + HEADER_BYTES + in->body,
					   scales - in->body };
	if (payload < in->shape.payload_bytes)
		iov[n++] = (struct iovec){ value->buffer + in->shape.payload_offset + payload,
					   in->shape.payload_bytes - payload };
	return n;
}

/* Bytes of the body are where body_pieces() said. */
static void body_came(struct redis_recv *in, uint64_t n)
{
	in->body += n;
	if (in->coded)
		in->staged += (uint32_t)n;
}

/* New bytes of the body go through the MAC while they are in the cache. */
static bool mac_body(struct redis_recv *in, const struct redis_value *value)
{
	const uint64_t scales = in->shape.scale_bytes;
	bool good = true;

	if (in->maced < scales && in->maced < in->body) {
		const uint64_t end = in->body < scales ? in->body : scales;

		good = mac_add(in, value->buffer + HEADER_BYTES + in->maced, end - in->maced);
		in->maced = end;
	}
	if (in->maced < in->body) {
		good = good &&
		       mac_add(in, value->buffer + in->shape.payload_offset + (in->maced - scales),
			       in->body - in->maced);
		in->maced = in->body;
	}
	return good;
}

/* New bytes of a coded body go through the MAC, and whole chunks become bytes of the image. 0,
 * -ENOMEM, or -EBADMSG: they are none of it. */
static int take_coded(struct redis_recv *in)
{
	const size_t n = in->body - in->maced;
	size_t used;

	if (!mac_add(in, in->stage + in->staged - n, n))
		return -ENOMEM;
	in->maced = in->body;
	if (form_unpack_some(&in->unpack, in->stage, in->staged, &used))
		return -EBADMSG;
	in->staged -= (uint32_t)used;
	memmove(in->stage, in->stage + used, in->staged);
	return 0;
}

static void hash_value(const struct redis_recv *in, struct redis_value *value)
{
	value->hashed = true;
	value->part = in->coded ? REDIS_PART_FRONT : REDIS_PART_IMAGE;
	if (in->coded)
		redis_front_sha1(&in->front, value->sha1);
	else
		redis_image_sha1(value->buffer, &in->shape, value->sha1);
}

/* All of the value is there, and this is its MAC. If the MAC is wrong, the checksum tells whether
 * the value was damaged by chance or made by somebody without the secret. The checksum of a coded
 * image is looked at here in any case: nobody else could tell which value to delete. */
static int judge(struct redis_recv *in, struct redis_value *value,
		 const uint8_t mac[REDIS_MAC_BYTES], int *ret_status)
{
	const struct image_header *header = (const void *)value->buffer;
	const bool whole = !in->coded || (form_unpack_whole(&in->unpack) && in->staged == 0);
	uint8_t right[REDIS_MAC_BYTES];
	bool equal = false;

	*ret_status = 0;
	for (uint32_t i = 0; i < in->macs && !equal; i++) {
		if (!redis_mac_end(in->mac[i], right))
			return -ENOMEM;
		equal = redis_mac_equal(right, mac);
		value->outdated = i > 0;
	}
	if (equal && !in->coded)
		return 0;
	if (!whole || image_checksum(value->buffer, &in->shape) != header->checksum)
		*ret_status = -EBADMSG;
	else if (!equal)
		*ret_status = -EKEYREJECTED;
	if (*ret_status)
		hash_value(in, value);
	return 0;
}

/* The gap before the payload, and what the buffer has behind it, with the rest of the last page. */
static void zero_padding(const struct image_shape *shape, const struct redis_value *value)
{
	const uint32_t scales_end = HEADER_BYTES + shape->scale_bytes;
	const uint32_t behind = value->room - shape->image_bytes;
	uint8_t *buffer = value->buffer;

	memset(buffer + scales_end, 0, shape->payload_offset - scales_end);
	memset(buffer + shape->image_bytes, 0, behind + -value->room % IMAGE_ALIGN);
}

/* What is there goes to its place, and through the MAC. Returns what take_coded() does. */
static int take_body(struct redis_recv *in, const struct redis_value *value)
{
	struct iovec iov[2];
	/* first: what was read straight into the stage */
	const int r = in->coded ? take_coded(in) : 0;
	const int n = r ? 0 : body_pieces(in, value, iov);

	for (int i = 0; i < n && available(in) > 0; i++) {
		const uint32_t take =
			iov[i].iov_len < available(in) ? (uint32_t)iov[i].iov_len : available(in);

		memcpy(iov[i].iov_base, in->bytes + in->at, take);
		in->at += take;
		body_came(in, take);
	}
	if (in->coded)
		return r ? r : take_coded(in);
	return mac_body(in, value) ? 0 : -ENOMEM;
}

static int step_body(struct redis_conn *c)
{
	struct redis_value *value = first_entry(c)->command->value;
	struct redis_recv *in = &c->in;
	int status = take_body(in, value);

	if (status == -EBADMSG) {
		hash_value(in, value);
		skip_value(c, 0, NULL, FRONT_BYTES + (uint32_t)in->body);
		in->status = -EBADMSG;
		return 1;
	}
	if (status)
		return status;
	if (body_left(in) > 0 || available(in) < REDIS_MAC_BYTES + CRLF_BYTES)
		return 0;
	if (memcmp(in->bytes + in->at + REDIS_MAC_BYTES, "\r\n", CRLF_BYTES) != 0)
		return -EPROTO;
	if (judge(in, value, in->bytes + in->at, &status))
		return -ENOMEM;
	in->at += REDIS_MAC_BYTES + CRLF_BYTES;
	zero_padding(&in->shape, value);
	c->conf.counters->received_bytes += in->length - REDIS_SEAL_BYTES;
	in->state = RECV_LINE;
	redis_row_answered(c, status, NULL);
	return 1;
}

/* --- LINE --- */

/* "$n": how many bytes the line has, and *ret_length. 0: more of it must come. */
static int value_line(const struct redis_recv *in, uint64_t *ret_length)
{
	const uint8_t *p = in->bytes + in->at;
	uint32_t n = 1, rest;
	uint64_t length = 0;

	for (; n < available(in) && p[n] >= '0' && p[n] <= '9'; n++) {
		length = 10 * length + (uint64_t)(p[n] - '0');
		if (length > BULK_BYTES || (n > 1 && p[1] == '0'))
			return -EPROTO;
	}
	rest = available(in) - n < CRLF_BYTES ? available(in) - n : CRLF_BYTES;
	if (n == 1 || memcmp(p + n, "\r\n", rest) != 0)
		return -EPROTO;
	*ret_length = length;
	return rest == CRLF_BYTES ? (int)(n + CRLF_BYTES) : 0;
}

static int begin_value(struct redis_conn *c)
{
	const struct redis_command *command = first_entry(c)->command;
	struct redis_recv *in = &c->in;
	const int line = value_line(in, &in->length);

	if (line <= 0)
		return line;
	in->at += (uint32_t)line;
	in->state = RECV_HEADER;
	if (command)
		command->value->length = in->length;
	if (!command)
		skip_value(c, 0, NULL, 0);
	else if (in->length < FRONT_BYTES || in->length > c->conf.max_value_bytes)
		skip_value(c, -EBADMSG, NULL, 0);
	return 1;
}

/* The first bytes of a reply. */
static int step_line(struct redis_conn *c)
{
	static const char kinds[] = { '+', '-', ':', '$', '*' }; /* of RESP2 */
	const struct redis_row_entry *p = first_entry(c);
	struct redis_recv *in = &c->in;
	const uint8_t *bytes = in->bytes + in->at;

	if (available(in) == 0)
		return 0;
	/* an error may come unasked, and no other reply */
	if (!memchr(kinds, bytes[0], sizeof(kinds)) || (!p && bytes[0] != '-'))
		return -EPROTO;
	if (bytes[0] == '$' && (!p->command || p->command->value)) {
		if (available(in) == 1)
			return 0;
		if (bytes[1] != '-') /* nil */
			return begin_value(c);
	}
	in->state = RECV_SMALL;
	in->small_bytes = 0;
	return 1;
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
	c->conf.counters->heard_bytes += (uint64_t)n;
	body = (size_t)n < into_body ? (size_t)n : into_body;
	if (body > 0)
		body_came(in, body);
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

void redis_recv_poll(struct redis_conn *c)
{
	const struct redis_row_entry *p = first_entry(c);
	size_t budget = BYTES_PER_ITERATION;
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
		redis_row_after_read(c);
}
