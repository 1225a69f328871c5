/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_redis.c - the Redis tier in this process: its cost beyond the socket.
 *
 * The limit of all cases is the raw loop of bench_wire.h on the same servers in the same run,
 * before and after each measurement, with values of the same size (images of 1 or 4 MiB payload as
 * Redis has them) and as many connections and commands outstanding, from and into as many slots of
 * memory of the same kind. redis.set, redis.get: through the tier, over TCP, as nodes that share a
 * server do, here on loopback; *.4m: 4 MiB; *.unix: its Unix socket; *.tls: the cost of TLS,
 * against the raw loop without it; redis.get.shards2, 4: over so many servers, which share this
 * machine's CPUs with us. With KVTIER_BENCH_REDIS all that need one server only use that one.
 * Through a daemon: bench_redis_daemon.c.
 *
 * Of each value the tier makes a MAC (daemon/IMAGE.md, "In Redis"), and so does the loop;
 * redis.*.nomac has a loop that makes none, so that it tells the cost of the MAC.
 *
 * Values: every image has its own key in the header and its number in its last bytes; both are
 * looked at when it comes, and all bytes of the last images in memory after each pass.
 */
#include "base/list.h"
#include "base/loop.h"
#include "kernels/image.h"
#include "tiers/redis/redis.h"
#include "bench_disk.h"
#include "bench_wire.h"
#include "tests/lib/random.h"

enum { RUNS = 15, PASS_BYTES = 256 << 20, CONNECTIONS = 4, DEPTH = 8 };
enum { MAX_SLOTS = DEPTH * BENCH_SERVERS };
static const uint64_t patience_ns = 10000000000u;

enum way { WAY_TCP, WAY_UNIX, WAY_TLS };

struct redis_case {
	bool set;
	enum way way;
	uint32_t servers;
	uint32_t tokens; /* of a block: 16 make 1 MiB */
	bool bare;       /* the loop makes no MAC */
};

struct cpu {
	/* seconds of the core thread, of the tier's, and of the raw loop twice */
	double core, io, raw;
};

struct rig;

static const struct redis_seal seal = { .key = "of the benchmark alone",
					.tag = "feedfacefeedface" };

struct slot {
	struct xfer x; /* first */
	struct rig *rig;
	uint8_t *buffer;
	uint32_t number; /* of the image it has */
	bool busy;
	struct image_identity identity;
};

struct rig {
	const struct redis_case *c;
	struct image_geometry geometry;
	struct image_shape shape;
	struct bench_server servers[BENCH_SERVERS];
	struct bench_wire wire;
	struct loop *loop;
	struct tier *tier;
	struct loop_timer timer;
	uint64_t until_ns; /* look_again()'s patience */
	bool set;          /* the pass under way sets */
	uint32_t slots_used, values, next, ended;
	int error;
	struct cpu cpu;
	uint8_t *memory, *expected; /* slots; one image */
	struct slot slots[MAX_SLOTS];
};

/* --- one image --- */

static void identity_of(uint32_t number, struct image_identity *ret)
{
	memset(ret, 0, sizeof(*ret));
	random_key(number, ret->key);
}

static uint8_t *number_in(const struct rig *rig, uint8_t *image)
{
	return image + rig->shape.image_bytes - sizeof(uint32_t);
}

/* The payload is the same in all but its last bytes, and there already. */
static void make_image(struct rig *rig, struct slot *slot)
{
	struct image_header *header = (void *)slot->buffer;

	identity_of(slot->number, &slot->identity);
	image_header_fill(header, &rig->geometry, CODEC_FP8, CODEC_FP8, &rig->shape,
			  &slot->identity);
	image_seal(header, 0);
	memcpy(number_in(rig, slot->buffer), &slot->number, sizeof(slot->number));
}

/* The header the tier has compared; this is the other end. */
static int look_at(struct rig *rig, struct slot *slot)
{
	return slot->x.bytes == rig->shape.image_bytes &&
			       memcmp(number_in(rig, slot->buffer), &slot->number,
				      sizeof(slot->number)) == 0 ?
		       0 :
		       -EBADMSG;
}

static void look_at_all(struct rig *rig)
{
	const size_t from = sizeof(struct image_header),
		     n = rig->shape.image_bytes - from - sizeof(uint32_t);

	for (uint32_t i = 0; i < rig->slots_used; i++)
		if (memcmp(rig->slots[i].buffer + from, rig->expected + from, n) != 0)
			bench_must(-EBADMSG);
}

/* --- a pass: every value once --- */

static void pump(struct rig *rig);

static void xfer_ended(struct xfer *x)
{
	struct slot *slot = (struct slot *)(void *)x;
	struct rig *rig = slot->rig;

	slot->busy = false;
	rig->error = rig->error ? rig->error : x->status;
	if (!rig->error && !rig->set)
		rig->error = look_at(rig, slot);
	rig->ended++;
	pump(rig);
}

static int start(struct rig *rig, struct slot *slot)
{
	slot->number = rig->next;
	identity_of(slot->number, &slot->identity);
	slot->x = (struct xfer){
		.seal = &seal,
		.op = rig->set ? XFER_WRITE : XFER_READ,
		.buffer = slot->buffer,
		.bytes = rig->shape.image_bytes,
		.identity = &slot->identity,
		.geometry = &rig->geometry,
		.done = xfer_ended,
	};
	if (rig->set)
		make_image(rig, slot);
	return tier_submit(rig->tier, &slot->x);
}

static void pump(struct rig *rig)
{
	for (uint32_t i = 0; i < rig->slots_used && rig->next < rig->values && !rig->error; i++) {
		struct slot *slot = &rig->slots[i];

		if (slot->busy)
			continue;
		rig->error = start(rig, slot);
		if (!rig->error) {
			slot->busy = true;
			rig->next++;
		}
	}
	if (rig->ended == rig->next) /* all that was begun, that is: all, or an error */
		loop_stop(rig->loop);
}

/* The loop's first iteration: nothing may be submitted outside it. */
static void first_iteration(struct loop_timer *timer)
{
	pump(container_of(timer, struct rig, timer));
}

/* The loop runs, with this to do first, until it is stopped. */
static void run_loop(struct rig *rig, void (*first)(struct loop_timer *timer))
{
	rig->timer.fire = first;
	loop_timer_set(rig->loop, &rig->timer, 0);
	bench_must(loop_run(rig->loop));
}

static double pass(struct rig *rig, bool set)
{
	const double bytes = (double)rig->values * rig->shape.packed_bytes;
	double core, all, ret;
	uint64_t from;

	if (!set)
		memset(rig->memory, 0, (size_t)rig->slots_used * rig->shape.image_bytes);
	rig->set = set;
	rig->next = rig->ended = 0;
	core = bench_cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
	all = bench_cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
	from = bench_now_ns();
	run_loop(rig, first_iteration);
	ret = bytes / (double)(bench_now_ns() - from);
	core = bench_cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - core;
	rig->cpu.core += core;
	rig->cpu.io += bench_cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - all - core;
	bench_must(rig->error);
	if (!set)
		look_at_all(rig);
	return ret;
}

/* --- the tier --- */

static void look_again(struct loop_timer *timer)
{
	struct rig *rig = container_of(timer, struct rig, timer);

	if (tier_state(rig->tier) != TIER_UP && loop_now(rig->loop) < rig->until_ns)
		loop_timer_set(rig->loop, timer, loop_now(rig->loop) + 1000000);
	else
		loop_stop(rig->loop);
}

static void end_tier(void *arg)
{
	struct rig *rig = arg;

	tier_close(rig->tier);
	loop_close(rig->loop);
}

static void open_tier(struct rig *rig)
{
	struct redis_tier_conf redis = {
		.n_endpoints = rig->c->servers,
		.key_prefix = "kvtier:",
		.connections = CONNECTIONS,
		.timeout_ms = 60000,
		.max_in_flight = MAX_SLOTS,
	};
	const struct tier_conf conf = { .redis = &redis };
	struct redis_tier_status status;
	char text[TIER_TEXT_BYTES] = "";
	int r;

	for (uint32_t i = 0; i < rig->c->servers; i++) {
		const struct bench_server *s = &rig->servers[i];

		redis.endpoints[i] = rig->c->way == WAY_TLS  ? s->tls :
				     rig->c->way == WAY_UNIX ? s->local :
							       s->tcp;
		redis.tls = rig->c->way == WAY_TLS;
		redis.tls_conf.ca_file = s->cert;
	}
	bench_defer(end_tier, rig);
	bench_must(loop_open(0, &rig->loop));
	r = tier_open(TIER_REDIS, &conf, rig->loop, &rig->tier, text, sizeof(text));
	if (r)
		bench_fail(r, "%.100s", text);
	rig->until_ns = bench_now_ns() + patience_ns;
	run_loop(rig, look_again);
	if (tier_state(rig->tier) == TIER_UP)
		return;
	redis_status(rig->tier, &status);
	bench_fail(-EIO, "%.120s", status.text);
}

static void reserve(struct rig *rig)
{
	const size_t image = rig->shape.image_bytes;
	uint8_t *p = bench_memory((rig->slots_used + 1) * image, true);
	const size_t scales_end = sizeof(struct image_header) + rig->shape.scale_bytes;
	uint64_t x = 88172645463325252u;

	rig->memory = p;
	rig->expected = p + rig->slots_used * image;
	for (size_t i = sizeof(struct image_header); i < image; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		rig->expected[i] = (uint8_t)x;
	}
	/* padding */
	memset(rig->expected + scales_end, 0, rig->shape.payload_offset - scales_end);
	for (uint32_t i = 0; i < rig->slots_used; i++) {
		rig->slots[i].rig = rig;
		rig->slots[i].buffer = p + i * image;
		memcpy(rig->slots[i].buffer, rig->expected, image);
	}
}

static void open_all(struct rig *rig)
{
	const struct redis_case *c = rig->c;

	rig->geometry = (struct image_geometry){
		.dtype = DTYPE_BF16,
		.layers = 32,
		.kv_heads = 8,
		.head_dim_k = 128,
		.head_dim_v = 128,
		.block_tokens = c->tokens,
	};
	(void)image_shape(&rig->geometry, CODEC_FP8, CODEC_FP8, &rig->shape, NULL);
	rig->slots_used = DEPTH * c->servers;
	rig->values = PASS_BYTES / rig->shape.payload_bytes;
	rig->wire = (struct bench_wire){
		.servers = rig->servers,
		.n_servers = c->servers,
		.tcp = c->way != WAY_UNIX,
		.connections = CONNECTIONS,
		.depth = DEPTH / CONNECTIONS,
		.values = rig->values,
		.value_bytes = rig->shape.packed_bytes,
		.slots = rig->slots_used,
		.mac = !c->bare,
	};
	if (c->servers > 1 && bench_server_given())
		bench_fail(-ENOTSUP, "needs %u servers, and KVTIER_BENCH_REDIS names one: unset it",
			   c->servers);
	for (uint32_t i = 0; i < c->servers; i++) {
		rig->servers[i].want_tls = c->way == WAY_TLS;
		bench_server_start(&rig->servers[i]);
	}
	reserve(rig);
	open_tier(rig);
}

/* --- a case --- */

static void run_redis(const struct bench_case *self, struct bench_result *ret)
{
	struct rig *rig = bench_alloc(sizeof(*rig));
	const bool set = ((const struct redis_case *)self->arg)->set;
	double scale;

	rig->c = self->arg;
	open_all(rig);
	scale = 1e10 / ((double)rig->values * rig->shape.packed_bytes * RUNS);
	/* so that there is something to get, or to replace */
	(void)pass(rig, true);
	(void)bench_wire_run(&rig->wire, true, NULL);
	for (uint32_t run = 0; run < RUNS + 1; run++) {
		double before, value, after;

		if (run == 1) /* the first warms up */
			rig->cpu = (struct cpu){ 0 };
		before = bench_wire_run(&rig->wire, set, &rig->cpu.raw);
		value = pass(rig, set);
		after = bench_wire_run(&rig->wire, set, &rig->cpu.raw);
		if (run > 0)
			bench_add(ret, value, (before + after) / 2);
	}
	bench_note(ret,
		   "%s, %d connections, %ld CPUs; cores per 10 GB/s: I/O thread %.1f, core "
		   "thread %.2f, by hand %.1f",
		   rig->c->way == WAY_TLS ? "TLS" : bench_wire_way(&rig->wire), CONNECTIONS,
		   sysconf(_SC_NPROCESSORS_ONLN), rig->cpu.io * scale, rig->cpu.core * scale,
		   rig->cpu.raw / 2 * scale);
}

/* Without a goal: cases that cannot be as fast as the limit. Behind it: set, way, servers, tokens,
 * bare. */
/* clang-format off */
#define CASE(name, prose, goal, ...) \
	{ name, run_redis, prose, goal, BENCH_MORE, "GB/s", \
	  &(const struct redis_case){ __VA_ARGS__ } }
#define AGAINST ", against sockets by hand"

const struct bench_case bench_redis_cases[] = {
	CASE("redis.set", "1 MiB images to one server" AGAINST, 0.90, true, WAY_TCP, 1, 16, false),
	CASE("redis.get", "1 MiB images from one server" AGAINST, 0.90,
	     false, WAY_TCP, 1, 16, false),
	CASE("redis.set.4m", "4 MiB images to one server" AGAINST, 0.90,
	     true, WAY_TCP, 1, 64, false),
	CASE("redis.get.4m", "4 MiB images from one server" AGAINST, 0.90,
	     false, WAY_TCP, 1, 64, false),
	CASE("redis.set.unix", "the same, Unix socket" AGAINST, 0.90,
	     true, WAY_UNIX, 1, 16, false),
	CASE("redis.get.unix", "the same, Unix socket" AGAINST, 0.90,
	     false, WAY_UNIX, 1, 16, false),
	CASE("redis.set.nomac", "against sockets by hand that make no MAC", 0,
	     true, WAY_TCP, 1, 16, true),
	CASE("redis.get.nomac", "against sockets by hand that make no MAC", 0,
	     false, WAY_TCP, 1, 16, true),
	CASE("redis.set.tls", "over TLS, against sockets without", 0, true, WAY_TLS, 1, 16, false),
	CASE("redis.get.tls", "over TLS, against sockets without", 0, false, WAY_TLS, 1, 16, false),
	CASE("redis.get.shards2", "from two servers" AGAINST, 0.90, false, WAY_TCP, 2, 16, false),
	CASE("redis.get.shards4", "from four servers" AGAINST, 0.90, false, WAY_TCP, 4, 16, false),
	{ 0 },
};
/* clang-format on */
