/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait */
/*
 * Goal: redis_conn.h holds with a server that lies, is cut off, or talks out of turn: each command
 * ends once and with a status that says so, no byte is written where none was accepted, and bytes
 * that are no RESP end the connection. Method: the scripted server of lib_redis.h. A cut is made at
 * every byte of a reply.
 */
#include "tests/lib/lib_redis_conn.h"

/* A value of the test's block, as bytes of a reply. */
static struct script {
	struct fake_server server;
	struct block b;
	char *value; /* "$n\r\n...\r\n" */
	size_t bytes;
	struct rig rig;
	struct rig_command get;
} s;

static void script_begin(uint32_t opaque)
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

	memset(&s, 0, sizeof(s));
	s.b = block_of(&geometry, CODEC_FP8, &random);
	s.value = malloc(block_bytes(&s.b) + 64);
	assert_non_null(s.value);
	n = sprintf(s.value, "$%u\r\n", block_bytes(&s.b));
	block_value(&s.b, (uint8_t *)s.value + n);
	s.bytes = (size_t)n + block_bytes(&s.b);
	memcpy(s.value + s.bytes, "\r\n", 2);
	s.bytes += 2;
}

static void script_serve(const struct fake_step *steps, uint32_t n)
{
	fake_start(&s.server, steps, n, false);
	rig_open(&s.rig, s.server.address);
}

static void script_end(void)
{
	rig_close(&s.rig);
	fake_stop(&s.server);
	rig_forget(&s.get);
	block_free(&s.b);
	free(s.value);
	s = (struct script){ 0 };
}

/* A get of the block is answered with these bytes, and ends so; the next is answered well. */
static void get_ends(const char *reply, int status)
{
	struct fake_step steps[2] = { { .reply = reply } };

	script_begin(3000);
	steps[1] = (struct fake_step){ .reply = s.value, .bytes = s.bytes };
	script_serve(steps, 2);
	assert_int_equal(rig_load(&s.rig, &s.get, &s.b), status);
	rig_is_poison(&s.get);
	assert_int_equal(rig_load(&s.rig, &s.get, &s.b), 0);
	rig_has(&s.get, &s.b);
	script_end();
}

/* A get is answered with these bytes, which are no RESP: the connection ends. Returns the get's
 * status. */
static void get_kills(const char *reply, bool endless)
{
	const struct fake_step step = { .reply = reply, .endless = endless };

	script_begin(3000);
	script_serve(&step, 1);
	assert_int_equal(rig_load(&s.rig, &s.get, &s.b), -ECONNRESET);
	(void)rig_goes_down(&s.rig, -EPROTO);
	rig_is_poison(&s.get);
	assert_int_equal(s.rig.counters.protocol_errors, 1);
	script_end();
}

/* A small command is answered with 1, or not at all; then the connection ends. */
static void small_ends(const struct fake_step *step, int status, int why, const char *words)
{
	struct rig_command c = { 0 };
	const char *text;

	script_begin(10);
	script_serve(step, 1);
	rig_exists(&c, &s.b);
	assert_int_equal(rig_do(&s.rig, &c), status);
	if (status == 0)
		assert_int_equal(c.integer, 1);
	text = rig_goes_down(&s.rig, why);
	if (words)
		assert_string_equal(text, words);
	script_end();
}

/* --- cuts --- */

static void cut_at_every_byte(const char *reply, size_t bytes, const struct block *b)
{
	for (size_t cut = 1; cut < bytes; cut++) {
		const struct fake_step step = { .reply = reply, .bytes = bytes, .cut = cut };

		script_serve(&step, 1);
		assert_int_equal(rig_load(&s.rig, &s.get, b), -ECONNRESET);
		(void)rig_goes_down(&s.rig, -ECONNRESET);
		script_end();
	}
}

static void cut_off(const char *error)
{
	struct script whole;

	script_begin(100);
	whole = s;
	s = (struct script){ 0 };
	cut_at_every_byte(error ? error : whole.value, error ? strlen(error) : whole.bytes,
			  &whole.b);
	free(whole.value);
	block_free(&whole.b);
}

TEST_DO(a_value_is_cut_off, cut_off(NULL));
TEST_DO(an_error_is_cut_off, cut_off("-LOADING Redis is loading the dataset in memory\r\n"));

/* A good value that ends with this byte, and then the connection does. */
static void value_ends(char last, bool cut, int status, int why)
{
	struct fake_step step;

	script_begin(100);
	s.value[s.bytes - 1] = last;
	step = (struct fake_step){ .reply = s.value, .bytes = s.bytes, .cut = cut ? s.bytes : 0 };
	script_serve(&step, 1);
	assert_int_equal(rig_load(&s.rig, &s.get, &s.b), status);
	if (status == 0)
		rig_has(&s.get, &s.b);
	(void)rig_goes_down(&s.rig, why);
	script_end();
}

/* The whole reply, then the end of file: the command still ends well. */
TEST_DO(cut_right_behind_a_value, value_ends('\n', true, 0, -ECONNRESET));

/* --- replies of other kinds --- */

TEST(other_kinds_are_misses)
{
	static const char *const replies[] = {
		"+OK\r\n",
		":128\r\n",
		"*0\r\n",
		"*2\r\n$2\r\nab\r\n:1\r\n",
		"*2\r\n*2\r\n*1\r\n+x\r\n:1\r\n$0\r\n\r\n",
		"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
		"$0\r\n\r\n",
		"$3\r\nabc\r\n",
	};

	for (size_t i = 0; i < sizeof(replies) / sizeof(replies[0]); i++)
		get_ends(replies[i], -EBADMSG);
}

TEST_DO(nil_is_nothing, get_ends("$-1\r\n", -ENOENT); get_ends("*-1\r\n", -ENOENT));

TEST(errors_are_told)
{
	const struct fake_step step = { .reply = "-ERR something\x1b[31m else\r\n" };

	get_ends("-LOADING Redis is loading\r\n", -EREMOTEIO);
	get_ends("-WRONGTYPE Operation against a key\r\n", -EBADMSG);
	script_begin(10);
	script_serve(&step, 1);
	assert_int_equal(rig_load(&s.rig, &s.get, &s.b), -EREMOTEIO);
	assert_string_equal(s.get.command.error, "ERR something?[31m else");
	script_end();
}

TEST(bytes_that_come_one_by_one)
{
	/* The step is the pause: each command's reply has one part of the value; the others are
	 * never answered. */
	enum { PARTS = 40 };
	struct fake_step steps[PARTS];
	struct rig_command ping[PARTS] = { 0 };

	script_begin(3000);
	for (size_t i = 0; i < PARTS; i++) {
		const size_t from = s.bytes * i / PARTS, to = s.bytes * (i + 1) / PARTS;

		steps[i] = (struct fake_step){ .reply = s.value + from,
					       .bytes = to - from,
					       .delay_ms = 5 };
	}
	script_serve(steps, PARTS);
	rig_get(&s.get, &s.b);
	rig_submit(&s.rig, &s.get);
	for (size_t i = 1; i < PARTS; i++) {
		rig_exists(&ping[i], &s.b);
		rig_submit(&s.rig, &ping[i]);
	}
	rig_wait(&s.rig, &s.get);
	rig_has(&s.get, &s.b);
	script_end();
	for (size_t i = 1; i < PARTS; i++)
		assert_int_equal(ping[i].command.status, -ECONNRESET); /* closed by us */
}

/* --- no RESP --- */

TEST(not_the_protocol)
{
	static const char *const replies[] = {
		"HTTP/1.1 400 Bad Request\r\n",
		"?",
		"OK\r\n",
		" +OK\r\n",
		"\r\n",
		"\n",
		"$\r\n",
		"$-2\r\n",
		"$-0\r\n",
		"$+1\r\n",
		"$01\r\n",
		"$1\n",
		"$1 \r\n",
		"$ 3\r\nabc\r\n",
		"$12x\r\n",
		"$0x10\r\n",
		"$536870913\r\n",
		"$18446744073709551617\r\n",
		"$99999999999999999999\r\n",
		"$?\r\n;1\r\nx\r\n",
		"$3\r\nabcd\r\n",
		":\r\n",
		":-\r\n",
		":--1\r\n",
		":1.0\r\n",
		":9223372036854775808\r\n",
		":-9223372036854775809\r\n",
		"*?\r\n",
		"*-2\r\n",
		"*99999999\r\n",
		"*2147483647\r\n",
		"*4294967295\r\n",
		"*1\r\n$?\r\n",
		"*2\r\n:1\r\nx\r\n",
		"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
		"_\r\n",
		"#t\r\n",
		",1.5\r\n",
		"(12\r\n",
		"%1\r\n+a\r\n:1\r\n",
		"~1\r\n:1\r\n",
		">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nfoo\r\n",
		"!3\r\nERR\r\n",
		"=5\r\ntxt:a\r\n",
		"|1\r\n+a\r\n:1\r\n$2\r\nab\r\n",
	};

	for (size_t i = 0; i < sizeof(replies) / sizeof(replies[0]); i++) {
		print_message("%s", replies[i]);
		get_kills(replies[i], false);
	}
}

TEST(endless_lines_and_arrays)
{
	get_kills("+abcdefgh", true);
	get_kills("-abcdefgh", true);
	get_kills("*2\r\n", true);
	get_kills("*1000\r\n:1\r\n", true);
	get_kills(">2\r\n+a\r\n+b\r\n", true);
}

/* A good value, but something else where its CR LF should be. */
TEST_DO(no_crlf_behind_a_value, value_ends('x', false, -ECONNRESET, -EPROTO));

/* Small replies have an end, too. */
TEST(a_small_reply_that_is_none)
{
	static const char element[] = "$1000\r\n";
	static char reply[2 << 20];
	size_t n = (size_t)sprintf(reply, "*1500\r\n");

	for (int i = 0; i < 1500; i++) {
		memcpy(reply + n, element, sizeof(element) - 1);
		n += sizeof(element) - 1;
		memset(reply + n, 'x', 1000);
		memcpy(reply + n + 1000, "\r\n", 2);
		n += 1002;
	}
	small_ends(&(struct fake_step){ .reply = reply, .bytes = n }, -ECONNRESET, -EPROTO, NULL);
}

/* An array has room for all its elements from its first line on. */
TEST(arrays_are_bounded)
{
	static char reply[16 + 4 * 16384] = "*16384\r\n";
	const struct fake_step steps[2] = { { .reply = reply }, { .reply = "*16385\r\n" } };
	struct rig_command c = { 0 };

	for (size_t i = 0; i < 16384; i++)
		(void)strcpy(reply + 8 + 4 * i, ":1\r\n");
	script_begin(10);
	script_serve(steps, 2);
	rig_exists(&c, &s.b);
	assert_int_equal(rig_do(&s.rig, &c), 0);
	rig_exists(&c, &s.b);
	assert_int_equal(rig_do(&s.rig, &c), -ECONNRESET);
	(void)rig_goes_down(&s.rig, -EPROTO);
	script_end();
}

/* No server sends them, as no HELLO 3 is ever said; nor the last three, which have a part too many
 * or the wrong end. */
TEST(small_replies_of_other_protocols)
{
	static const char *const replies[] = {
		"_\r\n",
		"#t\r\n",
		",1.5\r\n",
		"(12\r\n",
		"%1\r\n+a\r\n:1\r\n",
		"~1\r\n:1\r\n",
		">1\r\n+a\r\n",
		"!3\r\nERR\r\n",
		"=5\r\ntxt:a\r\n",
		"|1\r\n+a\r\n:1\r\n:1\r\n",
		"$1\r\nab\r\n",
		"$1\r\na\n\r\n",
		"$2\r\nab\r\r\n",
	};

	for (size_t i = 0; i < sizeof(replies) / sizeof(replies[0]); i++) {
		print_message("%s", replies[i]);
		small_ends(&(struct fake_step){ .reply = replies[i] }, -ECONNRESET, -EPROTO, NULL);
	}
}

/* --- out of turn --- */

TEST_DO(a_reply_too_many,
	small_ends(&(struct fake_step){ .reply = ":1\r\n:2\r\n" }, 0, -EPROTO, NULL));

TEST(an_error_that_nobody_asked_for)
{
	const struct fake_step step = { .reply = ":1\r\n-ERR max number of clients reached\r\n" };

	small_ends(&step, 0, -ECONNREFUSED, "ERR max number of clients reached");
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

		fake_start(&s.server, &step, 1, true);
		rig_open_to(&s.rig, s.server.address, "", "open-sesame");
		assert_null(strstr(rig_goes_down(&s.rig, -EACCES), "open"));
		script_end();
	}
}

/* Connected, but it says nothing. */
TEST(a_greeting_without_answer)
{
	const struct fake_step step = { .reply = NULL };

	fake_start(&s.server, &step, 1, true);
	rig_open_within(&s.rig, s.server.address, "", "x", 200);
	(void)rig_goes_down(&s.rig, -ETIMEDOUT);
	script_end();
}
