/* SPDX-License-Identifier: Apache-2.0 */
/* lib_gpu_cache.c - see lib_gpu_cache.h. */
#include "lib_gpu_cache.h"

#include "base/loop.h"
#include "daemon/stats/stats.h"
#include "daemon/table/space_counts.h"

static void spaces_open_all(struct gpu_rig *r, const struct gpu_rig_conf *conf)
{
	for (uint32_t i = 0; i < RIG_SPACES; i++) {
		struct space *space = &r->space[i];
		*space = (struct space){ .known = true,
					 .number = i,
					 .codec = CODEC_RAW,
					 .geometry.layers = 4,
					 .raw_shape.image_bytes = conf->image_bytes[i],
					 .shape.image_bytes = conf->image_bytes[i],
					 .variant_bytes = { conf->image_bytes[i],
							    conf->image_bytes[i] } };
		random_key(2000 + i, space->owner);
		counts_space_is(blocks_counts(r->tables.blocks), i, random_key_of(1000 + i).bytes,
				0);
	}
}

void gpu_rig_open(struct gpu_rig *r, const struct gpu_rig_conf *conf)
{
	struct gpu_cache_conf cache = { .tables = &r->tables,
					.devices = &r->devices,
					.unit_bytes = conf->unit_bytes,
					.slab_bytes = conf->slab_bytes };
	char text[TIER_TEXT_BYTES];

	*r = (struct gpu_rig){ 0 };
	r->devices.all[r->devices.n++] = &r->cpu;
	for (uint32_t i = 0; i < conf->units; i++) {
		r->gpu[i].unit = i;
		r->devices.all[r->devices.n++] = &r->gpu[i];
	}
	assert_int_equal(loop_open(0, &r->loop), 0);
	assert_int_equal(stats_open(NULL, 1, &r->tables.stats), 0);
	assert_int_equal(index_open(conf->blocks, &r->tables.index), 0);
	cache.loop = r->loop;
	assert_int_equal(gpu_cache_open(&cache, &r->cache, text, sizeof(text)), 0);
	r->tables.gpu_cache = r->cache;
	assert_int_equal(blocks_open(&(struct blocks_conf){ .max_blocks = conf->blocks,
							    .gpu = gpu_cache_blocks(r->cache) },
				     r->tables.index, &r->tables.blocks),
			 0);
	spaces_open_all(r, conf);
}

void gpu_rig_close(struct gpu_rig *r)
{
	blocks_close(r->tables.blocks);
	gpu_cache_close(r->cache);
	index_close(r->tables.index);
	stats_close(r->tables.stats, NULL);
	loop_close(r->loop);
}

void gpu_rig_memory(struct gpu_rig *r, uint32_t unit, uint64_t bytes, uint32_t generation)
{
	const struct device_memory memory = { .base = ((uint64_t)generation << 40) +
						      ((uint64_t)unit << 36),
					      .bytes = bytes,
					      .generation = bytes ? generation : 0 };
	struct device *gpu = &r->gpu[unit];

	r->devices.hooks.memory(r->devices.hooks.memory_arg, gpu, &memory);
}

struct stopper {
	struct loop_poller poller;
	struct loop *loop;
};

static bool stop(struct loop_poller *poller)
{
	loop_stop(((struct stopper *)(void *)poller)->loop);
	return false;
}

void gpu_rig_iterate(struct gpu_rig *r)
{
	struct stopper s = { .poller.poll = stop, .loop = r->loop };

	loop_poller_add(r->loop, &s.poller);
	assert_int_equal(loop_run(r->loop), 0);
	loop_poller_remove(r->loop, &s.poller);
}

uint32_t gpu_rig_find(const struct gpu_rig *r, uint32_t number, uint32_t space)
{
	return blocks_find(r->tables.blocks, random_key_of(number).bytes, space);
}

uint32_t gpu_rig_block(struct gpu_rig *r, uint32_t number, uint32_t space)
{
	const struct extent where = { .tier = TIER_NVME, .slot = number, .generation = 1 };
	uint32_t block;

	assert_int_equal(blocks_commit_away(r->tables.blocks, random_key_of(number).bytes, space, 0,
					    &where, ++r->tables.tick, &block),
			 0);
	return block;
}

struct gpu_use gpu_rig_use(struct gpu_rig *r, uint32_t unit, uint32_t space)
{
	return (struct gpu_use){ .unit = unit, .space = &r->space[space] };
}

struct device_job gpu_rig_job(uint32_t number)
{
	struct device_job job = { .out_codec_k = CODEC_RAW };

	random_key(number, job.identity.key);
	return job;
}

void gpu_rig_reserve(struct gpu_rig *r, struct gpu_use *use, struct device_job *job)
{
	gpu_cache_reserve(r->cache, use, use->space->variant_bytes[0], job);
	assert_int_equal(use->reserved, job->keep.address != 0);
}

bool gpu_rig_keep(struct gpu_rig *r, uint32_t unit, uint32_t number, uint32_t space)
{
	struct gpu_use use = gpu_rig_use(r, unit, space);
	struct device_job job = gpu_rig_job(number);
	bool had;

	gpu_rig_reserve(r, &use, &job);
	had = use.reserved;
	job.kept = had;
	gpu_cache_settle(r->cache, &use, &job);
	assert_false(gpu_use_any(&use));
	return had;
}

bool gpu_rig_has(const struct gpu_rig *r, uint32_t unit, uint32_t number, uint32_t space)
{
	const uint32_t block = gpu_rig_find(r, number, space);

	return block != BLOCK_NONE && gpu_cache_find(r->cache, block, unit, NULL);
}
