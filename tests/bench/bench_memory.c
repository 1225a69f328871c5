/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_memory.c - memory.per_block*: the daemon's memory for a block, beside its images.
 *
 * The tables of a daemon are made here and filled: slots of host memory and of a GPU's (no byte of
 * that memory itself), index and blocks, all of them leaves, with a copy on NVMe, too, and one on a
 * GPU. What each table made resident is the kernel's count, before and after it was filled.
 *
 * memory.per_block.node is of a second set of tables, as full as the first, with the blocks of a
 * node: all on NVMe, a quarter in host memory, a quarter of these on a GPU, in turns. So its figure
 * has what the first set cannot show: bytes of a table between rows that are in use.
 */

#include "bench.h"
#include "tests/lib/lib_gpu_cache.h"
#include "tiers/slabs.h"

enum { BLOCKS = 1 << 20, SLOT = 64 << 10, SLAB_SLOTS = 1 << 10 };
/* Of a node: one block in so many is in host memory; on a GPU. */
enum { NODE_HOST = 4, NODE_GPU = 16 };

/* Where the memory of a block is; bytes of all blocks. */
enum part { PART_HOST_SLOT, PART_TABLE, PART_NVME, PART_GPU, PARTS };

struct slots {
	struct tier base;
	struct slabs *slabs;
	uint32_t blocks; /* as many as it has slots */
	uint32_t given;
};

struct bed {
	struct slots host;
	struct gpu_rig rig; /* a table of blocks, and a GPU */
	uint64_t bytes[PARTS];
	double index_bytes; /* a block, by its own count */
};

static uint64_t resident_bytes(void)
{
	unsigned long size = 0, resident = 0;
	FILE *file = fopen("/proc/self/statm", "re");

	if (!file)
		return 0;
	if (fscanf(file, "%lu %lu", &size, &resident) != 2)
		resident = 0;
	(void)fclose(file);
	return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* --- parts --- */

static uint32_t more(void *arg, bool hurry)
{
	struct slots *s = arg;

	(void)hurry;
	return s->given < s->blocks / SLAB_SLOTS ? s->given++ : SLABS_NONE;
}

static uint32_t none_lost(void *arg)
{
	(void)arg;
	return 0;
}

static void slots_open(struct slots *s, const struct tier_ops *ops, uint32_t blocks)
{
	const struct slabs_conf conf = { .tier = &s->base,
					 .slab_bytes = (uint64_t)SLOT * SLAB_SLOTS,
					 .n_slabs = blocks / SLAB_SLOTS,
					 .more = more,
					 .lost = none_lost,
					 .arg = s };

	s->base.ops = ops;
	s->blocks = blocks;
	bench_must(slabs_open(&conf, &s->slabs));
}

static void fill_slots(const struct slots *s)
{
	struct extent where;

	for (uint32_t i = 0; i < s->blocks; i++)
		bench_must(slabs_alloc(s->slabs, SLOT, TIER_ANY_UNIT, &where));
}

/* Key i, in the host slot of this number: its block. */
static uint32_t commit(struct bed *bed, uint32_t i, uint32_t slot)
{
	struct extent where;
	uint32_t block;
	uint8_t key[32];

	random_key(i, key);
	bench_must(slabs_numbered(bed->host.slabs, slot, &where));
	bench_must(blocks_commit(bed->rig.tables.blocks, key, 0, BLOCK_NONE, 0, &where, &block));
	return block;
}

/* Where key i is on NVMe. */
static struct extent nvme_of(uint32_t i)
{
	return (struct extent){ .tier = TIER_NVME, .slot = i, .generation = 1 };
}

/* The block of number i has the slot of number i. */
static void fill_host_slots(struct bed *bed)
{
	fill_slots(&bed->host);
}

static void fill_table(struct bed *bed)
{
	for (uint32_t i = 0; i < BLOCKS; i++)
		blocks_touch(bed->rig.tables.blocks, commit(bed, i, i), i);
}

/* An away block is in this host slot for a moment, so that it is an heir. */
static void be_heir(struct bed *bed, uint32_t block, uint32_t parent, uint32_t slot)
{
	struct blocks *blocks = bed->rig.tables.blocks;
	struct extent where;

	bench_must(slabs_numbered(bed->host.slabs, slot, &where));
	blocks_touch(blocks, parent, blocks_tick(blocks, block) + 1);
	blocks_promote(blocks, block, parent, &where);
	(void)blocks_demote(blocks, block);
}

static void fill_nvme(struct bed *bed)
{
	struct blocks *blocks = bed->rig.tables.blocks;

	for (uint32_t i = 0; i < BLOCKS; i++) {
		const struct extent where = nvme_of(i);
		struct extent host;

		blocks_set_nvme(blocks, i, &where);
		if (i % 2 == 0)
			continue;
		(void)blocks_demote(blocks, i);
		be_heir(bed, i, i - 1, i);
		bench_must(slabs_numbered(bed->host.slabs, i, &host));
		blocks_promote(blocks, i, BLOCK_NONE, &host);
	}
}

static void keep_on_gpu(struct bed *bed, uint32_t i)
{
	if (!gpu_rig_keep(&bed->rig, 0, i, 0))
		bench_must(-ENOSPC);
}

static void fill_gpu(struct bed *bed)
{
	for (uint32_t i = 0; i < BLOCKS; i++)
		keep_on_gpu(bed, i);
}

static void fill_node(struct bed *bed)
{
	struct blocks *blocks = bed->rig.tables.blocks;

	fill_slots(&bed->host);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		const struct extent away = nvme_of(i);
		uint32_t block;
		uint8_t key[32];

		random_key(i, key);
		if (i % NODE_HOST == 0)
			blocks_set_nvme(blocks, commit(bed, i, i / NODE_HOST), &away);
		else
			bench_must(blocks_commit_away(blocks, key, 0, 0, &away, i, &block));
		if (i % NODE_HOST == 1)
			be_heir(bed, i, i - 1, i / NODE_HOST);
		if (i % NODE_GPU == 0)
			keep_on_gpu(bed, i);
	}
}

/* --- all of them --- */

static void (*const fill[PARTS])(struct bed *bed) = {
	[PART_HOST_SLOT] = fill_host_slots,
	[PART_TABLE] = fill_table,
	[PART_NVME] = fill_nvme,
	[PART_GPU] = fill_gpu,
};

static void bed_close(void *arg)
{
	struct bed *bed = arg;

	gpu_rig_close(&bed->rig);
	slabs_close(bed->host.slabs);
}

/* One block in so many has a slot of host memory, of a GPU's. */
static void bed_open(struct bed *bed, uint32_t in_host, uint32_t on_gpu)
{
	static const struct tier_ops host = { .id = TIER_HOST };
	const uint64_t bytes = (uint64_t)BLOCKS / on_gpu * SLOT;

	gpu_rig_open(&bed->rig, &(struct gpu_rig_conf){ .units = 1,
							.blocks = BLOCKS,
							.unit_bytes = bytes,
							.slab_bytes = (uint64_t)SLOT * SLAB_SLOTS,
							.image_bytes = { SLOT, SLOT, SLOT } });
	bench_defer(bed_close, bed);
	gpu_rig_memory(&bed->rig, 0, bytes, 1);
	slots_open(&bed->host, &host, BLOCKS / in_host);
}

/* Measured once, for all cases. */
static const struct bed *bed_get(void)
{
	static struct bed bed;
	static bool made;

	if (made)
		return &bed;
	bed_open(&bed, 1, 1);
	for (int i = 0; i < PARTS; i++) {
		const uint64_t before = resident_bytes();

		fill[i](&bed);
		bed.bytes[i] = resident_bytes() - before;
	}
	bed.index_bytes = (double)index_memory(bed.rig.tables.index) / BLOCKS;
	made = true;
	return &bed;
}

/* --- cases: the parts of such a block, as bits --- */

static void run(const struct bench_case *self, struct bench_result *ret)
{
	const uint32_t parts = *(const uint32_t *)self->arg;
	const struct bed *bed = bed_get();
	double sum = 0, part[PARTS];

	for (int i = 0; i < PARTS; i++) {
		part[i] = parts & 1u << i ? (double)bed->bytes[i] / BLOCKS : 0;
		sum += part[i];
	}
	bench_add(ret, sum, 96);
	bench_note(ret,
		   "resident: index %.1f, key, place and order %.1f, NVMe %.1f; host slot %.1f; "
		   "GPU slot and copy %.1f",
		   bed->index_bytes, part[PART_TABLE] - bed->index_bytes, part[PART_NVME],
		   part[PART_HOST_SLOT], part[PART_GPU]);
}

static void run_node(const struct bench_case *self, struct bench_result *ret)
{
	struct bed *bed = bench_alloc(sizeof(*bed));
	const struct blocks *blocks;
	uint64_t before;

	(void)self;
	bed_open(bed, NODE_HOST, NODE_GPU);
	blocks = bed->rig.tables.blocks;
	before = resident_bytes();
	fill_node(bed);
	bench_add(ret, (double)(resident_bytes() - before) / BLOCKS, 96);
	bench_note(ret, "resident: of %u blocks on NVMe %u in host memory, too, %u on a GPU",
		   blocks_count(blocks), blocks_copies(blocks, TIER_HOST),
		   blocks_copies(blocks, TIER_GPU));
}

static const uint32_t table = 1 << PART_TABLE, away = table | 1 << PART_NVME,
		      host = table | 1 << PART_HOST_SLOT, both = away | host,
		      on_gpu = 1 << PART_GPU, gpu = host | on_gpu, all = both | on_gpu;

#define BYTES(name, prose, arg)                           \
	{                                                 \
		name, run, prose, 1, BENCH_LESS, "B", arg \
	}

const struct bench_case bench_memory_cases[] = {
	BYTES("memory.per_block", "index, table and eviction order, of every block", &table),
	BYTES("memory.per_block.nvme", "all that is kept of a block on NVMe alone", &away),
	BYTES("memory.per_block.host", "likewise, in host memory, with its slot there", &host),
	BYTES("memory.per_block.both", "in host memory and on NVMe", &both),
	BYTES("memory.per_block.gpu", "in host memory and in a GPU's", &gpu),
	BYTES("memory.per_block.all", "in host memory, on NVMe and in a GPU's", &all),
	{ "memory.per_block.node", run_node, "mean of a node: 1/4 in host memory, 1/16 on a GPU", 1,
	  BENCH_LESS, "B", NULL },
	{ 0 },
};
