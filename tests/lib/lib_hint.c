/* SPDX-License-Identifier: Apache-2.0 */
/* lib_hint.c - see lib_hint.h. */
#include "lib_hint.h"

#include <stdio.h>
#include <string.h>

void hint_store(struct engine *e, uint32_t chain, uint32_t n,
		const struct kvtier_op_options *options, struct kvtier_key *ret_keys)
{
	struct kvtier_result result = { .size = sizeof(result) };
	uint32_t pages[KVTIER_MAX_BLOCKS];
	uint64_t op;

	chain_keys(e, chain, n, ret_keys);
	pages_from(0, pages, n);
	for (uint32_t i = 0; i < n; i++)
		page_fill(e, i, &ret_keys[i], 0);
	assert_int_equal(kvtier_store(e->space, ret_keys, pages, n, options, &op), 0);
	assert_int_equal(kvtier_wait(e->client, op, -1, &result), 0);
	assert_int_equal(result.status, 0);
}

const char *hint_with_keys(const char *command, const struct kvtier_key *keys, uint32_t n)
{
	static char text[900];
	size_t at = (size_t)snprintf(text, sizeof(text), "%s", command);

	for (uint32_t i = 0; i < n; i++) {
		at += (size_t)snprintf(text + at, sizeof(text) - at, " --key ");
		for (int k = 0; k < 32; k++)
			at += (size_t)snprintf(text + at, sizeof(text) - at, "%02x",
					       keys[i].bytes[k]);
		assert_true(at < sizeof(text));
	}
	return text;
}

void hint_says(const struct daemon *d, const char *command, int status, const char *words,
	       char *out, size_t n)
{
	const int got = daemon_ctl(d, command, out, n);

	if (got != status || !strstr(out, words))
		fail_msg("%s: status %d, \"%s\"", command, got, out);
}
