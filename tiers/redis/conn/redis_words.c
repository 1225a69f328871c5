/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_words.c - an endpoint's sentences, made fit for people. Contract: redis_words.h.
 */
#include "redis_words.h"

#include <stdio.h>
#include <string.h>

void redis_words_clean(char *ret, size_t room, const char *words, size_t n)
{
	size_t i;

	for (i = 0; i < n && i + 1 < room; i++)
		ret[i] = words[i] >= ' ' && words[i] <= '~' ? words[i] : '?';
	ret[i] = 0;
}

/* The words are cleaned, and may have been cut in the middle of the secret: so its cleaned
 * beginning is looked for. */
bool redis_words_betray(const char *words, const char *secret)
{
	char beginning[9];

	redis_words_clean(beginning, sizeof(beginning), secret, strlen(secret));
	return beginning[0] && strstr(words, beginning);
}

/* Redis repeats a command that it did not understand, and a password may be in it. */
void redis_words_show(const char *words, const char *password, char *ret, size_t n)
{
	const char *echo = strstr(words, ", with args");
	const size_t shown = echo ? (size_t)(echo - words) : strlen(words);

	(void)snprintf(ret, n, "%.*s", (int)shown, words);
	if (redis_words_betray(ret, password))
		(void)snprintf(ret, n, "an error whose words repeat the password");
}
