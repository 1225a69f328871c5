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
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "daemon/store/block.h"
#include "daemon/store/copy_table.h"
#include "daemon/store/index.h"
#include "bench.h"
#include "tests/lib/random.h"
#include "tiers/slabs.h"

enum { BLOCKS = 1 << 20, SLOT = 64 << 10, SLAB_SLOTS = 1 << 10 };
/* Of a node: one block in so many is in host memory; on a GPU. */
enum { NODE_HOST = 4, NODE_GPU = 16 };

/* Where the memory of a block is; bytes of all blocks. */
enum part { PART_HOST_SLOT, PART_TABLE, PART_NVME, PART_GPU_SLOT, PART_GPU_COPY, PARTS };

struct slots {
	struct tier base;
	struct slabs *slabs;
	uint32_t blocks; /* as many as it has slots */
	uint32_t given;
};

struct bed {
	struct slots host, gpu;
	struct index *index;
	struct blocks *blocks;
	struct copy_table *copies;
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

static int slots_open(struct slots *s, const struct tier_ops *ops, uint32_t blocks)
{
	const struct slabs_conf conf = { .tier = &s->base,
					 .slab_bytes = (uint64_t)SLOT * SLAB_SLOTS,
					 .n_slabs = blocks / SLAB_SLOTS,
					 .more = more,
					 .lost = none_lost,
					 .arg = s };

	s->base.ops = ops;
	s->blocks = blocks;
	return slabs_open(&conf, &s->slabs);
}

static int fill_slots(const struct slots *s)
{
	struct extent where;
	int r = 0;

	for (uint32_t i = 0; i < s->blocks && r == 0; i++)
		r = slabs_alloc(s->slabs, SLOT, TIER_ANY_UNIT, &where);
	return r;
}

/* Key i, in the host slot of this number. */
static int commit(struct bed *bed, uint32_t i, uint32_t slot, uint32_t *ret_block)
{
	struct extent where;
	uint8_t key[32];
	int r = slabs_numbered(bed->host.slabs, slot, &where);

	random_key(i, key);
	if (r == 0)
		r = blocks_commit(bed->blocks, key, 0, BLOCK_NONE, 0, &where, ret_block);
	return r;
}

/* Where key i is on NVMe. */
static struct extent nvme_of(uint32_t i)
{
	return (struct extent){ .tier = TIER_NVME, .slot = i, .generation = 1 };
}

/* As copies_add_beside(). */
static int add_beside(struct bed *bed, uint32_t block, uint32_t slot)
{
	struct extent where;
	int r = slabs_numbered(bed->gpu.slabs, slot, &where);

	if (r)
		return r;
	slabs_set_owner(bed->gpu.slabs, &where, block);
	r = copy_table_add(bed->copies, block, 0, slot, 0);
	if (r == 0)
		blocks_look_beside(bed->blocks, block);
	return r;
}

/* The block of number i has the slot of number i. */
static int fill_host_slots(struct bed *bed)
{
	return fill_slots(&bed->host);
}

static int fill_table(struct bed *bed)
{
	uint32_t block;
	int r = 0;

	for (uint32_t i = 0; i < BLOCKS && r == 0; i++) {
		r = commit(bed, i, i, &block);
		if (r == 0)
			blocks_touch(bed->blocks, block, i);
	}
	return r;
}

static int fill_nvme(struct bed *bed)
{
	for (uint32_t i = 0; i < BLOCKS; i++) {
		const struct extent where = nvme_of(i);

		blocks_set_nvme(bed->blocks, i, &where);
	}
	return 0;
}

static int fill_gpu_slots(struct bed *bed)
{
	return fill_slots(&bed->gpu);
}

static int fill_gpu_copies(struct bed *bed)
{
	int r = 0;

	for (uint32_t i = 0; i < BLOCKS && r == 0; i++)
		r = add_beside(bed, i, i);
	return r;
}

static int fill_node(struct bed *bed)
{
	int r = fill_slots(&bed->host);

	if (r == 0)
		r = fill_slots(&bed->gpu);
	for (uint32_t i = 0; i < BLOCKS && r == 0; i++) {
		const struct extent away = nvme_of(i);
		uint32_t block = 0;
		uint8_t key[32];

		random_key(i, key);
		if (i % NODE_HOST == 0)
			r = commit(bed, i, i / NODE_HOST, &block);
		else
			r = blocks_commit_away(bed->blocks, key, 0, 0, &away, i, &block);
		if (r == 0 && i % NODE_HOST == 0)
			blocks_set_nvme(bed->blocks, block, &away);
		if (r == 0 && i % NODE_GPU == 0)
			r = add_beside(bed, block, i / NODE_GPU);
	}
	return r;
}

/* --- all of them --- */

static int (*const fill[PARTS])(struct bed *bed) = {
	[PART_HOST_SLOT] = fill_host_slots,
	[PART_TABLE] = fill_table,
	[PART_NVME] = fill_nvme,
	[PART_GPU_SLOT] = fill_gpu_slots,
	[PART_GPU_COPY] = fill_gpu_copies,
};

static uint32_t owner_of(void *arg, uint32_t unit, uint32_t copy)
{
	const struct bed *bed = arg;

	(void)unit;
	return slabs_owner_numbered(bed->gpu.slabs, copy);
}

/* One block in so many has a slot of host memory, of a GPU's. */
static int bed_open(struct bed *bed, uint32_t in_host, uint32_t on_gpu)
{
	static const struct tier_ops host = { .id = TIER_HOST }, gpu = { .id = TIER_GPU };
	const struct copy_table_conf copies = {
		.units = 1, .copies = COPY_NUMBERS, .classes = 1, .block_of = owner_of, .arg = bed
	};
	struct blocks_conf blocks = { .max_blocks = BLOCKS, .classes = 1 };
	int r = slots_open(&bed->host, &host, BLOCKS / in_host);

	if (r == 0)
		r = slots_open(&bed->gpu, &gpu, BLOCKS / on_gpu);
	if (r == 0)
		r = index_open(BLOCKS, &bed->index);
	if (r == 0)
		r = copy_table_open(&copies, &bed->copies);
	blocks.beside = bed->copies;
	return r == 0 ? blocks_open(&blocks, bed->index, &bed->blocks) : r;
}

static void bed_close(struct bed *bed)
{
	blocks_close(bed->blocks);
	copy_table_close(bed->copies);
	index_close(bed->index);
	slabs_close(bed->host.slabs);
	slabs_close(bed->gpu.slabs);
}

static int bed_measure(struct bed *bed)
{
	int r = bed_open(bed, 1, 1);

	for (int i = 0; i < PARTS && r == 0; i++) {
		const uint64_t before = resident_bytes();

		r = fill[i](bed);
		bed->bytes[i] = resident_bytes() - before;
	}
	if (r == 0)
		bed->index_bytes = (double)index_memory(bed->index) / BLOCKS;
	bed_close(bed);
	return r;
}

/* Measured once, for all cases. */
static int bed_get(const struct bed **ret)
{
	static struct bed bed;
	static bool made;

	if (!made) {
		const int r = bed_measure(&bed);

		if (r < 0)
			return r;
		made = true;
	}
	*ret = &bed;
	return 0;
}

/* --- cases: the parts of such a block, as bits --- */

static int run(const struct bench_case *self, struct bench_result *ret)
{
	const uint32_t parts = *(const uint32_t *)self->arg;
	double sum = 0, part[PARTS];
	const struct bed *bed;
	const int r = bed_get(&bed);

	if (r < 0)
		return r;
	for (int i = 0; i < PARTS; i++) {
		part[i] = parts & 1u << i ? (double)bed->bytes[i] / BLOCKS : 0;
		sum += part[i];
	}
	(void)bench_add(ret, sum, 96);
	(void)snprintf(
		ret->note, sizeof(ret->note),
		"resident: index %.1f, key, place and order %.1f, NVMe %.1f; host slot %.1f; "
		"GPU slot %.1f, copy %.1f",
		bed->index_bytes, part[PART_TABLE] - bed->index_bytes, part[PART_NVME],
		part[PART_HOST_SLOT], part[PART_GPU_SLOT], part[PART_GPU_COPY]);
	return 0;
}

static int run_node(const struct bench_case *self, struct bench_result *ret)
{
	struct bed bed = { 0 };
	int r = bed_open(&bed, NODE_HOST, NODE_GPU);
	const uint64_t before = resident_bytes();

	(void)self;
	if (r == 0)
		r = fill_node(&bed);
	if (r == 0) {
		(void)bench_add(ret, (double)(resident_bytes() - before) / BLOCKS, 96);
		(void)snprintf(ret->note, sizeof(ret->note),
			       "resident: of %u blocks on NVMe %u in host memory, too, %u on a GPU",
			       blocks_count(bed.blocks), blocks_copies(bed.blocks, TIER_HOST),
			       blocks_copies(bed.blocks, TIER_GPU));
	}
	bed_close(&bed);
	return r;
}

static const uint32_t table = 1 << PART_TABLE, away = table | 1 << PART_NVME,
		      host = table | 1 << PART_HOST_SLOT, both = away | host,
		      on_gpu = 1 << PART_GPU_SLOT | 1 << PART_GPU_COPY, gpu = host | on_gpu,
		      all = both | on_gpu;

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
