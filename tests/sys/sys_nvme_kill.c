/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=30 */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_nvme_kill.c - goal: kill -9 at any moment costs nothing that was acknowledged, and never
 * gives an engine a wrong byte: not while segments are reclaimed, nor after the file was damaged as
 * well. Method: the kill loop of lib_nvme_kill.h, 240 kills over three kinds of store and both I/O
 * engines, 48 with a sanitizer; KVTIER_KILLS sets the sum, SEED repeats the choices (not the
 * timing). 10,000 of them: soak_nvme_kill.c.
 */
#include "tests/lib/lib_nvme_kill.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
	__has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
enum { KILLS = 48 };
#else
enum { KILLS = 240 };
#endif
enum {
	CASES = 6,
	ENOUGH = 20, /* kills, for chance to have brought all kinds */
	ROUNDS = 5,  /* of kills that may have to be made for that */
};

static void kills_of(const char *engine, enum kill_kind kind, struct kill_counts *ret)
{
	struct random random = random_seeded("sys_nvme_kill");
	const uint32_t kills = (uint32_t)env_number("KVTIER_KILLS", KILLS);

	kill_loop(engine, kind, (kills + CASES - 1) / CASES, random.state, ret);
}

ON_BOTH_ENGINES(what_was_flushed_is_there_after_any_kill)
{
	struct kill_counts n;

	kills_of(*state, KILL_ROOMY, &n);
	if (n.kills >= ENOUGH)
		assert_true(n.kept > 0 && n.cut > 0);
}

ON_BOTH_ENGINES(reclaim_under_kills_gives_no_wrong_byte)
{
	struct kill_counts n;

	kills_of(*state, KILL_TIGHT, &n);
	assert_true(n.whole > 0 && n.missed > 0);
}

ON_BOTH_ENGINES(a_damaged_store_gives_no_wrong_byte)
{
	uint64_t whole = 0, hurts = 0;
	struct kill_counts n;

	/* With a sanitizer there are so few kills that damage may leave no block whole. */
	for (int i = 0; i < ROUNDS && (whole == 0 || hurts == 0); i++) {
		kills_of(*state, KILL_HURT, &n);
		whole += n.whole;
		hurts += n.hurts;
	}
	assert_true(whole > 0 && hurts > 0);
}
