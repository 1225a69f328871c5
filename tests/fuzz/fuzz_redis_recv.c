/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_redis_recv.c - goal: redis_conn.h holds for all bytes that a server may send, however late.
 * Each command ends exactly once, with a status that it may end with. A GET's bytes are its own
 * value's, and are written inside its room, while the room is lent, and after the header was found
 * good. Memory is bounded. The connection is down when the server has gone, and not before if the
 * server sent replies alone. Method: the input is a program for both ends: submit, cancel, let
 * expire; answer well, badly, in pieces, not at all, or with bytes of the input itself. Both ends
 * are in this thread. done() submits and cancels, too. Seed printed ($SEED sets it, $FUZZ_RUNS how
 * many, 3,000). With -DKVTIER_LIBFUZZER the same under libFuzzer. Worth most with
 * SAN=address,undefined.
 */
#include <assert.h>
#include <errno.h>
#include <hiredis/hiredis.h>
#include <malloc.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/loop.h"
#include "kernels/form.h"
#include "tests/lib/random.h"
#include "tiers/redis/conn/redis_conn.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
	FUZZ_BLOCKS = 5,
	CODED = 1,  /* the number of the block that is */
	LESSER = 3, /* of the one that was requantised */
	COMMANDS = 400,
	GUARD = 4096,
	MAX_SENT = 4 << 20,
	MAX_VALUE = 64 << 10,
	MAX_ASKED = 16 << 10,
	LIVE = 0xa5,
	ENDED = 0x5a,       /* buffers are filled with it */
	ITERATIONS = 10000, /* more than it takes to read all that was sent */
	/* of a connection: a small reply, and room that grew by doubling */
	MEMORY = 8 << 20,
};

/* --- what outlives one input: a loop, a listening socket, four blocks --- */

struct block {
	struct image_geometry geometry;
	struct image_identity identity;
	struct image_shape shape;
	uint8_t *packed; /* its image */
	uint8_t *value;  /* as Redis has it */
	uint32_t bytes;  /* of it */
};

static struct {
	struct loop *loop;
	struct loop_timer tick;
	int listener;
	char address[64]; /* unix:path */
	struct block blocks[FUZZ_BLOCKS];
} world;

static const struct redis_seal fuzz_seal_of = { .key = "a key of tests, of them alone",
						.tag = "feedfacefeedface" };

static size_t memory_in_use(void)
{
	const struct mallinfo2 m = mallinfo2(); /* zeros under a sanitizer */

	return m.uordblks + m.hblkhd;
}

static bool filled_with(const uint8_t *bytes, size_t n, uint8_t with)
{
	return n == 0 || (bytes[0] == with && memcmp(bytes, bytes + 1, n - 1) == 0);
}

/* The buffer has an image of this block, and zeros in its padding. ret: the packed image, to be
 * freed. */
static uint8_t *image_value(const uint8_t *buffer, const struct block *b)
{
	const size_t head = sizeof(struct image_header) + b->shape.scale_bytes;
	uint8_t *packed = malloc(b->shape.packed_bytes);
	struct image_shape found;

	assert(packed);
	assert(image_header_check((const void *)buffer, &b->geometry, &b->identity, &found) == 0);
	memcpy(packed, buffer, head);
	memcpy(packed + head, buffer + b->shape.payload_offset, b->shape.payload_bytes);
	assert(filled_with(buffer + head, b->shape.payload_offset - head, 0));
	assert(filled_with(buffer + b->shape.image_bytes, -b->shape.image_bytes % IMAGE_ALIGN, 0));
	return packed;
}

static void fuzz_seal(uint16_t form, const uint8_t *packed, size_t n, uint8_t *ret)
{
	const struct redis_envelope envelope = { .magic = REDIS_VALUE_MAGIC,
						 .form = form,
						 .nonce = "constant: again" };
	EVP_MAC_CTX *mac = redis_mac_open();
	bool good;

	assert(mac);
	memcpy(ret, &envelope, sizeof(envelope));
	memcpy(ret + sizeof(envelope), packed, n);
	good = redis_mac_begin(mac, &fuzz_seal_of, &envelope, (const void *)packed) &&
	       redis_mac_add(mac, packed + sizeof(struct image_header),
			     n - sizeof(struct image_header)) &&
	       redis_mac_end(mac, ret + sizeof(envelope) + n);
	assert(good);
	EVP_MAC_CTX_free(mac);
}

/* Header and coded form of the packed image into ret. Returns its bytes. */
static uint32_t code_block(const struct block *b, uint8_t *ret)
{
	const uint32_t front = sizeof(struct image_header) + b->shape.scale_bytes;
	uint8_t *image = calloc(1, b->shape.image_bytes);
	struct form_pack p;

	assert(image);
	memcpy(image, b->packed, front);
	memcpy(image + b->shape.payload_offset, b->packed + front, b->shape.payload_bytes);
	image_seal((struct image_header *)(void *)image, image_checksum(image, &b->shape));
	memcpy(b->packed, image, sizeof(struct image_header));
	memcpy(ret, image, sizeof(struct image_header));
	form_pack_start(&p, codec_kernels("ref"), &b->geometry, &b->shape, image,
			ret + sizeof(struct image_header));
	if (form_pack_step(&p, IMAGE_MAX_BYTES))
		abort();
	free(image);
	return (uint32_t)sizeof(struct image_header) + p.n;
}

/* Of a few hundred bytes, and more than one read takes; the last as raw as values come, the second
 * coded, the fourth in four bits. */
static void make_block(struct block *b, uint64_t number)
{
	static const uint32_t opaque[FUZZ_BLOCKS] = { 10, 5000, 40000, 20, 300 };
	const enum image_codec codec = number == FUZZ_BLOCKS - 1 ? CODEC_RAW : CODEC_FP8,
			       codec_k = number == LESSER ? CODEC_K4 : codec,
			       codec_v = number == LESSER ? CODEC_V4 : codec;
	struct random random = { .state = number };
	struct image_header header;

	b->geometry = (struct image_geometry){ .dtype = DTYPE_BF16,
					       .layers = 2,
					       .kv_heads = 2,
					       .head_dim_k = 32,
					       .head_dim_v = 32,
					       .block_tokens = 20,
					       .opaque_bytes = opaque[number] };
	random_key(number, b->identity.key);
	assert(image_shape(&b->geometry, codec_k, codec_v, &b->shape, NULL) == 0);
	b->bytes = b->shape.packed_bytes + REDIS_SEAL_BYTES;
	b->value = malloc(b->bytes + FORM_SPARE);
	b->packed = malloc(b->shape.packed_bytes);
	assert(b->value && b->packed);
	for (uint32_t i = sizeof(header); i < b->shape.packed_bytes; i++)
		b->packed[i] = (uint8_t)(random_next(&random) % (number == CODED ? 2 : 256));
	image_header_fill(&header, &b->geometry, codec_k, codec_v, &b->shape, &b->identity);
	image_seal(&header, random_next(&random)); /* of the body nobody asks here */
	memcpy(b->packed, &header, sizeof(header));
	if (number == CODED) {
		uint8_t *coded = malloc(b->bytes + FORM_SPARE);
		const uint32_t n = code_block(b, coded);

		fuzz_seal(REDIS_VALUE_CODED, coded, n, b->value);
		b->bytes = n + REDIS_SEAL_BYTES;
		free(coded);
		return;
	}
	fuzz_seal(number == LESSER ? REDIS_VALUE_LESSER : REDIS_VALUE_FORM, b->packed,
		  b->shape.packed_bytes, b->value);
}

static void world_tick(struct loop_timer *timer)
{
	(void)timer;
	loop_stop(world.loop);
}

static void unlink_socket(void)
{
	(void)unlink(world.address + 5);
}

static void world_begin(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	for (uint64_t i = 0; i < FUZZ_BLOCKS; i++)
		make_block(&world.blocks[i], i);
	world.tick.fire = world_tick;
	(void)snprintf(world.address, sizeof(world.address), "unix:/tmp/kvtier-fuzz-redis-recv-%d",
		       (int)getpid());
	(void)strcpy(a.sun_path, world.address + 5);
	(void)unlink(a.sun_path);
	world.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert(bind(world.listener, (struct sockaddr *)&a, sizeof(a)) == 0 &&
	       listen(world.listener, 1) == 0);
	assert(loop_open(0, &world.loop) == 0 && atexit(unlink_socket) == 0);
}

/* --- one input, and the connection that it is tried on --- */

struct fuzz_command {
	struct redis_command command; /* first */
	struct redis_value value;
	const struct block *block; /* NULL: EXISTS */
	uint8_t *buffer;
	size_t allocated;
	bool canceled, expires, again; /* again: done() submits another, and cancels one */
	bool answered, well;
	uint32_t dones;
};

struct fuzz {
	const uint8_t *program;
	size_t left;
	struct redis_conn *conn;
	struct redis_conn_counters counters;
	int peer;
	bool chunks;   /* the next words come in pieces */
	bool lies;     /* said something that is no reply, or nobody asked for */
	size_t memory; /* in use before */
	uint32_t n;    /* commands submitted */
	struct fuzz_command commands[COMMANDS];
	size_t asked_bytes, asked_at; /* bytes that the server has got, and how far it has looked */
	char asked[MAX_ASKED];
	size_t said;
	uint8_t stream[MAX_SENT]; /* all that was said */
};

static struct fuzz *running; /* its commands end; there is one run at a time */

/* --- its bytes --- */

static uint8_t next(struct fuzz *f)
{
	if (f->left == 0)
		return 255;
	f->left--;
	return *f->program++;
}

static bool rarely(struct fuzz *f)
{
	return next(f) < 6;
}

static const struct block *any_block(struct fuzz *f)
{
	return &world.blocks[next(f) % FUZZ_BLOCKS];
}

/* --- commands --- */

static bool submit(struct fuzz *f, uint8_t how);

/* A GET that succeeded has its own block, all of which the server has said. */
static void check_image(const struct fuzz *f, const struct fuzz_command *m)
{
	const struct image_shape *shape = &m->block->shape;
	uint8_t *value = image_value(m->buffer, m->block);

	assert(m->value.bytes == shape->image_bytes && m->value.length == m->block->bytes);
	assert(m->value.bytes <= m->value.room);
	assert(memmem(f->stream, f->said, m->block->value + sizeof(struct redis_envelope),
		      m->block->bytes - REDIS_SEAL_BYTES));
	/* only its bytes were ever sealed */
	assert(memcmp(value, m->block->packed, shape->packed_bytes) == 0);
	free(value);
}

static void check_get(const struct fuzz *f, const struct fuzz_command *m)
{
	const size_t room = m->allocated - GUARD;

	switch (m->command.status) {
	case 0:
		check_image(f, m);
		break;
	case -EFBIG:
		assert(m->value.bytes == m->block->shape.image_bytes &&
		       m->value.bytes > m->value.room);
		/* fall through */
	case -ENOENT:
	case -ENOTSUP:
	case -EBADMSG:
	case -EREMOTEIO: /* nothing was accepted, or all, and then it had the wrong MAC */
		assert(m->value.part != REDIS_PART_WHOLE || filled_with(m->buffer, room, LIVE));
		break;
	default: /* any part of it may have come */
		break;
	}
	assert(filled_with(m->buffer + room, GUARD, LIVE));
}

static void check_status(const struct fuzz_command *m)
{
	const struct redis_command *c = &m->command;

	switch (c->status) {
	case 0:
		assert(m->block ? !c->reply : c->reply && c->reply->type != REDIS_REPLY_ERROR);
		break;
	case -ENOENT:
	case -ENOTSUP:
	case -EBADMSG:
	case -EKEYREJECTED:
	case -EFBIG:
		assert(m->block);
		break;
	case -ETIMEDOUT:
		assert(m->expires);
		break;
	case -ECANCELED:
		assert(m->canceled);
		break;
	default:
		assert(c->status == -EREMOTEIO || c->status == -ECONNRESET);
	}
	assert(!m->canceled || c->status == -ECANCELED || c->status == -ECONNRESET);
	if (m->well && !m->canceled && !m->expires && !running->lies)
		assert(m->block ? c->status == 0 || c->status == -EFBIG :
				  c->status == 0 && c->reply->integer == 1);
	assert(strnlen(c->error, sizeof(c->error)) < sizeof(c->error));
}

/* One of the eldest that are lent. */
static void cancel(struct fuzz *f)
{
	uint32_t nth = next(f) % 4;

	for (uint32_t i = 0; i < f->n; i++)
		if (f->commands[i].command.lent && nth-- == 0) {
			f->commands[i].canceled = true;
			redis_conn_cancel(&f->commands[i].command);
			return;
		}
}

static void done(struct redis_command *command)
{
	struct fuzz_command *m = (struct fuzz_command *)command; /* first member */

	m->dones++;
	assert(m->dones == 1 && !command->lent);
	check_status(m);
	if (m->block) {
		check_get(running, m);
		memset(m->buffer, ENDED, m->allocated); /* it is somebody else's now */
	}
	if (m->again) {
		cancel(running);
		(void)submit(running, next(running));
	}
}

static void prepare_get(struct fuzz *f, struct fuzz_command *m, const char *name, bool tight)
{
	const struct block *b = m->block = any_block(f);
	const uint32_t room = (b->shape.image_bytes + IMAGE_ALIGN - 1) / IMAGE_ALIGN * IMAGE_ALIGN;

	m->allocated = room + GUARD;
	m->buffer = malloc(m->allocated);
	assert(m->buffer);
	memset(m->buffer, LIVE, m->allocated);
	m->value = (struct redis_value){ .identity = &b->identity,
					 .geometry = &b->geometry,
					 .buffer = m->buffer,
					 .seal = &fuzz_seal_of,
					 .room = b->shape.image_bytes - tight };
	m->command.value = &m->value;
	redis_command_make(&m->command, (const char *const[]){ "GET", name, NULL });
}

/* Whether it was. */
static bool submit(struct fuzz *f, uint8_t how)
{
	struct fuzz_command *m = &f->commands[f->n];
	char name[16];
	int r;

	if (f->n == COMMANDS)
		return false;
	(void)snprintf(name, sizeof(name), "%04u", f->n);
	memset(m, 0, sizeof(*m));
	m->command.done = done;
	m->expires = (how & 7) == 7;
	m->command.deadline_ns = m->expires ? 0 : UINT64_MAX;
	m->again = (how & 24) == 24;
	if (how & 64)
		redis_command_make(&m->command, (const char *const[]){ "EXISTS", name, NULL });
	else
		prepare_get(f, m, name, (how & 160) == 160);
	r = redis_conn_submit(f->conn, &m->command);
	assert(r == 0 || (r == -EAGAIN && redis_conn_in_flight(f->conn) == REDIS_CONN_COMMANDS) ||
	       (r == -ENOTCONN && redis_conn_state(f->conn) == REDIS_CONN_DOWN));
	assert(m->dones == 0);
	if (r)
		free(m->buffer);
	else
		f->n++;
	return r == 0;
}

/* --- the server --- */

/* One iteration of the loop; the server takes all bytes that come. */
static void iterate(struct fuzz *f)
{
	ssize_t n;

	loop_timer_set(world.loop, &world.tick, 0);
	assert(loop_run(world.loop) == 0);
	while (f->peer >= 0 &&
	       (n = read(f->peer, f->asked + f->asked_bytes, MAX_ASKED - f->asked_bytes)) > 0)
		f->asked_bytes += (size_t)n;
	assert(memory_in_use() < f->memory + MEMORY);
}

static bool is_down(const struct fuzz *f)
{
	return redis_conn_state(f->conn) == REDIS_CONN_DOWN;
}

/* The next command that the server has got; NULL: it has answered all. */
static struct fuzz_command *asked(struct fuzz *f)
{
	static const char before_name[] = "$4\r\n";
	const char *at =
		memmem(f->asked + f->asked_at, f->asked_bytes - f->asked_at, before_name, 4);
	unsigned int number;

	if (!at || f->asked + f->asked_bytes - at < 10)
		return NULL;
	f->asked_at = (size_t)(at + 10 - f->asked);
	assert(sscanf(at + 4, "%4u", &number) == 1 && number < f->n);
	f->commands[number].answered = true;
	return &f->commands[number];
}

static bool lies(struct fuzz *f)
{
	const bool r = rarely(f);

	f->lies |= r;
	return r;
}

/* At once, or so that everything is cut somewhere: behind the first bytes, in the middle, before
 * the last. */
static size_t piece(struct fuzz *f, size_t at, size_t n)
{
	const size_t most = n - at;
	size_t bytes;

	if (!f->chunks)
		return most;
	bytes = at == 0 || most <= 8 ? 1 + next(f) % 4u : 1 + next(f) * most / 256;
	return bytes < most ? bytes : most;
}

static void say(struct fuzz *f, const void *bytes, size_t n)
{
	if (n > MAX_SENT - f->said)
		return;
	memcpy(f->stream + f->said, bytes, n);
	f->said += n;
	for (size_t at = 0; at < n && !is_down(f);) {
		const ssize_t sent =
			send(f->peer, (const char *)bytes + at, piece(f, at, n), MSG_NOSIGNAL);

		at += sent > 0 ? (size_t)sent : 0;
		if (f->chunks && next(f) < 16)
			cancel(f);
		if (f->chunks || sent < 0)
			iterate(f);
	}
}

static void say_text(struct fuzz *f, const char *text)
{
	say(f, text, strlen(text));
}

/* n bytes of the value behind a length that may be another; with a bit that is wrong, if `flip`: of
 * the CR LF, even. */
static void say_value(struct fuzz *f, const struct block *b, size_t n, long long length, bool flip)
{
	uint8_t *reply = malloc(n + 64);
	const int line = sprintf((char *)reply, "$%lld\r\n", length);

	memcpy(reply + line, b->value, n);
	memcpy(reply + (size_t)line + n, "\r\n", 2);
	if (flip)
		reply[(size_t)line + (lies(f) ? n + next(f) % 2 : next(f) * n / 256)] ^=
			(uint8_t)(1 << next(f) % 8);
	say(f, reply, (size_t)line + n + 2);
	free(reply);
}

static void answer_well(struct fuzz *f)
{
	struct fuzz_command *m = asked(f);

	if (m)
		m->well = f->said < MAX_SENT / 2;
	if (m && m->block)
		say_value(f, m->block, m->block->bytes, m->block->bytes, false);
	else if (m)
		say_text(f, ":1\r\n");
	else
		iterate(f);
}

/* Some block's value, a part of it, damaged, with a length that is wrong. */
static void answer_badly(struct fuzz *f)
{
	static const long long lengths[] = {
		-1,       0, 128, 159, 160, MAX_VALUE, MAX_VALUE + 1, 1LL << 29, (1LL << 29) + 1,
		INT64_MAX
	};
	const struct fuzz_command *m = asked(f);
	const struct block *b = m && m->block && next(f) & 1 ? m->block : any_block(f);
	const size_t whole = b->bytes;
	const uint8_t how = next(f);
	const size_t n = how & 4 ? whole : next(f) * whole / 256;

	if (!m && !lies(f))
		return;
	if (lies(f))
		say_value(f, b, n, lengths[next(f) % (sizeof(lengths) / sizeof(*lengths))],
			  how & 1);
	else
		say_value(f, b, n, lies(f) ? (long long)whole : (long long)n, n > 0 && how & 1);
}

/* Replies that Redis may send and hardly ever sends; behind them bytes that are no reply. */
enum { ODD_REPLIES = 16, NO_REPLIES = 9 };

static const char *const odd_replies[ODD_REPLIES + NO_REPLIES] = {
	"$-1\r\n",
	"*-1\r\n",
	"+OK\r\n",
	"+\r\n",
	":0\r\n",
	":-9223372036854775808\r\n",
	"-ERR no\r\n",
	"-\r\n",
	"-WRONGTYPE no\r\n",
	"-MOVED 1 :1\r\n",
	"*0\r\n",
	"*2\r\n$3\r\nabc\r\n*1\r\n:5\r\n",
	"*3\r\n$4\r\n\r\n\r\n\r\n*-1\r\n$-1\r\n",
	"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
	"$0\r\n\r\n",
	"$4\r\n\r\n\r\n\r\n",
	"$5\r\nab\r\n",
	"*9\r\n*9\r\n*9\r\n*9\r\n",
	"\r\n",
	"_\r\n",
	"%1\r\n+a\r\n:1\r\n",
	">0\r\n:1\r\n",
	"$",
	"*1048576\r\n",
	"$3\r\nabcd\r\n",
};

static void say_something(struct fuzz *f)
{
	const uint32_t n = lies(f) ? ODD_REPLIES + NO_REPLIES : ODD_REPLIES;

	if (asked(f) || lies(f))
		say_text(f, odd_replies[next(f) % n]);
}

/* Bytes of the program itself. */
static void say_anything(struct fuzz *f)
{
	const size_t n = next(f), most = n < f->left ? n : f->left;
	const uint8_t *bytes = f->program;

	f->lies = true;
	f->program += most;
	f->left -= most;
	say(f, bytes, most);
}

/* An answer that goes on and on: to a small one there is a bound. */
static void say_endlessly(struct fuzz *f)
{
	const struct fuzz_command *m = asked(f);
	const bool small = m && !m->block && m->command.lent && !f->lies;
	static char elements[64 << 10];

	f->lies = true;
	for (size_t i = 0; i + 4 <= sizeof(elements); i += 4)
		memcpy(elements + i, ":1\r\n", 4);
	say_text(f, "*1000000\r\n");
	for (int i = 0; i < 24 && !is_down(f); i++) {
		say(f, elements, sizeof(elements));
		iterate(f);
	}
	assert(!small || m->canceled || is_down(f) || f->said > MAX_SENT - sizeof(elements));
}

/* --- a run --- */

static void do_one(struct fuzz *f)
{
	const uint8_t what = next(f);

	f->chunks = what & 128;
	switch (what % 16) {
	case 0:
	case 1:
	case 2:
	case 3:
	case 4:
		(void)submit(f, next(f));
		break;
	case 5:
	case 6:
	case 7:
	case 8:
		answer_well(f);
		break;
	case 9:
		answer_badly(f);
		break;
	case 10:
		say_something(f);
		break;
	case 11:
		if (rarely(f))
			say_anything(f);
		break;
	case 12:
		if (rarely(f) && next(f) < 64)
			say_endlessly(f);
		break;
	case 13:
		cancel(f);
		break;
	default:
		iterate(f);
	}
}

static void on_changed(struct redis_conn *c, void *arg)
{
	(void)c;
	(void)arg;
}

static void begin(struct fuzz *f)
{
	const struct redis_conn_conf conf = { .address = world.address,
					      .username = "",
					      .password = "",
					      .deadline_ns = UINT64_MAX,
					      .max_value_bytes = MAX_VALUE,
					      .changed = on_changed,
					      .counters = &f->counters };

	running = f;
	f->memory = memory_in_use();
	assert(redis_conn_open(world.loop, &conf, &f->conn) == 0);
	f->peer = accept4(world.listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	assert(f->peer >= 0);
	while (redis_conn_state(f->conn) != REDIS_CONN_UP)
		iterate(f);
}

/* All words are taken in: commands that were answered have ended, and only lies end the
 * connection. */
static void settle(struct fuzz *f)
{
	for (int i = 0; i < 20; i++)
		iterate(f);
	assert(f->lies || !is_down(f));
	for (uint32_t i = 0; i < f->n && !f->lies; i++)
		assert(!f->commands[i].answered || f->commands[i].dones == 1);
}

/* The server goes: all commands have ended soon, and commands that had ended before were left
 * alone. */
static void end(struct fuzz *f)
{
	int iterations = 0;

	(void)close(f->peer);
	f->peer = -1;
	while (!is_down(f)) {
		iterate(f);
		assert(++iterations < ITERATIONS);
	}
	redis_conn_close(f->conn);
	for (uint32_t i = 0; i < f->n; i++) {
		assert(f->commands[i].dones == 1);
		assert(!f->commands[i].block ||
		       filled_with(f->commands[i].buffer, f->commands[i].allocated, ENDED));
		free(f->commands[i].buffer);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct fuzz f;

	if (!world.loop)
		world_begin();
	memset(&f, 0, offsetof(struct fuzz, stream));
	f.program = data;
	f.left = size;
	begin(&f);
	while (f.left > 0 && !is_down(&f))
		do_one(&f);
	settle(&f);
	end(&f);
	return 0;
}

#ifndef KVTIER_LIBFUZZER

enum { MAX_PROGRAM = 2048 };

int main(void)
{
	const uint64_t n = env_number("FUZZ_RUNS", 3000);
	struct random random = random_seeded("fuzz_redis_recv");
	uint8_t program[MAX_PROGRAM];

	for (uint64_t i = 0; i < n; i++) {
		const size_t size = 1 + random_below(&random, MAX_PROGRAM);

		for (size_t at = 0; at < size; at++)
			program[at] = (uint8_t)random_next(&random);
		(void)LLVMFuzzerTestOneInput(program, size);
	}
	return 0;
}
#endif
