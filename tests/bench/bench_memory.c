/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_memory.c - memory.per_block*: what the daemon keeps of a block, beside its images.
 *
 * The tables of a daemon are made here and filled: slots of host memory and of a GPU's (no byte of
 * that memory itself), index and blocks, all of them leaves, with a copy on NVMe, too, and one on a
 * GPU. What each table made resident is the kernel's count, before and after it was filled.
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

enum { BLOCKS = 1 << 20, SLOT = 64 << 10, SLAB_SLOTS = 1 << 10, SLABS = BLOCKS / SLAB_SLOTS };

/* Where the memory of a block is; bytes of all blocks. */
enum part { PART_HOST_SLOT, PART_TABLE, PART_NVME, PART_GPU_SLOT, PART_GPU_COPY, PARTS };

struct slots {
	struct tier base;
	struct slabs *slabs;
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
	return s->given < SLABS ? s->given++ : SLABS_NONE;
}

static uint32_t none_lost(void *arg)
{
	(void)arg;
	return 0;
}

static int slots_open(struct slots *s, const struct tier_ops *ops)
{
	const struct slabs_conf conf = { .tier = &s->base,
					 .slab_bytes = (uint64_t)SLOT * SLAB_SLOTS,
					 .n_slabs = SLABS,
					 .more = more,
					 .lost = none_lost,
					 .arg = s };

	s->base.ops = ops;
	return slabs_open(&conf, &s->slabs);
}

static int fill_slots(const struct slots *s)
{
	struct extent where;
	int r = 0;

	for (uint32_t i = 0; i < BLOCKS && r == 0; i++)
		r = slabs_alloc(s->slabs, SLOT, TIER_ANY_UNIT, &where);
	return r;
}

/* The block of number i has the slot of number i. */
static int fill_host_slots(struct bed *bed)
{
	return fill_slots(&bed->host);
}

static int fill_table(struct bed *bed)
{
	struct extent where;
	uint8_t key[32];
	uint32_t block;
	int r = 0;

	for (uint32_t i = 0; i < BLOCKS && r == 0; i++) {
		random_key(i, key);
		r = slabs_numbered(bed->host.slabs, i, &where);
		if (r == 0)
			r = blocks_commit(bed->blocks, key, 0, BLOCK_NONE, 0, &where, &block);
		if (r == 0)
			blocks_touch(bed->blocks, block, i);
	}
	return r;
}

static int fill_nvme(struct bed *bed)
{
	for (uint32_t i = 0; i < BLOCKS; i++)
		blocks_set_nvme(bed->blocks, i,
				&(struct extent){ .tier = TIER_NVME, .slot = i, .generation = 1 });
	return 0;
}

static int fill_gpu_slots(struct bed *bed)
{
	return fill_slots(&bed->gpu);
}

static int fill_gpu_copies(struct bed *bed)
{
	int r = 0;

	for (uint32_t i = 0; i < BLOCKS && r == 0; i++) {
		r = copy_table_add(bed->copies, i, 0, i, 0, i);
		if (r == 0)
			blocks_look_beside(bed->blocks, i);
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

static int bed_open(struct bed *bed)
{
	static const struct tier_ops host = { .id = TIER_HOST }, gpu = { .id = TIER_GPU };
	const struct copy_table_conf copies = { .units = 1, .copies = COPY_NUMBERS, .classes = 1 };
	struct blocks_conf blocks = { .max_blocks = BLOCKS, .classes = 1 };
	int r = slots_open(&bed->host, &host);

	if (r == 0)
		r = slots_open(&bed->gpu, &gpu);
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
	int r = bed_open(bed);

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
	{ 0 },
};
