/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test.h - a test of cases: TEST(a_sentence_that_it_proves) { ... } is one, and registers itself.
 * The main() of libtest.a runs all cases of the program in the order of its source. This header
 * brings cmocka, the random numbers of random.h, and what most tests use of libc and Linux.
 */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "random.h"

/* A case. `state` is cmocka's: what a fixture put there. */
#define TEST(name) TEST_WITH(name, NULL, NULL)
/* A case of a statement or two. */
#define TEST_DO(name, statement) \
	TEST(name)               \
	{                        \
		statement;       \
	}                        \
	struct test_macros_end_with_a_semicolon
/* A case that these statements begin. */
#define TEST_AFTER(name, ...)                         \
	static void name##_goes_on(void);             \
	TEST_DO(name, __VA_ARGS__; name##_goes_on()); \
	static void name##_goes_on(void)
/* A case with fixtures of its own; each may be NULL. */
#define TEST_WITH(name, begin, end) TEST_GIVEN(name, begin, end, NULL)
/* Likewise; *state is `given` at first. */
#define TEST_GIVEN(name, begin, end, given) \
	TEST_ROWS(name, { #name, name, begin, end, (void *)(uintptr_t)(given) })
/* One function that is several cases: their rows of cmocka follow its name. */
#define TEST_ROWS(name, ...)                                              \
	static void name(void **state);                                   \
	TEST_DOES(name##_is_a_case)                                       \
	{                                                                 \
		const struct CMUnitTest rows[] = { __VA_ARGS__ };         \
                                                                          \
		test_add(__LINE__, rows, sizeof(rows) / sizeof(rows[0])); \
	}                                                                 \
	static void name(TEST_UNUSED void **state)

/* A fixture: returns 0, or another number when it failed. */
#define FIXTURE(name) static int name(TEST_UNUSED void **state)
/* One of a statement or two, which do not fail. */
#define FIXTURE_DO(name, ...) \
	FIXTURE(name)         \
	{                     \
		__VA_ARGS__;  \
		return 0;     \
	}                     \
	struct test_macros_end_with_a_semicolon

/* The fixtures of each case that names none, wherever in the file this stands. */
#define TEST_EACH(begin, end)          \
	TEST_DOES(test_each_is_said)   \
	{                              \
		test_each(begin, end); \
	}                              \
	struct test_macros_end_with_a_semicolon
/* The fixtures of all cases together. */
#define TEST_GROUP(begin, end) TEST_GROUPS({ "tests", begin, end })
/* All cases, once with each of these: a name, and fixtures of all cases together. */
#define TEST_GROUPS(...)                                                        \
	TEST_DOES(test_groups_are_said)                                         \
	{                                                                       \
		const struct test_group groups[] = { __VA_ARGS__ };             \
                                                                                \
		for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) \
			test_group(&groups[i]);                                 \
	}                                                                       \
	struct test_macros_end_with_a_semicolon
struct test_group {
	const char *name;
	CMFixtureFunction begin, end;
};

/* TEST_BEGIN { ... } runs before all of them and has argc and argv. Where no case shall run it
 * calls exit(): with 77 if the test cannot run here, or with the status of a process that was
 * started as something else than the test. */
#define TEST_BEGIN void test_begin(TEST_UNUSED int argc, TEST_UNUSED char **argv)
/* One that is a statement or two. */
#define TEST_FIRST(...)      \
	TEST_BEGIN           \
	{                    \
		__VA_ARGS__; \
	}                    \
	struct test_macros_end_with_a_semicolon

#define TEST_UNUSED __attribute__((unused))
/* A function that runs before main(). */
#define TEST_DOES(name) __attribute__((constructor)) static void name(void)

void test_add(int line, const struct CMUnitTest *rows, size_t n);
void test_each(CMFixtureFunction begin, CMFixtureFunction end);
void test_group(const struct test_group *group);
/* Runs this function as the only case, and exits: a process that plays a role, started as the test
 * again, may assert as the test does. */
_Noreturn void test_only(CMUnitTestFunction function);
/* Runs fn(arg) in a child process. Whether an assertion of the product ended it: SIGABRT. */
bool test_aborts(void (*fn)(void *arg), void *arg);

/* --- waits --- */

/* A busy machine does things late: the bound of each wait that has no other bound. */
enum { PATIENT_MS = 60000 };

uint64_t now_ns(void);
void nap_ms(uint32_t ms);
/* Looks again each millisecond until this is so; the test ends when it has not become so in
 * PATIENT_MS of this process's clock. */
#define AWAIT(condition)                                                          \
	do {                                                                      \
		const uint64_t until_ns = now_ns() + PATIENT_MS * 1000000ull;     \
                                                                                  \
		for (; !(condition); nap_ms(1))                                   \
			if (now_ns() > until_ns)                                  \
				fail_msg("it has not become so: %s", #condition); \
	} while (0)

__attribute__((weak)) void test_begin(int argc, char **argv);
