/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_resp.c - goal: each type's first line is read or refused at its limits, and a reply of any
 * types ends where it ends. Method: tables of literal bytes, and each good reply cut at each byte.
 * (fuzz_resp.c tries the rest.)
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/test.h"
#include "tiers/redis/conn/resp.h"

static int line_of(const char *text, struct resp_line *ret)
{
	return resp_line(text, strlen(text), ret);
}

/* --- lines --- */

TEST(lines_that_are_good)
{
	static const struct {
		const char *text;
		enum resp_kind kind;
		uint64_t count;
		int64_t integer;
		const char *inner;
	} good[] = {
		{ "+OK\r\n", RESP_SIMPLE, 0, 0, "OK" },
		{ "+\r\n", RESP_SIMPLE, 0, 0, "" },
		{ "-ERR no\r\n", RESP_ERROR, 0, 0, "ERR no" },
		{ ":0\r\n", RESP_INTEGER, 0, 0, "0" },
		{ ":-12\r\n", RESP_INTEGER, 0, -12, "-12" },
		{ ":9223372036854775807\r\n", RESP_INTEGER, 0, INT64_MAX, "9223372036854775807" },
		{ ":-9223372036854775808\r\n", RESP_INTEGER, 0, INT64_MIN, "-9223372036854775808" },
		{ "$0\r\n", RESP_BULK, 0, 0, "0" },
		{ "$536870912\r\n", RESP_BULK, RESP_BULK_BYTES, 0, "536870912" },
		{ "$-1\r\n", RESP_NIL, 0, 0, "-1" },
		{ "*-1\r\n", RESP_NIL, 0, 0, "-1" },
		{ "*3\r\n", RESP_ARRAY, 3, 0, "3" },
		{ "*1048576\r\n", RESP_ARRAY, RESP_ELEMENTS, 0, "1048576" },
		{ "_\r\n", RESP_NIL, 0, 0, "" },
		{ "#t\r\n", RESP_BOOL, 0, 1, "t" },
		{ "#f\r\n", RESP_BOOL, 0, 0, "f" },
		{ ",-1.5e3\r\n", RESP_DOUBLE, 0, 0, "-1.5e3" },
		{ "(349999999999999999999999\r\n", RESP_BIG, 0, 0, "349999999999999999999999" },
		{ "!5\r\n", RESP_BULK_ERROR, 5, 0, "5" },
		{ "=7\r\n", RESP_VERBATIM, 7, 0, "7" },
		{ "%2\r\n", RESP_MAP, 4, 0, "2" },
		{ "%524288\r\n", RESP_MAP, RESP_ELEMENTS, 0, "524288" },
		{ "~1\r\n", RESP_SET, 1, 0, "1" },
		{ ">2\r\n", RESP_PUSH, 2, 0, "2" },
		{ "|1\r\n", RESP_ATTRIBUTE, 2, 0, "1" },
	};

	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
		struct resp_line got;

		print_message("%s", good[i].text);
		assert_int_equal(line_of(good[i].text, &got), 1);
		assert_int_equal(got.kind, good[i].kind);
		assert_int_equal(got.bytes, strlen(good[i].text));
		assert_true(got.count == good[i].count && got.integer == good[i].integer);
		assert_ptr_equal(got.text, good[i].text + 1);
		assert_int_equal(got.text_bytes, strlen(good[i].inner));
		assert_memory_equal(got.text, good[i].inner, got.text_bytes);
		for (size_t n = 0; n < strlen(good[i].text); n++)
			assert_int_equal(resp_line(good[i].text, n, &got), 0);
	}
}

TEST(lines_that_are_not)
{
	static const char *const bad[] = {
		"?\r\n",
		"OK\r\n",
		"\r\n",
		"\n",
		" +OK\r\n",
		"$\r\n",
		"$?\r\n",
		"*?\r\n",
		"$-2\r\n",
		"*-2\r\n",
		"$536870913\r\n",
		"*1048577\r\n",
		"$+1\r\n",
		"$01\r\n",
		"$-0\r\n",
		"$1 \r\n",
		"$ 1\r\n",
		"$1x\r\n",
		"$0x10\r\n",
		":\r\n",
		":-\r\n",
		":--1\r\n",
		":1.0\r\n",
		":9223372036854775808\r\n",
		":-9223372036854775809\r\n",
		":18446744073709551616\r\n",
		"$18446744073709551617\r\n",
		":99999999999999999999\r\n",
		"_x\r\n",
		"#\r\n",
		"#x\r\n",
		"#tt\r\n",
		"%524289\r\n",
		"%-1\r\n",
		"~-1\r\n",
		">-1\r\n",
		"|-1\r\n",
		"!-1\r\n",
		"=-1\r\n",
		"+a\nb\r\n",
		"+a\rb\r\n",
		"+a\r\r\n",
		"$1\n",
		"+OK\n",
		"-ERR\n\r\n",
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		struct resp_line got = { .count = 77 };

		print_message("%s", bad[i]);
		assert_int_equal(line_of(bad[i], &got), -EPROTO);
		assert_true(got.count == 77);
	}
}

/* A type that is none needs no line to be refused. */
TEST(first_byte_is_enough)
{
	for (int byte = 0; byte < 256; byte++) {
		const char c = (char)byte;
		struct resp_line got;

		assert_int_equal(resp_line(&c, 1, &got),
				 byte && strchr("+-:$*_#,(!=%~>|", byte) ? 0 : -EPROTO);
	}
}

TEST(longest_line)
{
	char *text = malloc(RESP_LINE_BYTES + 1);
	struct resp_line got;

	assert_non_null(text);
	memset(text, 'x', RESP_LINE_BYTES + 1);
	text[0] = '-';
	memcpy(text + RESP_LINE_BYTES - 2, "\r\n", 2);
	assert_int_equal(resp_line(text, RESP_LINE_BYTES + 1, &got), 1);
	assert_int_equal(got.bytes, RESP_LINE_BYTES);
	assert_int_equal(resp_line(text, RESP_LINE_BYTES - 1, &got), 0);
	memcpy(text + RESP_LINE_BYTES - 2, "x\r\n", 3);
	assert_int_equal(resp_line(text, RESP_LINE_BYTES - 1, &got), 0);
	assert_int_equal(resp_line(text, RESP_LINE_BYTES, &got), -EPROTO);
	assert_int_equal(resp_line(text, RESP_LINE_BYTES + 1, &got), -EPROTO);
	free(text);
}

/* A number that goes on is refused long before a text would be. */
TEST(endless_number)
{
	char text[64];
	struct resp_line got;

	memset(text, '1', sizeof(text));
	text[0] = ':';
	assert_int_equal(resp_line(text, sizeof(text), &got), -EPROTO);
}

/* --- whole replies --- */

/* Feeds text in pieces of `step`, with rests coming again; returns the last verdict, *ret_used of
 * all. */
static int feed(const char *text, size_t n, size_t step, size_t *ret_used)
{
	struct resp_skip s;
	int r = 0;

	resp_skip_begin(&s);
	*ret_used = 0;
	for (size_t have = 0; r == 0 && have < n;) {
		size_t used;

		have = n - have > step ? have + step : n;
		r = resp_skip(&s, text + *ret_used, have - *ret_used, &used);
		assert_true(used <= have - *ret_used);
		*ret_used += used;
	}
	return r;
}

static const char *const replies[] = {
	"+OK\r\n",
	"-ERR x\r\n",
	":1\r\n",
	"$-1\r\n",
	"*-1\r\n",
	"*0\r\n",
	"%0\r\n",
	"_\r\n",
	"#t\r\n",
	"$0\r\n\r\n",
	"$5\r\nhello\r\n",
	"$4\r\n\r\n\r\n\r\n",
	"*2\r\n$1\r\na\r\n:1\r\n",
	"*2\r\n*2\r\n:1\r\n*0\r\n*1\r\n*1\r\n$-1\r\n",
	"!5\r\nERR x\r\n",
	"=5\r\ntxt:a\r\n",
	"%2\r\n+a\r\n:1\r\n+b\r\n*2\r\n:1\r\n:2\r\n",
	"~2\r\n+a\r\n+b\r\n",
	">3\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n_\r\n",
	"|1\r\n+ttl\r\n:3\r\n+OK\r\n",
	"|0\r\n|1\r\n+a\r\n*1\r\n+b\r\n$1\r\nx\r\n",
	"*2\r\n|1\r\n+a\r\n:1\r\n:5\r\n:6\r\n",
	"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
};

/* With any bytes behind it and any cut, a reply ends at its end. */
TEST(replies_end_where_they_end)
{
	for (size_t i = 0; i < sizeof(replies) / sizeof(*replies); i++) {
		const size_t length = strlen(replies[i]);
		char text[128];
		size_t used;

		(void)snprintf(text, sizeof(text), "%s+next\r\n", replies[i]);
		for (size_t step = 1; step <= strlen(text); step++) {
			assert_int_equal(feed(text, strlen(text), step, &used), 1);
			assert_int_equal(used, length);
		}
		for (size_t n = 0; n < length; n++)
			assert_int_equal(feed(text, n, length, &used), 0);
	}
}

/* One after another out of one buffer, with one state. */
TEST(a_row_of_replies)
{
	char text[2048] = "";
	struct resp_skip s;
	size_t at = 0, used;

	for (size_t i = 0; i < sizeof(replies) / sizeof(*replies); i++)
		(void)strcat(text, replies[i]);
	resp_skip_begin(&s);
	for (size_t i = 0; i < sizeof(replies) / sizeof(*replies); i++, at += used) {
		assert_int_equal(resp_skip(&s, text + at, strlen(text) - at, &used), 1);
		assert_int_equal(used, strlen(replies[i]));
	}
	assert_int_equal(resp_skip(&s, text + at, 0, &used), 0);
	assert_int_equal(used, 0);
}

TEST(replies_that_are_wrong)
{
	static const struct {
		const char *text;
		size_t used; /* the place of the fault */
	} wrong[] = {
		{ "HTTP/1.1 400 Bad Request\r\n", 0 },
		{ "$1\r\nab\r\n", 5 },
		{ "$1\r\na\rx", 6 },
		{ "$0\r\n\n\r", 4 },
		{ "*2\r\n:1\r\nx", 8 },
		{ "*1\r\n$?\r\n", 4 },
		{ "*2\r\n*1048575\r\n", 4 }, /* with the levels around it too many */
		{ "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", 32 },
		{ "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*-1\r\n", 32 },
		{ "|1\r\n|1\r\n|1\r\n|1\r\n|1\r\n|1\r\n|1\r\n|1\r\n%0\r\n", 32 },
	};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
		for (size_t step = 1; step <= strlen(wrong[i].text); step++) {
			size_t used;

			assert_int_equal(feed(wrong[i].text, strlen(wrong[i].text), step, &used),
					 -EPROTO);
			assert_int_equal(used, wrong[i].used);
		}
}

/* A reply of RESP_ELEMENTS elements is the last that is stepped over: nested ones and attributes
 * count. */
TEST(elements_are_bounded)
{
	char many[4 * 1024];
	struct resp_skip s;
	uint64_t seen = 0;
	size_t used;
	int r = 0;

	for (size_t i = 0; i < sizeof(many); i += 4)
		memcpy(many + i, "|0\r\n", 4);
	resp_skip_begin(&s);
	for (; r == 0 && seen <= RESP_ELEMENTS; seen += used / 4)
		r = resp_skip(&s, many, sizeof(many), &used);
	assert_int_equal(r, -EPROTO);
	assert_true(seen == RESP_ELEMENTS);
}

TEST(as_many_as_may_be)
{
	static const char head[] = "*1048575\r\n";
	const size_t length = sizeof(head) - 1 + (size_t)4 * (RESP_ELEMENTS - 1);
	char *text = malloc(length);
	size_t used;

	assert_non_null(text);
	memcpy(text, head, sizeof(head) - 1);
	for (size_t at = sizeof(head) - 1; at < length; at += 4)
		memcpy(text + at, ":1\r\n", 4);
	assert_int_equal(feed(text, length, 65536, &used), 1);
	assert_int_equal(used, length);
	free(text);
}

/* 512 MiB of a body are stepped over without being looked at. */
TEST(a_large_body)
{
	static char chunk[1 << 20];
	struct resp_skip s;
	size_t used;

	resp_skip_begin(&s);
	assert_int_equal(resp_skip(&s, "$536870912\r\n", 12, &used), 0);
	assert_int_equal(used, 12);
	for (int i = 0; i < 512; i++) {
		assert_int_equal(resp_skip(&s, chunk, sizeof(chunk), &used), 0);
		assert_int_equal(used, sizeof(chunk));
	}
	assert_int_equal(resp_skip(&s, "\r\n+", 3, &used), 1);
	assert_int_equal(used, 2);
}

TEST(begun_in_the_middle)
{
	struct resp_skip s;
	size_t used;

	resp_skip_body(&s, 5);
	assert_int_equal(resp_skip(&s, "ab", 2, &used), 0);
	assert_int_equal(resp_skip(&s, "c\r\n+OK\r\n", 8, &used), 1);
	assert_int_equal(used, 3);
	resp_skip_body(&s, 1);
	assert_int_equal(resp_skip(&s, "\n", 1, &used), 1);
	resp_skip_body(&s, 1);
	assert_int_equal(resp_skip(&s, "\r", 1, &used), -EPROTO);
	resp_skip_body(&s, 3);
	assert_int_equal(resp_skip(&s, "abc", 3, &used), -EPROTO);
}
