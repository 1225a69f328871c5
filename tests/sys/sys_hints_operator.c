/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_hints_operator.c - goal: kvtierctl hint acts as engines' kvtier_hint(), shows the answers,
 * and refuses requests that make no sense; kvtierctl spaces shows retired blocks. Method: a real
 * daemon whose memory holds 85 blocks, a chain in a session, and others that push it out.
 */
/* make: lane=wait */
#include "tests/lib/lib_hint.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

enum { LENGTH = 16, SESSION = 77 };

static const char config[] = "[host]\nbytes = 1M\nslab_bytes = 256K\nhuge_pages = no\n";

struct world {
	struct served s;
	struct kvtier_key keys[LENGTH]; /* in the session */
	char out[8192];
};

static void says(struct world *w, const char *command, int status, const char *words)
{
	hint_says(&w->s.d, command, status, words, w->out, sizeof(w->out));
}

static void fresh(struct world *w, uint32_t first, uint32_t chains)
{
	struct kvtier_key keys[LENGTH];

	for (uint32_t i = 0; i < chains; i++) {
		chain_keys(&w->s.e, first + i, LENGTH, keys);
		assert_int_equal(chain_store(&w->s.e, keys, 0, LENGTH), 0);
	}
}

FIXTURE(begin)
{
	static struct world w;
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct kvtier_hint hint = { .size = sizeof(hint),
				    .action = KVTIER_HINT_RETAIN,
				    .scope = KVTIER_HINT_KEYS,
				    .keys = w.keys,
				    .n = LENGTH,
				    .session = SESSION };
	uint64_t op;

	served_begin(&w.s, config, &g, LENGTH);
	chain_keys(&w.s.e, 1, LENGTH, w.keys);
	assert_int_equal(chain_store(&w.s.e, w.keys, 0, LENGTH), 0);
	assert_int_equal(kvtier_hint(w.s.e.space, &hint, &op), 0);
	assert_int_equal(kvtier_wait(w.s.e.client, op, -1, NULL), 0);
	*state = &w;
	return 0;
}

TEST_EACH(begin, served_end);

TEST(a_session_is_pinned_and_ends)
{
	struct world *w = *state;

	says(w, "hint pin --session 77 --ttl 60 --json", 0, "\"accepted\":16");
	fresh(w, 100, 12);
	assert_int_equal(engine_lookup(&w->s.e, w->keys, LENGTH), LENGTH);
	says(w, "hint ended --session 77", 0, "16 accepted: done");
	says(w, "hint ended --session 77", 1, "1 missing");
	fresh(w, 200, 2);
	assert_true(engine_lookup(&w->s.e, w->keys, LENGTH) < LENGTH);
	assert_int_equal(daemon_stat(&w->s.d, "hints.ended.accepted_total"), LENGTH);
}

TEST(one_block_is_named_by_its_key)
{
	struct world *w = *state;
	char command[256];
	size_t at = (size_t)snprintf(command, sizeof(command), "hint pin --space 0 --key ");

	for (int i = 0; i < 32; i++)
		at += (size_t)snprintf(command + at, sizeof(command) - at, "%02x",
				       w->keys[LENGTH - 1].bytes[i]);
	says(w, command, 0, "1 accepted");
	command[at - 1] = command[at - 1] == '0' ? '1' : '0';
	says(w, command, 1, "1 missing");
	command[at - 1] = 'g';
	says(w, command, 1, "1 missing");
}

TEST(a_model_is_retired_and_shown)
{
	struct world *w = *state;
	char command[256];

	snprintf(command, sizeof(command), "hint superseded --model %s", w->s.e.geometry.model);
	says(w, command, 0, "1 accepted");
	says(w, "spaces", 0, "retired");
	snprintf(command, sizeof(command), "hint retain --model %s", w->s.e.geometry.model);
	says(w, command, 0, "1 accepted");
	assert_int_equal(daemon_ctl(&w->s.d, "spaces", w->out, sizeof(w->out)), 0);
	assert_null(strstr(w->out, "retired"));
	snprintf(command, sizeof(command), "hint pin --model %s", w->s.e.geometry.model);
	says(w, command, 1, "1 rejected");
	says(w, "hint superseded --model no", 1, "1 missing");
}

TEST(what_makes_no_sense_is_refused)
{
	struct world *w = *state;

	says(w, "hint", 64, "needs an action");
	says(w, "hint forget --session 1", 1, "the action is");
	says(w, "hint prefetch --session 1", 64, "prefetch needs --space N");
	says(w, "hint pin", 1, "needs one of");
	says(w, "hint pin --session 1 --model m", 1, "needs one of");
	says(w, "hint pin --space 1", 1, "needs one of");
	says(w, "hint pin --session 0", 1, "--session above 0");
	says(w, "hint retain --session 1 --priority 101", 1, "-100 to 100");
	says(w, "hint retain --session 1 --ttl soon", 1, "--ttl");
	says(w, "hint pin --session 1 --session 2", 64, "--session: once");
	says(w, "hint --help", 0, "clipped:");
}
