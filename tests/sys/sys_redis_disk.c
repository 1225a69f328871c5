/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait needs=kvtierd_faulty wrap=clock_gettime,epoll_wait (the test holds the clock) */
/*
 * sys_redis_disk.c - goal: Redis gives the blocks that a disk cannot give now. Method: a real
 * kvtierd whose disk fails on command (kvtierd_faulty.c), a real Redis that has all its blocks, on
 * both I/O engines.
 */
#include "tests/lib/lib_faulty.h"
#include "tests/lib/lib_redis.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <stdio.h>

enum { FIRST = 8, N = 8 };

/* The blocks are away, on a disk that is, too; at last the disk is well again, and so is
 * everything. */
ON_BOTH_ENGINES(a_block_on_a_disk_that_is_out_comes_from_redis)
{
	static struct redis_server redis;
	struct disk_world *w;
	char config[2048];

	disk_need(*state);
	redis_start(&redis, NULL);
	/* Redis answers at once, however the clock jumps. */
	(void)snprintf(config, sizeof(config), "[redis]\nendpoints = %s\ntimeout_ms = 60000\n%s",
		       redis.address, faulty_quick);
	w = faulty_away(state, config, false);
	daemon_stat_reaches(&w->d, "tiers.redis.written_blocks_total", DISK_BLOCKS);
	faulty_plan(READS, 0, ALWAYS, -EIO);
	for (uint32_t i = 0; i < 3; i++)
		(void)chain_load(&w->e, &w->keys[i], 0, 1);
	faulty_becomes(w, "offline");
	assert_int_equal(chain_load(&w->e, &w->keys[FIRST], 0, N), N);
	assert_in_range(daemon_stat(&w->d, "tiers.redis.hit_blocks_total"), N, DISK_BLOCKS);
	assert_int_equal(chain_load(&w->e, &w->keys[FIRST], 0, N), N);
	faulty_heal(w);
	assert_int_equal(chain_load(&w->e, w->keys, 0, DISK_BLOCKS), DISK_BLOCKS);
	faulty_end(w);
	redis_stop(&redis);
}

TEST_BEGIN
{
	redis_needed();
}
