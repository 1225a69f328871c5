/* SPDX-License-Identifier: Apache-2.0 */
/* near.c - see near.h. Core thread only. */
#include "near.h"

#include <assert.h>

#include "daemon/device/device.h"
#include "daemon/shared/mount.h"
#include "daemon/store/block.h"
#include "daemon/store/space.h"
#include "daemon/store/store.h"

static uint32_t unit_of(const struct mount *mount, const struct near *near)
{
	return near->refused ? DEVICE_NO_UNIT : mount->device->unit;
}

bool near_has(const struct store *store, const struct mount *mount, const struct near *near,
	      uint32_t block)
{
	struct gpu_slot slot;

	return beside_find(store, block, unit_of(mount, near), &slot);
}

bool near_aim(struct store *store, const struct mount *mount, struct near *near, uint32_t block,
	      struct device_job *job)
{
	const bool raw =
		blocks_variant(store->blocks, block) == space_variant(mount->space, CODEC_RAW);
	const uint32_t unit = unit_of(mount, near);
	struct gpu_slot slot;

	if (!beside_find(store, block, unit, &slot))
		return false;
	if (!near->pin.held)
		beside_pin(store, block, unit, &near->pin);
	job->image_memory = IMAGE_OF_DEVICE;
	job->image = (uint8_t *)(uintptr_t)slot.address;
	job->image_bytes = slot.bytes;
	job->generation = slot.generation;
	job->codec_k = job->codec_v = (uint8_t)(raw ? CODEC_RAW : mount->space->codec);
	job->keep = (struct device_keep){ 0 };
	return true;
}

/* The GPU may have a copy already; of a block that is not in the table it has none. */
static bool is_there(const struct store *store, const struct mount *mount, const struct near *near,
		     const struct device_job *job)
{
	const uint32_t block = blocks_find(store->blocks, job->identity.key, mount->space->number);

	return block != BLOCK_NONE && near_has(store, mount, near, block);
}

bool near_take(struct store *store, const struct mount *mount, const struct near *near,
	       uint32_t bytes, const struct device_job *job, struct gpu_slot *ret)
{
	return !is_there(store, mount, near, job) &&
	       beside_take(store, unit_of(mount, near), mount->space, bytes, ret) == 0;
}

void near_keep(struct store *store, const struct mount *mount, struct near *near, uint32_t bytes,
	       struct device_job *job)
{
	struct gpu_slot slot;

	if (near->placed)
		return;
	job->image_memory = IMAGE_OF_HOST;
	job->keep = (struct device_keep){ 0 };
	job->kept = false;
	if (!near_take(store, mount, near, bytes, job, &slot))
		return;
	near->placed = true;
	near->where = slot.where;
	job->keep = (struct device_keep){ .address = slot.address,
					  .generation = slot.generation,
					  .bytes = slot.bytes,
					  .scrub = slot.scrub };
}

/* The block whose image was kept, if it is in the table, with this codec: its copies are of one
 * size. BLOCK_NONE: it is not. */
static uint32_t block_of(const struct store *store, const struct space *space,
			 const struct device_job *job)
{
	const uint32_t block = blocks_find(store->blocks, job->identity.key, space->number);

	return block != BLOCK_NONE &&
			       blocks_variant(store->blocks, block) ==
				       space_variant(space, (enum image_codec)job->out_codec_k) ?
		       block :
		       BLOCK_NONE;
}

void near_give(struct store *store, const struct space *space, const struct extent *where,
	       const struct device_job *job)
{
	const uint32_t block = block_of(store, space, job);

	if (block == BLOCK_NONE)
		beside_give_back(store, where);
	else
		beside_keep(store, block, where);
}

void near_settle(struct store *store, const struct space *space, struct near *near,
		 const struct device_job *job)
{
	assert(!job->in_flight);
	beside_unpin(store, &near->pin);
	if (!near->placed)
		return;
	near->placed = false;
	if (job->kept)
		near_give(store, space, &near->where, job);
	else
		beside_give_back(store, &near->where);
}
