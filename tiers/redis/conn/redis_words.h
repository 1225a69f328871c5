/* SPDX-License-Identifier: Apache-2.0 */
/*
 * redis_words.h - sentences that an endpoint says, made fit for people: an endpoint may send
 * control characters, and may repeat a password that it was given. Pure functions; any thread.
 */
#ifndef KVTIER_REDIS_WORDS_H
#define KVTIER_REDIS_WORDS_H

#include <stdbool.h>
#include <stddef.h>

enum { REDIS_TEXT_BYTES = 256 }; /* of a sentence, with its 0 */

/* n bytes of `words` into ret, cut to `room` with the 0. A byte that is not printable ASCII becomes
 * '?'. */
void redis_words_clean(char *ret, size_t room, const char *words, size_t n);
/* Whether cleaned words repeat this secret, or its first bytes: then nobody may see them. */
bool redis_words_betray(const char *words, const char *secret);
/* Cleaned words for a log line or a status: cut where they begin to repeat a command, and replaced
 * by another sentence where the password is in them. */
void redis_words_show(const char *words, const char *password, char *ret, size_t n);

#endif
