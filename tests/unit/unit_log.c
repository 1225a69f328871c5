/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * goal: each message is one line of key=value that no text from outside can forge, and a place in
 * the code that writes too many says how many it left out. method: standard error is a file here,
 * whose lines are read back.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/lib/lib_clock.h"
#include "tests/lib/test.h"

static char text[64 * 1024];

/* What say() wrote to standard error. */
static const char *logged(void (*say)(void))
{
	char path[] = "/tmp/unit_log.XXXXXX";
	const int file = mkstemp(path), old = dup(STDERR_FILENO);
	ssize_t n;

	assert_true(file >= 0 && old >= 0 && unlink(path) == 0);
	assert_true(dup2(file, STDERR_FILENO) >= 0);
	say();
	assert_true(dup2(old, STDERR_FILENO) >= 0);
	n = pread(file, text, sizeof(text) - 1, 0);
	assert_true(n >= 0);
	text[n] = '\0';
	assert_true(close(file) == 0 && close(old) == 0);
	return text;
}

static void say_to_journal(void)
{
	char about[LOG_ABOUT_BYTES];

	assert_int_equal(setenv("JOURNAL_STREAM", "1:2", 1), 0);
	log_open(LOG_LEVEL_INFO);
	log_info("serves", "%u tenants", 2u);
	log_error(log_about(about, "client_cut", 4711, 3, "an \"engine\"\n"), "it said \"%s\"",
		  "a\\b\n<3>");
	log_debug("step", "not shown");
}

TEST(a_line_has_event_and_message_and_nothing_forges_one)
{
	assert_string_equal(logged(say_to_journal), "<6>event=serves msg=\"2 tenants\"\n"
						    "<3>event=client_cut client_pid=4711 client=3 "
						    "name=\"an \\\"engine\\\"\\\\x0a\" "
						    "msg=\"it said \\\"a\\\\b\\\\x0a<3>\\\"\"\n");
}

static void say_to_a_terminal(void)
{
	assert_int_equal(unsetenv("JOURNAL_STREAM"), 0);
	log_open(LOG_LEVEL_DEBUG);
	log_debug("step", "shown");
}

TEST(without_a_journal_a_line_has_time_process_and_level)
{
	int year, pid;
	char ms[8], level[8];

	assert_int_equal(sscanf(logged(say_to_a_terminal),
				"time=%d-%*d-%*dT%*d:%*d:%*d.%3[0-9]Z pid=%d level=%7[a-z] ", &year,
				ms, &pid, level),
			 4);
	assert_true(year >= 2026 && pid == getpid());
	assert_string_equal(level, "debug");
	assert_non_null(strstr(text, " event=step msg=\"shown\"\n"));
}

static void say_one(void)
{
	log_warning("refused", "again");
}

static void say_many(void)
{
	for (int i = 0; i < 25; i++)
		say_one();
}

TEST(a_place_that_says_too_much_counts_what_it_leaves_out)
{
	const char *line;
	int lines = 0;

	for (line = logged(say_many); (line = strchr(line, '\n')) != NULL; line++)
		lines++;
	assert_int_equal(lines, 10);
	assert_null(strstr(text, "left_out"));
	clock_pass_ms(10000);
	assert_non_null(strstr(logged(say_one), "event=refused left_out=15 msg=\"again\"\n"));
	assert_null(strstr(logged(say_one), "left_out"));
}

static void say_a_long_text(void)
{
	char long_name[4096], about[LOG_ABOUT_BYTES];

	memset(long_name, '"', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = '\0';
	log_warning(log_about(about, "client_cut", 1, 2, long_name), "%s", long_name);
}

TEST(a_long_text_is_cut_and_stays_in_its_quotes)
{
	const char *said = logged(say_a_long_text);

	assert_non_null(strstr(said, "...\" msg=\"\\\""));
	assert_string_equal(said + strlen(said) - 5, "...\"\n");
	assert_true(strlen(said) < 3000);
}
