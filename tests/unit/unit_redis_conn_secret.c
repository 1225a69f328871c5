/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: no text that a connection gives out has the password in it, for any answer of a server to
 * AUTH: bytes that no terminal should see, words that are cut in the middle of the password, the
 * whole command. Method: the scripted server of lib_redis.h, that answers AUTH as it is told.
 */
#include "tests/lib/lib_redis_conn.h"

/* Refused with these words, of which `shown` is to be seen. */
static void refused(const char *password, const char *reply, const char *shown)
{
	const struct fake_step step = { .reply = reply };
	struct fake_server server;
	const char *text;
	struct rig r;

	fake_start(&server, &step, 1, true);
	rig_open_to(&r, server.address, "", password);
	text = rig_goes_down(&r, -EACCES);
	if (!strstr(text, shown))
		fail_msg("\"%s\" does not say \"%s\"", text, shown);
	rig_close(&r);
	fake_stop(&server);
}

TEST_DO(harmless_words_are_shown,
	refused("sesame", "-WRONGPASS invalid username-password pair\r\n", "WRONGPASS invalid"));
TEST_DO(the_password_is_not, refused("sesame", "-ERR sesame is not it\r\n", "not shown"));
TEST_DO(nor_one_that_is_no_ascii,
	refused("p\xc3\xa4sswort", "-ERR p\xc3\xa4sswort is not it\r\n", "not shown"));

/* Words are cut at REDIS_TEXT_BYTES. */
TEST(nor_the_beginning_of_one)
{
	char password[REDIS_SECRET_BYTES], reply[1024];

	memset(password, 'x', sizeof(password));
	password[0] = 'p';
	password[sizeof(password) - 1] = 0;
	(void)snprintf(reply, sizeof(reply), "-ERR it is %s, is it\r\n", password);
	refused(password, reply, "not shown");
}

TEST(nor_a_command_that_is_repeated)
{
	refused("s", "-ERR unknown command `AUTH`, with args beginning with: `s`, \r\n",
		"unknown command");
	refused("sesame", "-ERR unknown command `AUTH`, with args beginning with: `sesame`, \r\n",
		"unknown command");
}
