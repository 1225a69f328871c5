/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"

enum { MAX_TESTS = 256, MAX_GROUPS = 4 };

static struct CMUnitTest tests[MAX_TESTS];
static int lines[MAX_TESTS];
static size_t n_tests;
static CMFixtureFunction each_begin, each_end;
static struct test_group groups[MAX_GROUPS];
static int n_groups;

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

void test_group(const struct test_group *group)
{
	if (n_groups == MAX_GROUPS)
		abort();
	groups[n_groups++] = *group;
}

void test_only(CMUnitTestFunction function)
{
	const struct CMUnitTest test = { "the role", function, NULL, NULL, NULL };

	exit(_cmocka_run_group_tests("role", &test, 1, NULL, NULL) ? 1 : 0);
}

bool test_aborts(void (*fn)(void *arg), void *arg)
{
	const pid_t child = fork();
	int status;

	if (child == 0) {
		(void)signal(SIGABRT, SIG_DFL);
		(void)close(STDERR_FILENO);
		fn(arg);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

/* cmocka does not count a group's end that fails. */
static CMFixtureFunction end;
static int unfinished;

static int end_counted(void **state)
{
	unfinished = 1;
	unfinished = end ? end(state) : 0;
	return unfinished;
}

int main(int argc, char **argv)
{
	int failed = 0;

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
	if (n_groups == 0)
		groups[n_groups++] = (struct test_group){ "tests", NULL, NULL };
	for (int i = 0; i < n_groups; i++) {
		end = groups[i].end;
		failed |= _cmocka_run_group_tests(groups[i].name, tests, n_tests, groups[i].begin,
						  end_counted);
		failed |= unfinished;
	}
	return failed ? 1 : 0;
}
