/* SPDX-License-Identifier: Apache-2.0 */
/* make: lane=wait needs=kvtierd_tuned */
/* make: wrap=clock_gettime,epoll_wait (lib_disk.c calls for it: this clock is the machine's) */
/*
 * sys_redis_storm.c - goal: when operations of all kinds overlap inside one daemon with a Redis
 * behind it, no engine gets a wrong byte, and nothing is left behind: no op, lease or slot, and no
 * daemon that does not stop.
 * Method: engines in processes of their own, in three spaces, ask for chains that are far more than
 * memory holds, also in the wrong order, twice and from the middle. Their ops have deadlines of
 * 1-50 ms and cancels, and engines die in the midst of ops. Meanwhile Redis is stopped, killed,
 * emptied and filled, and kvtierctl evicts, verifies, flushes and purges. With and without NVMe,
 * for both ways to write. Some blocks are no use to FP8, so that their values are larger than a
 * load first thinks. At last the daemon stops while it waits for a Redis that does not answer.
 * $STORM_MS: how long a case is.
 */
#include "tests/lib/lib_disk.h"
#include "tests/lib/lib_redis.h"

#include "tests/lib/lib_storm.h"

enum { RUN_MS = 2000 };

static const char memory[] = "[host]\nslab_bytes = 256K\nhuge_pages = no\nbytes = %s\n"
			     "[index]\nmax_blocks = %u\n";
static const char disk[] = "[nvme]\nbytes = 12M\nsegment_bytes = 512K\nqueue_depth = 4\n";

struct variant {
	const char *write; /* lines of [redis] */
	bool nvme;
};

struct world {
	struct storm storm;
	struct redis_server redis;
};

static void redis_suffers(struct world *w)
{
	char said[256];

	switch (random_below(&w->storm.random, 6)) {
	case 0:
		redis_signal(&w->redis, SIGSTOP);
		nap_ms(random_below(&w->storm.random, 150));
		redis_signal(&w->redis, SIGCONT);
		break;
	case 1:
		redis_kill(&w->redis);
		nap_ms(random_below(&w->storm.random, 50));
		redis_restart(&w->redis);
		break;
	case 2:
		redis_say(&w->redis, said, sizeof(said), "FLUSHALL");
		break;
	case 3:
		redis_say(&w->redis, said, sizeof(said), "CONFIG SET maxmemory %s",
			  random_below(&w->storm.random, 2) ? "2mb" : "0");
		break;
	case 4:
		redis_say(&w->redis, said, sizeof(said), "CONFIG SET maxmemory-policy %s",
			  random_below(&w->storm.random, 2) ? "allkeys-lru" : "noeviction");
		break;
	default:
		redis_say(&w->redis, said, sizeof(said), "CLIENT KILL TYPE normal");
	}
}

static void operate(struct world *w)
{
	static const char *const commands[] = {
		"evict --all",
		"evict --bytes 1M",
		"evict --bytes 200K",
		"verify",
		"endpoints",
		"spaces",
		"clients",
		"stats",
		"disks",
	};
	const uint32_t what = random_below(&w->storm.random, 40);

	if (what == 0) /* seldom: it takes everything away */
		storm_command(&w->storm, "purge --tenant default");
	else if (what == 1)
		redis_suffers(w);
	else if (what < 22)
		storm_command(&w->storm, commands[what % (sizeof(commands) / sizeof(commands[0]))]);
	else if (what < 28)
		storm_engine_dies(&w->storm);
	else
		nap_ms(random_below(&w->storm.random, 50));
}

/* More is stored than memory holds, so that on-evict has something to write, too; and a load waits
 * for an answer. */
static void stop_while_redis_does_not_answer(struct world *w)
{
	struct kvtier_key keys[STORM_LENGTH];
	struct engine e;
	uint64_t id;

	redis_signal(&w->redis, SIGSTOP);
	engine_open(&e, w->storm.d.socket, "last", &tiny_raw, STORM_LENGTH);
	for (uint32_t chain = 0; chain < 24; chain++) {
		chain_keys(&e, 1000 + chain, STORM_LENGTH, keys);
		(void)chain_store(&e, keys, 0, STORM_LENGTH);
	}
	chain_keys(&e, 2000, STORM_LENGTH, keys); /* nobody has it */
	id = chain_load_begin(&e, keys, 0, STORM_LENGTH, 0);
	daemon_remove(&w->storm.d); /* a clean stop, exit status 0 */
	assert_int_equal(kvtier_wait(e.client, id, STORM_REST_MS, NULL), 0);
	for (uint32_t i = 0; i < STORM_LENGTH; i++)
		assert_true(page_is_poison(&e, i));
	engine_close(&e);
	redis_signal(&w->redis, SIGCONT);
}

static void say_score(struct world *w)
{
	printf("%llu ops (slowest %llu ms), %u deaths, %llu blocks loaded (%llu from Redis, %llu "
	       "from NVMe), %llu written to Redis, %llu evicted\n",
	       (unsigned long long)w->storm.score->ops,
	       (unsigned long long)w->storm.score->slowest_ms, w->storm.deaths,
	       (unsigned long long)w->storm.score->hits,
	       (unsigned long long)daemon_stat(&w->storm.d, "tiers.redis.hit_blocks_total"),
	       (unsigned long long)daemon_stat(&w->storm.d, "tiers.nvme.hit_blocks_total"),
	       (unsigned long long)daemon_stat(&w->storm.d, "tiers.redis.written_blocks_total"),
	       (unsigned long long)daemon_stat(&w->storm.d, "tiers.host.evicted_blocks_total"));
}

static uint64_t run_ns(void)
{
	return env_number("STORM_MS", RUN_MS) * 1000000ull;
}

static void begin(struct world *w, const struct variant *v)
{
	static const char *const bytes[] = { "1M", "2M", "3M" };
	/* few enough to be full, or not */
	static const uint32_t depths[] = { 4, 8, 24 }, blocks[] = { 48, 256, 65536 };
	char lines[1024];
	int n;

	redis_start(&w->redis, NULL);
	n = snprintf(lines, sizeof(lines), memory, bytes[random_below(&w->storm.random, 3)],
		     blocks[random_below(&w->storm.random, 3)]);
	(void)snprintf(lines + n, sizeof(lines) - (size_t)n,
		       "%s[redis]\nendpoints = %s\ntimeout_ms = 200\n%s\n", v->nvme ? disk : "",
		       w->redis.address, v->write);
	daemon_tuned(NULL, depths[random_below(&w->storm.random, 3)]);
	daemon_place(&w->storm.d, v->nvme);
	daemon_configure(&w->storm.d, lines);
	daemon_restart(&w->storm.d);
	if (v->nvme)
		disk_state_becomes(&w->storm.d, "up", STORM_REST_MS);
	storm_engines_start(&w->storm);
}

static struct variant through = { "write = through", false };
static struct variant through_disk = { "write = through", true };
static struct variant evicted = { "write = on-evict\nmax_inflight_bytes = 1M", false };
static struct variant evicted_disk = { "write = on-evict", true };

TEST_ROWS(everything_at_once,
	  { "everything_at_once [through]", everything_at_once, NULL, NULL, &through },
	  { "everything_at_once [on-evict]", everything_at_once, NULL, NULL, &evicted },
	  { "everything_at_once [through, NVMe]", everything_at_once, NULL, NULL, &through_disk },
	  { "everything_at_once [on-evict, NVMe]", everything_at_once, NULL, NULL, &evicted_disk })
{
	struct world w;
	char said[64];
	uint64_t until;

	storm_begin(&w.storm, "sys_redis_storm");
	w.storm.odd = true;
	begin(&w, *state);
	until = now_ns() + run_ns();
	while (now_ns() < until)
		operate(&w);
	redis_say(&w.redis, said, sizeof(said), "CONFIG SET maxmemory 0");
	storm_engines_stop(&w.storm);
	storm_nothing_is_left(&w.storm);
	say_score(&w);
	stop_while_redis_does_not_answer(&w);
	redis_stop(&w.redis);
	storm_end(&w.storm);
}

TEST_BEGIN
{
	redis_needed();
	if (!disk_dir())
		printf("neither $TMPDIR nor /var/tmp takes O_DIRECT: without NVMe only\n");
}
