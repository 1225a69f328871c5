/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_hint.h - shared by tests of hints: chains stored with the fields of an op, and `kvtierctl
 * hint`. Helpers end the test (fail_msg) when they cannot do their part.
 */
#ifndef KVTIER_TESTS_LIB_HINT_H
#define KVTIER_TESTS_LIB_HINT_H

#include "lib.h"

/* Stores the first n blocks of a chain from pages 0.., and writes their keys. options: NULL is
 * fine. */
void hint_store(struct engine *e, uint32_t chain, uint32_t n,
		const struct kvtier_op_options *options, struct kvtier_key *ret_keys);
/* The command with a --key for each of n keys, 9 at most. Valid until the next call. */
const char *hint_with_keys(const char *command, const struct kvtier_key *keys, uint32_t n);
/* kvtierctl ends with this status and says these words; all that it says is in out. */
void hint_says(const struct daemon *d, const char *command, int status, const char *words,
	       char *out, size_t n);

#endif
