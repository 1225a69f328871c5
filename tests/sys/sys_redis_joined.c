/* SPDX-License-Identifier: Apache-2.0 */
/* make: seconds=20 lane=wait */
/* make: wrap=clock_gettime,epoll_wait needs=kvtierd_clock (the test holds the clock) */
/*
 * sys_redis_joined.c - goal: of many ops that want the same absent blocks at the same time one asks
 * Redis, and the others get its blocks, or its miss. Each op still ends by its own deadline and
 * cancel. When the first op is given up, the next goes on. Method: real kvtierd, engine and Redis.
 * Redis is stopped while the ops begin, so that all of them wait together, and counts the GETs that
 * it then gets (INFO commandstats).
 */
#include "tests/lib/lib_clock.h"
#include "tests/lib/lib_shared.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* A daemon with [device] depth = 64 lets OPS * N parts wait at once. */
enum { N = 8, OPS = 6, PREFETCHES = 4, SHORT_MS = 200, ROUNDS = 40 };
static const char patient[] = "timeout_ms = 20000"; /* nothing gives up but the op */

static struct shared *w;

static void commands_are_counted_from_here(void)
{
	char text[256];

	redis_say(&w->redis, text, sizeof(text), "CONFIG RESETSTAT");
	assert_string_equal(text, "OK");
}

static long calls(const char *command)
{
	char text[4096], word[64];
	const char *at;

	(void)snprintf(word, sizeof(word), "cmdstat_%s:calls=", command);
	redis_say(&w->redis, text, sizeof(text), "INFO commandstats");
	at = strstr(text, word);
	return at ? strtol(at + strlen(word), NULL, 10) : 0;
}

static long gets(void)
{
	return calls("get");
}

/* A chain that is in Redis, and with B nowhere else. */
static void begin(const char *lines, uint32_t codec)
{
	w = shared_begin(NULL, lines, codec);
	node_store_through(&w->a, w->keys, N);
	commands_are_counted_from_here();
}

static void end(void)
{
	if (w->b.e.client)
		node_owes_nothing(&w->b);
	shared_end(w);
}

static void begin_loads(uint64_t ops[OPS], const struct kvtier_key *keys, uint32_t n)
{
	for (uint32_t i = 0; i < OPS; i++)
		ops[i] = node_load_begin(&w->b, keys, i * n, n, 0);
	daemon_stat_reaches(&w->b.d, "ops.outstanding", OPS); /* all commands are sent */
}

/* Hits of all of them from number `first` on. */
static uint32_t end_loads(const uint64_t ops[OPS], uint32_t first, const struct kvtier_key *keys,
			  uint32_t n)
{
	uint32_t hits = 0;

	for (uint32_t i = first; i < OPS; i++)
		hits += node_load_end(&w->b, ops[i], keys, i * n, n, -ENOENT);
	return hits;
}

/* --- found --- */

static void each_block_is_brought_once(uint32_t codec)
{
	uint64_t ops[OPS];

	begin(patient, codec);
	redis_signal(&w->redis, SIGSTOP);
	begin_loads(ops, w->keys, N);
	redis_signal(&w->redis, SIGCONT);
	assert_int_equal(end_loads(ops, 0, w->keys, N), OPS * N);
	assert_int_equal(gets(), N);
	end();
}

TEST(many_loads_of_fp8_bring_each_block_once)
{
	each_block_is_brought_once(KVTIER_CODEC_FP8);
}

TEST(many_loads_of_raw_bring_each_block_once)
{
	each_block_is_brought_once(KVTIER_CODEC_RAW);
}

/* Larger than the space says: read once more, into another slot, by one of them. */
TEST(what_fp8_cannot_hold_is_read_twice_and_no_more)
{
	uint32_t pages[OPS];
	uint64_t ops[OPS];

	w = shared_begin(NULL, patient, KVTIER_CODEC_FP8);
	memset(w->a.e.memory, 0x7f, w->a.e.page_bytes); /* 0x7f7f: too large for FP8 */
	pages[0] = 0;
	assert_int_equal(engine_store(&w->a.e, w->keys, pages, 1, NULL, NULL), 0);
	node_stat_reaches(&w->a, "tiers.redis.written_blocks_total", 1);
	commands_are_counted_from_here();
	redis_signal(&w->redis, SIGSTOP);
	for (uint32_t i = 0; i < OPS; i++) {
		page_poison(&w->b.e, i);
		pages[i] = i;
		assert_int_equal(kvtier_load(w->b.e.space, w->keys, &pages[i], 1, NULL, &ops[i]),
				 0);
	}
	nap_ms(100);
	redis_signal(&w->redis, SIGCONT);
	for (uint32_t i = 0; i < OPS; i++) {
		struct kvtier_result result = { .size = sizeof(result) };

		assert_int_equal(kvtier_wait(w->b.e.client, ops[i], -1, &result), 0);
		assert_int_equal(result.status, 0);
		assert_memory_equal(w->b.e.memory + i * w->b.e.page_bytes, w->a.e.memory,
				    w->b.e.page_bytes);
	}
	assert_int_equal(gets(), 2);
	end();
}

TEST(loads_and_prefetches_bring_each_block_once)
{
	uint64_t ops[OPS], prefetches[PREFETCHES];

	begin(patient, KVTIER_CODEC_RAW);
	redis_signal(&w->redis, SIGSTOP);
	for (uint32_t i = 0; i < OPS; i++) {
		ops[i] = node_load_begin(&w->b, w->keys, i, 1, 0);
		if (i < PREFETCHES)
			assert_int_equal(kvtier_prefetch(w->b.e.space, w->keys, N, &prefetches[i]),
					 0);
	}
	nap_ms(100);
	redis_signal(&w->redis, SIGCONT);
	assert_int_equal(end_loads(ops, 0, w->keys, 1), OPS);
	for (uint32_t i = 0; i < PREFETCHES; i++) {
		struct kvtier_result result = { .size = sizeof(result) };

		assert_int_equal(kvtier_wait(w->b.e.client, prefetches[i], -1, &result), 0);
		assert_int_equal(result.prefix, N);
	}
	assert_int_equal(gets(), N);
	assert_in_range(calls("getrange"), 0, N);
	end();
}

/* Without the block before it nothing is kept; the loads that want it at the same time share it all
 * the same. */
TEST(what_is_not_kept_is_brought_once_for_all_that_wait)
{
	struct kvtier_key keys[2], other[1];
	uint64_t ops[OPS];

	begin(patient, KVTIER_CODEC_RAW);
	chain_keys(&w->b.e, 7, 1, other);
	keys[0] = other[0];
	keys[1] = w->keys[1];
	redis_signal(&w->redis, SIGSTOP);
	begin_loads(ops, keys, 2);
	redis_signal(&w->redis, SIGCONT);
	assert_int_equal(end_loads(ops, 0, keys, 2), OPS);
	assert_in_range(gets(), 2, OPS); /* each its own: 1 + OPS */
	end();
}

/* --- not found --- */

TEST(what_redis_does_not_have_is_asked_for_once)
{
	struct kvtier_key keys[N];
	uint64_t ops[OPS];

	begin(patient, KVTIER_CODEC_RAW);
	chain_keys(&w->b.e, 7, N, keys);
	redis_signal(&w->redis, SIGSTOP);
	begin_loads(ops, keys, N);
	redis_signal(&w->redis, SIGCONT);
	assert_int_equal(end_loads(ops, 0, keys, N), 0);
	assert_int_equal(gets(), N);
	end();
}

/* Damaged: the bytes do not fit the checksum. */
TEST(what_is_damaged_is_read_once)
{
	static uint8_t value[SHARED_RAW_BYTES];
	char name[SHARED_NAME];
	uint64_t ops[OPS];

	begin(patient, KVTIER_CODEC_RAW);
	shared_name("kvtier:", &w->keys[0], name);
	assert_int_equal(redis_get(&w->redis, name, value, sizeof(value)), sizeof(value));
	value[sizeof(value) - REDIS_MAC_BYTES - 1] ^= 1;
	redis_put(&w->redis, name, value, sizeof(value));
	commands_are_counted_from_here();
	redis_signal(&w->redis, SIGSTOP);
	begin_loads(ops, w->keys, 1);
	redis_signal(&w->redis, SIGCONT);
	assert_int_equal(end_loads(ops, 0, w->keys, 1), 0);
	assert_in_range(gets(), 1, 2); /* the script that deletes it has one, too */
	node_stat_reaches(&w->b, "tiers.redis.corrupt_blocks_total", 1);
	end();
}

/* Ops that waited behind the first do not each wait as long once more: no other op asked. */
TEST(a_redis_that_hangs_is_waited_for_once)
{
	uint64_t ops[OPS];

	begin("timeout_ms = 5000", KVTIER_CODEC_RAW);
	redis_signal(&w->redis, SIGSTOP);
	begin_loads(ops, w->keys, N);
	clock_hurry(true);
	assert_int_equal(end_loads(ops, 0, w->keys, N), 0);
	clock_hurry(false);
	daemon_stat_becomes(&w->b.d, "tiers.redis.timeouts_total", N, SHARED_MS);
	redis_signal(&w->redis, SIGCONT);
	end();
}

TEST(a_redis_that_dies_is_a_miss_for_all)
{
	uint64_t ops[OPS];

	begin(patient, KVTIER_CODEC_RAW);
	redis_signal(&w->redis, SIGSTOP);
	begin_loads(ops, w->keys, N);
	redis_kill(&w->redis);
	assert_int_equal(end_loads(ops, 0, w->keys, N), 0);
	end();
}

/* --- given up --- */

/* The next one asks, with the others behind it. */
TEST(when_the_first_is_cancelled_the_next_goes_on)
{
	uint64_t ops[OPS];

	begin(patient, KVTIER_CODEC_RAW);
	redis_signal(&w->redis, SIGSTOP);
	begin_loads(ops, w->keys, N);
	assert_int_equal(kvtier_cancel(w->b.e.client, ops[0], PATIENT_MS), 0);
	assert_int_equal(node_load_end(&w->b, ops[0], w->keys, 0, N, -ECANCELED), 0);
	nap_ms(100);
	redis_signal(&w->redis, SIGCONT);
	assert_int_equal(end_loads(ops, 1, w->keys, N), (OPS - 1) * N);
	assert_in_range(gets(), N, 2 * N); /* the first op's commands were sent, or not */
	end();
}

/* All but the last, one after another. */
TEST(when_all_others_are_cancelled_the_last_goes_on)
{
	uint64_t ops[OPS];

	begin(patient, KVTIER_CODEC_RAW);
	redis_signal(&w->redis, SIGSTOP);
	begin_loads(ops, w->keys, N);
	for (uint32_t i = 0; i < OPS - 1; i++) {
		assert_int_equal(kvtier_cancel(w->b.e.client, ops[i], PATIENT_MS), 0);
		assert_int_equal(node_load_end(&w->b, ops[i], w->keys, i * N, N, -ECANCELED), 0);
	}
	redis_signal(&w->redis, SIGCONT);
	assert_int_equal(end_loads(ops, OPS - 1, w->keys, N), N);
	end();
}

/* An op that has waited for timeout_ms behind others that were given up asks no more. */
TEST(behind_a_row_of_cancelled_ones_nobody_waits_for_ever)
{
	uint64_t ops[3];

	begin("timeout_ms = 3000", KVTIER_CODEC_RAW);
	redis_signal(&w->redis, SIGSTOP);
	for (uint32_t i = 0; i < 3; i++)
		ops[i] = node_load_begin(&w->b, w->keys, i * N, N, 0);
	for (uint32_t i = 0; i < 2; i++) {
		clock_pass_ms(2000);
		(void)kvtier_cancel(w->b.e.client, ops[i], PATIENT_MS);
	}
	clock_hurry(true);
	assert_int_equal(node_load_end(&w->b, ops[2], w->keys, 2 * N, N, -ENOENT), 0);
	clock_hurry(false);
	redis_signal(&w->redis, SIGCONT);
	nap_ms(100); /* sent commands are answered by now */
	assert_in_range(gets(), 0, 2 * N);
	end();
}

TEST(when_the_firsts_client_dies_the_next_goes_on)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	uint64_t ops[OPS];
	pid_t pid;

	begin(patient, KVTIER_CODEC_RAW);
	redis_signal(&w->redis, SIGSTOP);
	pid = fork();
	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		node_join(&w->b, &g);
		(void)node_load_begin(&w->b, w->keys, 0, N, 0);
		(void)pause();
		_exit(0);
	}
	assert_true(pid > 0);
	daemon_stat_becomes(&w->b.d, "ops.outstanding", 1, SHARED_MS);
	begin_loads(ops, w->keys, N);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	daemon_stat_becomes(&w->b.d, "clients", 1, SHARED_MS);
	redis_signal(&w->redis, SIGCONT);
	assert_int_equal(end_loads(ops, 0, w->keys, N), OPS * N);
	assert_in_range(gets(), N, 2 * N);
	end();
}

/* One that waits behind another has its own deadline, and can be cancelled. */
TEST(those_behind_end_by_themselves)
{
	uint64_t ops[3];

	begin(patient, KVTIER_CODEC_RAW);
	redis_signal(&w->redis, SIGSTOP);
	ops[0] = node_load_begin(&w->b, w->keys, 0, N, 0);
	ops[1] = node_load_begin(&w->b, w->keys, N, N, SHORT_MS);
	ops[2] = node_load_begin(&w->b, w->keys, 2 * N, N, 0);
	assert_int_equal(node_load_end(&w->b, ops[1], w->keys, N, N, -ETIMEDOUT), 0);
	assert_int_equal(kvtier_cancel(w->b.e.client, ops[2], PATIENT_MS), 0);
	assert_int_equal(node_load_end(&w->b, ops[2], w->keys, 2 * N, N, -ECANCELED), 0);
	redis_signal(&w->redis, SIGCONT);
	assert_int_equal(node_load_end(&w->b, ops[0], w->keys, 0, N, -ENOENT), N);
	node_untouched(&w->b, N, 2 * N);
	assert_int_equal(gets(), N);
	end();
}

/* --- in any order --- */

struct wild {
	uint64_t op;
	struct kvtier_key keys[N];
	uint32_t first;
};

/* Blocks of the chain in any order, some twice: waiting ops could form a ring. */
static void wild_begin(struct wild *wild, struct random *random, uint32_t first)
{
	wild->first = first;
	for (uint32_t i = 0; i < N; i++)
		wild->keys[i] = w->keys[random_below(random, N)];
	wild->op = node_load_begin(&w->b, wild->keys, first, N, 0);
}

static void wild_end(struct wild *wild)
{
	int32_t statuses[N];
	struct kvtier_result result = { .size = sizeof(result),
					.blocks = statuses,
					.blocks_max = N };

	if (kvtier_wait(w->b.e.client, wild->op, SHARED_MS, &result) != 0)
		fail_msg("an op does not end");
	for (uint32_t i = 0; i < N; i++)
		if (statuses[i] == 0 ? !page_is(&w->b.e, wild->first + i, &wild->keys[i], 0) :
				       !page_is_poison(&w->b.e, wild->first + i))
			fail_msg("block %u with status %d: its page holds the wrong bytes", i,
				 statuses[i]);
}

TEST(chains_in_any_order_end)
{
	struct random random = random_seeded("sys_redis_joined");
	struct wild wild[OPS];

	begin(patient, KVTIER_CODEC_RAW);
	for (int round = 0; round < ROUNDS; round++) {
		redis_signal(&w->redis, SIGSTOP);
		for (uint32_t i = 0; i < OPS; i++)
			wild_begin(&wild[i], &random, i * N);
		nap_ms(random_below(&random, 10));
		for (uint32_t i = random_below(&random, OPS); i > 0; i--)
			(void)kvtier_cancel(w->b.e.client, wild[random_below(&random, OPS)].op,
					    5000);
		redis_signal(&w->redis, SIGCONT);
		for (uint32_t i = 0; i < OPS; i++)
			wild_end(&wild[i]);
		node_evict(&w->b);
	}
	end();
}

TEST_BEGIN
{
	redis_needed();
}
