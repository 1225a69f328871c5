/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait */
/*
 * sys_redis_storm.c - goal: whatever overlaps inside one daemon with a Redis behind it, no engine gets a wrong byte,
 * and nothing is left behind: no op, lease, slot, or daemon that does not stop. Method: engines in processes of their
 * own, in three spaces, ask for chains that are far more than memory holds, also in the wrong order, twice and from the
 * middle, with deadlines of 1-50 ms, cancels, and deaths in the midst of ops, while Redis is stopped, killed, emptied
 * and filled, and kvtierctl evicts, verifies, flushes and purges. With and without NVMe, for both ways to write. Some
 * blocks are no use to FP8, so that their values are larger than a load first thinks. At last the daemon stops
 * while it waits for a Redis that does not answer. $STORM_MS: how long a case is.
 */
#include "tests/lib/lib_disk.h"
#include "tests/lib/lib_redis.h"

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
	SPARE = PAGES,		/* a page that no op has */
	RUN_MS = 2000,
	REST_MS = 30000,	/* for what must come to an end */
};

static const char memory[] = "[host]\nslab_bytes = 256K\nhuge_pages = no\nbytes = %s\n[device]\ndepth = %u\n"
			     "[index]\nmax_blocks = %u\n";
static const char disk[] = "[nvme]\nbytes = 12M\nsegment_bytes = 512K\nqueue_depth = 4\nwrite_depth = 2\n";

struct variant {
	const char *write;	/* lines of [redis] */
	bool nvme;
};

struct score {
	_Atomic bool stop;
	_Atomic uint64_t hits, ops, slowest_ms;	/* slowest: of an op, from its start until it was waited for */
};

struct world {
	struct daemon d;
	struct redis_server redis;
	struct random random;
	struct score *score;
	pid_t engines[ENGINES];
	uint32_t deaths;
	char text[8192];
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
	uint64_t id, start_ns;
	uint32_t first, n;		/* page; blocks */
	struct kvtier_key keys[LENGTH];
	const struct kvtier_key *parent;
	struct kvtier_key before;
};

struct client {
	struct engine e;
	struct random random;
	struct score *score;
	struct op ops[OPS];
};

static uint8_t *page_at(const struct engine *e, uint32_t page)
{
	return e->memory + (size_t)page * e->page_bytes;
}

/* Every fourth key's block begins with an infinity. */
static void fill(struct engine *e, uint32_t page, const struct kvtier_key *key)
{
	static const uint8_t infinity[2] = { 0x80, 0x7f };	/* BF16 */

	page_fill(e, page, key, 0);
	if (key->bytes[0] % 4 == 0)
		memcpy(page_at(e, page), infinity, sizeof infinity);
}

static bool is_right(struct engine *e, uint32_t page, const struct kvtier_key *key)
{
	fill(e, SPARE, key);
	return memcmp(page_at(e, page), page_at(e, SPARE), e->page_bytes) == 0;
}

/* Each value is the block's, or poison still: its load ended between two pieces. */
static bool is_part(struct engine *e, uint32_t page, const struct kvtier_key *key)
{
	const uint16_t *values = (const void *)page_at(e, page), *right = (const void *)page_at(e, SPARE);

	fill(e, SPARE, key);
	for (size_t i = 0; i < e->page_bytes / sizeof *values; i++)
		if (values[i] != right[i] && values[i] != 0xa5a5)
			return false;
	return true;
}

static void choose_keys(struct client *c, struct op *op)
{
	struct kvtier_key chain[LENGTH];
	uint32_t from = 0;

	chain_keys(&c->e, random_below(&c->random, CHAINS), LENGTH, chain);
	op->n = 1 + random_below(&c->random, LENGTH);
	if (random_below(&c->random, 4) == 0)
		from = random_below(&c->random, LENGTH - op->n + 1);
	memcpy(op->keys, chain + from, op->n * sizeof op->keys[0]);
	op->parent = NULL;
	if (from > 0 && random_below(&c->random, 2)) {
		op->before = chain[from - 1];
		op->parent = &op->before;
	}
	if (random_below(&c->random, 8) == 0)	/* some of them twice, or before those that they follow */
		for (uint32_t i = 0; i < op->n; i++)
			op->keys[i] = chain[random_below(&c->random, LENGTH)];
}

static void op_start(struct client *c, struct op *op)
{
	static const enum kind kinds[] = { STORE, STORE, LOAD, LOAD, LOAD, PREFETCH };
	struct kvtier_op_options o = { .size = sizeof o };
	uint32_t pages[LENGTH];
	int r;

	op->kind = kinds[random_below(&c->random, sizeof kinds / sizeof kinds[0])];
	choose_keys(c, op);
	pages_from(op->first, pages, op->n);
	o.parent = op->parent;
	op->start_ns = now_ns();
	if (random_below(&c->random, 3) == 0)
		o.timeout_ms = 1 + random_below(&c->random, 50);
	for (uint32_t i = 0; i < op->n; i++) {
		if (op->kind == STORE)
			fill(&c->e, pages[i], &op->keys[i]);
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
			if (!is_part(&c->e, page, &op->keys[i]))
				fail_msg("block %u with status %d: its page has a byte that is not the block's", i, blocks[i]);
			continue;
		}
		if (blocks[i] == 0 ? !is_right(&c->e, page, &op->keys[i]) : !page_is_poison(&c->e, page))
			fail_msg("block %u with status %d: its page holds the wrong bytes", i, blocks[i]);
		atomic_fetch_add(&c->score->hits, blocks[i] == 0);
	}
}

static void op_end(struct client *c, struct op *op)
{
	int32_t blocks[LENGTH];
	struct kvtier_result result = { .size = sizeof result, .blocks = blocks, .blocks_max = LENGTH };
	uint64_t ms;
	int r;

	if (random_below(&c->random, 4) == 0)
		assert_int_equal(kvtier_cancel(c->e.client, op->id, REST_MS), 0);
	r = kvtier_wait(c->e.client, op->id, REST_MS, &result);
	if (r)
		fail_msg("an op did not end: %s", strerror(-r));
	assert_int_equal(result.n, op->n);
	ms = (now_ns() - op->start_ns) / 1000000;
	if (ms > atomic_load(&c->score->slowest_ms))
		atomic_store(&c->score->slowest_ms, ms);
	if (op->kind == LOAD)
		check_load(c, op, blocks);
	op->kind = NOTHING;
	atomic_fetch_add(&c->score->ops, 1);
}

/* With ops outstanding, perhaps. */
static void leave_and_come_back(struct client *c, const struct world *w, const struct kvtier_geometry *g)
{
	engine_close(&c->e);
	memset(c->ops, 0, sizeof c->ops);
	engine_open(&c->e, w->d.socket, "engine", g, PAGES + 1);
}

static void engine_runs(struct world *w, uint32_t number, uint64_t seed)
{
	const struct kvtier_geometry g = geometry_of(number);
	static struct client c;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	(void)setenv("CMOCKA_TEST_ABORT", "1", 1);	/* a failure here ends this process, not the test in it */
	c = (struct client){ .random.state = seed, .score = w->score };
	engine_open(&c.e, w->d.socket, "engine", &g, PAGES + 1);
	while (!atomic_load(&w->score->stop)) {
		const uint32_t i = random_below(&c.random, OPS);

		c.ops[i].first = i * LENGTH;
		if (random_below(&c.random, 500) == 0)
			leave_and_come_back(&c, w, &g);
		else if (c.ops[i].kind == NOTHING)
			op_start(&c, &c.ops[i]);
		else
			op_end(&c, &c.ops[i]);
	}
	for (uint32_t i = 0; i < OPS; i++)
		if (c.ops[i].kind != NOTHING && random_below(&c.random, 2))
			op_end(&c, &c.ops[i]);
	engine_close(&c.e);
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
	const int code = daemon_ctl(&w->d, words, w->text, sizeof w->text);

	daemon_lives(w);
	if (code)
		fail_msg("kvtierctl %s: exit code %d: %s", words, code, w->text);
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

static void redis_suffers(struct world *w)
{
	char said[256];

	switch (random_below(&w->random, 6)) {
	case 0:
		redis_signal(&w->redis, SIGSTOP);
		nap_ms(random_below(&w->random, 150));
		redis_signal(&w->redis, SIGCONT);
		break;
	case 1:
		redis_kill(&w->redis);
		nap_ms(random_below(&w->random, 50));
		redis_restart(&w->redis);
		break;
	case 2:
		redis_say(&w->redis, said, sizeof said, "FLUSHALL");
		break;
	case 3:
		redis_say(&w->redis, said, sizeof said, "CONFIG SET maxmemory %s",
			  random_below(&w->random, 2) ? "2mb" : "0");
		break;
	case 4:
		redis_say(&w->redis, said, sizeof said, "CONFIG SET maxmemory-policy %s",
			  random_below(&w->random, 2) ? "allkeys-lru" : "noeviction");
		break;
	default:
		redis_say(&w->redis, said, sizeof said, "CLIENT KILL TYPE normal");
	}
}

static void operate(struct world *w)
{
	static const char *const commands[] = {
		"evict --all", "evict --bytes 1M", "evict --bytes 200K", "verify", "purge --tenant other",
		"endpoints", "spaces", "clients", "stats", "disks",
	};
	const uint32_t what = random_below(&w->random, 40);

	if (what == 0)		/* seldom: it takes everything away */
		command(w, "purge --tenant default");
	else if (what == 1)
		redis_suffers(w);
	else if (what < 22)
		command(w, commands[what % (sizeof commands / sizeof commands[0])]);
	else if (what < 28)
		engine_dies(w);
	else
		nap_ms(random_below(&w->random, 50));
}

static void engines_stop(struct world *w)
{
	atomic_store(&w->score->stop, true);
	for (uint32_t i = 0; i < ENGINES; i++) {
		int status;

		assert_int_equal(waitpid(w->engines[i], &status, 0), w->engines[i]);
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
			fail_msg("engine %u ended with status 0x%x", i, (unsigned)status);
	}
}

static void memory_is_given_back(struct world *w)
{
	const uint64_t until = now_ns() + REST_MS * 1000000ull;

	do {
		if (now_ns() > until)
			fail_msg("host memory is still in use: %s", w->text);
		command(w, "evict --all");
		nap_ms(50);
	} while (daemon_stat(&w->d, "tiers.host.used_bytes") > 0);
}

static void nothing_is_left(struct world *w)
{
	daemon_lives(w);
	daemon_stat_becomes(&w->d, "clients", 0, REST_MS);
	daemon_stat_becomes(&w->d, "ops.outstanding", 0, REST_MS);
	if (w->d.disk[0])
		command(w, "flush");
	daemon_stat_becomes(&w->d, "tiers.redis.queued_blocks", 0, REST_MS);
	daemon_stat_becomes(&w->d, "leases", 0, REST_MS);
	command(w, "verify");
	memory_is_given_back(w);
	daemon_stat_becomes(&w->d, "tiers.redis.queued_bytes", 0, REST_MS);
	assert_int_equal(daemon_stat(&w->d, "tiers.redis.corrupt_blocks_total"), 0);
	assert_int_equal(daemon_stat(&w->d, "tiers.nvme.corrupt_blocks_total"), 0);
	assert_int_equal(daemon_stat(&w->d, "tiers.host.corrupt_blocks_total"), 0);
}

/* More is stored than memory holds, so that on-evict has something to write, too; and a load waits for an answer. */
static void stop_while_redis_does_not_answer(struct world *w)
{
	const struct kvtier_geometry g = tiny_geometry(KVTIER_CODEC_RAW);
	const struct kvtier_op_options o = { .size = sizeof o };
	struct op op = { .kind = LOAD, .n = LENGTH };
	static struct client c;
	uint32_t pages[LENGTH];

	redis_signal(&w->redis, SIGSTOP);
	c = (struct client){ .random = w->random, .score = w->score };
	engine_open(&c.e, w->d.socket, "last", &g, PAGES + 1);
	for (uint32_t chain = 0; chain < 24; chain++) {
		chain_keys(&c.e, 1000 + chain, LENGTH, op.keys);
		(void)chain_store(&c.e, op.keys, 0, LENGTH);
	}
	chain_keys(&c.e, 2000, LENGTH, op.keys);	/* nobody has it */
	pages_from(0, pages, LENGTH);
	for (uint32_t i = 0; i < LENGTH; i++)
		page_poison(&c.e, i);
	assert_int_equal(kvtier_load(c.e.space, op.keys, pages, LENGTH, &o, &op.id), 0);
	daemon_remove(&w->d);	/* a clean stop, exit status 0 */
	op_end(&c, &op);
	for (uint32_t i = 0; i < LENGTH; i++)
		assert_true(page_is_poison(&c.e, i));
	engine_close(&c.e);
	redis_signal(&w->redis, SIGCONT);
}

static void say_score(struct world *w)
{
	printf("%llu ops (slowest %llu ms), %u deaths, %llu blocks loaded (%llu from Redis, %llu from NVMe), %llu "
	       "written to Redis, %llu evicted\n", (unsigned long long)w->score->ops,
	       (unsigned long long)w->score->slowest_ms, w->deaths, (unsigned long long)w->score->hits,
	       (unsigned long long)daemon_stat(&w->d, "tiers.redis.hit_blocks_total"),
	       (unsigned long long)daemon_stat(&w->d, "tiers.nvme.hit_blocks_total"),
	       (unsigned long long)daemon_stat(&w->d, "tiers.redis.written_blocks_total"),
	       (unsigned long long)daemon_stat(&w->d, "tiers.host.evicted_blocks_total"));
}

static uint64_t run_ns(void)
{
	const char *ms = getenv("STORM_MS");

	return (ms ? strtoull(ms, NULL, 10) : RUN_MS) * 1000000ull;
}

static void begin(struct world *w, const struct variant *v)
{
	static const char *const bytes[] = { "1M", "2M", "3M" };
	static const uint32_t depths[] = { 4, 8, 24 }, blocks[] = { 48, 256, 65536 };	/* few enough to be full, or not */
	char lines[1024];
	int n;

	(void)fflush(stdout);	/* children do not say it again */
	redis_start(&w->redis, NULL);
	n = snprintf(lines, sizeof lines, memory, bytes[random_below(&w->random, 3)],
		     depths[random_below(&w->random, 3)], blocks[random_below(&w->random, 3)]);
	(void)snprintf(lines + n, sizeof lines - (size_t)n, "%s[redis]\nendpoints = %s\ntimeout_ms = 200\n%s\n",
		       v->nvme ? disk : "", w->redis.address, v->write);
	daemon_place(&w->d, v->nvme);
	daemon_configure(&w->d, lines);
	daemon_restart(&w->d);
	if (v->nvme)
		disk_state_becomes(&w->d, "up", REST_MS);
	for (uint32_t i = 0; i < ENGINES; i++)
		spawn(w, i);
}

static void everything_at_once(void **state)
{
	struct world w = { .random = random_seeded("sys_redis_storm") };
	char said[64];
	uint64_t until;

	w.score = mmap(NULL, sizeof *w.score, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(w.score, MAP_FAILED);
	begin(&w, *state);
	until = now_ns() + run_ns();
	while (now_ns() < until)
		operate(&w);
	redis_say(&w.redis, said, sizeof said, "CONFIG SET maxmemory 0");
	engines_stop(&w);
	nothing_is_left(&w);
	say_score(&w);
	assert_true(w.score->ops > 0);
	stop_while_redis_does_not_answer(&w);
	redis_stop(&w.redis);
	(void)munmap(w.score, sizeof *w.score);
}

int main(void)
{
	static struct variant through = { "write = through", false }, through_disk = { "write = through", true };
	static struct variant evicted = { "write = on-evict\nmax_inflight_bytes = 1M", false };
	static struct variant evicted_disk = { "write = on-evict", true };
	const struct CMUnitTest tests[] = {
		{ "everything_at_once [through]", everything_at_once, NULL, NULL, &through },
		{ "everything_at_once [on-evict]", everything_at_once, NULL, NULL, &evicted },
		{ "everything_at_once [through, NVMe]", everything_at_once, NULL, NULL, &through_disk },
		{ "everything_at_once [on-evict, NVMe]", everything_at_once, NULL, NULL, &evicted_disk },
	};

	redis_needed();
	if (!disk_dir())
		printf("neither $TMPDIR nor /var/tmp takes O_DIRECT: without NVMe only\n");
	return cmocka_run_group_tests_name("sys_redis_storm", tests, NULL, NULL);
}
