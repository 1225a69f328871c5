/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_nvme.c - the NVMe tier in this process: its cost beyond the disk.
 *
 * The limit of all cases but nvme.recover is the raw loop of bench_disk.h on the same file, with
 * the same blocks (images of 1 MiB payload, as they lie on disk) and depth, before and after each
 * run. nvme.raw.*: the raw loop against itself, that is how much two equal runs differ on this
 * disk, without which the other ratios mean little. nvme.pages: the raw loop into huge pages
 * against the raw loop into 4 KiB pages, that is the worth of the kind of memory on this disk; all
 * others have huge pages on both sides. nvme.io.*: through tiers/io. nvme.write, nvme.read: through
 * the tier, log and all. nvme.recover: the bytes that a start has to read for 1 TiB, at the raw
 * loop's speed, against 5 s. Through a daemon: bench_nvme_daemon.c.
 *
 * The raw loop reads and writes where the store's segments lie, because one part of a virtual disk
 * may be a fifth quicker than another. It writes over records that the tier was told to forget, and
 * over bytes that only a start reads.
 */
#include "base/list.h"
#include "base/loop.h"
#include "tiers/io/io.h"
#include "tiers/nvme/nvme.h"
#include "tiers/nvme/nvme_file.h"
#include "bench_disk.h"
#include "tests/lib/random.h"

enum { RUNS = 21, BLOCKS = 480, BLOCK = 4096 + (1 << 20), SEGMENT_BYTES = 64 << 20, SEGMENTS = 20 };
static const double pass_bytes = (double)BLOCKS * BLOCK;
static const uint64_t store_bytes = NVME_DATA_OFFSET + (uint64_t)SEGMENTS * SEGMENT_BYTES;
static const struct image_geometry geometry = {
	.dtype = DTYPE_BF16,
	.layers = 32,
	.kv_heads = 8,
	.head_dim_k = 128,
	.head_dim_v = 128,
	.block_tokens = 16,
};

enum way { WAY_RAW, WAY_PAGES, WAY_IO, WAY_TIER };

struct nvme_case {
	bool write;
	uint32_t depth;
	enum way way;
};

struct rig;

struct slot {
	struct xfer x; /* first */
	struct rig *rig;
	struct io_op op;
	struct extent home;
	uint8_t *buffer;
	uint32_t block;
	bool busy;
};

struct rig {
	const struct nvme_case *c;
	struct bench_disk disk;
	struct loop *loop;
	struct io *io;
	struct tier *host, *tier;
	struct loop_timer timer;
	bool (*until)(struct rig *rig); /* run_until()'s */
	uint64_t look_ns;
	uint32_t next, ended;
	uint64_t written, tick; /* blocks that ever were */
	uint64_t at;            /* the pass's place in the file; for tiers/io/io.h only */
	int error, flushed;
	struct slot slots[BENCH_DISK_DEPTH];
	struct extent where[BLOCKS];
	uint64_t ticks[BLOCKS]; /* as the tier has them */
};

/* --- the loop, until something is so --- */

static void pump(struct rig *rig);

static void look_again(struct loop_timer *timer)
{
	struct rig *rig = container_of(timer, struct rig, timer);

	pump(rig);
	if (rig->error || rig->until(rig))
		loop_stop(rig->loop);
	else
		loop_timer_set(rig->loop, timer, loop_now(rig->loop) + rig->look_ns);
}

static bool all_ended(struct rig *rig)
{
	return rig->ended == BLOCKS;
}

static void run_until(struct rig *rig, bool (*until)(struct rig *rig))
{
	rig->until = until;
	/* completions and on_changed() carry the blocks on */
	rig->look_ns = until == all_ended ? 50000000 : 1000000;
	rig->timer.fire = look_again;
	loop_timer_set(rig->loop, &rig->timer, 0);
	bench_must(loop_run(rig->loop));
	loop_timer_unset(rig->loop, &rig->timer);
	bench_must(rig->error);
}

/* --- one block --- */

static void ended(struct slot *slot, int status)
{
	struct rig *rig = slot->rig;

	slot->busy = false;
	if (status)
		rig->error = status;
	rig->ended++;
	if (rig->ended == BLOCKS || rig->error)
		loop_stop(rig->loop);
	else
		pump(rig);
}

static void io_ended(struct io_op *op)
{
	ended(container_of(op, struct slot, op), op->status);
}

static void xfer_ended(struct xfer *x)
{
	struct slot *slot = (struct slot *)(void *)x;

	if (x->op == XFER_WRITE) {
		slot->rig->where[slot->block] = x->where;
		slot->rig->ticks[slot->block] = x->record.tick;
	}
	ended(slot, x->status);
}

/* A header that the log takes; no code looks at the bytes behind it here. */
static void make_image(struct rig *rig, struct slot *slot)
{
	struct image_header *header = (void *)slot->buffer;
	struct image_identity identity = { { 0 }, { 0 } };
	struct image_shape shape;

	(void)image_shape(&geometry, CODEC_FP8, CODEC_FP8, &shape, NULL);
	random_key(rig->written++, identity.key);
	image_header_fill(header, &geometry, CODEC_FP8, CODEC_FP8, &shape, &identity);
	image_seal(header, 0);
}

static int start(struct rig *rig, struct slot *slot)
{
	slot->block = rig->next;
	if (rig->c->way == WAY_IO) {
		slot->op = (struct io_op){
			.kind = rig->c->write ? IO_WRITE : IO_READ,
			.buffer = slot->buffer,
			.offset = rig->at + (uint64_t)rig->next * BLOCK,
			.bytes = BLOCK,
			.done = io_ended,
		};
		return io_submit(rig->io, &slot->op);
	}
	slot->x = (struct xfer){
		.op = rig->c->write ? XFER_WRITE : XFER_READ,
		.where = rig->where[rig->next],
		.buffer = slot->buffer,
		.bytes = BLOCK,
		.home = slot->home,
		.done = xfer_ended,
		.record.tick = ++rig->tick,
	};
	if (rig->c->write)
		make_image(rig, slot);
	return tier_submit(rig->tier, &slot->x);
}

/* -EAGAIN: the queue is full, or segments are being made ready; the next completion or on_changed()
 * tries again. */
static void pump(struct rig *rig)
{
	for (uint32_t i = 0; i < rig->c->depth && rig->next < BLOCKS && !rig->error; i++) {
		struct slot *slot = &rig->slots[i];
		const int r = slot->busy ? 0 : start(rig, slot);

		if (r == -EAGAIN)
			return;
		if (r)
			rig->error = r;
		if (!slot->busy && !r) {
			slot->busy = true;
			rig->next++;
		}
	}
}

/* GB/s; the CPU seconds of it are added to *cpu. */
static double move_all(struct rig *rig, double *cpu)
{
	const double before = bench_cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
	const uint64_t from = bench_now_ns();
	double ret;

	if (rig->c->way == WAY_IO)
		rig->at = bench_disk_walk(&rig->disk, rig->c->write, BLOCKS);
	rig->next = rig->ended = 0;
	run_until(rig, all_ended);
	ret = pass_bytes / (double)(bench_now_ns() - from);
	*cpu += bench_cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - before;
	return ret;
}

/* --- the tier --- */

static bool on_found(void *arg, const struct nvme_entry *entry, const struct extent *where)
{
	(void)arg, (void)entry, (void)where;
	return true;
}

static bool on_ask(void *arg, const struct nvme_entry *entry, const struct extent *where,
		   uint64_t *ret_tick)
{
	(void)arg, (void)entry, (void)where, (void)ret_tick;
	return false;
}

static bool on_moved(void *arg, const struct nvme_entry *entry, const struct extent *from,
		     const struct extent *to, uint64_t *ret_tick)
{
	(void)to;
	return on_ask(arg, entry, from, ret_tick);
}

static void on_dropped(void *arg, const struct nvme_entry *entry, const struct extent *where)
{
	(void)on_found(arg, entry, where);
}

static void on_changed(void *arg)
{
	pump(arg);
}

static bool tier_started(struct rig *rig)
{
	return tier_state(rig->tier) != TIER_STARTING;
}

static bool is_idle(struct rig *rig)
{
	return tier_idle(rig->tier);
}

static bool host_up(struct rig *rig)
{
	return tier_state(rig->host) == TIER_UP;
}

static void open_tier(struct rig *rig)
{
	const struct nvme_tier_conf nvme = {
		.paths = { rig->disk.path },
		.n_paths = 1,
		.bytes = store_bytes,
		.segment_bytes = SEGMENT_BYTES,
		.read_depth = 32,
		.write_depth = 16,
		.stall_ns = 60000000000u,
		.host = rig->host,
		.events = { .arg = rig,
			    .found = on_found,
			    .ask = on_ask,
			    .moved = on_moved,
			    .dropped = on_dropped,
			    .changed = on_changed },
	};
	const struct tier_conf conf = { .nvme = &nvme };
	struct nvme_tier_status status;
	char text[TIER_TEXT_BYTES];
	int r;

	rig->next = BLOCKS; /* nothing to pump */
	r = tier_open(TIER_NVME, &conf, rig->loop, &rig->tier, text, sizeof(text));
	if (r)
		bench_fail(r, "%.120s", text);
	run_until(rig, tier_started);
	nvme_status(rig->tier, &status);
	if (tier_state(rig->tier) != TIER_UP)
		bench_fail(-EIO, "%.120s", status.text);
}

static void close_tier(struct rig *rig)
{
	rig->next = BLOCKS;
	run_until(rig, is_idle);
	tier_close(rig->tier);
	rig->tier = NULL;
}

/* Buffers are slots of a host tier, which the I/O engine knows, as in the daemon. */
static void open_host(struct rig *rig)
{
	const struct tier_conf conf = {
		.bytes = 64 << 20,
		.slab_bytes = 64 << 20,
		.huge_pages = 1,
	};
	char text[TIER_TEXT_BYTES];

	bench_must(tier_open(TIER_HOST, &conf, rig->loop, &rig->host, text, sizeof(text)));
	rig->next = BLOCKS;
	run_until(rig, host_up);
	for (uint32_t i = 0; i < BENCH_DISK_DEPTH; i++) {
		struct slot *slot = &rig->slots[i];

		slot->rig = rig;
		bench_must(tier_alloc(rig->host, BLOCK, &slot->home));
		slot->buffer = tier_address(rig->host, &slot->home);
	}
}

static void forget_all(struct rig *rig)
{
	for (uint32_t i = 0; i < BLOCKS; i++)
		tier_forget(rig->tier, &rig->where[i], rig->ticks[i]);
}

/* --- a case --- */

static void open_io(struct rig *rig)
{
	const struct io_conf conf = { .engine = IO_ENGINE_AUTO,
				      .read_depth = 32,
				      .write_depth = 16 };
	char text[IO_TEXT_BYTES];
	uint64_t bytes;
	uint8_t *memory = tier_memory(rig->host, &bytes);

	bench_must(io_open(&conf, rig->loop, &rig->io, text, sizeof(text)));
	(void)io_buffers_add(rig->io, memory, bytes);
	bench_must(io_file_set(rig->io, rig->disk.fd));
}

/* After a failed pass the disk has buffers of ours: then close_tier() fails, too, and leaves all as
 * it is. */
static void close_all(void *arg)
{
	struct rig *rig = arg;

	if (rig->tier)
		close_tier(rig);
	(void)io_close(rig->io);
	tier_close(rig->host);
	loop_close(rig->loop);
}

static struct rig *open_all(const struct bench_case *self)
{
	struct rig *rig = bench_alloc(sizeof(*rig));
	char text[NVME_TEXT_BYTES] = "";
	int r;

	rig->c = self->arg;
	bench_disk_open(&rig->disk, NVME_DATA_OFFSET, store_bytes - NVME_DATA_OFFSET, BLOCK);
	bench_defer(close_all, rig);
	bench_must(loop_open(0, &rig->loop));
	open_host(rig);
	if (rig->c->way == WAY_IO)
		open_io(rig);
	if (rig->c->way != WAY_TIER)
		return rig;
	r = nvme_make_store(rig->disk.path, store_bytes, SEGMENT_BYTES, false, NULL, NULL, text,
			    sizeof(text));
	if (r)
		bench_fail(r, "%.120s", text);
	open_tier(rig);
	return rig;
}

/* So that there is something to read. */
static void prepare(struct rig *rig)
{
	static const struct nvme_case write = { true, 16, WAY_TIER };
	const struct nvme_case *c = rig->c;
	double cpu = 0;

	if (c->way != WAY_TIER || c->write)
		return;
	rig->c = &write;
	(void)move_all(rig, &cpu);
	rig->c = c;
}

static double raw_gbs(struct rig *rig, bool small_pages)
{
	rig->disk.small_pages = small_pages;
	return bench_disk_raw(&rig->disk, rig->c->write, rig->c->depth, BLOCKS);
}

static void run_nvme(const struct bench_case *self, struct bench_result *ret)
{
	struct rig *rig = open_all(self);
	const struct nvme_case *c = rig->c;
	const bool raw = c->way <= WAY_PAGES, small_pages = c->way == WAY_PAGES;
	const double per_10_gb = 1e10 / pass_bytes / RUNS;
	double cpu = 0, raw_cpu = 0;

	prepare(rig);
	for (uint32_t run = 0; run < RUNS + 1; run++) {
		double from, before, value, after;

		if (run == 1) /* the first warms up */
			cpu = raw_cpu = 0;
		from = bench_cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
		before = raw_gbs(rig, small_pages);
		raw_cpu += bench_cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - from;
		value = raw ? raw_gbs(rig, false) : move_all(rig, &cpu);
		after = raw_gbs(rig, small_pages);
		if (c->way == WAY_TIER && c->write)
			forget_all(rig); /* the next run needs the room */
		if (run > 0)
			bench_add(ret, value, (before + after) / 2);
	}
	if (raw)
		bench_note(ret, "depth %u, %s", c->depth,
			   small_pages ? "huge pages; limit: 4 KiB pages" : "against itself");
	else
		bench_note(ret, "depth %u, %.2f core per 10 GB/s, by hand %.2f", c->depth,
			   cpu * per_10_gb, raw_cpu * per_10_gb);
}

/* --- recovery --- */

static void on_flushed(void *arg, int status)
{
	((struct rig *)arg)->flushed = status;
}

static bool flush_over(struct rig *rig)
{
	return rig->flushed != 1;
}

/* Opens the store again; its last segments are sealed by a flush, as a clean stop does. */
static void reopen(struct rig *rig)
{
	rig->flushed = 1;
	bench_must(tier_flush(rig->tier, true, on_flushed, rig));
	run_until(rig, flush_over);
	close_tier(rig);
	open_tier(rig);
}

static void run_recover(const struct bench_case *self, struct bench_result *ret)
{
	struct rig *rig = open_all(self);
	struct nvme_tier_status status = { 0 };
	double bytes = 0;

	prepare(rig);
	for (uint32_t run = 0; run < RUNS; run++) {
		double per_tib;

		reopen(rig);
		nvme_status(rig->tier, &status);
		per_tib = (double)(1ull << 40) /
			  (SEGMENT_BYTES * (double)status.log.recovered_segments);
		bytes = (double)(status.log.recovery_bytes -
				 /* less empty ones */
				 NVME_PAGE * (SEGMENTS - status.log.recovered_segments)) *
			per_tib;
		bench_add(ret, bytes / raw_gbs(rig, false) / 1e9, 5);
	}
	bench_note(ret, "%.0f MiB to read; %u segments took %.1f ms here", bytes / (1 << 20),
		   (unsigned)status.log.recovered_segments, (double)status.recovery_ns / 1e6);
}

/* clang-format off */
#define CASE(name, prose, ...) \
	{ name, run_nvme, prose, 0.95, BENCH_MORE, "GB/s", \
	  &(const struct nvme_case){ __VA_ARGS__ } }
#define AGAINST ", against io_uring by hand"

const struct bench_case bench_nvme_cases[] = {
	CASE("nvme.raw.read", "io_uring by hand, 1 MiB blocks, against itself", false, 32, WAY_RAW),
	CASE("nvme.raw.write", "io_uring by hand, 1 MiB blocks, against itself", true, 16, WAY_RAW),
	CASE("nvme.pages", "io_uring by hand into huge pages, against 4 KiB pages",
	     false, 32, WAY_PAGES),
	CASE("nvme.io.read", "blocks through the daemon's I/O" AGAINST, false, 32, WAY_IO),
	CASE("nvme.io.write", "blocks through the daemon's I/O" AGAINST, true, 16, WAY_IO),
	CASE("nvme.read", "blocks through the tier" AGAINST, false, 32, WAY_TIER),
	CASE("nvme.write", "blocks through the tier" AGAINST, true, 16, WAY_TIER),
	{ "nvme.recover", run_recover,
	  "a start on 1 TiB, bytes to read at the disk's speed, against 5 s", 1.0, BENCH_LESS, "s",
	  &(const struct nvme_case){ false, 32, WAY_TIER } },
	{ 0 },
};
/* clang-format on */
