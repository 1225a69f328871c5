/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * unit_block_wrong - a call that only a wrong caller would make on a block with copies ends in an
 * assertion, at once. Method: each in a child process, which must die of SIGABRT.
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/lib_block.h"
#include "tests/lib/test.h"

enum wrong {
	DEMOTE_PINNED,
	DROP_AWAY_PARENT,
	DEMOTE_ONLY_COPY,
	DEMOTE_AWAY,
	PROMOTE_WITH_SLOT,
	PROMOTE_CONDEMNED,
	LOSE_ONLY_COPY,
	DROP_PINNED_AWAY,
	MOVE_AWAY,
	PLACE_TOO_LARGE,
	WRONGS
};

static void do_wrong(struct blocks *blocks, enum wrong wrong)
{
	const struct extent to = table_host_at(9),
			    large = { .tier = TIER_NVME, .generation = 1 << 20 };
	const uint32_t host = table_commit(blocks, 1, BLOCK_NONE),
		       both = table_commit_both(blocks, 2);
	const uint32_t away = table_demoted(blocks, 3);

	switch (wrong) {
	case DEMOTE_PINNED:
		blocks_pin(blocks, both);
		(void)blocks_demote(blocks, both);
		break;
	case DROP_AWAY_PARENT:
		(void)table_commit(blocks, 4, both);
		(void)blocks_demote(blocks, both);
		(void)blocks_drop(blocks, both);
		break;
	case DEMOTE_ONLY_COPY:
		(void)blocks_demote(blocks, host);
		break;
	case DEMOTE_AWAY:
		(void)blocks_demote(blocks, away);
		break;
	case PROMOTE_WITH_SLOT:
		blocks_promote(blocks, both, BLOCK_NONE, &to);
		break;
	case PROMOTE_CONDEMNED:
		blocks_pin(blocks, away);
		blocks_condemn(blocks, away);
		blocks_promote(blocks, away, BLOCK_NONE, &to);
		break;
	case LOSE_ONLY_COPY:
		blocks_set_nvme(blocks, away, NULL);
		break;
	case DROP_PINNED_AWAY:
		blocks_pin(blocks, away);
		(void)blocks_drop(blocks, away);
		break;
	case MOVE_AWAY:
		blocks_move(blocks, away, &to);
		break;
	default:
		blocks_set_nvme(blocks, host, &large);
	}
}

TEST(wrong_callers_are_stopped)
{
	for (enum wrong wrong = DEMOTE_PINNED; wrong < WRONGS; wrong++) {
		const pid_t child = fork();
		void *own; /* the index is shared memory: a table of the child's own */
		int status;

		if (child == 0) {
			(void)signal(SIGABRT, SIG_DFL);
			(void)close(2);
			_exit(table_set_up(&own) || (do_wrong(table_of(&own), wrong), 0));
		}
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	}
}
