/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: redis_conn.h holds when a server is slow, stops or dies: commands end once and in time. A
 * reply that comes later touches nothing and disturbs no other command. A command that cannot be
 * taken back any more closes the connection. Method: a real redis-server, without TLS and with it,
 * that is stopped, continued and killed; where a reply must come in parts, the scripted one. When a
 * command has ended its buffer is poisoned anew, and must stay so.
 */
#include "base/list.h"
#include "tests/lib/lib_redis_conn.h"

enum { SOON_MS = 100 };

/* Of each case: a connection to the server, a block, and a command to get it. */
static struct random dice;
static struct rig r;
static struct block b;
static struct rig_command get;

FIXTURE(begin_apart) /* without the connection */
{
	dice = random_seeded("unit_redis_conn_late");
	get = (struct rig_command){ 0 };
	b = block_make(&dice, 1 << 20);
	return 0;
}

FIXTURE_DO(begin, (void)begin_apart(state); rig_empty(); rig_open(&r, rig_server.address));
FIXTURE_DO(end_apart, rig_forget(&get); block_free(&b));
FIXTURE_DO(end, rig_close(&r); (void)end_apart(state));

TEST_EACH(begin, end);

/* As the buffer's owner, which may do anything with it from now on. */
static void poison_done(struct redis_command *command)
{
	struct rig_command *c = container_of(command, struct rig_command, command);

	rig_done(command);
	memset(c->buffer, RIG_POISON, c->allocated);
}

static void get_soon(struct rig_command *c)
{
	rig_get(c, &b);
	c->command.done = poison_done;
	c->command.deadline_ns = rig_in_ms(SOON_MS);
	rig_submit(&r, c);
}

static void store(void)
{
	struct rig_command set = { 0 };

	rig_store(&r, &set, &b);
}

static void good_as_ever(void)
{
	struct rig_command again = { 0 };

	store();
	assert_int_equal(rig_load(&r, &again, &b), 0);
	rig_has(&again, &b);
	rig_forget(&again);
}

static void all_places_free(void)
{
	const uint64_t until = rig_in_ms(RIG_PATIENCE_S * 1000);

	while (redis_conn_in_flight(r.conn) > 0) {
		assert_true(clock_ns() < until);
		rig_run(&r, 1);
	}
}

/* A set that no socket buffer holds, with so many ms: the server is stopped, so it stays half
 * sent. */
static struct block half_sent_set(struct rig_command *set, uint64_t ms)
{
	const struct image_geometry geometry = {
		.dtype = DTYPE_BF16, .layers = 0, .block_tokens = 16, .opaque_bytes = 64 << 20
	};
	struct block large = block_of(&geometry, CODEC_RAW, &dice);
	const uint64_t until = rig_in_ms(RIG_PATIENCE_S * 1000);
	uint64_t before, now;

	rig_set(set, &large, 0);
	/* not before: filling the block takes a while, too */
	set->command.deadline_ns = rig_in_ms(ms);
	rig_submit(&r, set);
	now = redis_conn_unsent_bytes(r.conn);
	do { /* until nothing goes out any more */
		before = now;
		rig_run(&r, 20);
		now = redis_conn_unsent_bytes(r.conn);
		assert_true(clock_ns() < until);
	} while (now != before || now >= block_bytes(&large));
	assert_true(now > 0);
	return large;
}

TEST(late_replies_touch_nothing)
{
	enum { N = 20 };
	static struct rig_command gets[N];

	store();
	redis_signal(&rig_server, SIGSTOP);
	for (int i = 0; i < N; i++)
		get_soon(&gets[i]);
	for (int i = 0; i < N; i++)
		rig_ends(&r, &gets[i], -ETIMEDOUT);
	assert_int_equal(redis_conn_in_flight(r.conn), N);
	assert_int_equal(redis_conn_state(r.conn), REDIS_CONN_UP);
	redis_signal(&rig_server, SIGCONT);
	all_places_free();
	assert_int_equal(r.counters.late, N);
	for (int i = 0; i < N; i++) {
		assert_int_equal(gets[i].dones, 1);
		rig_is_poison(&gets[i]);
		rig_forget(&gets[i]);
	}
	good_as_ever();
}

/* The deadline comes when some of the value is in the buffer. */
TEST_WITH(the_rest_of_a_value_comes_late, begin_apart, end_apart)
{
	struct rig_command exists = { 0 };
	struct fake_step steps[2];
	struct fake_server fake;
	size_t n, head, cut;
	char *reply;

	if (rig_tls)
		skip(); /* the fake server speaks no TLS: once is enough */
	n = block_bytes(&b);
	reply = malloc(n + 64);
	head = (size_t)sprintf(reply, "$%zu\r\n", n);
	cut = head + 200 + random_below(&dice, (uint32_t)n - 300);
	block_value(&b, (uint8_t *)reply + head);
	(void)strcpy(reply + head + n, "\r\n:7\r\n"); /* the first reply's end, and the second */
	steps[0] = (struct fake_step){ .reply = reply, .bytes = cut };
	steps[1] = (struct fake_step){ .reply = reply + cut, .bytes = head + n + 6 - cut };
	fake_start(&fake, steps, 2, false);
	rig_open(&r, fake.address);
	get_soon(&get);
	rig_ends(&r, &get, -ETIMEDOUT);
	rig_exists(&exists, &b);
	assert_int_equal(rig_do(&r, &exists), 0);
	assert_int_equal(exists.integer, 7);
	assert_int_equal(r.counters.late, 1);
	rig_is_poison(&get);
	rig_close(&r);
	fake_stop(&fake);
	free(reply);
}

/* The same with a small reply: an array, and an error, whose text would go into the command. */
TEST_WITH(the_rest_of_a_small_reply_comes_late, begin_apart, end_apart)
{
	static const struct fake_step scripts[2][2] = {
		{ { .reply = "*3\r\n:1\r\n$5\r\nab" }, { .reply = "cde\r\n+x\r\n:7\r\n" } },
		{ { .reply = "-ERR not" }, { .reply = " now\r\n:7\r\n" } },
	};

	if (rig_tls)
		skip(); /* the fake server speaks no TLS: once is enough */
	for (int i = 0; i < 2; i++) {
		struct rig_command first = { 0 }, second = { 0 };
		struct fake_server fake;

		fake_start(&fake, scripts[i], 2, false);
		rig_open(&r, fake.address);
		rig_fresh(&first);
		first.command.deadline_ns = rig_in_ms(SOON_MS);
		redis_command_make(&first.command, (const char *const[]){ "EXISTS", "x", NULL });
		assert_int_equal(rig_do(&r, &first), -ETIMEDOUT);
		rig_fresh(&second);
		redis_command_make(&second.command, (const char *const[]){ "EXISTS", "x", NULL });
		assert_int_equal(rig_do(&r, &second), 0);
		assert_int_equal(second.integer, 7);
		assert_string_equal(first.command.error, "");
		rig_close(&r);
		fake_stop(&fake);
	}
}

/* Announced, but never sent. */
TEST_WITH(a_value_that_never_comes, begin_apart, end_apart)
{
	static const struct fake_step step = { .reply = "$5000000\r\nabc" };
	struct fake_server fake;

	if (rig_tls)
		skip(); /* the fake server speaks no TLS: once is enough */
	fake_start(&fake, &step, 1, false);
	rig_open(&r, fake.address);
	get_soon(&get);
	rig_ends(&r, &get, -ETIMEDOUT);
	assert_int_equal(redis_conn_in_flight(r.conn), 1);
	rig_close(&r);
	fake_stop(&fake);
}

/* Behind a set that is stuck: they were not sent, so they leave the row and the connection
 * stays. */
TEST(what_was_not_sent_is_taken_back)
{
	struct rig_command set = { 0 }, first = { 0 }, canceled = { 0 }, last = { 0 };
	struct block large;

	redis_signal(&rig_server, SIGSTOP);
	large = half_sent_set(&set, RIG_PATIENCE_S * 1000);
	rig_exists(&first, &b);
	rig_submit(&r, &first);
	get_soon(&get);
	rig_exists(&canceled, &b);
	rig_submit(&r, &canceled);
	rig_exists(&last, &large);
	rig_submit(&r, &last);
	rig_ends(&r, &get, -ETIMEDOUT);
	redis_conn_cancel(&canceled.command); /* which has moved up */
	rig_ends(&r, &canceled, -ECANCELED);
	assert_int_equal(redis_conn_in_flight(r.conn), 3);
	redis_signal(&rig_server, SIGCONT);
	rig_wait(&r, &last);
	assert_int_equal(set.command.status, 0);
	assert_int_equal(first.integer, 0);
	assert_int_equal(last.integer, 1);
	assert_int_equal(r.counters.late, 0);
	rig_is_poison(&get);
	good_as_ever();
	block_free(&large);
}

TEST(a_half_sent_command_closes)
{
	struct rig_command set = { 0 }, behind = { 0 };
	struct block large;

	redis_signal(&rig_server, SIGSTOP);
	large = half_sent_set(&set, 3000);
	rig_exists(&behind, &large);
	rig_submit(&r, &behind);
	rig_ends(&r, &set, -ETIMEDOUT);
	assert_int_equal(redis_conn_state(r.conn), REDIS_CONN_DOWN);
	(void)rig_goes_down(&r, -ETIMEDOUT);
	assert_int_equal(behind.dones, 1);
	assert_int_equal(behind.command.status, -ECONNRESET);
	redis_signal(&rig_server, SIGCONT);
	block_free(&large);
}

/* --- cancel --- */

TEST(canceled_before_it_is_sent)
{
	store();
	get_soon(&get);
	redis_conn_cancel(&get.command);
	assert_int_equal(get.dones, 0);
	rig_ends(&r, &get, -ECANCELED);
	redis_conn_cancel(&get.command); /* ended: nothing happens */
	all_places_free();
	rig_is_poison(&get);
	good_as_ever();
}

TEST(canceled_while_the_server_thinks)
{
	store();
	redis_signal(&rig_server, SIGSTOP);
	rig_get(&get, &b);
	get.command.done = poison_done;
	rig_submit(&r, &get);
	rig_run(&r, 20);
	assert_int_equal(redis_conn_unsent_bytes(r.conn), 0);
	redis_conn_cancel(&get.command);
	rig_ends(&r, &get, -ECANCELED);
	redis_signal(&rig_server, SIGCONT);
	all_places_free();
	rig_is_poison(&get);
	good_as_ever();
}

/* It ends when its last byte is out, and not before. */
TEST(canceled_when_half_sent)
{
	struct rig_command set = { 0 };
	struct block large;

	redis_signal(&rig_server, SIGSTOP);
	large = half_sent_set(&set, RIG_PATIENCE_S * 1000);
	redis_conn_cancel(&set.command);
	rig_run(&r, 50);
	assert_int_equal(set.dones, 0);
	redis_signal(&rig_server, SIGCONT);
	rig_ends(&r, &set, -ECANCELED);
	good_as_ever();
	block_free(&large);
}

/* --- ends --- */

/* Their values were perhaps partly sealed, ahead of the socket, when they were taken back: sent
 * again, they are whole. */
TEST(canceled_sets_are_sent_again)
{
	enum { N = 24 };
	static struct rig_command sets[N];
	struct block blocks[N];

	for (int round = 0; round < 3; round++) {
		redis_signal(&rig_server, SIGSTOP);
		for (int i = 0; i < N; i++) {
			blocks[i] = block_make(&dice, 800000);
			rig_set(&sets[i], &blocks[i], 0);
			rig_submit(&r, &sets[i]);
		}
		rig_run(&r, 50);
		for (int i = 0; i < N; i++)
			redis_conn_cancel(&sets[i].command);
		rig_run(&r, 20);
		redis_signal(&rig_server, SIGCONT);
		for (int i = 0; i < N; i++)
			rig_wait(&r, &sets[i]);
		/* in another order, and as they are: with values begun in them */
		for (int i = N; i-- > 0;) {
			assert_int_equal(sets[i].command.status, -ECANCELED);
			sets[i].dones = 0;
			sets[i].command.deadline_ns = rig_in_ms(RIG_PATIENCE_S * 1000);
			rig_submit(&r, &sets[i]);
		}
		for (int i = 0; i < N; i++) {
			rig_ends(&r, &sets[i], 0);
			assert_int_equal(rig_load(&r, &get, &blocks[i]), 0);
			rig_has(&get, &blocks[i]);
			block_free(&blocks[i]);
		}
		all_places_free();
	}
}

TEST(a_killed_server_ends_all)
{
	enum { N = 30 };
	static struct rig_command commands[N];

	redis_signal(&rig_server, SIGSTOP);
	for (int i = 0; i < N; i++) {
		if (i % 2)
			rig_get(&commands[i], &b);
		else
			rig_set(&commands[i], &b, 0);
		rig_submit(&r, &commands[i]);
	}
	rig_run(&r, 20);
	redis_kill(&rig_server);
	for (int i = 0; i < N; i++) {
		rig_ends(&r, &commands[i], -ECONNRESET);
		rig_forget(&commands[i]);
	}
	assert_int_equal(redis_conn_state(r.conn), REDIS_CONN_DOWN);
	(void)rig_goes_down(&r, -ECONNRESET);
	rig_close(&r);
	redis_restart(&rig_server);
	rig_open(&r, rig_server.address);
	good_as_ever();
}

TEST_WITH(closing_ends_what_is_lent, begin, end_apart)
{
	rig_get(&get, &b);
	rig_submit(&r, &get);
	rig_close(&r);
	assert_int_equal(get.dones, 1);
	assert_int_equal(get.command.status, -ECONNRESET);
	rig_is_poison(&get);
}

/* done() submits the same command again, and so on. */
static void again(struct redis_command *command)
{
	struct rig_command *c = container_of(command, struct rig_command, command);

	if (++c->dones < 50)
		assert_int_equal(redis_conn_submit(command->conn, command), 0);
}

TEST(done_may_submit)
{
	struct rig_command c = { 0 }, expired = { 0 };
	const uint64_t until = rig_in_ms(RIG_PATIENCE_S * 1000);

	rig_fresh(&c);
	rig_fresh(&expired);
	redis_command_make(&c.command, (const char *const[]){ "EXISTS", "x", NULL });
	redis_command_make(&expired.command, (const char *const[]){ "EXISTS", "x", NULL });
	c.command.done = expired.command.done = again;
	/* long ago: it ends in the timer, and is submitted there */
	expired.command.deadline_ns = 1;
	rig_submit(&r, &c);
	rig_submit(&r, &expired);
	while (c.dones < 50 || expired.dones < 50) {
		assert_true(clock_ns() < until);
		rig_run(&r, 1);
	}
	assert_int_equal(c.command.status, 0);
	assert_int_equal(expired.command.status, -ETIMEDOUT);
	all_places_free();
}

TEST_GROUPS({ "without TLS", rig_server_start, rig_server_stop },
	    { "with TLS", rig_server_start_with_tls, rig_server_stop });

TEST_FIRST(redis_needed());
