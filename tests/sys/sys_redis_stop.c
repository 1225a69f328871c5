/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_redis_stop.c - goal: a clean stop writes the values queued for Redis, for no longer than
 * [redis] drain_us, and says how many were not written. Method: a real kvtierd whose Redis is
 * stopped while engines store, so that all is queued when SIGTERM comes; then Redis goes on, or
 * not. Another node, and Redis itself, say which values are there.
 */
#include "tests/lib/lib_shared.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "tests/lib/lib_disk.h"

enum { N = SHARED_BLOCKS, CHAINS = 4, EXIT_MS = 20000 };

/* Nothing gives up but the drain, which begins when this is in the log. */
#define PATIENT    "timeout_ms = 60000\n"
#define LONG_DRAIN PATIENT "drain_us = 600s\n"
static const char begins[] = "writing what is queued for Redis, 128 blocks (1572864 bytes)";
static const char some_left[] = "queued for Redis are not known to be written";
static const char all_left[] =
	"128 blocks (1572864 bytes) that were queued for Redis are not known to be written";

static struct kvtier_key keys[CHAINS][N];

static void store_all(struct node *n)
{
	for (uint32_t i = 0; i < CHAINS; i++) {
		chain_keys(&n->e, 10 + i, N, keys[i]);
		assert_int_equal(chain_store(&n->e, keys[i], 0, N), 0);
	}
}

static uint32_t load_all(struct node *n)
{
	uint32_t hits = 0;

	for (uint32_t i = 0; i < CHAINS; i++)
		hits += chain_load(&n->e, keys[i], 0, N);
	return hits;
}

/* Redis is stopped, and all that was stored is queued for it. */
static struct shared *queued(const char *lines)
{
	struct shared *w = shared_begin(NULL, lines, KVTIER_CODEC_RAW);

	redis_signal(&w->redis, SIGSTOP);
	store_all(&w->a);
	return w;
}

static void log_gets(const struct node *n, const char *words)
{
	const uint64_t until = now_ns() + SHARED_MS * 1000000ull;

	while (!node_log_has(n, words)) {
		if (now_ns() > until)
			fail_msg("the log does not say \"%s\"", words);
		nap_ms(5);
	}
}

static void told_to_stop(struct shared *w)
{
	assert_int_equal(kill(w->a.d.pid, SIGTERM), 0);
	log_gets(&w->a, begins);
}

static void stops_well(struct shared *w)
{
	const int status = daemon_wait(&w->a.d, EXIT_MS);

	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		fail_msg("the daemon ended with the wait status 0x%x", status);
	node_leave(&w->a);
}

static void ended(struct shared *w)
{
	if (w->redis.pid)
		redis_signal(&w->redis, SIGCONT);
	shared_end(w);
}

/* --- it takes the queued values --- */

TEST(what_is_queued_is_written_at_a_stop)
{
	struct shared *w = queued(LONG_DRAIN);

	told_to_stop(w);
	redis_signal(&w->redis, SIGCONT);
	stops_well(w);
	assert_int_equal(load_all(&w->b), CHAINS * N);
	assert_false(node_log_has(&w->a, some_left));
	ended(w);
}

TEST(its_own_next_life_finds_it)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct shared *w = queued(LONG_DRAIN);

	told_to_stop(w);
	redis_signal(&w->redis, SIGCONT);
	stops_well(w);
	node_live(&w->a);
	node_join(&w->a, &g);
	assert_int_equal(engine_lookup(&w->a.e, keys[0], N), 0);
	assert_int_equal(load_all(&w->a), CHAINS * N);
	ended(w);
}

TEST(a_second_signal_changes_nothing)
{
	struct shared *w = queued(LONG_DRAIN);

	told_to_stop(w);
	assert_int_equal(kill(w->a.d.pid, SIGTERM), 0);
	assert_int_equal(kill(w->a.d.pid, SIGINT), 0);
	nap_ms(50); /* it has read them by now */
	redis_signal(&w->redis, SIGCONT);
	stops_well(w);
	assert_int_equal(load_all(&w->b), CHAINS * N);
	ended(w);
}

TEST(what_was_evicted_is_written_at_a_stop)
{
	struct shared *w = queued("write = on-evict\n" LONG_DRAIN);

	node_evict(&w->a);
	told_to_stop(w);
	redis_signal(&w->redis, SIGCONT);
	stops_well(w);
	assert_int_equal(load_all(&w->b), CHAINS * N);
	ended(w);
}

/* A stop is no eviction. */
TEST(what_memory_holds_is_not)
{
	struct shared *w = queued("write = on-evict\n" LONG_DRAIN);

	redis_signal(&w->redis, SIGCONT);
	node_die(&w->a, SIGTERM);
	assert_int_equal(redis_ask(&w->redis, "DBSIZE"), 0);
	ended(w);
}

/* --- it does not --- */

TEST(a_redis_that_hangs_is_left_at_the_limit)
{
	struct shared *w = queued(PATIENT "drain_us = 300ms\n");

	told_to_stop(w);
	stops_well(w);
	assert_true(node_log_has(&w->a, "[redis] drain_us is over"));
	assert_true(node_log_has(&w->a, all_left));
	ended(w);
}

TEST(a_redis_that_dies_ends_it_at_once)
{
	struct shared *w = queued(LONG_DRAIN);

	told_to_stop(w);
	redis_kill(&w->redis);
	stops_well(w);
	assert_true(node_log_has(&w->a, all_left));
	ended(w);
}

TEST(a_redis_that_takes_no_stores_ends_it_at_once)
{
	struct shared *w = shared_begin("--maxmemory 1", LONG_DRAIN, KVTIER_CODEC_RAW);

	redis_signal(&w->redis, SIGSTOP);
	store_all(&w->a);
	told_to_stop(w);
	redis_signal(&w->redis, SIGCONT);
	stops_well(w);
	assert_true(node_log_has(&w->a, all_left));
	assert_int_equal(redis_ask(&w->redis, "DBSIZE"), 0);
	ended(w);
}

/* --- there is nothing to wait for --- */

TEST(without_a_redis_a_stop_ends)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct shared *w = shared_world();

	node_place(&w->a, &(struct node_conf){ .endpoints = "127.0.0.1:1", .lines = LONG_DRAIN });
	node_live(&w->a);
	node_join(&w->a, &g);
	store_all(&w->a);
	assert_int_equal(kill(w->a.d.pid, SIGTERM), 0);
	stops_well(w);
	node_end(&w->a);
}

TEST(with_write_off_a_stop_ends)
{
	struct shared *w = queued("write = off\n" LONG_DRAIN);

	assert_int_equal(kill(w->a.d.pid, SIGTERM), 0);
	stops_well(w);
	assert_false(node_log_has(&w->a, "queued for Redis"));
	ended(w);
}

/* --- beside NVMe, each with its own limit --- */

#define DISK "\n[nvme]\nbytes = 16M\nsegment_bytes = 256K\n"

static struct shared *queued_on_disk(const char *lines)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	struct shared *w = shared_world();

	if (!disk_dir())
		skip();
	redis_start(&w->redis, NULL);
	node_place(&w->a, &(struct node_conf){ .endpoints = w->redis.address, .lines = lines });
	node_live(&w->a);
	node_join(&w->a, &g);
	redis_signal(&w->redis, SIGSTOP);
	store_all(&w->a);
	return w;
}

static void lives_again_from_disk(struct shared *w)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);

	node_live(&w->a);
	node_join(&w->a, &g);
	for (uint32_t i = 0; i < CHAINS; i++)
		assert_int_equal(engine_lookup(&w->a.e, keys[i], N), N);
	assert_int_equal(load_all(&w->a), CHAINS * N);
}

TEST(redis_waits_though_nvme_has_no_time)
{
	struct shared *w = queued_on_disk(LONG_DRAIN DISK "drain_us = 0\n");

	told_to_stop(w);
	redis_signal(&w->redis, SIGCONT);
	stops_well(w);
	assert_int_equal(redis_ask(&w->redis, "DBSIZE"), CHAINS * N);
	ended(w);
}

TEST(nvme_waits_though_redis_has_no_time)
{
	struct shared *w = queued_on_disk(PATIENT "drain_us = 0\n" DISK "drain_us = 600s\n");

	told_to_stop(w);
	stops_well(w);
	assert_true(node_log_has(&w->a, all_left));
	redis_signal(&w->redis, SIGCONT);
	lives_again_from_disk(w);
	ended(w);
}

TEST_BEGIN
{
	redis_needed();
}
