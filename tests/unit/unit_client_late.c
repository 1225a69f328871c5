/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=free lane=wait (openings are given up at their deadline) */
/*
 * Goal: a space whose opening was given up is closed by the daemon's late answer, whatever it says,
 * and memory that was freed then is not touched again. Method: a fake daemon (fake_engine.h) reads
 * nothing until kvtier_space_open() has given up. free() keeps the memory and fills it with a mark,
 * which must still be there at the end; under AddressSanitizer, which looks itself, it frees it.
 */
#include <malloc.h>

#include "tests/lib/fake_engine.h"
#include "tests/lib/test.h"
#include "tests/lib/wrap.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define KEEPS 0
#else
#define KEEPS 1
#endif

enum { KEPT_MAX = 65536, MARK = 0x5a };

static struct kept {
	uint8_t *at;
	size_t n;
} kept[KEPT_MAX];
static _Atomic size_t n_kept;
static _Atomic bool keeping;

REAL(void, free, (void *p))
{
	size_t i;

	if (!p || !keeping || !KEEPS || (i = n_kept++) >= KEPT_MAX) {
		__real_free(p);
		return;
	}
	kept[i].n = malloc_usable_size(p);
	memset(p, MARK, kept[i].n);
	kept[i].at = p;
}

static void freed_memory_is_untouched(void)
{
	const size_t n = n_kept;

	keeping = false;
	n_kept = 0;
	assert_true(n < KEPT_MAX);
	for (size_t i = 0; i < n; i++) {
		for (size_t k = 0; k < kept[i].n; k++)
			if (kept[i].at[k] != MARK)
				fail_msg("byte %zu of %zu was written after free()", k, kept[i].n);
		__real_free(kept[i].at);
	}
}

static struct engine e;

FIXTURE_DO(begin, fake_timeout_ms = 200; fake_open(&e, false); keeping = true);
FIXTURE_DO(end, fake_close(&e); freed_memory_is_untouched());

TEST_EACH(begin, end);

/* A space of no pages, with so little patience that the deaf daemon exceeds it. */
static void give_up_opening(void)
{
	struct kvtier_space *space = NULL;

	e.peer.deaf = true;
	assert_int_equal(kvtier_space_open(e.client, &fake_geometry, NULL, 0, NULL, 0, &space),
			 -ETIMEDOUT);
	assert_null(space);
}

/* The spaces that a client can have can be opened: the one that was given up takes no place. */
static void places_are_free(void)
{
	struct kvtier_space *spaces[KVTIER_MAX_SPACES - 1];

	for (size_t i = 0; i < KVTIER_MAX_SPACES - 1; i++) {
		int rc = -EMFILE;

		for (int tries = 0; rc && tries < 10000; tries++) {
			rc = kvtier_space_open(e.client, &fake_geometry, NULL, 0, NULL, 0,
					       &spaces[i]);
			assert_true(rc == 0 || rc == -EMFILE || rc == -ETIMEDOUT ||
				    rc == -ENOTCONN);
			(void)kvtier_poll(e.client, NULL, 0);
			if (rc)
				(void)usleep(1000);
		}
		assert_int_equal(rc, 0);
	}
	for (size_t i = 0; i < KVTIER_MAX_SPACES - 1; i++)
		assert_int_equal(kvtier_space_close(spaces[i]), 0);
}

/* Each call of the client may be the one that reads the answer. */
static void poll_some_time(void)
{
	for (int i = 0; i < 50; i++) {
		(void)kvtier_poll(e.client, NULL, 0);
		(void)usleep(1000);
	}
}

static void late_answer(enum peer_lie lie, bool hangs_up)
{
	give_up_opening();
	e.peer.lie = (int)lie;
	e.peer.hang_up = hangs_up;
	e.peer.deaf = false;
	poll_some_time();
	e.peer.lie = PEER_HONEST;
	if (lie != PEER_IGNORES_CLOSE)
		places_are_free();
}

TEST_DO(the_daemon_opens_it_late, late_answer(PEER_HONEST, false));
TEST_DO(the_daemon_refuses_it_late, late_answer(PEER_REFUSES_SPACE, false));
TEST_DO(the_daemon_opens_it_late_and_does_not_close_it, late_answer(PEER_IGNORES_CLOSE, false));
TEST_DO(the_daemon_hangs_up, late_answer(PEER_HONEST, true));

TEST(the_client_is_closed_before_the_answer)
{
	give_up_opening();
	give_up_opening();
	e.peer.deaf = false;
}

/* A space with an op that is closed by force: its completion, if it came, would find no op. */
TEST(a_space_is_closed_by_force)
{
	uint64_t op;

	e.peer.keep = true;
	AWAIT(!kvtier_load(e.space, &e.key, &(uint32_t){ 3 }, 1, NULL, &op));
	e.peer.deaf = true;
	assert_true(kvtier_space_close(e.space) >= 0);
	e.peer.deaf = e.peer.keep = false;
	poll_some_time();
}
