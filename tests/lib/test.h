/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test.h - a test of cases: TEST(a_sentence_that_it_proves) { ... } is one, and registers itself.
 * The main() of libtest.a runs all cases of the program in the order of its source. A program that
 * has a main() of its own takes nothing from here but cmocka.
 */
#ifndef KVTIER_TESTS_TEST_H
#define KVTIER_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

/* A case. `state` is cmocka's: what a fixture put there. */
#define TEST(name) TEST_WITH(name, NULL, NULL)
/* Likewise, with fixtures of its own; each may be NULL. */
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

/* The fixtures of each case that names none, wherever in the file this stands. */
#define TEST_EACH(begin, end)          \
	TEST_DOES(test_each_is_said)   \
	{                              \
		test_each(begin, end); \
	}                              \
	struct test_macros_end_with_a_semicolon
/* The fixtures of all cases together. */
#define TEST_GROUP(begin, end)          \
	TEST_DOES(test_group_is_said)   \
	{                               \
		test_group(begin, end); \
	}                               \
	struct test_macros_end_with_a_semicolon

/* TEST_BEGIN { ... } runs before all of them and has argc and argv. Where no case shall run it
 * calls exit(): with 77 if the test cannot run here, or with the status of a process that was
 * started as something else than the test. */
#define TEST_BEGIN void test_begin(TEST_UNUSED int argc, TEST_UNUSED char **argv)

#define TEST_UNUSED __attribute__((unused))
/* A function that runs before main(). */
#define TEST_DOES(name) __attribute__((constructor)) static void name(void)

void test_add(int line, const struct CMUnitTest *rows, size_t n);
void test_each(CMFixtureFunction begin, CMFixtureFunction end);
void test_group(CMFixtureFunction begin, CMFixtureFunction end);
__attribute__((weak)) void test_begin(int argc, char **argv);

#endif
