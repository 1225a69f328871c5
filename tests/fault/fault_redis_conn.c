/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait */
/*
 * Goal: redis_conn.h holds with a server that lies, is cut off, or talks out of turn: each command
 * ends once and with a status that says so, no byte is written where none was accepted, and bytes
 * that are no RESP end the connection. Method: the scripted server of lib_redis.h. A cut is made at
 * every byte of a reply.
 */
#include "tests/lib/lib_redis_conn.h"
#include "tests/lib/test.h"

/* A value of the test's block, as bytes of a reply. */
struct script {
	struct fake_server server;
	struct block b;
	char *value; /* "$n\r\n...\r\n" */
	size_t bytes;
	struct rig rig;
	struct rig_command get;
};

static void script_begin(struct script *s, uint32_t opaque)
{
	struct random random = { .state = 42 };
	const struct image_geometry geometry = {
		.dtype = DTYPE_BF16,
		.layers = 2,
		.kv_heads = 2,
		.head_dim_k = 4,
		.head_dim_v = 2,
		.block_tokens = 20,
		.opaque_bytes = opaque,
	};
	int n;

	memset(s, 0, sizeof(*s));
	s->b = block_of(&geometry, CODEC_FP8, &random);
	s->value = malloc(block_bytes(&s->b) + 64);
	assert_non_null(s->value);
	n = sprintf(s->value, "$%u\r\n", block_bytes(&s->b));
	block_value(&s->b, (uint8_t *)s->value + n);
	s->bytes = (size_t)n + block_bytes(&s->b);
	memcpy(s->value + s->bytes, "\r\n", 2);
	s->bytes += 2;
}

static void script_serve(struct script *s, const struct fake_step *steps, uint32_t n)
{
	fake_start(&s->server, steps, n, false);
	rig_open(&s->rig, s->server.address);
}

static void script_end(struct script *s)
{
	rig_close(&s->rig);
	fake_stop(&s->server);
	rig_forget(&s->get);
	block_free(&s->b);
	free(s->value);
}

static void goes_down(struct script *s, int why)
{
	const uint64_t until = rig_in_ms(RIG_PATIENCE_S * 1000);
	int have;

	while (redis_conn_state(s->rig.conn) != REDIS_CONN_DOWN) {
		assert_true(rig_now() < until);
		rig_run(&s->rig, 1);
	}
	(void)rig_why(&s->rig, &have);
	assert_int_equal(have, why);
}

/* A get of the block is answered with these bytes, and ends so; the next is answered well. */
static void get_ends(const char *reply, int status)
{
	struct fake_step steps[2] = { { .reply = reply } };
	struct script s;

	script_begin(&s, 3000);
	steps[1] = (struct fake_step){ .reply = s.value, .bytes = s.bytes };
	script_serve(&s, steps, 2);
	rig_get(&s.get, &s.b);
	assert_int_equal(rig_do(&s.rig, &s.get), status);
	rig_is_poison(&s.get);
	rig_get(&s.get, &s.b);
	assert_int_equal(rig_do(&s.rig, &s.get), 0);
	rig_has(&s.get, &s.b);
	script_end(&s);
}

/* A get is answered with these bytes, which are no RESP: the connection ends. Returns the get's
 * status. */
static void get_kills(const char *reply, bool endless)
{
	const struct fake_step step = { .reply = reply, .endless = endless };
	struct redis_conn_counters counters;
	struct script s;

	script_begin(&s, 3000);
	script_serve(&s, &step, 1);
	rig_get(&s.get, &s.b);
	assert_int_equal(rig_do(&s.rig, &s.get), -ECONNRESET);
	goes_down(&s, -EPROTO);
	rig_is_poison(&s.get);
	redis_conn_counters(s.rig.conn, &counters);
	assert_int_equal(counters.protocol_errors, 1);
	script_end(&s);
}

/* --- cuts --- */

static void cut_at_every_byte(const char *reply, size_t bytes, const struct block *b)
{
	for (size_t cut = 1; cut < bytes; cut++) {
		const struct fake_step step = { .reply = reply, .bytes = bytes, .cut = cut };
		struct script s = { 0 };

		script_serve(&s, &step, 1);
		rig_get(&s.get, b);
		assert_int_equal(rig_do(&s.rig, &s.get), -ECONNRESET);
		goes_down(&s, -ECONNRESET);
		script_end(&s);
	}
}

TEST(a_value_is_cut_off)
{
	struct script s;

	script_begin(&s, 100);
	cut_at_every_byte(s.value, s.bytes, &s.b);
	free(s.value);
	block_free(&s.b);
}

TEST(an_error_is_cut_off)
{
	static const char reply[] = "-LOADING Redis is loading the dataset in memory\r\n";
	struct script s;

	script_begin(&s, 100);
	cut_at_every_byte(reply, sizeof(reply) - 1, &s.b);
	free(s.value);
	block_free(&s.b);
}

/* The whole reply, then the end of file: the command still ends well. */
TEST(cut_right_behind_a_value)
{
	struct fake_step step;
	struct script s;

	script_begin(&s, 100);
	step = (struct fake_step){ .reply = s.value, .bytes = s.bytes, .cut = s.bytes };
	script_serve(&s, &step, 1);
	rig_get(&s.get, &s.b);
	assert_int_equal(rig_do(&s.rig, &s.get), 0);
	rig_has(&s.get, &s.b);
	goes_down(&s, -ECONNRESET);
	script_end(&s);
}

/* --- replies of other kinds --- */

TEST(other_kinds_are_misses)
{
	static const char *const replies[] = {
		"+OK\r\n",
		":128\r\n",
		"*0\r\n",
		"*2\r\n$2\r\nab\r\n:1\r\n",
		"*2\r\n*2\r\n*1\r\n+x\r\n:1\r\n$0\r\n\r\n",
		",1.5\r\n",
		"#t\r\n",
		"%1\r\n+a\r\n:1\r\n",
		"~2\r\n:1\r\n:2\r\n",
		"(123456789012345678901234567890\r\n",
		"=7\r\ntxt:abc\r\n",
		"!5\r\nERR x\r\n",
		"|1\r\n+a\r\n:1\r\n$2\r\nab\r\n",
		"$0\r\n\r\n",
		"$3\r\nabc\r\n",
	};

	for (size_t i = 0; i < sizeof(replies) / sizeof(replies[0]); i++)
		get_ends(replies[i], -EBADMSG);
}

TEST(nil_is_nothing)
{
	get_ends("$-1\r\n", -ENOENT);
	get_ends("*-1\r\n", -ENOENT);
	get_ends("_\r\n", -ENOENT);
}

TEST(errors_are_told)
{
	const struct fake_step step = { .reply = "-ERR something\x1b[31m else\r\n" };
	struct script s;

	get_ends("-LOADING Redis is loading\r\n", -EREMOTEIO);
	get_ends("-WRONGTYPE Operation against a key\r\n", -EBADMSG);
	script_begin(&s, 10);
	script_serve(&s, &step, 1);
	rig_get(&s.get, &s.b);
	assert_int_equal(rig_do(&s.rig, &s.get), -EREMOTEIO);
	assert_string_equal(s.get.command.error, "ERR something?[31m else");
	script_end(&s);
}

TEST(pushes_are_stepped_over)
{
	static const char push[] = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nfoo\r\n";
	struct fake_step step;
	struct script s;
	char *reply;

	script_begin(&s, 3000);
	reply = malloc(sizeof(push) + s.bytes);
	memcpy(reply, push, sizeof(push) - 1);
	memcpy(reply + sizeof(push) - 1, s.value, s.bytes);
	step = (struct fake_step){ .reply = reply, .bytes = sizeof(push) - 1 + s.bytes };
	script_serve(&s, &step, 1);
	for (int i = 0; i < 3; i++) {
		rig_get(&s.get, &s.b);
		assert_int_equal(rig_do(&s.rig, &s.get), 0);
		rig_has(&s.get, &s.b);
	}
	script_end(&s);
	free(reply);
}

TEST(bytes_that_come_one_by_one)
{
	/* The step is the pause: each command's reply has one part of the value; the others are
	 * never answered. */
	enum { PARTS = 40 };
	struct fake_step steps[PARTS];
	struct rig_command ping[PARTS] = { 0 };
	struct script s;

	script_begin(&s, 3000);
	for (size_t i = 0; i < PARTS; i++) {
		const size_t from = s.bytes * i / PARTS, to = s.bytes * (i + 1) / PARTS;

		steps[i] = (struct fake_step){ .reply = s.value + from,
					       .bytes = to - from,
					       .delay_ms = 5 };
	}
	script_serve(&s, steps, PARTS);
	rig_get(&s.get, &s.b);
	rig_submit(&s.rig, &s.get);
	for (size_t i = 1; i < PARTS; i++) {
		rig_exists(&ping[i], &s.b);
		rig_submit(&s.rig, &ping[i]);
	}
	rig_wait(&s.rig, &s.get);
	rig_has(&s.get, &s.b);
	script_end(&s);
	for (size_t i = 1; i < PARTS; i++)
		assert_int_equal(ping[i].command.status, -ECONNRESET); /* closed by us */
}

/* --- no RESP --- */

TEST(not_the_protocol)
{
	static const char *const replies[] = {
		"HTTP/1.1 400 Bad Request\r\n",
		"$-2\r\n",
		"$12x\r\n",
		"$99999999999999999999\r\n",
		"$536870913\r\n",
		"*99999999\r\n",
		"$?\r\n;1\r\nx\r\n",
		"$ 3\r\nabc\r\n",
		"\r\n",
		"$3\r\nabcd\r\n",
		"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
	};

	for (size_t i = 0; i < sizeof(replies) / sizeof(replies[0]); i++)
		get_kills(replies[i], false);
}

TEST(endless_lines_and_arrays)
{
	get_kills("+abcdefgh", true);
	get_kills("-abcdefgh", true);
	get_kills("*2\r\n", true);
	get_kills("*1000\r\n:1\r\n", true);
}

/* A good value, but something else where its CR LF should be. */
TEST(no_crlf_behind_a_value)
{
	struct fake_step step;
	struct script s;

	script_begin(&s, 100);
	s.value[s.bytes - 1] = 'x';
	step = (struct fake_step){ .reply = s.value, .bytes = s.bytes };
	script_serve(&s, &step, 1);
	rig_get(&s.get, &s.b);
	assert_int_equal(rig_do(&s.rig, &s.get), -ECONNRESET);
	goes_down(&s, -EPROTO);
	script_end(&s);
}

/* Small replies have an end, too. */
TEST(a_small_reply_that_is_none)
{
	static const char element[] = "$1000\r\n";
	static char reply[2 << 20];
	struct fake_step step = { .reply = reply };
	struct rig_command c = { 0 };
	size_t n = (size_t)sprintf(reply, "*1500\r\n");
	struct script s;

	for (int i = 0; i < 1500; i++) {
		memcpy(reply + n, element, sizeof(element) - 1);
		n += sizeof(element) - 1;
		memset(reply + n, 'x', 1000);
		memcpy(reply + n + 1000, "\r\n", 2);
		n += 1002;
	}
	step.bytes = n;
	script_begin(&s, 10);
	script_serve(&s, &step, 1);
	rig_exists(&c, &s.b);
	assert_int_equal(rig_do(&s.rig, &c), -ECONNRESET);
	goes_down(&s, -EPROTO);
	script_end(&s);
}

/* Kinds that hiredis may not know: the command fails, the connection does not. */
TEST(small_replies_of_later_protocols)
{
	const struct fake_step steps[] = { { .reply = "%1\r\n+a\r\n:1\r\n" },
					   { .reply = ":1\r\n" } };
	struct rig_command c = { 0 };
	struct script s;

	script_begin(&s, 10);
	script_serve(&s, steps, 2);
	rig_exists(&c, &s.b);
	(void)rig_do(&s.rig, &c); /* -EREMOTEIO with a hiredis that does not */
	rig_exists(&c, &s.b);
	assert_int_equal(rig_do(&s.rig, &c), 0);
	assert_int_equal(c.integer, 1);
	script_end(&s);
}

/* --- out of turn --- */

TEST(a_reply_too_many)
{
	const struct fake_step step = { .reply = ":1\r\n:2\r\n" };
	struct rig_command c = { 0 };
	struct script s;

	script_begin(&s, 10);
	script_serve(&s, &step, 1);
	rig_exists(&c, &s.b);
	assert_int_equal(rig_do(&s.rig, &c), 0);
	assert_int_equal(c.integer, 1);
	goes_down(&s, -EPROTO);
	script_end(&s);
}

TEST(an_error_that_nobody_asked_for)
{
	const struct fake_step step = { .reply = ":1\r\n-ERR max number of clients reached\r\n" };
	struct rig_command c = { 0 };
	struct script s;
	int why;

	script_begin(&s, 10);
	script_serve(&s, &step, 1);
	rig_exists(&c, &s.b);
	assert_int_equal(rig_do(&s.rig, &c), 0);
	goes_down(&s, -ECONNREFUSED);
	assert_string_equal(rig_why(&s.rig, &why), "ERR max number of clients reached");
	script_end(&s);
}

/* An old server that repeats its command. */
TEST(a_password_is_repeated)
{
	static const char *const replies[] = {
		"-ERR unknown command `AUTH`, with args beginning with: `open-ses\r\n",
		"-ERR open-sesame is wrong\r\n",
	};

	for (int i = 0; i < 2; i++) {
		const struct fake_step step = { .reply = replies[i] };
		struct script s = { 0 };
		int why;

		fake_start(&s.server, &step, 1, true);
		rig_open_to(&s.rig, s.server.address, "", "open-sesame");
		goes_down(&s, -EACCES);
		assert_null(strstr(rig_why(&s.rig, &why), "open"));
		script_end(&s);
	}
}

/* Connected, but it says nothing. */
TEST(a_greeting_without_answer)
{
	const struct fake_step step = { .reply = NULL };
	struct redis_conn_conf conf = { .username = "", .password = "x", .changed = rig_changed };
	struct script s = { 0 };

	fake_start(&s.server, &step, 1, true);
	s.rig.tick.fire = rig_tick;
	conf.address = s.server.address;
	conf.deadline_ns = rig_in_ms(200);
	conf.arg = &s.rig;
	assert_int_equal(loop_open(0, &s.rig.loop), 0);
	assert_int_equal(redis_conn_open(s.rig.loop, &conf, &s.rig.conn), 0);
	goes_down(&s, -ETIMEDOUT);
	script_end(&s);
}
