/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=clock_gettime */
/*
 * Goal: an engine whose CLOCK_MONOTONIC is not the daemon's, as in another time namespace, finds
 * and loads its blocks, and its ops end at its own deadlines. Method: clock_gettime() of the engine
 * is so far ahead or behind; and once the kernel's own way, where it may be taken.
 */
#include "tests/lib/lib.h"
#include "tests/lib/wrap.h"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

enum { BLOCKS = 16, PAGES = 2 * BLOCKS };

static _Atomic int64_t ahead_s;

REAL(int, clock_gettime, (clockid_t id, struct timespec *ret))
{
	const int rc = __real_clock_gettime(id, ret);

	if (rc == 0 && id == CLOCK_MONOTONIC)
		ret->tv_sec += ahead_s;
	return rc;
}

static struct daemon d;
static uint64_t chain;

FIXTURE_DO(set_up, daemon_start(&d, SMALL_HOST));
FIXTURE_DO(tear_down, ahead_s = 0; daemon_remove(&d));

TEST_EACH(set_up, tear_down);

static void engine_finds_its_blocks(void)
{
	struct kvtier_key keys[BLOCKS];
	struct engine e;

	engine_open(&e, d.socket, "engine", &tiny_raw, PAGES);
	chain_keys(&e, ++chain, BLOCKS, keys);
	assert_int_equal(chain_store(&e, keys, 0, BLOCKS), 0);
	engine_lookup_becomes(&e, keys, BLOCKS, BLOCKS);
	assert_int_equal(chain_load(&e, keys, BLOCKS, BLOCKS), BLOCKS);
	engine_close(&e);
}

TEST(the_clock_is_ahead_or_behind)
{
	static const int64_t offsets[] = { 0, 3, 60, 86400 * 365, -3, -60 };
	struct timespec now;

	assert_int_equal(__real_clock_gettime(CLOCK_MONOTONIC, &now), 0);
	for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
		ahead_s = offsets[i] > -now.tv_sec ? offsets[i] : -now.tv_sec;
		engine_finds_its_blocks();
	}
}

/* A daemon that stands still: lookups find nothing, and a load ends at the engine's deadline. */
TEST(a_stopped_daemon_is_seen_and_an_op_ends)
{
	struct kvtier_result result = { .size = sizeof(result) };
	struct kvtier_key keys[BLOCKS];
	struct engine e;
	uint64_t op;

	ahead_s = 1000;
	engine_open(&e, d.socket, "engine", &tiny_raw, PAGES);
	chain_keys(&e, ++chain, BLOCKS, keys);
	assert_int_equal(chain_store(&e, keys, 0, BLOCKS), 0);
	engine_lookup_becomes(&e, keys, BLOCKS, BLOCKS);
	daemon_signal(&d, SIGSTOP);
	engine_lookup_becomes(&e, keys, BLOCKS, 0);
	op = chain_load_begin(&e, keys, BLOCKS, BLOCKS, 100);
	assert_int_equal(kvtier_wait(e.client, op, -1, &result), -ETIMEDOUT);
	daemon_signal(&d, SIGCONT);
	assert_int_equal(kvtier_wait(e.client, op, PATIENT_MS, &result), 0);
	assert_int_equal(result.status, -ETIMEDOUT);
	assert_int_equal(result.ok, 0);
	engine_close(&e);
}

/* This process, which has one thread, in a time namespace of its own. */
TEST(a_time_namespace)
{
	static const char *const offsets[] = { "monotonic -3 0\n", "monotonic 86400 0\n" };
	const int before = open("/proc/self/ns/time", O_RDONLY | O_CLOEXEC);

	if (before < 0)
		skip();
	for (size_t i = 0; i < 2; i++) {
		int fd, own;
		ssize_t n;

		if (unshare(CLONE_NEWTIME)) {
			print_message("no time namespace: %s\n", strerror(errno));
			skip();
		}
		fd = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
		n = write(fd, offsets[i], strlen(offsets[i]));
		assert_int_equal(n, strlen(offsets[i]));
		(void)close(fd);
		own = open("/proc/self/ns/time_for_children", O_RDONLY | O_CLOEXEC);
		assert_int_equal(setns(own, CLONE_NEWTIME), 0);
		engine_finds_its_blocks();
		assert_int_equal(setns(before, CLONE_NEWTIME), 0);
		(void)close(own);
	}
	(void)close(before);
}
