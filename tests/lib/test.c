/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

#include <stdio.h>
#include <string.h>

enum { MAX_TESTS = 256 };

static struct CMUnitTest tests[MAX_TESTS];
static int lines[MAX_TESTS];
static size_t n_tests;
static CMFixtureFunction each_begin, each_end, group_begin, group_end;

/* The compiler may call the constructors of a file in any order. */
void test_add(int line, const struct CMUnitTest *rows, size_t n)
{
	size_t at = n_tests;

	if (n > MAX_TESTS - n_tests)
		abort();
	while (at > 0 && lines[at - 1] > line)
		at--;
	memmove(tests + at + n, tests + at, (n_tests - at) * sizeof(tests[0]));
	memmove(lines + at + n, lines + at, (n_tests - at) * sizeof(lines[0]));
	for (n_tests += n; n > 0; n--) {
		tests[at] = *rows++;
		lines[at++] = line;
	}
}

void test_each(CMFixtureFunction begin, CMFixtureFunction end)
{
	each_begin = begin;
	each_end = end;
}

void test_group(CMFixtureFunction begin, CMFixtureFunction end)
{
	group_begin = begin;
	group_end = end;
}

int main(int argc, char **argv)
{
	if (test_begin)
		test_begin(argc, argv);
	if (n_tests == 0) {
		(void)fprintf(stderr, "%s has no case: no TEST(name) and no main()\n", argv[0]);
		return 1;
	}
	for (struct CMUnitTest *test = tests; test < tests + n_tests; test++) {
		if (!test->setup_func && !test->teardown_func) {
			test->setup_func = each_begin;
			test->teardown_func = each_end;
		}
	}
	return _cmocka_run_group_tests("tests", tests, n_tests, group_begin, group_end) ? 1 : 0;
}
