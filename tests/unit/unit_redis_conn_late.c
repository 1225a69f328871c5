/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: redis_conn.h holds when a server is slow, stops or dies: commands end once and in time. A
 * reply that comes later touches nothing and disturbs no other command. A command that cannot be
 * taken back any more closes the connection. Method: a real redis-server, without TLS and with it,
 * that is stopped, continued and killed; where a reply must come in parts, the scripted one. When a
 * command has ended its buffer is poisoned anew, and must stay so.
 */
#include "daemon/base/container_of.h"
#include "tests/lib/lib_redis_conn.h"

#include <signal.h>

enum { SOON_MS = 100 };

/* As the buffer's owner, which may do anything with it from now on. */
static void poison_done(struct redis_command *command)
{
	struct rig_command *c = container_of(command, struct rig_command, command);

	rig_done(command);
	memset(c->buffer, RIG_POISON, c->allocated);
}

static void get_soon(struct rig *r, struct rig_command *c, const struct block *b)
{
	rig_get(c, b);
	c->command.done = poison_done;
	c->command.deadline_ns = rig_in_ms(SOON_MS);
	rig_submit(r, c);
}

static void store(struct rig *r, const struct block *b)
{
	struct rig_command set = { 0 };

	rig_set(&set, b, 0);
	assert_int_equal(rig_do(r, &set), 0);
}

static void good_as_ever(struct rig *r, const struct block *b)
{
	struct rig_command get = { 0 };

	store(r, b);
	rig_get(&get, b);
	assert_int_equal(rig_do(r, &get), 0);
	rig_has(&get, b);
	rig_forget(&get);
}

static void all_places_free(struct rig *r)
{
	const uint64_t until = rig_in_ms(RIG_PATIENCE_S * 1000);

	while (redis_conn_in_flight(r->conn) > 0) {
		assert_true(rig_now() < until);
		rig_run(r, 1);
	}
}

static uint64_t late(const struct rig *r)
{
	struct redis_conn_counters counters;

	redis_conn_counters(r->conn, &counters);
	return counters.late;
}

/* A set that no socket buffer holds, with so many ms: the server is stopped, so it stays half
 * sent. */
static struct block half_sent_set(struct rig *r, struct rig_command *set, struct random *random,
				  uint64_t ms)
{
	const struct image_geometry geometry = {
		.dtype = DTYPE_BF16, .layers = 0, .block_tokens = 16, .opaque_bytes = 64 << 20
	};
	struct block b = block_of(&geometry, CODEC_RAW, random);
	const uint64_t until = rig_in_ms(RIG_PATIENCE_S * 1000);
	uint64_t before, now;

	rig_set(set, &b, 0);
	/* not before: filling the block takes a while, too */
	set->command.deadline_ns = rig_in_ms(ms);
	rig_submit(r, set);
	now = redis_conn_unsent_bytes(r->conn);
	do { /* until nothing goes out any more */
		before = now;
		rig_run(r, 20);
		now = redis_conn_unsent_bytes(r->conn);
		assert_true(rig_now() < until);
	} while (now != before || now >= block_bytes(&b));
	assert_true(now > 0);
	return b;
}

static void late_replies_touch_nothing(void **state)
{
	enum { N = 20 };
	static struct rig_command gets[N];
	struct random random = random_seeded("late_replies_touch_nothing");
	struct block b = block_make(&random, 1 << 20);
	struct rig r;

	(void)state;
	rig_open(&r, rig_server.address);
	store(&r, &b);
	redis_signal(&rig_server, SIGSTOP);
	for (int i = 0; i < N; i++)
		get_soon(&r, &gets[i], &b);
	for (int i = 0; i < N; i++) {
		rig_wait(&r, &gets[i]);
		assert_int_equal(gets[i].command.status, -ETIMEDOUT);
	}
	assert_int_equal(redis_conn_in_flight(r.conn), N);
	assert_int_equal(redis_conn_state(r.conn), REDIS_CONN_UP);
	redis_signal(&rig_server, SIGCONT);
	all_places_free(&r);
	assert_int_equal(late(&r), N);
	for (int i = 0; i < N; i++) {
		assert_int_equal(gets[i].dones, 1);
		rig_is_poison(&gets[i]);
		rig_forget(&gets[i]);
	}
	good_as_ever(&r, &b);
	rig_close(&r);
	block_free(&b);
}

/* The deadline comes when some of the value is in the buffer. */
static void the_rest_of_a_value_comes_late(void **state)
{
	struct random random = random_seeded("the_rest_of_a_value_comes_late");
	struct block b = block_make(&random, 100000);
	const size_t n = block_bytes(&b);
	char *reply = malloc(n + 64);
	const size_t head = (size_t)sprintf(reply, "$%zu\r\n", n);
	const size_t cut = head + 200 + random_below(&random, (uint32_t)n - 300);
	struct rig_command get = { 0 }, exists = { 0 };
	struct fake_step steps[2];
	struct fake_server fake;
	struct rig r;

	(void)state;
	block_value(&b, (uint8_t *)reply + head);
	(void)strcpy(reply + head + n, "\r\n:7\r\n"); /* the first reply's end, and the second */
	steps[0] = (struct fake_step){ .reply = reply, .bytes = cut };
	steps[1] = (struct fake_step){ .reply = reply + cut, .bytes = head + n + 6 - cut };
	fake_start(&fake, steps, 2, false);
	rig_open(&r, fake.address);
	get_soon(&r, &get, &b);
	rig_wait(&r, &get);
	assert_int_equal(get.command.status, -ETIMEDOUT);
	rig_exists(&exists, &b);
	assert_int_equal(rig_do(&r, &exists), 0);
	assert_int_equal(exists.integer, 7);
	assert_int_equal(late(&r), 1);
	rig_is_poison(&get);
	rig_close(&r);
	fake_stop(&fake);
	rig_forget(&get);
	free(reply);
	block_free(&b);
}

/* The same with a small reply: an array, and an error, whose text would go into the command. */
static void the_rest_of_a_small_reply_comes_late(void **state)
{
	static const struct fake_step scripts[2][2] = {
		{ { .reply = "*3\r\n:1\r\n$5\r\nab" }, { .reply = "cde\r\n+x\r\n:7\r\n" } },
		{ { .reply = "-ERR not" }, { .reply = " now\r\n:7\r\n" } },
	};

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct rig_command first = { 0 }, second = { 0 };
		struct fake_server fake;
		struct rig r;

		fake_start(&fake, scripts[i], 2, false);
		rig_open(&r, fake.address);
		rig_fresh(&first);
		first.command.deadline_ns = rig_in_ms(SOON_MS);
		redis_command_exists(&first.command, "x", 1);
		assert_int_equal(rig_do(&r, &first), -ETIMEDOUT);
		rig_fresh(&second);
		redis_command_exists(&second.command, "x", 1);
		assert_int_equal(rig_do(&r, &second), 0);
		assert_int_equal(second.integer, 7);
		assert_string_equal(first.command.error, "");
		rig_close(&r);
		fake_stop(&fake);
	}
}

/* Announced, but never sent. */
static void a_value_that_never_comes(void **state)
{
	static const struct fake_step step = { .reply = "$5000000\r\nabc" };
	struct random random = random_seeded("a_value_that_never_comes");
	struct block b = block_make(&random, 1000);
	struct rig_command get = { 0 };
	struct fake_server fake;
	struct rig r;

	(void)state;
	fake_start(&fake, &step, 1, false);
	rig_open(&r, fake.address);
	get_soon(&r, &get, &b);
	rig_wait(&r, &get);
	assert_int_equal(get.command.status, -ETIMEDOUT);
	assert_int_equal(redis_conn_in_flight(r.conn), 1);
	rig_close(&r);
	fake_stop(&fake);
	rig_forget(&get);
	block_free(&b);
}

/* Behind a set that is stuck: they were not sent, so they leave the row and the connection
 * stays. */
static void what_was_not_sent_is_taken_back(void **state)
{
	struct random random = random_seeded("what_was_not_sent_is_taken_back");
	struct rig_command set = { 0 }, first = { 0 }, get = { 0 }, canceled = { 0 }, last = { 0 };
	struct block b = block_make(&random, 1000), large;
	struct rig r;

	(void)state;
	rig_open(&r, rig_server.address);
	redis_signal(&rig_server, SIGSTOP);
	large = half_sent_set(&r, &set, &random, RIG_PATIENCE_S * 1000);
	rig_exists(&first, &b);
	rig_submit(&r, &first);
	get_soon(&r, &get, &b);
	rig_exists(&canceled, &b);
	rig_submit(&r, &canceled);
	rig_exists(&last, &large);
	rig_submit(&r, &last);
	rig_wait(&r, &get);
	assert_int_equal(get.command.status, -ETIMEDOUT);
	redis_conn_cancel(&canceled.command); /* which has moved up */
	rig_wait(&r, &canceled);
	assert_int_equal(canceled.command.status, -ECANCELED);
	assert_int_equal(redis_conn_in_flight(r.conn), 3);
	redis_signal(&rig_server, SIGCONT);
	rig_wait(&r, &last);
	assert_int_equal(set.command.status, 0);
	assert_int_equal(first.integer, 0);
	assert_int_equal(last.integer, 1);
	assert_int_equal(late(&r), 0);
	rig_is_poison(&get);
	good_as_ever(&r, &b);
	rig_close(&r);
	rig_forget(&get);
	block_free(&b);
	block_free(&large);
}

static void a_half_sent_command_closes(void **state)
{
	struct random random = random_seeded("a_half_sent_command_closes");
	struct rig_command set = { 0 }, behind = { 0 };
	struct block large;
	struct rig r;
	int why;

	(void)state;
	rig_open(&r, rig_server.address);
	redis_signal(&rig_server, SIGSTOP);
	large = half_sent_set(&r, &set, &random, 3000);
	rig_exists(&behind, &large);
	rig_submit(&r, &behind);
	rig_wait(&r, &set);
	assert_int_equal(set.command.status, -ETIMEDOUT);
	assert_int_equal(redis_conn_state(r.conn), REDIS_CONN_DOWN);
	(void)rig_why(&r, &why);
	assert_int_equal(why, -ETIMEDOUT);
	assert_int_equal(behind.dones, 1);
	assert_int_equal(behind.command.status, -ECONNRESET);
	redis_signal(&rig_server, SIGCONT);
	rig_close(&r);
	block_free(&large);
}

/* --- cancel --- */

static void canceled_before_it_is_sent(void **state)
{
	struct random random = random_seeded("canceled_before_it_is_sent");
	struct block b = block_make(&random, 1000);
	struct rig_command get = { 0 };
	struct rig r;

	(void)state;
	rig_open(&r, rig_server.address);
	store(&r, &b);
	get_soon(&r, &get, &b);
	redis_conn_cancel(&get.command);
	assert_int_equal(get.dones, 0);
	rig_wait(&r, &get);
	assert_int_equal(get.command.status, -ECANCELED);
	redis_conn_cancel(&get.command); /* ended: nothing happens */
	all_places_free(&r);
	rig_is_poison(&get);
	good_as_ever(&r, &b);
	rig_close(&r);
	rig_forget(&get);
	block_free(&b);
}

static void canceled_while_the_server_thinks(void **state)
{
	struct random random = random_seeded("canceled_while_the_server_thinks");
	struct block b = block_make(&random, 1 << 20);
	struct rig_command get = { 0 };
	struct rig r;

	(void)state;
	rig_open(&r, rig_server.address);
	store(&r, &b);
	redis_signal(&rig_server, SIGSTOP);
	rig_get(&get, &b);
	get.command.done = poison_done;
	rig_submit(&r, &get);
	rig_run(&r, 20);
	assert_int_equal(redis_conn_unsent_bytes(r.conn), 0);
	redis_conn_cancel(&get.command);
	rig_wait(&r, &get);
	assert_int_equal(get.command.status, -ECANCELED);
	redis_signal(&rig_server, SIGCONT);
	all_places_free(&r);
	rig_is_poison(&get);
	good_as_ever(&r, &b);
	rig_close(&r);
	rig_forget(&get);
	block_free(&b);
}

/* It ends when its last byte is out, and not before. */
static void canceled_when_half_sent(void **state)
{
	struct random random = random_seeded("canceled_when_half_sent");
	struct rig_command set = { 0 };
	struct block b = block_make(&random, 1000), large;
	struct rig r;

	(void)state;
	rig_open(&r, rig_server.address);
	redis_signal(&rig_server, SIGSTOP);
	large = half_sent_set(&r, &set, &random, RIG_PATIENCE_S * 1000);
	redis_conn_cancel(&set.command);
	rig_run(&r, 50);
	assert_int_equal(set.dones, 0);
	redis_signal(&rig_server, SIGCONT);
	rig_wait(&r, &set);
	assert_int_equal(set.command.status, -ECANCELED);
	good_as_ever(&r, &b);
	rig_close(&r);
	block_free(&b);
	block_free(&large);
}

/* --- ends --- */

/* Their values were perhaps partly sealed, ahead of the socket, when they were taken back: sent
 * again, they are whole. */
static void canceled_sets_are_sent_again(void **state)
{
	enum { N = 24 };
	static struct rig_command sets[N];
	struct random random = random_seeded("canceled_sets_are_sent_again");
	struct rig_command get = { 0 };
	struct block blocks[N];
	struct rig r;

	(void)state;
	rig_open(&r, rig_server.address);
	for (int round = 0; round < 3; round++) {
		redis_signal(&rig_server, SIGSTOP);
		for (int i = 0; i < N; i++) {
			blocks[i] = block_make(&random, 800000);
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
			rig_wait(&r, &sets[i]);
			assert_int_equal(sets[i].command.status, 0);
			rig_get(&get, &blocks[i]);
			assert_int_equal(rig_do(&r, &get), 0);
			rig_has(&get, &blocks[i]);
			block_free(&blocks[i]);
		}
		all_places_free(&r);
	}
	rig_close(&r);
	rig_forget(&get);
}

static void a_killed_server_ends_all(void **state)
{
	enum { N = 30 };
	static struct rig_command commands[N];
	struct random random = random_seeded("a_killed_server_ends_all");
	struct block b = block_make(&random, 100000);
	struct rig r;
	int why;

	(void)state;
	rig_open(&r, rig_server.address);
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
		rig_wait(&r, &commands[i]);
		assert_int_equal(commands[i].command.status, -ECONNRESET);
		rig_forget(&commands[i]);
	}
	assert_int_equal(redis_conn_state(r.conn), REDIS_CONN_DOWN);
	(void)rig_why(&r, &why);
	assert_int_equal(why, -ECONNRESET);
	rig_close(&r);
	redis_restart(&rig_server);
	rig_open(&r, rig_server.address);
	good_as_ever(&r, &b);
	rig_close(&r);
	block_free(&b);
}

static void closing_ends_what_is_lent(void **state)
{
	struct random random = random_seeded("closing_ends_what_is_lent");
	struct block b = block_make(&random, 1000);
	struct rig_command get = { 0 };
	struct rig r;

	(void)state;
	rig_open(&r, rig_server.address);
	rig_get(&get, &b);
	rig_submit(&r, &get);
	rig_close(&r);
	assert_int_equal(get.dones, 1);
	assert_int_equal(get.command.status, -ECONNRESET);
	rig_is_poison(&get);
	rig_forget(&get);
	block_free(&b);
}

/* done() submits the same command again, and so on. */
static void again(struct redis_command *command)
{
	struct rig_command *c = container_of(command, struct rig_command, command);

	if (++c->dones < 50)
		assert_int_equal(redis_conn_submit(command->conn, command), 0);
}

static void done_may_submit(void **state)
{
	struct rig_command c = { 0 }, expired = { 0 };
	const uint64_t until = rig_in_ms(RIG_PATIENCE_S * 1000);
	struct rig r;

	(void)state;
	rig_open(&r, rig_server.address);
	rig_fresh(&c);
	rig_fresh(&expired);
	redis_command_exists(&c.command, "x", 1);
	redis_command_exists(&expired.command, "x", 1);
	c.command.done = expired.command.done = again;
	/* long ago: it ends in the timer, and is submitted there */
	expired.command.deadline_ns = 1;
	rig_submit(&r, &c);
	rig_submit(&r, &expired);
	while (c.dones < 50 || expired.dones < 50) {
		assert_true(rig_now() < until);
		rig_run(&r, 1);
	}
	assert_int_equal(c.command.status, 0);
	assert_int_equal(expired.command.status, -ETIMEDOUT);
	all_places_free(&r);
	rig_close(&r);
}

int main(void)
{
	static const struct CMUnitTest scripted[] = {
		cmocka_unit_test(the_rest_of_a_value_comes_late),
		cmocka_unit_test(the_rest_of_a_small_reply_comes_late),
		cmocka_unit_test(a_value_that_never_comes),
	};
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(late_replies_touch_nothing),
		cmocka_unit_test(what_was_not_sent_is_taken_back),
		cmocka_unit_test(a_half_sent_command_closes),
		cmocka_unit_test(canceled_before_it_is_sent),
		cmocka_unit_test(canceled_while_the_server_thinks),
		cmocka_unit_test(canceled_when_half_sent),
		cmocka_unit_test(canceled_sets_are_sent_again),
		cmocka_unit_test(a_killed_server_ends_all),
		cmocka_unit_test(closing_ends_what_is_lent),
		cmocka_unit_test(done_may_submit),
	};

	redis_needed();
	return cmocka_run_group_tests_name("scripted", scripted, NULL, NULL) ||
	       cmocka_run_group_tests_name("without TLS", tests, rig_server_start,
					   rig_server_stop) ||
	       cmocka_run_group_tests_name("with TLS", tests, rig_server_start_with_tls,
					   rig_server_stop);
}
