/* SPDX-License-Identifier: Apache-2.0 */
/* make: no=thread (it is single-threaded) */
/*
 * Goal: however many parts a client could use, a client that comes later finds enough to begin
 * with, and so does the next. Method: share_of_parts_is_used() alone, over clients that begin parts
 * for as long as they may, one after the other.
 */
#include "daemon/base/loop.h"
#include "daemon/op/part.h"
#include "daemon/op/share.h"
#include "daemon/shared/client.h"
#include "tests/lib/test.h"

enum { CLIENTS = 16 };

struct bed {
	struct ops all;
	struct client clients[CLIENTS];
	struct peer peers[CLIENTS];
	struct mount mounts[CLIENTS];
	struct op ops[CLIENTS];
};

static void set_up(struct bed *b, uint32_t parts)
{
	*b = (struct bed){ .all = { .n_parts = parts, .n_free_parts = parts } };
	assert_int_equal(loop_open(0, &b->all.loop), 0);
	assert_int_equal(shares_open(&b->all.shares), 0);
}

static void tear_down(struct bed *b)
{
	shares_close(b->all.shares);
	loop_close(b->all.loop);
}

static void comes(struct bed *b, uint32_t i)
{
	b->clients[i].peer = &b->peers[i];
	b->clients[i].n_ops = 1;
	b->ops[i].client = &b->clients[i];
	b->ops[i].mount = &b->mounts[i];
	share_op_started(&b->all, &b->ops[i]);
}

/* All that it may. Returns how many it has then. */
static uint32_t takes(struct bed *b, uint32_t i)
{
	while (b->all.n_free_parts > 0 && !share_of_parts_is_used(&b->all, &b->peers[i])) {
		b->peers[i].n_parts++;
		b->all.n_free_parts--;
	}
	return b->peers[i].n_parts;
}

static void ends(struct bed *b, uint32_t i, uint32_t n)
{
	b->peers[i].n_parts -= n;
	b->all.n_free_parts += n;
}

TEST(alone_it_has_five_sixths)
{
	struct bed b;

	set_up(&b, 64);
	comes(&b, 0);
	assert_int_equal(takes(&b, 0), 54);
	tear_down(&b);
}

TEST(who_comes_has_enough_to_begin_with)
{
	struct bed b;

	set_up(&b, 64);
	comes(&b, 0);
	(void)takes(&b, 0);
	comes(&b, 1);
	assert_int_equal(takes(&b, 1), 9);
	comes(&b, 2);
	assert_int_equal(takes(&b, 2), 1);
	tear_down(&b);
}

TEST(what_ends_goes_to_who_has_less)
{
	struct bed b;

	set_up(&b, 64);
	comes(&b, 0);
	(void)takes(&b, 0);
	comes(&b, 1);
	(void)takes(&b, 1);
	ends(&b, 0, 8);
	assert_int_equal(takes(&b, 0), 46); /* none */
	assert_true(takes(&b, 1) > 9);
	tear_down(&b);
}

TEST(no_pool_is_too_small)
{
	struct bed b;

	for (uint32_t parts = 1; parts <= 8; parts++) {
		set_up(&b, parts);
		comes(&b, 0);
		assert_true(takes(&b, 0) >= (parts + 1) / 2);
		tear_down(&b);
	}
}
