/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=15 lane=wait */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_redis_trouble.c - goal: a Redis that is dead, stopped, late or not there yet costs an engine
 * the hits it would have had, for as long as that lasts, and nothing else. The daemon says why, and
 * nothing is left behind. Method: two real kvtierd, an engine each, a real redis-server that is
 * killed, stopped and started again at all times. A Redis that refuses us: sys_redis_refused.c.
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_shared.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = SHARED_BLOCKS, SHORT_MS = 5000, EXIT_MS = 20000, FLOOD_SECONDS = 4 };

/* three of these, and the server is left alone; long enough for a busy one */
static const char quick[] = "timeout_ms = 5000";
static const char patient[] = "timeout_ms = 20000"; /* nothing gives up but the op */

/* A chain that is in Redis, and with B nowhere else; another one that B has in memory. */
struct trouble {
	struct shared *s;
	struct kvtier_key own[N];
};

static struct trouble t;

static void trouble_begin(const char *lines, uint32_t codec)
{
	t.s = shared_begin(NULL, lines, codec);
	node_store_through(&t.s->a, t.s->keys, N);
	chain_keys(&t.s->b.e, 2, N, t.own);
	node_store_through(&t.s->b, t.own, N);
}

/* A server that is stopped still goes on, so that nothing waits for it. */
static void trouble_end(void)
{
	if (t.s->redis.pid)
		redis_signal(&t.s->redis, SIGCONT);
	if (t.s->b.e.client)
		node_owes_nothing(&t.s->b);
	shared_end(t.s);
}

/* B's own blocks, and new ones, in any state of Redis. */
static void memory_serves(void)
{
	struct kvtier_key more[N];

	assert_int_equal(engine_lookup(&t.s->b.e, t.own, N), N);
	assert_int_equal(chain_load(&t.s->b.e, t.own, N, N), N);
	chain_keys(&t.s->b.e, 3, N, more);
	assert_int_equal(chain_store(&t.s->b.e, more, N, N), 0);
	assert_int_equal(chain_load(&t.s->b.e, more, N, N), N);
}

static void it_works_again(void)
{
	node_becomes(&t.s->a, "up", 2 * SHARED_MS);
	node_becomes(&t.s->b, "up", 2 * SHARED_MS);
	shared_works_again(&t.s->a, &t.s->b);
}

/* --- killed --- */

TEST(when_it_is_killed_absent_blocks_are_misses)
{
	trouble_begin(quick, KVTIER_CODEC_FP8);
	redis_kill(&t.s->redis);
	for (int i = 0; i < 8; i++)
		assert_int_equal(chain_load(&t.s->b.e, t.s->keys, 0, N), 0);
	assert_int_equal(node_prefetch(&t.s->b, t.s->keys, N), 0);
	trouble_end();
}

TEST(when_it_is_killed_memory_serves)
{
	trouble_begin(quick, KVTIER_CODEC_FP8);
	redis_kill(&t.s->redis);
	for (int i = 0; i < 4; i++)
		memory_serves();
	trouble_end();
}

TEST(when_it_is_killed_it_is_said_why)
{
	trouble_begin(quick, KVTIER_CODEC_FP8);
	redis_kill(&t.s->redis);
	node_becomes(&t.s->b, "offline", SHARED_MS);
	node_text_has(&t.s->b, t.s->redis.address);
	daemon_stat_becomes(&t.s->b.d, "tiers.redis.usable_endpoints", 0, SHARED_MS);
	assert_int_equal(daemon_ctl(&t.s->b.d, "endpoints", t.s->b.text, sizeof(t.s->b.text)), 0);
	assert_non_null(strstr(t.s->b.text, "offline"));
	trouble_end();
}

TEST(when_it_is_back_empty_it_is_used_again)
{
	trouble_begin(quick, KVTIER_CODEC_FP8);
	redis_kill(&t.s->redis);
	assert_int_equal(chain_load(&t.s->b.e, t.s->keys, 0, N), 0);
	redis_restart(&t.s->redis);
	it_works_again();
	assert_int_equal(chain_load(&t.s->b.e, t.s->keys, 0, N), 0); /* it is empty */
	trouble_end();
}

/* It has the questions, and dies over them. */
TEST(killed_under_loads)
{
	uint64_t ops[N];

	trouble_begin(patient, KVTIER_CODEC_RAW);
	redis_signal(&t.s->redis, SIGSTOP);
	for (uint32_t i = 0; i < N; i++)
		ops[i] = node_load_begin(&t.s->b, &t.s->keys[i], i, 1, 0);
	daemon_stat_becomes(&t.s->b.d, "ops.outstanding", N, PATIENT_MS);
	redis_kill(&t.s->redis);
	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(node_load_end(&t.s->b, ops[i], &t.s->keys[i], i, 1, -ENOENT), 0);
	memory_serves();
	trouble_end();
}

/* --- stopped --- */

TEST(when_it_is_stopped_absent_blocks_are_misses)
{
	trouble_begin(quick, KVTIER_CODEC_FP8);
	redis_signal(&t.s->redis, SIGSTOP);
	clock_hurry(true);
	for (int i = 0; i < 4; i++)
		assert_int_equal(chain_load(&t.s->b.e, t.s->keys, 0, N), 0);
	assert_int_equal(node_prefetch(&t.s->b, t.s->keys, N), 0);
	clock_hurry(false);
	trouble_end();
}

/* While loads of other blocks wait for it, too. */
TEST(when_it_is_stopped_memory_serves)
{
	uint64_t op;

	trouble_begin(patient, KVTIER_CODEC_FP8);
	redis_signal(&t.s->redis, SIGSTOP);
	op = node_load_begin(&t.s->b, t.s->keys, 0, N, 0);
	for (int i = 0; i < 4; i++)
		memory_serves();
	redis_signal(&t.s->redis, SIGCONT);
	assert_int_equal(node_load_end(&t.s->b, op, t.s->keys, 0, N, -ENOENT), N);
	trouble_end();
}

/* Three times in a row; commands that time out at once count once. */
static void until_offline(void)
{
	clock_hurry(true);
	for (int i = 0; i < 3; i++)
		assert_int_equal(chain_load(&t.s->b.e, t.s->keys, 0, N), 0);
	clock_hurry(false);
	node_becomes(&t.s->b, "offline", SHARED_MS);
}

TEST(when_it_is_stopped_it_is_left_alone)
{
	trouble_begin(quick, KVTIER_CODEC_FP8);
	redis_signal(&t.s->redis, SIGSTOP);
	until_offline();
	node_text_has(&t.s->b, t.s->redis.address);
	node_stat_reaches(&t.s->b, "tiers.redis.timeouts_total", 3);
	daemon_stat_becomes(&t.s->b.d, "tiers.redis.breaker_opens_total", 1, SHARED_MS);
	trouble_end();
}

TEST(when_it_goes_on_it_is_used_again)
{
	trouble_begin(quick, KVTIER_CODEC_FP8);
	redis_signal(&t.s->redis, SIGSTOP);
	until_offline();
	redis_signal(&t.s->redis, SIGCONT);
	it_works_again();
	assert_int_equal(chain_load(&t.s->b.e, t.s->keys, 0, N), N);
	trouble_end();
}

/* The pages are the engine's again, the slots are other blocks': late bytes go nowhere. */
TEST(a_late_reply_touches_no_page_and_no_block)
{
	struct kvtier_key others[4][N];

	trouble_begin(quick, KVTIER_CODEC_RAW);
	redis_signal(&t.s->redis, SIGSTOP);
	clock_hurry(true);
	assert_int_equal(chain_load(&t.s->b.e, t.s->keys, 0, N), 0);
	clock_hurry(false);
	for (uint64_t i = 0; i < 4; i++) {
		chain_keys(&t.s->b.e, 10 + i, N, others[i]);
		assert_int_equal(chain_store(&t.s->b.e, others[i], N, N), 0);
	}
	redis_signal(&t.s->redis, SIGCONT);
	node_stat_reaches(&t.s->b, "tiers.redis.late_replies_total", N);
	node_becomes(&t.s->b, "up", 2 * SHARED_MS);
	node_untouched(&t.s->b, 0, N);
	for (int i = 0; i < 4; i++)
		assert_int_equal(chain_load(&t.s->b.e, others[i], N, N), N);
	node_untouched(&t.s->b, 0, N);
	assert_true(daemon_stat(&t.s->b.d, "tiers.host.corrupt_blocks_total") == 0);
	trouble_end();
}

/* Again and again, at no particular moment. */
TEST(stopped_and_continued_under_loads)
{
	struct random random = random_seeded("sys_redis_trouble");
	uint64_t hits = 0;

	trouble_begin(quick, KVTIER_CODEC_RAW);
	for (int i = 0; i < 40; i++) {
		uint64_t op;

		node_evict(&t.s->b);
		op = node_load_begin(&t.s->b, t.s->keys, 0, N, 0);
		nap_ms(random_below(&random, 3));
		redis_signal(&t.s->redis, SIGSTOP);
		clock_pass_ms(random_below(&random, 6000));
		redis_signal(&t.s->redis, SIGCONT);
		hits += node_load_end(&t.s->b, op, t.s->keys, 0, N, -ENOENT);
	}
	printf("%llu of %d blocks came\n", (unsigned long long)hits, 40 * N);
	it_works_again();
	trouble_end();
}

/* --- ops that wait for it --- */

TEST(a_load_ends_by_its_deadline)
{
	uint64_t op;

	trouble_begin(patient, KVTIER_CODEC_RAW);
	redis_signal(&t.s->redis, SIGSTOP);
	op = node_load_begin(&t.s->b, t.s->keys, 0, N, SHORT_MS);
	clock_pass_ms(SHORT_MS);
	assert_int_equal(node_load_end(&t.s->b, op, t.s->keys, 0, N, -ETIMEDOUT), 0);
	node_untouched(&t.s->b, 0, N);
	redis_signal(&t.s->redis, SIGCONT);
	assert_int_equal(chain_load(&t.s->b.e, t.s->keys, N, N), N);
	node_untouched(&t.s->b, 0, N);
	trouble_end();
}

static void it_waits(void)
{
	daemon_stat_becomes(&t.s->b.d, "ops.outstanding", 1, PATIENT_MS);
}

TEST(a_cancelled_load_ends)
{
	uint64_t op;

	trouble_begin(patient, KVTIER_CODEC_RAW);
	redis_signal(&t.s->redis, SIGSTOP);
	op = node_load_begin(&t.s->b, t.s->keys, 0, N, 0);
	it_waits();
	assert_int_equal(kvtier_cancel(t.s->b.e.client, op, PATIENT_MS), 0);
	assert_int_equal(node_load_end(&t.s->b, op, t.s->keys, 0, N, -ECANCELED), 0);
	redis_signal(&t.s->redis, SIGCONT);
	assert_int_equal(chain_load(&t.s->b.e, t.s->keys, N, N), N);
	node_untouched(&t.s->b, 0, N);
	trouble_end();
}

/* Its pages are its own when that returned. */
TEST(an_engine_that_closes_its_space_is_let_go)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);

	trouble_begin(patient, KVTIER_CODEC_RAW);
	redis_signal(&t.s->redis, SIGSTOP);
	(void)node_load_begin(&t.s->b, t.s->keys, 0, N, 0);
	it_waits();
	kvtier_space_close(t.s->b.e.space);
	node_untouched(&t.s->b, 0, N);
	redis_signal(&t.s->redis, SIGCONT);
	nap_ms(200); /* late values are there by now */
	node_untouched(&t.s->b, 0, N);
	node_leave(&t.s->b);
	node_join(&t.s->b, &g);
	assert_int_equal(chain_load(&t.s->b.e, t.s->keys, 0, N), N);
	trouble_end();
}

/* Another process loads, and is killed in the midst of it. */
TEST(a_client_that_dies_leaves_nothing)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	pid_t pid;

	trouble_begin(patient, KVTIER_CODEC_RAW);
	redis_signal(&t.s->redis, SIGSTOP);
	pid = fork();
	if (pid == 0) {
		struct node *its = &t.s->b;

		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		node_join(its, &g);
		(void)node_load_begin(its, t.s->keys, 0, N, 0);
		(void)pause();
		_exit(0);
	}
	assert_true(pid > 0);
	daemon_stat_becomes(&t.s->b.d, "ops.outstanding", 1, SHARED_MS);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	daemon_stat_becomes(&t.s->b.d, "clients", 1, PATIENT_MS);
	node_owes_nothing(&t.s->b);
	redis_signal(&t.s->redis, SIGCONT);
	assert_int_equal(chain_load(&t.s->b.e, t.s->keys, 0, N), N);
	trouble_end();
}

/* --- a daemon's start and stop --- */

TEST(a_start_without_it_finds_it_later)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);

	trouble_begin(quick, KVTIER_CODEC_FP8);
	redis_kill(&t.s->redis);
	node_die(&t.s->b, SIGTERM);
	node_live(&t.s->b);
	node_join(&t.s->b, &g);
	assert_int_equal(chain_store(&t.s->b.e, t.own, 0, N), 0);
	memory_serves();
	redis_restart(&t.s->redis);
	it_works_again();
	trouble_end();
}

TEST(a_start_while_it_is_stopped)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_FP8);

	trouble_begin("timeout_ms = 1000", KVTIER_CODEC_FP8);
	redis_signal(&t.s->redis, SIGSTOP);
	node_die(&t.s->b, SIGTERM);
	node_live(&t.s->b);
	node_join(&t.s->b, &g);
	assert_int_equal(chain_store(&t.s->b.e, t.own, 0, N), 0);
	memory_serves();
	redis_signal(&t.s->redis, SIGCONT);
	it_works_again();
	assert_int_equal(chain_load(&t.s->b.e, t.s->keys, 0, N), N);
	trouble_end();
}

/* With a load that waits for it, and much to be written. */
TEST(a_stop_while_it_is_stopped_ends)
{
	struct kvtier_key more[N];
	int status;

	trouble_begin(patient, KVTIER_CODEC_RAW);
	redis_signal(&t.s->redis, SIGSTOP);
	for (uint64_t chain = 10; chain < 20; chain++) {
		chain_keys(&t.s->b.e, chain, N, more);
		assert_int_equal(chain_store(&t.s->b.e, more, N, N), 0);
	}
	(void)node_load_begin(&t.s->b, t.s->keys, 0, N, 0);
	assert_int_equal(kill(t.s->b.d.pid, SIGTERM), 0);
	status = daemon_wait(&t.s->b.d, EXIT_MS);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	node_leave(&t.s->b);
	trouble_end();
}

/* Nothing that waits to be written outlives it: the queue is empty long before the writes would be
 * given up. */
TEST(a_purge_while_it_is_stopped_ends)
{
	static const char tenant[] = "purge --tenant default";
	char text[512];

	t.s = shared_begin(NULL, "write = on-evict\ntimeout_ms = 60000", KVTIER_CODEC_RAW);
	redis_signal(&t.s->redis, SIGSTOP);
	for (uint64_t chain = 0; chain < 4; chain++) {
		chain_keys(&t.s->a.e, chain, N, t.own);
		assert_int_equal(chain_store(&t.s->a.e, t.own, 0, N), 0);
	}
	node_evict(&t.s->a);
	node_stat_reaches(&t.s->a, "tiers.redis.queued_blocks", 1);
	assert_int_equal(daemon_ctl(&t.s->a.d, tenant, text, sizeof(text)), 0);
	daemon_stat_becomes(&t.s->a.d, "tiers.redis.queued_blocks", 0, PATIENT_MS / 3);
	redis_signal(&t.s->redis, SIGCONT);
	node_owes_nothing(&t.s->a);
	shared_end(t.s);
}

/* --- written to under load --- */

TEST(a_flood_while_it_is_stopped)
{
	shared_flood(FLOOD_SECONDS);
}

TEST_BEGIN
{
	redis_needed();
}
