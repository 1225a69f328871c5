/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_redis_daemon.c - redis.store and redis.load: an engine's pages to Redis and back, through
 * client and daemon.
 *
 * 256 FP8 blocks with images of 1 MiB are stored: from kvtier_store() of the first op until Redis
 * itself says that it has them all (DBSIZE). Then host memory is emptied (kvtierctl evict --all;
 * there is no NVMe) and they are loaded: until the result of the last op. The bytes of images as
 * Redis has them count; an engine's own are twice as many. The limit is the raw loop of
 * bench_wire.h on the same server, the same way, with values of that size, as many connections, as
 * few commands outstanding as it is fastest with, and a slot of memory for every value as the
 * daemon has one, before and after each run. Each store goes into an empty server. Loaded pages are
 * compared with stored ones.
 *
 * The way is a link of 10 Gbit/s (bench_link.h), as between nodes. *.loopback and *.unix have no
 * limit but this machine's CPUs, which the daemon with its codec then shares with the server. With
 * KVTIER_BENCH_REDIS it is the way to that server.
 *
 * The .coded cases have [redis] compress = auto. The bytes of whole images still count, so that a
 * link which is slower than the coder's workers gives more than 1.
 *
 * redis.lookup: of a chain that is here and of an absent chain, while Redis is stopped and the
 * daemon waits for it; the limit is the same while Redis is up. It stops a server of its own only.
 */

#include "bench_daemon.h"
#include "bench_link.h"
#include "bench_wire.h"

enum { RUNS = 15, BLOCKS = 256, CONNECTIONS = 4, DEPTH = 8 };

struct rig {
	struct bench_server server;
	struct bench_wire wire;
	struct bench_daemon daemon;
};

static const double pass_bytes = (double)BLOCKS * BENCH_VALUE;

static double raw_set(struct rig *rig)
{
	bench_server_flush(&rig->server);
	return bench_wire_run(&rig->wire, true, NULL);
}

/* Asking costs the server some 10 us, one time in a thousand. */
static void await_in_redis(struct rig *rig, long long keys)
{
	const uint64_t until = bench_now_ns() + BENCH_PATIENCE_MS * 1000000ull;

	do {
		if (bench_now_ns() > until)
			bench_must(-ETIMEDOUT);
		usleep(1000);
	} while (bench_server_keys(&rig->server) < keys);
}

static double store_gbs(struct rig *rig)
{
	const long long keys = bench_server_keys(&rig->server);
	const uint64_t start = bench_now_ns();

	bench_daemon_move(&rig->daemon, false);
	await_in_redis(rig, keys + BLOCKS);
	return pass_bytes / (double)(bench_now_ns() - start);
}

static double load_gbs(struct rig *rig)
{
	const uint64_t start = bench_now_ns();
	double ret;

	bench_daemon_move(&rig->daemon, true);
	ret = pass_bytes / (double)(bench_now_ns() - start);
	bench_daemon_compare(&rig->daemon);
	return ret;
}

struct figures {
	double value, limit, cores;
};

static struct figures one_run(struct rig *rig, bool load)
{
	double before = raw_set(rig), after, cpu; /* there must be something to get */
	struct figures ret;

	if (load)
		(void)store_gbs(rig);
	else
		bench_server_flush(&rig->server);
	bench_daemon_ctl(&rig->daemon, "evict --all"); /* so that each run finds the same room */
	if (load) {
		bench_daemon_spoil(&rig->daemon);
		before = bench_wire_run(&rig->wire, false, NULL);
	}
	cpu = bench_daemon_cpu_seconds(&rig->daemon);
	ret.value = load ? load_gbs(rig) : store_gbs(rig);
	ret.cores = (bench_daemon_cpu_seconds(&rig->daemon) - cpu) * 1e10 / pass_bytes;
	after = load ? bench_wire_run(&rig->wire, false, NULL) : raw_set(rig);
	ret.limit = (before + after) / 2;
	return ret;
}

static void measure(struct rig *rig, bool load, struct bench_result *ret)
{
	double sum = 0;

	for (uint32_t run = 0; run < RUNS + 1; run++) {
		struct figures figures;

		bench_daemon_keys(&rig->daemon, run);
		figures = one_run(rig, load);
		if (run == 0) /* it warms up */
			continue;
		bench_add(ret, figures.value, figures.limit);
		sum += figures.cores;
	}
	bench_note(ret,
		   "twice that in the engine's bytes; %s; daemon, codec included: %.1f cores "
		   "per 10 GB/s",
		   bench_wire_way(&rig->wire), sum / RUNS);
}

/* --- lookups --- */

enum { CHAIN = 32, LOOKUPS = 20000 };

/* Nanoseconds a block. */
static double lookup_ns(struct rig *rig, const struct kvtier_key *absent)
{
	const uint64_t start = bench_now_ns();
	struct kvtier_hit here = { .size = sizeof(here) }, nowhere = { .size = sizeof(nowhere) };

	for (int i = 0; i < LOOKUPS; i++) {
		bench_must(kvtier_lookup(rig->daemon.space, rig->daemon.keys, CHAIN, &here));
		bench_must(kvtier_lookup(rig->daemon.space, absent, CHAIN, &nowhere));
	}
	if (here.blocks != CHAIN || nowhere.blocks != 0)
		bench_must(-EBADMSG);
	return (double)(bench_now_ns() - start) / (2.0 * LOOKUPS * CHAIN);
}

/* With blocks asked of it that it does not answer for. A server that a failure leaves stopped is
 * killed with the case. */
static double stopped_ns(struct rig *rig, const struct kvtier_key *absent)
{
	struct kvtier_result result = { .size = sizeof(result) };
	uint64_t op;
	double ret;

	(void)kill(rig->server.pid, SIGSTOP);
	bench_must(kvtier_prefetch(rig->daemon.space, absent, CHAIN, NULL, &op));
	ret = lookup_ns(rig, absent);
	(void)kill(rig->server.pid, SIGCONT);
	bench_must(kvtier_wait(rig->daemon.client, op, -1, &result));
	return ret;
}

static void measure_lookup(struct rig *rig, struct bench_result *ret)
{
	struct kvtier_key absent[CHAIN];

	bench_daemon_keys(&rig->daemon, 1);
	memcpy(absent, rig->daemon.keys, sizeof(absent));
	bench_daemon_keys(&rig->daemon, 0);
	bench_daemon_move(&rig->daemon, false);
	for (uint32_t run = 0; run < RUNS + 1; run++) {
		const double before = lookup_ns(rig, absent), value = stopped_ns(rig, absent);
		const double after = lookup_ns(rig, absent);

		if (run > 0)
			bench_add(ret, value, (before + after) / 2);
	}
	bench_note(ret, "a block; limit: the same while Redis is up");
}

/* --- a case --- */

static void open_all(struct rig *rig, bool tcp, bool coded)
{
	char sections[512];

	bench_server_start(&rig->server);
	rig->wire = (struct bench_wire){
		.servers = &rig->server,
		.n_servers = 1,
		.connections = CONNECTIONS,
		.depth = DEPTH / CONNECTIONS,
		.values = BLOCKS,
		.value_bytes = BENCH_VALUE,
		.slots = BLOCKS,
		.tcp = tcp,
	};
	(void)snprintf(sections, sizeof(sections),
		       "[host]\nbytes = 768M\n[nvme]\nbytes = 0\n[redis]\nendpoints = %s\n"
		       "timeout_ms = %d\nmax_inflight_bytes = 1G\ncompress = %s\n",
		       tcp ? rig->server.tcp : rig->server.local, BENCH_PATIENCE_MS,
		       coded ? "auto" : "off");
	bench_daemon_open(&rig->daemon, sections, &bench_shape_1mib, BLOCKS);
	bench_daemon_await_up(&rig->daemon.stats->v.tiers_redis_state);
}

struct daemon_case {
	enum { STORE, LOAD, LOOKUP } what;
	enum { LINK, LOOPBACK, LOCAL } way;
	bool coded;
};

static void run_here(const struct bench_case *self, struct bench_result *ret)
{
	const struct daemon_case *c = self->arg;
	struct rig *rig = bench_alloc(sizeof(*rig));

	if (c->what == LOOKUP && bench_server_given())
		bench_fail(-ENOTSUP, "stops a server of its own: unset KVTIER_BENCH_REDIS");
	open_all(rig, c->way != LOCAL, c->coded);
	if (c->what == LOOKUP)
		measure_lookup(rig, ret);
	else
		measure(rig, c->what == LOAD, ret);
}

/* A server that was given is on a link already. */
static void run_daemon(const struct bench_case *self, struct bench_result *ret)
{
	const struct daemon_case *c = self->arg;

	if (c->way != LINK || bench_server_given()) {
		run_here(self, ret);
		return;
	}
	bench_link_run(run_here, self, ret);
	bench_note(ret, "%s; %s", ret->note, bench_link_rate());
}

/* clang-format off */
#define CASE(name, prose, goal, ...) \
	{ name, run_daemon, prose, goal, BENCH_MORE, "GB/s", \
	  &(const struct daemon_case){ __VA_ARGS__ } }
#define AGAINST " through client and daemon, image bytes, against sockets by hand"

const struct bench_case bench_redis_daemon_cases[] = {
	CASE("redis.store", "pages to Redis over a link" AGAINST, 0.85, STORE, LINK, false),
	CASE("redis.load", "Redis to pages over a link" AGAINST, 0.85, LOAD, LINK, false),
	CASE("redis.store.coded", "the same with compress = auto, stores", 0, STORE, LINK, true),
	CASE("redis.load.coded", "and loads", 0, LOAD, LINK, true),
	CASE("redis.store.loopback", "the same, no limit but CPUs", 0.85, STORE, LOOPBACK, false),
	CASE("redis.load.loopback", "the same, no limit but CPUs", 0.85, LOAD, LOOPBACK, false),
	CASE("redis.store.unix", "the same, Unix socket", 0.85, STORE, LOCAL, false),
	CASE("redis.load.unix", "the same, Unix socket", 0.85, LOAD, LOCAL, false),
	{ "redis.lookup", run_daemon,
	  "lookups while Redis is stopped, against lookups while it is up", 0.95, BENCH_LESS, "ns",
	  &(const struct daemon_case){ LOOKUP, LOOPBACK, false } },
	{ 0 },
};
/* clang-format on */
