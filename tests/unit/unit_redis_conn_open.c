/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: redis_conn_open() takes addresses and nothing else, never asks a name server, gets in with
 * the right password, and otherwise says why not, without the password. Method: real redis-servers,
 * with and without a password, and none.
 */
#include "tests/lib/lib_redis_conn.h"

TEST(addresses)
{
	char path[5 + 108 + 1]; /* one more than a socket's may have */
	const char *const wrong[] = {
		"",
		"6379",
		"127.0.0.1",
		"127.0.0.1:",
		"127.0.0.1:0",
		"127.0.0.1:65536",
		"127.0.0.1:6379x",
		"localhost:6379",
		"::1:6379",
		"[::1]",
		"[::1:6379",
		"127.0.0.1]:6379",
		"unix:",
		":6379",
		"127.0.0.1:-1",
		"[]:1",
		"[:1",
		path,
	};
	struct rig r = { 0 };

	(void)snprintf(path, sizeof(path), "unix:/%0107d", 0);
	assert_int_equal(loop_open(0, &r.loop), 0);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		const struct redis_conn_conf conf = { .address = wrong[i], .changed = rig_changed };

		if (redis_conn_open(r.loop, &conf, &r.conn) != -EINVAL)
			fail_msg("\"%s\" is taken for an address", wrong[i]);
	}
	loop_close(r.loop);
}

static void goes_down(const char *address, const char *username, const char *password, int why,
		      const char *words)
{
	struct rig_command c = { 0 };
	const char *text;
	struct rig r;

	rig_open_to(&r, address, username, password);
	text = rig_goes_down(&r, why);
	if (!strstr(text, words))
		fail_msg("\"%s\" does not say \"%s\"", text, words);
	if (password[0])
		assert_null(strstr(text, password));
	rig_fresh(&c);
	redis_command_make(&c.command, (const char *const[]){ "EXISTS", "x", NULL });
	assert_int_equal(redis_conn_submit(r.conn, &c.command), -ENOTCONN);
	rig_close(&r);
}

TEST(nobody_listens)
{
	struct redis_server gone;
	char path[REDIS_TEST_PATH + 8], address[REDIS_TEST_PATH];

	redis_start(&gone, NULL);
	(void)snprintf(path, sizeof(path), "unix:%s", gone.socket);
	(void)snprintf(address, sizeof(address), "%s", gone.address);
	redis_kill(&gone);
	goes_down(address, "", "", -ECONNREFUSED, "refused");
	goes_down(path, "", "", -ECONNREFUSED, "refused");
	redis_stop(&gone);
	goes_down(path, "", "", -ENOENT, "No such file");
}

TEST(passwords)
{
	struct redis_server locked, open;
	struct rig_command c = { 0 };
	char text[256];
	struct rig r;

	redis_start(&open, NULL);
	redis_start(&locked, "--requirepass right-one");
	redis_say(&locked, text, sizeof(text),
		  "ACL SETUSER kvtier on >its-own +get +set +exists ~kv:*");
	assert_string_equal(text, "OK");
	rig_open_to(&r, locked.address, "", "right-one");
	rig_state_becomes(&r, REDIS_CONN_UP);
	assert_int_equal(r.changes, 2);
	rig_close(&r);
	rig_open_to(&r, locked.address, "kvtier", "its-own");
	rig_state_becomes(&r, REDIS_CONN_UP);
	rig_close(&r);
	goes_down(locked.address, "", "wrong-one", -EACCES, "WRONGPASS");
	goes_down(locked.address, "nobody", "right-one", -EACCES, "WRONGPASS");
	goes_down(open.address, "", "right-one", -EACCES, "without any password");

	rig_open(&r, locked.address); /* without: only commands are refused */
	rig_fresh(&c);
	redis_command_make(&c.command, (const char *const[]){ "EXISTS", "kv:x", NULL });
	assert_int_equal(rig_do(&r, &c), -EREMOTEIO);
	assert_memory_equal(c.command.error, "NOAUTH", 6);
	rig_close(&r);
	redis_stop(&locked);
	redis_stop(&open);
}

TEST_FIRST(redis_needed());
