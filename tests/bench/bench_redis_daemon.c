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
 * redis.lookup: of a chain that is here and of an absent chain, while Redis is stopped and the
 * daemon waits for it; the limit is the same while Redis is up. It stops a server of its own only.
 */
#include "bench.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

static int raw_set(struct rig *rig, double *ret)
{
	const int r = bench_server_flush(&rig->server);

	return r ? r : bench_wire_run(&rig->wire, true, ret, NULL);
}

static int evict_all(struct rig *rig)
{
	char text[256];

	return bench_daemon_ctl(&rig->daemon, "evict --all", text, sizeof(text));
}

/* Asking costs the server some 10 us, one time in a thousand. */
static int await_in_redis(struct rig *rig, long long keys)
{
	const uint64_t until = bench_now_ns() + BENCH_PATIENCE_MS * 1000000ull;
	long long n = 0;
	int r = 0;

	while (r == 0 && n < keys && bench_now_ns() < until) {
		usleep(1000);
		r = bench_server_keys(&rig->server, &n);
	}
	return r ? r : n < keys ? -ETIMEDOUT : 0;
}

static int store_gbs(struct rig *rig, double *ret)
{
	long long keys;
	uint64_t start;
	int r = bench_server_keys(&rig->server, &keys);

	start = bench_now_ns();
	if (r == 0)
		r = bench_daemon_move(&rig->daemon, false);
	if (r == 0)
		r = await_in_redis(rig, keys + BLOCKS);
	*ret = pass_bytes / (double)(bench_now_ns() - start);
	return r;
}

static int load_gbs(struct rig *rig, double *ret)
{
	const uint64_t start = bench_now_ns();
	const int r = bench_daemon_move(&rig->daemon, true);

	*ret = pass_bytes / (double)(bench_now_ns() - start);
	if (r == 0 && !bench_daemon_intact(&rig->daemon))
		return -EBADMSG;
	return r;
}

struct figures {
	double value, limit, cores;
};

static int one_store(struct rig *rig, struct figures *ret)
{
	double before = 0, after = 0, cpu = 0;
	int r = raw_set(rig, &before);

	if (r == 0)
		r = bench_server_flush(&rig->server);
	if (r == 0)
		r = evict_all(rig); /* so that each run finds the same room */
	cpu = bench_daemon_cpu_seconds(&rig->daemon);
	if (r == 0)
		r = store_gbs(rig, &ret->value);
	ret->cores = (bench_daemon_cpu_seconds(&rig->daemon) - cpu) * 1e10 / pass_bytes;
	if (r == 0)
		r = raw_set(rig, &after);
	ret->limit = (before + after) / 2;
	return r;
}

static int one_load(struct rig *rig, struct figures *ret)
{
	double before = 0, after = 0, cpu = 0, store = 0;
	int r = raw_set(rig, &before); /* there must be something to get */

	if (r == 0)
		r = store_gbs(rig, &store);
	if (r == 0)
		r = evict_all(rig);
	bench_daemon_spoil(&rig->daemon);
	if (r == 0)
		r = bench_wire_run(&rig->wire, false, &before, NULL);
	cpu = bench_daemon_cpu_seconds(&rig->daemon);
	if (r == 0)
		r = load_gbs(rig, &ret->value);
	ret->cores = (bench_daemon_cpu_seconds(&rig->daemon) - cpu) * 1e10 / pass_bytes;
	if (r == 0)
		r = bench_wire_run(&rig->wire, false, &after, NULL);
	ret->limit = (before + after) / 2;
	return r;
}

static int measure(struct rig *rig, bool load, struct bench_result *ret)
{
	struct figures figures;
	double sum = 0;
	int r = 0;

	for (uint32_t run = 0; run < RUNS + 1 && r == 0; run++) {
		r = bench_daemon_keys(&rig->daemon, run);
		if (r == 0)
			r = load ? one_load(rig, &figures) : one_store(rig, &figures);
		if (r == 0 && run > 0) { /* the first warms up */
			bench_add(ret, figures.value, figures.limit);
			sum += figures.cores;
		}
	}
	if (r == 0)
		(void)snprintf(
			ret->note, sizeof(ret->note),
			"twice that in the engine's bytes; %s; daemon, codec included: %.1f cores "
			"per 10 GB/s",
			bench_wire_way(&rig->wire), sum / RUNS);
	return r;
}

/* --- lookups --- */

enum { CHAIN = 32, LOOKUPS = 20000 };

/* Nanoseconds a block. */
static int lookup_ns(struct rig *rig, const struct kvtier_key *absent, double *ret)
{
	const uint64_t start = bench_now_ns();
	struct kvtier_hit here = { .size = sizeof(here) }, nowhere = { .size = sizeof(nowhere) };
	int r = 0;

	for (int i = 0; i < LOOKUPS && r == 0; i++) {
		r = kvtier_lookup(rig->daemon.space, rig->daemon.keys, CHAIN, &here);
		if (r == 0)
			r = kvtier_lookup(rig->daemon.space, absent, CHAIN, &nowhere);
	}
	*ret = (double)(bench_now_ns() - start) / (2.0 * LOOKUPS * CHAIN);
	return r ? r : here.blocks == CHAIN && nowhere.blocks == 0 ? 0 : -EBADMSG;
}

/* With blocks asked of it that it does not answer for. */
static int stopped_ns(struct rig *rig, const struct kvtier_key *absent, double *ret)
{
	struct kvtier_result result = { .size = sizeof(result) };
	uint64_t op;
	int r;

	(void)kill(rig->server.pid, SIGSTOP);
	r = kvtier_prefetch(rig->daemon.space, absent, CHAIN, &op);
	if (r == 0)
		r = lookup_ns(rig, absent, ret);
	(void)kill(rig->server.pid, SIGCONT);
	if (r == 0)
		r = kvtier_wait(rig->daemon.client, op, -1, &result);
	return r;
}

static int measure_lookup(struct rig *rig, struct bench_result *ret)
{
	struct kvtier_key absent[CHAIN];
	double before = 0, after = 0, value = 0;
	int r = bench_daemon_keys(&rig->daemon, 1);

	memcpy(absent, rig->daemon.keys, sizeof(absent));
	if (r == 0)
		r = bench_daemon_keys(&rig->daemon, 0);
	if (r == 0)
		r = bench_daemon_move(&rig->daemon, false);
	for (uint32_t run = 0; run < RUNS + 1 && r == 0; run++) {
		r = lookup_ns(rig, absent, &before);
		if (r == 0)
			r = stopped_ns(rig, absent, &value);
		if (r == 0)
			r = lookup_ns(rig, absent, &after);
		if (r == 0 && run > 0)
			bench_add(ret, value, (before + after) / 2);
	}
	if (r == 0)
		(void)snprintf(ret->note, sizeof(ret->note),
			       "a block; limit: the same while Redis is up");
	return r;
}

/* --- a case --- */

static int open_all(struct rig *rig, bool tcp, char *note, size_t n)
{
	char sections[512];
	int r = bench_server_start(&rig->server, note, n);

	if (r)
		return r;
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
		       "connections = %d\ntimeout_ms = %d\nmax_inflight_bytes = 1G\n",
		       tcp ? rig->server.tcp : rig->server.local, CONNECTIONS, BENCH_PATIENCE_MS);
	r = bench_daemon_open(&rig->daemon, BLOCKS, NULL, sections);
	return r ? r : bench_daemon_await_up(&rig->daemon, "redis");
}

struct daemon_case {
	enum { STORE, LOAD, LOOKUP } what;
	enum { LINK, LOOPBACK, LOCAL } way;
};

static int run_here(const struct bench_case *self, struct bench_result *ret)
{
	const struct daemon_case *c = self->arg;
	static struct rig rig;
	int r;

	memset(&rig, 0, sizeof(rig));
	if (c->what == LOOKUP && bench_server_given()) {
		(void)snprintf(ret->note, sizeof(ret->note),
			       "stops a server of its own: unset KVTIER_BENCH_REDIS");
		return -ENOTSUP;
	}
	r = open_all(&rig, c->way != LOCAL, ret->note, sizeof(ret->note));
	if (r == 0 && c->what == LOOKUP)
		r = measure_lookup(&rig, ret);
	else if (r == 0)
		r = measure(&rig, c->what == LOAD, ret);
	if (r && !ret->note[0])
		bench_daemon_explain(r, ret->note, sizeof(ret->note));
	bench_daemon_close(&rig.daemon);
	bench_server_stop(&rig.server);
	return r;
}

/* A server that was given is on a link already. */
static int run_daemon(const struct bench_case *self, struct bench_result *ret)
{
	const struct daemon_case *c = self->arg;
	const size_t room = sizeof(ret->note);
	int r;

	if (c->way != LINK || bench_server_given())
		return run_here(self, ret);
	r = bench_link_run(run_here, self, ret);
	if (r == 0)
		(void)snprintf(ret->note + strlen(ret->note), room - strlen(ret->note), "; %s",
			       bench_link_rate());
	return r;
}

static const struct daemon_case store = { STORE, LINK }, load = { LOAD, LINK },
				lookup = { LOOKUP, LOOPBACK };
static const struct daemon_case store_lo = { STORE, LOOPBACK }, load_lo = { LOAD, LOOPBACK };
static const struct daemon_case store_unix = { STORE, LOCAL }, load_unix = { LOAD, LOCAL };

#define AGAINST " through client and daemon, image bytes, against sockets by hand"
const struct bench_case bench_redis_daemon_cases[] = {
	{ "redis.store", run_daemon, "pages to Redis over a link" AGAINST, 0.85, BENCH_MORE, "GB/s",
	  &store },
	{ "redis.load", run_daemon, "Redis to pages over a link" AGAINST, 0.85, BENCH_MORE, "GB/s",
	  &load },
	{ "redis.store.loopback", run_daemon, "the same without a limit but the CPUs", 0.85,
	  BENCH_MORE, "GB/s", &store_lo },
	{ "redis.load.loopback", run_daemon, "the same without a limit but the CPUs", 0.85,
	  BENCH_MORE, "GB/s", &load_lo },
	{ "redis.store.unix", run_daemon, "the same, Unix socket", 0.85, BENCH_MORE, "GB/s",
	  &store_unix },
	{ "redis.load.unix", run_daemon, "the same, Unix socket", 0.85, BENCH_MORE, "GB/s",
	  &load_unix },
	{ "redis.lookup", run_daemon,
	  "lookups while Redis is stopped, against lookups while it is up", 0.95, BENCH_LESS, "ns",
	  &lookup },
	{ NULL, NULL, NULL, 0, BENCH_MORE, NULL, NULL },
};
