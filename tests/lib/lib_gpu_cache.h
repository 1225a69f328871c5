/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_gpu_cache.h - a GPU cache (daemon/move/gpu_cache.h) over a small table of blocks: GPUs that
 * are structs, memory that is addresses alone, jobs that nobody runs. Blocks are on NVMe by the
 * table's word, and stand for a key by number. For cmocka tests, and for benches.
 */
#pragma once

#include "client/lib/base/map.h"
#include "daemon/device/device.h"
#include "daemon/move/copies.h"
#include "daemon/move/gpu_cache.h"
#include "daemon/move/tables.h"
#include "daemon/table/space.h"
#include "test.h"

enum { RIG_UNITS = 3, RIG_SPACES = 3 };

struct gpu_rig {
	struct tables tables;
	struct loop *loop;
	struct devices devices;
	struct device cpu, gpu[RIG_UNITS];
	struct space space[RIG_SPACES]; /* of one image size each, raw */
	struct gpu_cache *cache;
};

struct gpu_rig_conf {
	uint32_t units, blocks;
	uint64_t unit_bytes, slab_bytes;
	uint32_t image_bytes[RIG_SPACES];
};

void gpu_rig_open(struct gpu_rig *r, const struct gpu_rig_conf *conf);
void gpu_rig_close(struct gpu_rig *r);
/* A GPU's memory came, at an address that follows from unit and generation; 0 bytes: it is gone. */
void gpu_rig_memory(struct gpu_rig *r, uint32_t unit, uint64_t bytes, uint32_t generation);
/* An iteration of the loop: a GPU whose memory is gone gives up its copies. */
void gpu_rig_iterate(struct gpu_rig *r);
/* A new block of this key in this space, which is away; and the one that is there, or BLOCK_NONE.
 */
uint32_t gpu_rig_block(struct gpu_rig *r, uint32_t number, uint32_t space);
uint32_t gpu_rig_find(const struct gpu_rig *r, uint32_t number, uint32_t space);
struct gpu_use gpu_rig_use(struct gpu_rig *r, uint32_t unit, uint32_t space);
struct device_job gpu_rig_job(uint32_t number);
/* A job is to keep the image of this key, as if an op stored or loaded it. */
void gpu_rig_reserve(struct gpu_rig *r, struct gpu_use *use, struct device_job *job);
/* Likewise, and the job keeps it. Whether there was a slot for it. */
bool gpu_rig_keep(struct gpu_rig *r, uint32_t unit, uint32_t number, uint32_t space);
/* The block of this key has a copy there. */
bool gpu_rig_has(const struct gpu_rig *r, uint32_t unit, uint32_t number, uint32_t space);
