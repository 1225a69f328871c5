/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_cuda_sticky - goal: kvtierd takes for sticky each result after which the driver's manual
 * says that the context or the process is of no more use, and no other. Method: a table of numbers,
 * compared with all numbers that a driver could return; and the comments of the toolkit's cuda.h,
 * where there is one: a new toolkit with a new sticky result fails here.
 */
#include <ctype.h>

#include "daemon/cuda/driver/cuda_load.h"
#include "tests/lib/test.h"

#define HEADER "/usr/local/cuda/include/cuda.h"

/* By the words of cuda.h 13.0: the process must be terminated, or its context cannot be used. */
static const int by_the_manual[] = {
	226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911
};
/* Of which it says less: the driver has ended (4), the context is none any more (201, 709), bits
 * are lost for good (214, 220), the MPS server does not answer (806), a key of an encrypted link
 * did not change (916), nobody knows (999). */
static const int by_experience[] = { 4, 201, 214, 220, 709, 806, 916, 999 };

static bool has(const int *numbers, size_t n, int number)
{
	for (size_t i = 0; i < n; i++)
		if (numbers[i] == number)
			return true;
	return false;
}
#define HAS(numbers, number) has(numbers, sizeof(numbers) / sizeof(*(numbers)), number)

TEST(the_numbers_are_those_of_the_table)
{
	for (int i = 0; i < 2000; i++)
		if (cuda_sticky((CUresult)i) != (HAS(by_the_manual, i) || HAS(by_experience, i)))
			fail_msg("result %d is%s taken for sticky", i,
				 cuda_sticky((CUresult)i) ? "" : " not");
}

/* --- the header --- */

/* False: there is none. */
static bool read_header(char *ret, size_t bytes)
{
	FILE *file = fopen(HEADER, "r");
	size_t n;

	if (!file)
		return false;
	n = fread(ret, 1, bytes, file);
	assert_true(n > 0 && n < bytes);
	ret[n] = '\0';
	(void)fclose(file);
	return true;
}

/* A comment's words with a blank between two, without its stars. */
static void plain(char *comment)
{
	char *to = comment;

	for (const char *at = comment; *at; at++)
		if (!isspace((unsigned char)*at) && *at != '*')
			*to++ = *at;
		else if (to > comment && to[-1] != ' ')
			*to++ = ' ';
	*to = '\0';
}

static bool says_sticky(const char *comment)
{
	return strstr(comment, "process must be terminated") ||
	       strstr(comment, "cannot be used any");
}

/* Comment and name of each row of enum CUresult, in turn. */
static int check_header(char *text)
{
	char *at = strstr(text, "enum cudaError_enum"), *end = at ? strstr(at, "} CUresult") : NULL;
	int n = 0;

	assert_true(at && end);
	*end = '\0';
	while ((at = strstr(at, "/**")) != NULL) {
		char *comment = at + 3, *after = strstr(comment, "*/"), *number;
		int value;

		assert_true(after);
		number = strchr(after, '=');
		if (!number)
			break;
		value = atoi(number + 1);
		*after = '\0';
		plain(comment);
		if (says_sticky(comment) != HAS(by_the_manual, value))
			fail_msg("result %d: cuda.h says '%s'", value, comment);
		at = number;
		n++;
	}
	return n;
}

TEST(the_words_of_the_header_say_the_same)
{
	static char text[8 << 20];

	if (!read_header(text, sizeof(text))) {
		printf("no " HEADER " to compare with\n");
		skip();
	}
	printf("the %d results of " HEADER " are as kvtierd takes them\n", check_header(text));
}
