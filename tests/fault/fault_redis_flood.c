/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait */
/*
 * Goal: a server that sends pushes without end is not listened to for ever: pushes, one after
 * another or one of any size, end the connection after a while, with or without commands on it.
 * Method: the scripted server of lib_redis.h. sim_redis_conn.c sees that pushes now and then are
 * stepped over.
 */
#include "tests/lib/lib_redis_conn.h"
#include "tests/lib/test.h"

static void goes_down(struct rig *r)
{
	const uint64_t until = rig_in_ms(RIG_PATIENCE_S * 1000);
	int why;

	while (redis_conn_state(r->conn) != REDIS_CONN_DOWN) {
		assert_true(rig_now() < until);
		rig_run(r, 1);
	}
	(void)rig_why(r, &why);
	assert_int_equal(why, -EPROTO);
}

/* The commands' answers are these bytes, again and again. */
static void floods(const struct fake_step *step, int status)
{
	struct rig_command c = { 0 };
	struct fake_server server;
	struct rig r;

	fake_start(&server, step, 1, false);
	rig_open(&r, server.address);
	rig_fresh(&c);
	redis_command_exists(&c.command, "x", 1);
	c.command.deadline_ns = UINT64_MAX;
	assert_int_equal(rig_do(&r, &c), status);
	goes_down(&r);
	rig_close(&r);
	fake_stop(&server);
}

TEST(while_a_command_waits)
{
	static const struct fake_step step = { .reply = ">2\r\n+a\r\n+b\r\n", .endless = true };

	floods(&step, -ECONNRESET);
}

/* `begins`, and then `goes_on` up to two MiB. */
static const char *long_reply(const char *begins, const char *goes_on)
{
	static char reply[2 << 20];
	size_t n = strlen(strcpy(reply, begins));

	for (; n + strlen(goes_on) < sizeof(reply); n += strlen(goes_on))
		(void)strcpy(reply + n, goes_on);
	return reply;
}

TEST(while_nobody_waits)
{
	const struct fake_step step = { .reply = long_reply(":1\r\n", ">0\r\n") };

	floods(&step, 0);
}

TEST(a_push_without_an_end)
{
	const struct fake_step step = { .reply = long_reply(">1000000\r\n", "+a\r\n") };

	floods(&step, -ECONNRESET);
}
