/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=15 lane=wait no=thread (the daemon's threads run in others) */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_redis_fake.c - goal: with any bytes from a server at any time, a load ends in its time as a
 * miss or with the right bytes, and the daemon lives and does not grow. A real server in the liar's
 * place is used again. Method: a real kvtierd and an engine at a scripted server; the good value
 * that is cut and bent was made by another kvtierd.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_shared.h"

/* One layer of one head of 16 dimensions, 16 tokens, FP8: header, 2 scales, 512 values. */
enum { VALUE = 32 + 128 + 2 + 512 + 16, REPLY = VALUE + 8 };
enum { HEAD = 10, STRIDE = 19, LOADS = 6, SLACK_KIB = 64 << 10, LINE = 4096 };
/* A server that was left alone is tried again when some of these have passed, and has a while. */
enum { STEP_MS = 8000, TRIES = 60, QUIET_MS_MAX = 1000 };

static const char lines[] = "timeout_ms = 300\n";

static struct {
	uint8_t value[VALUE]; /* of the first key */
	char reply[REPLY];    /* as a server sends it */
	struct kvtier_key keys[SHARED_BLOCKS];
	struct fake_server fake;
	struct redis_server real;
	struct node node;
	long rss_kib; /* when it had done all that it does but this */
} w;

static struct kvtier_geometry small(void)
{
	struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);

	g.model = "small@1";
	g.layers = g.kv_heads = 1;
	g.head_dim_k = g.head_dim_v = 16;
	return g;
}

FIXTURE(make_value)
{
	const struct kvtier_geometry g = small();
	char name[SHARED_NAME];

	memset(&w, 0, sizeof(w));
	redis_start(&w.real, NULL);
	node_place(&w.node, &(struct node_conf){ .endpoints = w.real.address });
	node_live(&w.node);
	node_join(&w.node, &g);
	chain_keys(&w.node.e, 1, SHARED_BLOCKS, w.keys);
	node_store_through(&w.node, w.keys, 1);
	shared_name("kvtier:", &w.keys[0], name);
	assert_int_equal(redis_get(&w.real, name, w.value, sizeof(w.value)), VALUE);
	assert_int_equal(snprintf(w.reply, sizeof(w.reply), "$%d\r\n", VALUE), 6);
	memcpy(w.reply + 6, w.value, VALUE);
	memcpy(w.reply + 6 + VALUE, "\r\n", 2);
	node_end(&w.node);
	redis_kill(&w.real);
	return 0;
}

FIXTURE_DO(forget_value, redis_stop(&w.real));

static void begin(const struct fake_step *steps, uint32_t n)
{
	const struct kvtier_geometry g = small();
	struct kvtier_key own[SHARED_BLOCKS];

	fake_start(&w.fake, steps, n, false);
	node_place(&w.node, &(struct node_conf){ .endpoints = w.fake.address, .lines = lines });
	node_live(&w.node);
	node_join(&w.node, &g);
	chain_keys(&w.node.e, 7, SHARED_BLOCKS, own);
	assert_int_equal(chain_load(&w.node.e, own, 0, SHARED_BLOCKS), 0);
	w.rss_kib = daemon_rss_kib(&w.node.d);
}

static uint32_t commands(void)
{
	return __atomic_load_n(w.fake.commands, __ATOMIC_ACQUIRE);
}

/* The daemon is alive and no larger, its memory serves, and its write-behind goes to the liar,
 * too. */
static void end(void)
{
	struct kvtier_key own[SHARED_BLOCKS];

	chain_keys(&w.node.e, 2, SHARED_BLOCKS, own);
	assert_int_equal(chain_store(&w.node.e, own, SHARED_BLOCKS, SHARED_BLOCKS), 0);
	assert_int_equal(chain_load(&w.node.e, own, SHARED_BLOCKS, SHARED_BLOCKS), SHARED_BLOCKS);
	assert_true(daemon_rss_kib(&w.node.d) < w.rss_kib + SLACK_KIB);
	fake_stop(&w.fake);
	node_owes_nothing(&w.node);
	node_end(&w.node);
}

/* Answers at the liar's port. The first tries may be before that server is tried again. */
static void a_real_server_in_its_place_is_used(void)
{
	const uint64_t until = now_ns() + TRIES * STEP_MS * 1000000ull;
	uint32_t quiet_ms = 20;
	char name[SHARED_NAME];

	w.real.port = w.fake.port;
	memcpy(w.real.address, w.fake.address, sizeof(w.real.address));
	fake_stop(&w.fake);
	redis_restart(&w.real);
	shared_name("kvtier:", &w.keys[0], name);
	redis_put(&w.real, name, w.value, VALUE);
	while (node_load_each(&w.node, w.keys, 0, 1) == 0) {
		if (now_ns() > until)
			fail_msg("the real server is not used");
		nap_ms(quiet_ms);
		clock_pass_ms(STEP_MS);
		quiet_ms = 2 * quiet_ms < QUIET_MS_MAX ? 2 * quiet_ms : QUIET_MS_MAX;
	}
	redis_kill(&w.real);
}

/* --- cut --- */

/* Each costs a tenth of a second, before which no connection is made again: the ends byte by byte,
 * the middle in strides; the connection's own tests have every byte. After each a whole "not
 * there", or it would be left alone. */
TEST(cut_in_many_places)
{
	static struct fake_step steps[2 * REPLY];
	const uint64_t until = now_ns() + 6 * SHARED_MS * 1000000ull;
	uint32_t n = 0;

	for (size_t cut = 1; cut < REPLY; cut += cut < HEAD || cut + STRIDE >= REPLY ? 1 : STRIDE) {
		steps[n++] = (struct fake_step){ .reply = w.reply, .bytes = REPLY, .cut = cut };
		steps[n++] = (struct fake_step){ .reply = "$-1\r\n" };
	}
	begin(steps, n);
	while (commands() < n) {
		assert_int_equal(node_load_each(&w.node, w.keys, 0, 1), 0);
		if (now_ns() > until)
			fail_msg("%u of %u commands came", commands(), n);
	}
	a_real_server_in_its_place_is_used();
	end();
}

/* --- lies --- */

struct lie {
	const char *name;
	struct fake_step step;
	bool may_hit; /* its first words are true */
};

static void tell(const struct lie *lie)
{
	begin(&lie->step, 1);
	for (uint32_t i = 0; i < LOADS; i++) {
		const uint32_t hits = node_load_each(&w.node, w.keys, i, 1);

		assert_true(hits == 0 || lie->may_hit);
	}
	/* where the greeting took longer than timeout_ms the server was left alone for a while */
	for (uint32_t i = 0; commands() == 0 && i < TRIES; i++) {
		nap_ms(20);
		clock_pass_ms(STEP_MS);
		assert_true(node_load_each(&w.node, w.keys, 0, 1) == 0 || lie->may_hit);
	}
	if (!lie->may_hit)
		assert_int_equal(node_prefetch(&w.node, w.keys, SHARED_BLOCKS), 0);
	/* another key's value, at best */
	assert_int_equal(node_load_each(&w.node, w.keys + 1, 0, LOADS), 0);
	assert_true(commands() > 0);
}

static void is_told(void **state)
{
	tell(*state);
	end();
}

static void is_told_and_goes(void **state)
{
	tell(*state);
	a_real_server_in_its_place_is_used();
	end();
}

/* --- bytes that have to be made --- */

static char endless_line[LINE], deep[4 * LINE + 1], wraps[REPLY + 16], tail[REPLY],
	twice[2 * REPLY], noise[LINE];
static char pushed[REPLY + 64];

static size_t reply_of(char *ret, const char *head, const char *end)
{
	const size_t n = strlen(head);

	memcpy(ret, head, n);
	memcpy(ret + n, w.reply + 6, VALUE);
	memcpy(ret + n + VALUE, end, strlen(end));
	return n + VALUE + strlen(end);
}

static void is_made_and_told(void **state)
{
	struct lie lie = *(const struct lie *)*state;
	struct random random = random_seeded("sys_redis_fake");

	memset(endless_line, 'a', sizeof(endless_line));
	endless_line[0] = '+';
	for (size_t i = 0; i < sizeof(deep) - 1; i++)
		deep[i] = "*1\r\n"[i % 4];
	for (size_t i = 0; i < sizeof(noise); i++)
		noise[i] = (char)random_next(&random);
	if (lie.step.reply == wraps)
		lie.step.bytes = reply_of(wraps, "$4294967938\r\n", "\r\n"); /* 2^32 more */
	if (lie.step.reply == tail)
		lie.step.bytes = reply_of(tail, "$642\r\n", "XX");
	if (lie.step.reply == pushed)
		lie.step.bytes = reply_of(pushed, ">2\r\n+message\r\n+x\r\n$642\r\n", "\r\n");
	if (lie.step.reply == twice) {
		memcpy(twice, w.reply, REPLY);
		memcpy(twice + REPLY, w.reply, REPLY);
	}
	if (lie.step.reply == w.reply)
		lie.step.bytes = REPLY;
	is_told((void *[]){ &lie });
}

static struct lie lies[] = {
	{ "a length of 19 digits", { .reply = "$9223372036854775807\r\n" }, false },
	{ "a length of 21 digits", { .reply = "$100000000000000000000\r\n" }, false },
	{ "a length of 2 GiB", { .reply = "$2147483647\r\nabc" }, false },
	{ "a length below -1", { .reply = "$-2\r\n" }, false },
	{ "a negative length of the value", { .reply = "$-642\r\n" }, false },
	{ "no length", { .reply = "$\r\n" }, false },
	{ "a length in words", { .reply = "$many\r\n" }, false },
	{ "an array of 2^31", { .reply = "*2147483647\r\n" }, false },
	{ "an array below -1", { .reply = "*-2\r\n" }, false },
	{ "an integer", { .reply = ":1\r\n" }, false },
	{ "a word", { .reply = "+OK\r\n" }, false },
	{ "a double", { .reply = ",1.5\r\n" }, false },
	{ "a map", { .reply = "%1\r\n+a\r\n+b\r\n" }, false },
	{ "a set", { .reply = "~1\r\n+a\r\n" }, false },
	{ "a null", { .reply = "_\r\n" }, false },
	{ "an error", { .reply = "-ERR what?\r\n" }, false },
	{ "an error without words", { .reply = "-\r\n" }, false },
	{ "an empty line", { .reply = "\r\n" }, false },
	{ "a web server",
	  { .reply = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n" },
	  false },
	{ "silence", { .reply = NULL }, false },
};

static struct lie stubborn[] = {
	{ "arrays without end", { .reply = "*1\r\n", .endless = true }, false },
	{ "a value without end",
	  { .reply = "$9000000000000000\r\nabcdefghijklmnopqrstuvwxyz", .endless = true },
	  false },
	{ "replies without end", { .reply = "$-1\r\n", .endless = true }, false },
};

static struct lie made[] = {
	{ "a line without end", { .reply = endless_line, .bytes = LINE, .endless = true }, false },
	{ "arrays in arrays", { .reply = deep, .bytes = 4 * LINE }, false },
	{ "noise", { .reply = noise, .bytes = LINE }, false },
	{ "a length that is right in 32 bits", { .reply = wraps }, false },
	{ "a value without its end", { .reply = tail }, false },
	{ "a push before the value", { .reply = pushed }, true },
	{ "a reply too many", { .reply = twice, .bytes = 2 * REPLY }, true },
	{ "the value of another key", { .reply = w.reply }, true },
	{ "the value, late", { .reply = w.reply, .delay_ms = 700 }, false },
};

/* --- all of them --- */

#define ADD(rows, function) add(rows, sizeof(rows) / sizeof(rows[0]), function)

static void add(struct lie *rows, size_t n, CMUnitTestFunction function)
{
	for (size_t i = 0; i < n; i++)
		test_add(__LINE__,
			 &(struct CMUnitTest){ rows[i].name, function, NULL, NULL, &rows[i] }, 1);
}

TEST_GROUP(make_value, forget_value);

TEST_BEGIN
{
	redis_needed();
	ADD(lies, is_told);
	ADD(stubborn, is_told_and_goes);
	ADD(made, is_made_and_told);
}
