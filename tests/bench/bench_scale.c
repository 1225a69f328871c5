/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_scale.c - scale.*: what a block costs the core thread in tables of 1e4 to 1e7 blocks, and
 * the longest turn meanwhile.
 *
 * The blocks lie on a sparse store: it has headers and footers, as a log has whose segments are
 * full, and holes where the images would be. It is in memory (/dev/shm, else $KVTIER_BENCH_DIR), so
 * that no disk is measured. The store's identity and its owner come from a small one that a daemon
 * made before. An engine beside it stores and loads MOVED blocks of its own. verify reads images,
 * so it has a daemon whose blocks are in host memory. fill has the tables alone, and no daemon.
 *
 * A size is measured once, when the first case asks for it. The limit of a case is 1.3 times the
 * same figure at 1e5 blocks, or a goal. Daemon and engine have a real-time priority where this
 * program may give it to them, so that a turn on a busy machine lasts as long as it works; but
 * Linux takes 50 ms of each second from a thread that works through all of it.
 */
#include <sched.h>

#include "bench_daemon.h"
#include "daemon/index/index.h"
#include "daemon/table/block.h"
#include "tests/lib/random.h"
#include "tiers/nvme/log/nvme_format.h"
#include "tiers/tier.h"

enum {
	MOVED = 16384,
	SEGMENT_BYTES = 64 << 20,
	SPARE = 12,        /* segments without records */
	PER_SEGMENT = 152, /* 1e7 blocks then lie in 65,535 segments */
	ASKED = 64,        /* keys of a lookup */
	BESIDE = 4096,     /* loads whose time is kept */
	RECORD_PAGES = 2,
	VERIFIED_BYTES = 8192, /* of host memory for a block */
	BASE = 1,              /* the size that limits come from */
};

enum verb {
	START,
	STORE,
	LOAD,
	LOOKUP,
	RECLAIM,
	EVICT,
	PURGE,
	VERIFY,
	VERBS,
};

struct size {
	const char *name;
	uint32_t blocks;
	bool measured, verified;
	double ns[VERBS], longest_ms[VERBS]; /* a block; of an iteration */
	double serving_s, found_s, core_s;   /* after the start; the scan's CPU */
	double p99_beside_us, p99_us;        /* of loads beside the scan (0: none), and after it */
	double dropped;                      /* blocks of the segments that were reclaimed */
};

static struct size sizes[] = {
	{ .name = "1e4", .blocks = 10000 },
	{ .name = "1e5", .blocks = 100000 },
	{ .name = "1e6", .blocks = 1000000 },
	{ .name = "1e7", .blocks = 9958000 }, /* the most segments, less SPARE */
};

static const struct bench_shape shape = { 1, 1, 8, KVTIER_CODEC_RAW };

struct rig {
	struct bench_daemon daemon;
	char dir[256], sections[512];
	int fd; /* of the store */
	struct nvme_super super;
	struct nvme_entry entry; /* of a real record */
	double empty_ns;         /* of core CPU for a start of an empty store */
	struct kvtier_key *keys; /* MOVED */
};

/* --- the store --- */

static void transfer(const struct rig *rig, bool write, void *bytes, size_t n, uint64_t at)
{
	const ssize_t r =
		write ? pwrite(rig->fd, bytes, n, (off_t)at) : pread(rig->fd, bytes, n, (off_t)at);

	if (r != (ssize_t)n)
		bench_must(r < 0 ? -errno : -EIO);
}

/* What the core thread has worked so far. */
static double core_ns(const struct bench_daemon *d)
{
	char path[64];
	double ret = 0;
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/%d/schedstat", (int)d->pid);
	f = fopen(path, "re");
	if (!f || fscanf(f, "%lf", &ret) != 1)
		bench_must(-EIO);
	(void)fclose(f);
	return ret;
}

static void close_fd(void *arg)
{
	(void)close(*(int *)arg);
}

/* A store that is there may be larger than [nvme] bytes. */
static void configure(struct rig *rig, uint32_t blocks)
{
	(void)snprintf(rig->sections, sizeof(rig->sections),
		       "[host]\nbytes = 512M\nhuge_pages = no\n[nvme]\npath = %s/store\n"
		       "bytes = 512M\nsegment_bytes = 64M\n[index]\nmax_blocks = %u\n",
		       rig->dir, blocks + 4 * MOVED);
	rig->daemon = (struct bench_daemon){ .state_dir = rig->dir };
}

/* What the small store has: its superblock, and an entry. */
static void seed_look(struct rig *rig)
{
	struct nvme_identity who = { .segment_bytes = SEGMENT_BYTES };
	struct nvme_footer footer;
	struct nvme_budget budget;
	uint32_t copy;
	uint8_t *pages;

	pages = bench_alloc(1 << 20);
	transfer(rig, false, pages, NVME_PAGE, nvme_super_offset(0));
	transfer(rig, false, pages + NVME_PAGE, NVME_PAGE, nvme_super_offset(1));
	bench_must(nvme_super_newest(pages, &rig->super, &copy));
	memcpy(who.uuid, rig->super.uuid, sizeof(who.uuid));
	transfer(rig, false, pages, NVME_PAGE, nvme_segment_offset(0, SEGMENT_BYTES));
	bench_must(nvme_header_check(pages, &who, &who.sequence, &budget));
	transfer(rig, false, pages, 1 << 16, nvme_segment_offset(1, SEGMENT_BYTES) - (1 << 16));
	bench_must(nvme_footer_check(pages, 1 << 16, &who, &footer));
	rig->entry = footer.entries[0];
}

/* A daemon makes a store, and writes a few records of the engine's space. */
static void seed(struct rig *rig)
{
	const char *dir = getenv("KVTIER_BENCH_DIR");
	uint32_t mark;
	char path[300];

	bench_dir(dir ? dir : "/dev/shm", rig->dir, sizeof(rig->dir));
	configure(rig, 0);
	mark = bench_mark();
	bench_daemon_start(&rig->daemon, rig->sections);
	rig->empty_ns = core_ns(&rig->daemon);
	bench_daemon_engine(&rig->daemon, &shape, BENCH_OP, false);
	bench_daemon_keys(&rig->daemon, 0);
	bench_daemon_move(&rig->daemon, false);
	bench_end(mark);
	(void)snprintf(path, sizeof(path), "%s/store", rig->dir);
	rig->fd = open(path, O_RDWR | O_CLOEXEC);
	if (rig->fd < 0)
		bench_must(-errno);
	bench_defer(close_fd, &rig->fd);
	seed_look(rig);
}

/* Chains of ASKED blocks, the parent of each is the one before it. */
static void segment_make(struct rig *rig, uint32_t segment, uint64_t first, uint32_t count,
			 uint8_t *pages)
{
	struct nvme_identity who = { .sequence = segment + 1,
				     .segment = segment,
				     .segment_bytes = SEGMENT_BYTES };
	struct nvme_entry *entries = (void *)pages;
	const uint32_t bytes = nvme_footer_bytes(count);

	memcpy(who.uuid, rig->super.uuid, sizeof(who.uuid));
	for (uint32_t i = 0; i < count; i++) {
		entries[i] = rig->entry;
		random_key(first + i, entries[i].key);
		memset(entries[i].parent, 0, sizeof(entries[i].parent));
		if ((first + i) % ASKED)
			random_key(first + i - 1, entries[i].parent);
		entries[i].tick = first + i + 1;
		entries[i].page = (uint16_t)(1 + i * RECORD_PAGES);
	}
	nvme_footer_encode(&who, count, false, pages);
	transfer(rig, true, pages, bytes, nvme_segment_offset(segment + 1, SEGMENT_BYTES) - bytes);
	nvme_header_encode(&who, &(struct nvme_budget){ 0 }, pages);
	transfer(rig, true, pages, NVME_PAGE, nvme_segment_offset(segment, SEGMENT_BYTES));
}

static void store_make(struct rig *rig, uint32_t blocks)
{
	const uint32_t full = (blocks + PER_SEGMENT - 1) / PER_SEGMENT;
	uint8_t *pages = bench_alloc(1 << 20);

	rig->super.segments = full + SPARE;
	nvme_super_seal(&rig->super);
	bench_must(ftruncate(rig->fd, 0) ? -errno : 0);
	bench_must(ftruncate(rig->fd, (off_t)nvme_segment_offset(full + SPARE, SEGMENT_BYTES)) ?
			   -errno :
			   0);
	for (uint32_t copy = 0; copy < NVME_SUPER_COPIES; copy++)
		transfer(rig, true, &rig->super, NVME_PAGE, nvme_super_offset(copy));
	for (uint32_t i = 0; i < full; i++) {
		const uint32_t first = i * PER_SEGMENT, rest = blocks - first;

		segment_make(rig, i, first, rest < PER_SEGMENT ? rest : PER_SEGMENT, pages);
	}
	bench_must(fsync(rig->fd) ? -errno : 0);
	configure(rig, blocks);
}

/* --- the core thread --- */

static double longest_ms(const struct histogram *before, const struct histogram *after)
{
	for (uint32_t i = HISTOGRAM_BUCKETS; i-- > 0;)
		if (after->count[i] > before->count[i])
			return (double)histogram_longest(i) / 1e6;
	return 0;
}

struct watch {
	struct histogram turns;
	double ns;
};

static void watch_begin(const struct rig *rig, struct watch *ret)
{
	ret->turns = rig->daemon.stats->v.core_iteration_ns;
	ret->ns = core_ns(&rig->daemon);
}

static void watch_end(const struct rig *rig, struct size *size, enum verb verb,
		      const struct watch *w, double blocks)
{
	size->ns[verb] = (core_ns(&rig->daemon) - w->ns) / blocks;
	size->longest_ms[verb] = longest_ms(&w->turns, &rig->daemon.stats->v.core_iteration_ns);
}

static void hurry_end(void *arg)
{
	(void)sched_setscheduler(0, SCHED_OTHER, arg);
}

/* The daemon inherits the priority. */
static void start_in_a_hurry(struct rig *rig)
{
	static struct sched_param usual, first = { .sched_priority = 1 };

	bench_defer(hurry_end, &usual);
	(void)sched_setscheduler(0, SCHED_FIFO, &first);
	bench_daemon_start(&rig->daemon, rig->sections);
}

/* --- what is measured --- */

static bool is_starting(const struct rig *rig)
{
	return stats_get(&rig->daemon.stats->v.tiers_nvme_state) ==
	       STATS_TIER_STATE_BASE + TIER_STARTING;
}

/* Loads of one block each, for as long as the scan goes on, or so many; the p99 in us. */
static double loads_p99(struct rig *rig, bool while_starting)
{
	double *us = bench_alloc(BESIDE * sizeof(*us));
	uint32_t n = 0;

	while (while_starting ? is_starting(rig) : n < BESIDE) {
		const uint64_t begun = bench_now_ns();

		bench_must(bench_move(rig->daemon.client, rig->daemon.space, true,
				      &rig->daemon.keys[n % BENCH_OP], n % BENCH_OP, 1));
		us[n++ % BESIDE] = (double)(bench_now_ns() - begun) / 1e3;
	}
	return n < 100 ? 0 : bench_percentile(us, n < BESIDE ? n : BESIDE, 99);
}

static void measure_start(struct rig *rig, struct size *size)
{
	const uint64_t begun = bench_now_ns();
	const struct watch empty = { .ns = rig->empty_ns };

	start_in_a_hurry(rig);
	size->serving_s = (double)(bench_now_ns() - begun) / 1e9;
	bench_daemon_engine(&rig->daemon, &shape, BENCH_OP, false);
	bench_daemon_keys(&rig->daemon, 1);
	bench_daemon_move(&rig->daemon, false);
	size->p99_beside_us = loads_p99(rig, true);
	size->found_s = (double)(bench_now_ns() - begun) / 1e9;
	watch_end(rig, size, START, &empty, size->blocks);
	size->core_s = size->ns[START] * size->blocks / 1e9;
	bench_daemon_await_up(&rig->daemon.stats->v.tiers_nvme_state);
	size->p99_us = loads_p99(rig, false);
}

/* All through the same pages. */
static void move(struct rig *rig, bool load, uint32_t n)
{
	for (uint32_t i = 0; i < n; i += BENCH_OP)
		bench_must(bench_move(rig->daemon.client, rig->daemon.space, load, &rig->keys[i], 0,
				      n - i < BENCH_OP ? n - i : BENCH_OP));
}

static void lookups(struct rig *rig, struct size *size)
{
	struct kvtier_key keys[ASKED];
	double seconds = 0;

	for (uint32_t i = 0; i < 2000; i++) {
		struct kvtier_hit hit = { .size = sizeof(hit) };
		const uint32_t chain = (uint32_t)(i * 2654435761u % (size->blocks / ASKED));
		double from;

		for (uint32_t k = 0; k < ASKED; k++)
			random_key((uint64_t)chain * ASKED + k, keys[k].bytes);
		from = bench_cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
		bench_must(kvtier_lookup(rig->daemon.space, keys, ASKED, &hit));
		seconds += bench_cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - from;
		if (hit.blocks != ASKED)
			bench_fail(-ENOENT, "a chain of the store has %u blocks", hit.blocks);
	}
	size->ns[LOOKUP] = seconds * 1e9 / (2000.0 * ASKED);
}

/* Other keys in every run, 2 and more. */
static void store_others(struct rig *rig, uint32_t run, uint32_t n)
{
	bench_must(bench_keys(rig->daemon.space, run, n, rig->keys));
	move(rig, false, n);
}

/* Stores and writes until segments are reclaimed. The run that is measured reclaims, too. */
static void measure_reclaim(struct rig *rig, struct size *size)
{
	const uint64_t *dropped = &rig->daemon.stats->v.tiers_nvme_evicted_blocks_total;
	struct watch w;
	uint64_t before = 0;

	for (uint32_t run = 3; stats_get(dropped) == before; run++) {
		before = stats_get(dropped);
		watch_begin(rig, &w);
		store_others(rig, run, MOVED);
		bench_daemon_ctl(&rig->daemon, "flush");
	}
	watch_end(rig, size, RECLAIM, &w, MOVED);
	size->dropped = (double)(stats_get(dropped) - before);
}

/* What an operator does with as many blocks as this gauge tells. */
static void measure_all(struct rig *rig, struct size *size, enum verb verb, const char *words,
			const uint64_t *blocks)
{
	struct watch w;
	double n;

	usleep(2100000); /* two heartbeats */
	n = (double)stats_get(blocks);
	watch_begin(rig, &w);
	bench_daemon_ctl(&rig->daemon, words);
	watch_end(rig, size, verb, &w, n);
}

static void measure_verify(struct size *size)
{
	const uint32_t mark = bench_mark();
	struct rig *rig = bench_alloc(sizeof(*rig));

	rig->keys = bench_alloc(MOVED * sizeof(*rig->keys));
	(void)snprintf(rig->sections, sizeof(rig->sections),
		       "[host]\nbytes = %" PRIu64 "\nhuge_pages = no\n[nvme]\nbytes = 0\n"
		       "[index]\nmax_blocks = %u\n",
		       (uint64_t)size->blocks * VERIFIED_BYTES + (64 << 20), size->blocks + MOVED);
	start_in_a_hurry(rig);
	bench_daemon_engine(&rig->daemon, &shape, BENCH_OP, false);
	for (uint32_t run = 2, left = size->blocks, n; left > 0; left -= n, run++) {
		n = left < MOVED ? left : MOVED;
		store_others(rig, run, n);
	}
	measure_all(rig, size, VERIFY, "verify", &rig->daemon.stats->v.tiers_host_blocks);
	if (stats_get(&rig->daemon.stats->v.tiers_host_blocks) < size->blocks)
		bench_fail(-ENOSPC, "host memory has room for %.0f blocks alone",
			   (double)stats_get(&rig->daemon.stats->v.tiers_host_blocks));
	size->verified = true;
	bench_end(mark);
}

static void measure(struct size *size)
{
	struct rig *rig = bench_alloc(sizeof(*rig));
	struct watch w;

	rig->keys = bench_alloc(MOVED * sizeof(*rig->keys));
	seed(rig);
	store_make(rig, size->blocks);
	measure_start(rig, size);
	bench_must(bench_keys(rig->daemon.space, 2, MOVED, rig->keys));
	lookups(rig, size);
	watch_begin(rig, &w);
	move(rig, false, MOVED);
	watch_end(rig, size, STORE, &w, MOVED);
	watch_begin(rig, &w);
	move(rig, true, MOVED);
	watch_end(rig, size, LOAD, &w, MOVED);
	bench_daemon_ctl(&rig->daemon, "flush");
	measure_reclaim(rig, size);
	measure_all(rig, size, EVICT, "evict --all", &rig->daemon.stats->v.tiers_host_blocks);
	measure_all(rig, size, PURGE, "purge --tenant default",
		    &rig->daemon.stats->v.index_entries);
	size->measured = true;
}

/* --- the tables alone --- */

static double resident_bytes(void)
{
	double pages = 0;
	FILE *f = fopen("/proc/self/statm", "re");

	if (!f || fscanf(f, "%*s %lf", &pages) != 1)
		bench_must(-EIO);
	(void)fclose(f);
	return pages * 4096;
}

/* As many blocks as $KVTIER_BENCH_FILL says, all on NVMe. */
static void run_fill(const struct bench_case *self, struct bench_result *ret)
{
	enum { PARTS = 10 };
	const char *asked = getenv("KVTIER_BENCH_FILL");
	const uint32_t n = asked ? (uint32_t)atof(asked) : 1000000;
	const struct blocks_conf conf = { .max_blocks = n };
	const double before = resident_bytes();
	struct extent where = { .tier = TIER_NVME };
	double ns[PARTS] = { 0 };
	struct blocks *blocks;
	struct index *index;

	(void)self;
	bench_must(index_open(n, &index));
	bench_must(blocks_open(&conf, index, &blocks));
	for (uint32_t part = 0, i = 0; part < PARTS; part++) {
		const double from = bench_cpu_seconds(CLOCK_THREAD_CPUTIME_ID);

		for (; i < (uint64_t)n * (part + 1) / PARTS; i++) {
			uint8_t key[32];
			uint32_t block;

			random_key(i, key);
			where.slot = i;
			bench_must(blocks_commit_away(blocks, key, 0, 0, &where, i + 1, &block));
		}
		ns[part] = bench_cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - from;
		ns[part] *= 1e9 * PARTS / n;
	}
	bench_add(ret, ns[PARTS - 1], ns[0]);
	bench_note(ret, "%u blocks, %.1f bytes each; the first tenth %.0f ns; %.0f had no room", n,
		   (resident_bytes() - before) / n, ns[0], (double)index_crowded(index));
	blocks_close(blocks);
	index_close(index);
}

/* --- a case --- */

struct scale_case {
	uint32_t size;
	enum verb verb;
	double goal_ns; /* 0: by the base */
};

static void run_scale(const struct bench_case *self, struct bench_result *ret)
{
	const struct scale_case *c = self->arg;
	struct size *size = &sizes[c->size], *base = &sizes[BASE];
	const uint32_t needed[] = { BASE, c->size };

	if (c->size + (c->verb == VERIFY) >= 3 && !getenv("KVTIER_BENCH_SCALE"))
		bench_fail(-ENOTSUP, "it takes %s GiB of memory: set KVTIER_BENCH_SCALE=1e7",
			   c->verb != VERIFY ? "3" :
			   c->size == 3      ? "52" :
					       "6");
	for (int i = 0; i < 2; i++) {
		struct size *s = &sizes[needed[i]];

		if (c->verb == VERIFY && !s->verified)
			measure_verify(s);
		else if (c->verb != VERIFY && !s->measured)
			measure(s);
	}
	bench_add(ret, size->ns[c->verb], c->goal_ns > 0 ? c->goal_ns : base->ns[c->verb] * 1.3);
	if (c->verb == START)
		bench_note(ret,
			   "longest turn %.2f ms; %.2f s of core, serving after %.1f s, all found "
			   "after %.1f s; p99 of loads %.0f us, later %.0f",
			   size->longest_ms[START], size->core_s, size->serving_s, size->found_s,
			   size->p99_beside_us, size->p99_us);
	else if (c->verb == RECLAIM)
		bench_note(ret, "longest turn %.2f ms; %.0f blocks dropped",
			   size->longest_ms[RECLAIM], size->dropped);
	else if (c->verb != LOOKUP)
		bench_note(ret, "longest turn %.2f ms", size->longest_ms[c->verb]);
}

/* clang-format off */
#define AT(verb, VERB, prose, goal_ns, n, number) \
	{ "scale." verb "." n, run_scale, prose " a table of " n, 1.0, BENCH_LESS, "ns", \
	  &(const struct scale_case){ number, VERB, goal_ns } }
#define OF(...) \
	AT(__VA_ARGS__, "1e4", 0), AT(__VA_ARGS__, "1e5", 1), AT(__VA_ARGS__, "1e6", 2), \
	AT(__VA_ARGS__, "1e7", 3)

const struct bench_case bench_scale_cases[] = {
	OF("start", START, "core CPU for a block found at a start, against 5 s for 1e7;", 500),
	OF("store", STORE, "core CPU for a block stored, against 1.3 times that of 1e5;", 0),
	OF("load", LOAD, "core CPU for a block loaded, against 1.3 times that of 1e5;", 0),
	OF("lookup", LOOKUP, "client CPU for a block found, against 1.3 times that of 1e5;", 0),
	OF("reclaim", RECLAIM,
	   "core CPU for a block written and room made, against 1.3 times that of 1e5;", 0),
	OF("evict", EVICT, "core CPU for a block demoted, against 1.3 times that of 1e5;", 0),
	OF("purge", PURGE, "core CPU for a block purged, against 5 s for 1e7;", 500),
	OF("verify", VERIFY, "core CPU for a block verified, against 1.3 times that of 1e5;", 0),
	{ "scale.fill", run_fill, "CPU for a block of the last tenth of a full table",
	  0, BENCH_LESS, "ns", NULL },
	{ 0 },
};
/* clang-format on */
