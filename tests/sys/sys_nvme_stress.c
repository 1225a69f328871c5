/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sys_nvme_stress.c - goal: whatever overlaps, no engine gets a wrong byte, and nothing is left behind: no op, lease,
 * slot, or daemon that does not stop. Method: engines in processes of their own, in three spaces, share chains that
 * are far more than memory and store hold, with deadlines of 1-50 ms, cancels, and deaths in the midst of ops, while
 * kvtierctl evicts, verifies, flushes and purges. Segments are small, so that reclaim never rests.
 */
#include "tests/lib/lib_disk.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	ENGINES = 5,
	SPACES = 3,
	CHAINS = 12,		/* a space */
	LENGTH = 16,		/* blocks a chain */
	OPS = 6,		/* of one engine at once, each with pages of its own */
	PAGES = OPS * LENGTH,
	RUN_MS = 4000,
	REST_MS = 20000,	/* for what must come to an end */
};

static const char config[] = "[host]\nbytes = 4M\nslab_bytes = 512K\nhuge_pages = no\n"
			     "[device]\ndepth = 24\n"
			     "[nvme]\nbytes = 12M\nsegment_bytes = 512K\nqueue_depth = 4\nwrite_depth = 2\n";

struct shared {
	_Atomic bool stop;
	_Atomic uint64_t hits, ops;
};

struct world {
	struct daemon d;
	struct random random;
	struct shared *shared;
	pid_t engines[ENGINES];
	uint32_t deaths;
};

static struct kvtier_geometry geometry_of(uint32_t engine)
{
	switch (engine % SPACES) {
	case 0: return tiny_geometry(KVTIER_CODEC_RAW);
	case 1: return tiny_geometry(KVTIER_CODEC_FP8);
	default: return large_geometry(KVTIER_CODEC_RAW);
	}
}

/* --- an engine --- */

enum kind { NOTHING, STORE, LOAD, PREFETCH };

struct op {
	enum kind kind;
	uint64_t id;
	uint32_t first, n;		/* page; blocks */
	struct kvtier_key keys[LENGTH];
};

struct client {
	struct engine e;
	struct random random;
	struct shared *shared;
	struct op ops[OPS];
};

static void op_start(struct client *c, struct op *op)
{
	static const enum kind kinds[] = { STORE, STORE, LOAD, LOAD, LOAD, PREFETCH };
	struct kvtier_op_options o = { .size = sizeof o };
	uint32_t pages[LENGTH];
	int r;

	op->kind = kinds[random_below(&c->random, sizeof kinds / sizeof kinds[0])];
	op->n = 1 + random_below(&c->random, LENGTH);
	chain_keys(&c->e, random_below(&c->random, CHAINS), LENGTH, op->keys);
	pages_from(op->first, pages, op->n);
	if (random_below(&c->random, 3) == 0)
		o.timeout_ms = 1 + random_below(&c->random, 50);
	for (uint32_t i = 0; i < op->n; i++) {
		if (op->kind == STORE)
			page_fill(&c->e, pages[i], &op->keys[i], 0);
		else
			page_poison(&c->e, pages[i]);
	}
	if (op->kind == STORE)
		r = kvtier_store(c->e.space, op->keys, pages, op->n, &o, &op->id);
	else if (op->kind == LOAD)
		r = kvtier_load(c->e.space, op->keys, pages, op->n, &o, &op->id);
	else
		r = kvtier_prefetch(c->e.space, op->keys, op->n, &op->id);
	if (r == -ETIMEDOUT)	/* the machine is busy: its pages were not allocated by its deadline */
		op->kind = NOTHING;
	else if (r)
		fail_msg("an op could not be started: %s", kvtier_last_error());
}

/* A block with status 0 has its bytes; one that was ended while it was written may have a part of them; any other page
 * is as it was. */
static void check_load(struct client *c, const struct op *op, const int32_t *blocks)
{
	for (uint32_t i = 0; i < op->n; i++) {
		const uint32_t page = op->first + i;

		if (blocks[i] == -ECONNRESET)	/* the daemon died: the test is lost, and says so elsewhere */
			continue;
		if (blocks[i] == -ETIMEDOUT || blocks[i] == -ECANCELED) {
			if (!page_is_part(&c->e, page, &op->keys[i], 0))
				fail_msg("block %u with status %d: its page has a byte that is not the block's", i, blocks[i]);
			continue;
		}
		if (blocks[i] == 0 ? !page_is(&c->e, page, &op->keys[i], 0) : !page_is_poison(&c->e, page))
			fail_msg("block %u with status %d: its page holds the wrong bytes", i, blocks[i]);
		atomic_fetch_add(&c->shared->hits, blocks[i] == 0);
	}
}

static void op_end(struct client *c, struct op *op)
{
	int32_t blocks[LENGTH];
	struct kvtier_result result = { .size = sizeof result, .blocks = blocks, .blocks_max = LENGTH };
	int r;

	if (random_below(&c->random, 4) == 0)
		assert_int_equal(kvtier_cancel(c->e.client, op->id, REST_MS), 0);
	r = kvtier_wait(c->e.client, op->id, REST_MS, &result);
	if (r)
		fail_msg("an op did not end: %s", strerror(-r));
	assert_int_equal(result.n, op->n);
	if (op->kind == LOAD)
		check_load(c, op, blocks);
	op->kind = NOTHING;
	atomic_fetch_add(&c->shared->ops, 1);
}

static void engine_runs(struct world *w, uint32_t number, uint64_t seed)
{
	const struct kvtier_geometry g = geometry_of(number);
	static struct client c;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	(void)setenv("CMOCKA_TEST_ABORT", "1", 1);	/* a failure here ends this process, not the test in it */
	c = (struct client){ .random.state = seed, .shared = w->shared };
	engine_open(&c.e, w->d.socket, "engine", &g, PAGES);
	while (!atomic_load(&w->shared->stop)) {
		const uint32_t i = random_below(&c.random, OPS);

		c.ops[i].first = i * LENGTH;
		if (c.ops[i].kind == NOTHING)
			op_start(&c, &c.ops[i]);
		else
			op_end(&c, &c.ops[i]);
	}
	for (uint32_t i = 0; i < OPS; i++)
		if (c.ops[i].kind != NOTHING && random_below(&c.random, 2))
			op_end(&c, &c.ops[i]);
	engine_close(&c.e);	/* with ops outstanding, perhaps */
	_exit(0);
}

static void spawn(struct world *w, uint32_t number)
{
	const uint64_t seed = random_next(&w->random);

	w->engines[number] = fork();
	if (w->engines[number] == 0)
		engine_runs(w, number, seed);
	assert_true(w->engines[number] > 0);
}

/* --- the operator --- */

static void daemon_lives(struct world *w)
{
	int status;

	if (waitpid(w->d.pid, &status, WNOHANG) == w->d.pid) {
		w->d.pid = 0;
		fail_msg("kvtierd ended with status 0x%x, see %s/log", (unsigned)status, w->d.dir);
	}
}

static void command(struct world *w, const char *words)
{
	char text[4096];
	const int code = daemon_ctl(&w->d, words, text, sizeof text);

	daemon_lives(w);
	if (code)
		fail_msg("kvtierctl %s: exit code %d: %s", words, code, text);
}

static void engine_dies(struct world *w)
{
	const uint32_t number = random_below(&w->random, ENGINES);
	int status;

	assert_int_equal(kill(w->engines[number], SIGKILL), 0);
	assert_int_equal(waitpid(w->engines[number], &status, 0), w->engines[number]);
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
		fail_msg("engine %u had ended with status 0x%x", number, (unsigned)status);
	w->deaths++;
	spawn(w, number);
}

static void operate(struct world *w)
{
	static const char *const commands[] = {
		"evict --all", "evict --bytes 1M", "evict --bytes 200K", "verify", "verify --scrub", "flush",
		"purge --tenant other", "disks", "spaces", "clients", "stats",
	};
	const uint32_t what = random_below(&w->random, 40);

	if (what == 0)		/* seldom: it takes everything away */
		command(w, "purge --tenant default");
	else if (what < 26)
		command(w, commands[what % (sizeof commands / sizeof commands[0])]);
	else
		engine_dies(w);
}

static void engines_stop(struct world *w)
{
	atomic_store(&w->shared->stop, true);
	for (uint32_t i = 0; i < ENGINES; i++) {
		int status;

		assert_int_equal(waitpid(w->engines[i], &status, 0), w->engines[i]);
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
			fail_msg("engine %u ended with status 0x%x", i, (unsigned)status);
	}
}

static void nothing_is_left(struct world *w)
{
	daemon_lives(w);
	daemon_stat_becomes(&w->d, "clients", 0, REST_MS);
	daemon_stat_becomes(&w->d, "ops.outstanding", 0, REST_MS);
	command(w, "flush");
	daemon_stat_becomes(&w->d, "leases", 0, REST_MS);
	command(w, "verify");
	command(w, "evict --all");
	daemon_stat_becomes(&w->d, "tiers.host.used_bytes", 0, REST_MS);
	assert_int_equal(daemon_stat(&w->d, "tiers.nvme.corrupt_blocks_total"), 0);
	assert_int_equal(daemon_stat(&w->d, "tiers.host.corrupt_blocks_total"), 0);
}

static void everything_at_once(void **state)
{
	struct world w = { .random = random_seeded("sys_nvme_stress") };
	const uint64_t until = now_ns() + RUN_MS * 1000000ull;

	disk_need(*state);
	w.shared = mmap(NULL, sizeof *w.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(w.shared, MAP_FAILED);
	disk_start(&w.d, *state, config);
	for (uint32_t i = 0; i < ENGINES; i++)
		spawn(&w, i);
	while (now_ns() < until)
		operate(&w);
	engines_stop(&w);
	nothing_is_left(&w);
	printf("%llu ops, %u deaths, %llu blocks loaded (%llu from NVMe), %llu demoted, %llu reclaimed\n",
	       (unsigned long long)w.shared->ops, w.deaths, (unsigned long long)w.shared->hits,
	       (unsigned long long)daemon_stat(&w.d, "tiers.nvme.hit_blocks_total"),
	       (unsigned long long)daemon_stat(&w.d, "tiers.host.demoted_blocks_total"),
	       (unsigned long long)daemon_stat(&w.d, "tiers.nvme.evicted_blocks_total"));
	assert_true(w.shared->ops > 0);
	daemon_remove(&w.d);	/* a clean stop, exit status 0 */
	(void)munmap(w.shared, sizeof *w.shared);
}

int main(void)
{
	const struct CMUnitTest tests[] = { ON_BOTH_ENGINES(everything_at_once) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
