/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: each command ends with the status that its own reply means, and with the right bytes in its
 * buffer. This holds for any cut of the bytes into pieces, any order of replies, and cancels at any
 * time. Method: both ends of a Unix socket in this thread. Rounds of random commands; their
 * replies, random too, make one stream, which is written in random pieces with an iteration of the
 * loop after each.
 */
#include "tests/lib/lib_redis_conn.h"

enum { FRONT = sizeof(struct redis_envelope) + sizeof(struct image_header) };
enum { ROUNDS = 400, COMMANDS = 24, BLOCKS = 8, STREAM_BYTES = 4 << 20, MARKS = 1024 };

enum answer {
	GOOD,
	NOTHING,
	ANOTHERS,
	FLIPPED,
	FORGED,
	SHORT,
	NO_BULK,
	AN_ERROR,
	WRONG_TYPE,
	TOO_LARGE,
	ANSWERS
};

/* A reply of some kind, and what rig_done() notes of it. */
struct small {
	const char *text;
	long long integer;
	const char *words;
	int status;
};

struct sim_command {
	struct rig_command c;
	const struct small *small; /* EXISTS */
	const struct block *block;
	int want;
	bool canceled;
};

static struct {
	struct rig rig;
	struct random random;
	char path[64], address[80];
	int listener, peer;
	struct block blocks[BLOCKS];
	struct sim_command commands[COMMANDS];
	uint32_t n;
	size_t bytes; /* of the stream */
	/* where something begins or ends in it: there cuts hurt most */
	size_t marks[MARKS];
	uint32_t n_marks, next_mark;
	uint8_t stream[STREAM_BYTES];
} s;

/* --- the stream --- */

static void mark(size_t at)
{
	assert_true(s.n_marks < MARKS);
	s.marks[s.n_marks++] = at;
}

static void put(const void *bytes, size_t n)
{
	assert_true(n <= STREAM_BYTES - s.bytes);
	memcpy(s.stream + s.bytes, bytes, n);
	s.bytes += n;
	mark(s.bytes);
}

static void put_text(const char *text)
{
	put(text, strlen(text));
}

/* The value of a block, or a part of it, with one bit wrong of so many bytes from `first` on, if
 * there are any. */
static void put_value(const struct block *b, size_t n, size_t first, uint32_t flips)
{
	char line[32];
	uint8_t *value;

	(void)snprintf(line, sizeof(line), "$%zu\r\n", n);
	put_text(line);
	assert_true(block_bytes(b) + 2 <= STREAM_BYTES - s.bytes);
	value = s.stream + s.bytes;
	block_value(b, value);
	if (flips)
		value[first + random_below(&s.random, flips)] ^=
			(uint8_t)(1 << random_below(&s.random, 8));
	if (n > FRONT)
		mark(s.bytes + FRONT);
	if (n == block_bytes(b))
		mark(s.bytes + n - REDIS_MAC_BYTES);
	s.bytes += n;
	mark(s.bytes);
	put_text("\r\n");
}

static const char *any_of(const char *const *texts, uint32_t n)
{
	return texts[random_below(&s.random, n)];
}

static void put_not_bulk(void)
{
	static const char *const texts[] = {
		"+OK\r\n",
		":1\r\n",
		"*0\r\n",
		"*2\r\n$3\r\nabc\r\n*1\r\n:5\r\n",
		"*3\r\n$-1\r\n*-1\r\n$4\r\n\r\n\r\n\r\n",
		"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n$0\r\n\r\n",
	};

	put_text(any_of(texts, sizeof(texts) / sizeof(texts[0])));
}

/* The reply to a GET; returns the status it means. */
static int put_get_answer(struct sim_command *m)
{
	static const char *const errors[] = { "-LOADING wait\r\n", "-ERR\r\n",
					      "-MOVED 1 127.0.0.1:1\r\n" };
	const struct block *other = m->block == s.blocks ? s.blocks + 1 : s.blocks;
	const size_t n = block_bytes(m->block);

	switch ((enum answer)random_below(&s.random, ANSWERS)) {
	case NOTHING:
		put_text("$-1\r\n");
		return -ENOENT;
	case ANOTHERS:
		put_value(other, block_bytes(other), 0, 0);
		return -EBADMSG;
	case FLIPPED:
		put_value(m->block, n, sizeof(struct redis_envelope), m->block->shape.packed_bytes);
		return -EBADMSG;
	case FORGED:
		put_value(m->block, n, n - REDIS_MAC_BYTES, REDIS_MAC_BYTES);
		return -EKEYREJECTED;
	case SHORT:
		put_value(m->block, random_below(&s.random, (uint32_t)n), 0, 0);
		return -EBADMSG;
	case NO_BULK:
		put_not_bulk();
		return -EBADMSG;
	case AN_ERROR:
		put_text(any_of(errors, 3));
		return -EREMOTEIO;
	case WRONG_TYPE:
		put_text("-WRONGTYPE no string\r\n");
		return -EBADMSG;
	case TOO_LARGE:
		m->c.value.room = m->block->shape.image_bytes - 1;
		put_value(m->block, n, 0, 0);
		return -EFBIG;
	case GOOD:
	default:
		put_value(m->block, n, 0, 0);
		return 0;
	}
}

static int put_small_answer(struct sim_command *m)
{
	static const struct small small[] = {
		{ ":1\r\n", 1, "", 0 },
		{ ":-9223372036854775808\r\n", INT64_MIN, "", 0 },
		{ "+OK\r\n", -1, "OK", 0 },
		{ "+\r\n", -1, "", 0 },
		{ "$4\r\nab\r\n\r\n", -1, "ab\r\n", 0 },
		{ "$6\r\n\r\n\r\n\r\n\r\n", -1, "\r\n\r\n\r\n", 0 },
		{ "$0\r\n\r\n", -1, "", 0 },
		{ "$-1\r\n", -1, "", 0 },
		{ "*2\r\n:1\r\n*1\r\n$0\r\n\r\n", -1, "", 0 },
		{ "*0\r\n", -1, "", 0 },
		{ "-ERR no\r\n", -1, "ERR no", -EREMOTEIO },
		{ "-WRONGTYPE\r\n", -1, "WRONGTYPE", -EREMOTEIO },
	};

	m->small = &small[random_below(&s.random, sizeof(small) / sizeof(small[0]))];
	put_text(m->small->text);
	return m->small->status;
}

/* --- rounds --- */

static void submit_some(void)
{
	s.n = 1 + random_below(&s.random, COMMANDS);
	s.bytes = s.n_marks = s.next_mark = 0;
	for (uint32_t i = 0; i < s.n; i++) {
		struct sim_command *m = &s.commands[i];

		m->block = &s.blocks[random_below(&s.random, BLOCKS)];
		m->canceled = false;
		if (random_below(&s.random, 3) == 0) {
			rig_exists(&m->c, m->block);
			m->want = put_small_answer(m);
		} else {
			rig_get(&m->c, m->block);
			m->want = put_get_answer(m);
		}
		rig_submit(&s.rig, &m->c);
	}
}

/* The server takes the commands, and looks at none. */
static void swallow(void)
{
	char bytes[65536];

	while (redis_conn_unsent_bytes(s.rig.conn) > 0) {
		rig_run(&s.rig, 0);
		while (read(s.peer, bytes, sizeof(bytes)) > 0)
			;
	}
}

static void cancel_one(void)
{
	struct sim_command *m = &s.commands[random_below(&s.random, s.n)];

	if (!m->c.command.lent)
		return;
	redis_conn_cancel(&m->c.command);
	m->canceled = true;
}

/* How many bytes to write next: up to about the next mark, or any number. */
static size_t piece(size_t at)
{
	size_t n = 1 + random_below(&s.random, random_below(&s.random, 2) ? 8 : 40000);

	while (s.next_mark < s.n_marks && s.marks[s.next_mark] + 1 <= at)
		s.next_mark++;
	if (s.next_mark < s.n_marks && random_below(&s.random, 3) > 0)
		n = s.marks[s.next_mark] + 1 - at -
		    random_below(&s.random, 3) % (s.marks[s.next_mark] + 1 - at);
	return n < s.bytes - at ? n : s.bytes - at;
}

/* A buffer whose command has been canceled may be used for something else at once. */
static void poison_canceled(void)
{
	for (uint32_t i = 0; i < s.n; i++) {
		struct sim_command *m = &s.commands[i];

		if (m->canceled && m->c.dones == 1 && m->c.command.value)
			memset(m->c.buffer, RIG_POISON, m->c.allocated);
	}
}

static void answer_in_pieces(bool cancel)
{
	for (size_t at = 0; at < s.bytes;) {
		const ssize_t sent = write(s.peer, s.stream + at, piece(at));

		assert_true(sent > 0 || errno == EAGAIN);
		at += sent > 0 ? (size_t)sent : 0;
		if (cancel && random_below(&s.random, 20) == 0)
			cancel_one();
		rig_run(&s.rig, 0);
		if (cancel)
			poison_canceled();
	}
}

static void check(const struct sim_command *m)
{
	assert_int_equal(m->c.dones, 1);
	assert_int_equal(m->c.command.status, m->canceled ? -ECANCELED : m->want);
	if (!m->c.command.value) {
		assert_true(m->c.integer == (m->canceled ? -1 : m->small->integer));
		assert_string_equal(m->c.words, m->canceled ? "" : m->small->words);
		return;
	}
	if (m->c.value.part != REDIS_PART_WHOLE)
		/* it was in place, whole, when its MAC was seen to be wrong */
		return;
	if (m->canceled || m->want)
		rig_is_poison(&m->c);
	else
		rig_has(&m->c, m->block);
}

static void rounds(bool cancel)
{
	for (int round = 0; round < ROUNDS; round++) {
		submit_some();
		swallow();
		answer_in_pieces(cancel);
		for (uint32_t i = 0; i < s.n; i++)
			rig_wait(&s.rig, &s.commands[i].c);
		while (redis_conn_in_flight(s.rig.conn) > 0)
			rig_run(&s.rig, 0);
		for (uint32_t i = 0; i < s.n; i++)
			check(&s.commands[i]);
	}
	assert_int_equal(redis_conn_state(s.rig.conn), REDIS_CONN_UP);
}

/* --- the rig --- */

/* 100 KB at most: a round's replies fit the stream. */
static struct block small_block(struct random *random)
{
	const struct image_geometry geometry = {
		.dtype = DTYPE_FP16,
		.layers = 1 + random_below(random, 4),
		.kv_heads = 1 + random_below(random, 4),
		.head_dim_k = random_below(random, 32),
		.head_dim_v = 1 + random_below(random, 32),
		.block_tokens = 1 + random_below(random, 20),
		.opaque_bytes = random_below(random, 40000),
	};

	return block_of(&geometry, random_below(random, 4) ? CODEC_FP8 : CODEC_RAW, random);
}

static void sim_open(const char *test)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	memset(&s, 0, sizeof(s));
	s.random = random_seeded(test);
	for (int i = 0; i < BLOCKS; i++)
		s.blocks[i] = small_block(&s.random);
	(void)snprintf(s.path, sizeof(s.path), "/tmp/kvtier-sim-redis-conn-%d", (int)getpid());
	(void)snprintf(s.address, sizeof(s.address), "unix:%s", s.path);
	(void)snprintf(a.sun_path, sizeof(a.sun_path), "%s", s.path);
	(void)unlink(s.path);
	s.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(s.listener, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(s.listener, 1), 0);
	rig_open(&s.rig, s.address);
	s.peer = accept4(s.listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	assert_true(s.peer >= 0);
}

FIXTURE(sim_close)
{
	rig_close(&s.rig);
	(void)close(s.peer);
	(void)close(s.listener);
	(void)unlink(s.path);
	for (int i = 0; i < BLOCKS; i++)
		block_free(&s.blocks[i]);
	for (int i = 0; i < COMMANDS; i++)
		rig_forget(&s.commands[i].c);
	return 0;
}

TEST_EACH(NULL, sim_close);

TEST_DO(replies_in_pieces, sim_open("replies_in_pieces"); rounds(false));

TEST(cancels_in_between)
{
	sim_open("cancels_in_between");
	rounds(true);
	assert_true(s.rig.counters.late > 0);
	assert_int_equal(s.rig.counters.protocol_errors, 0);
}
