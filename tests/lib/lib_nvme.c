/* SPDX-License-Identifier: Apache-2.0 */
#include "lib_nvme.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "tiers/nvme/log/nvme_log_inner.h"

static const struct image_geometry shapes[3] = {
	{ .dtype = DTYPE_BF16, .block_tokens = 16, .opaque_bytes = 5000 },
	{ .dtype = DTYPE_BF16,
	  .layers = 31,
	  .kv_heads = 62,
	  .head_dim_k = 1,
	  .head_dim_v = 1,
	  .block_tokens = 1 },
	{ .dtype = DTYPE_BF16,
	  .layers = 64,
	  .kv_heads = 64,
	  .head_dim_k = 1,
	  .head_dim_v = 1,
	  .block_tokens = 1 },
};

bool kit_soft;
uint32_t (*kit_pages)(uint32_t block);

static const struct image_geometry *geometry_of(uint32_t block)
{
	static struct image_geometry ret;

	if (!kit_pages)
		return &shapes[block % 3];
	ret = shapes[0];
	ret.opaque_bytes = (kit_pages(block) - 1) * NVME_PAGE;
	return &ret;
}

static enum image_codec codec_of(uint32_t block)
{
	return block % 3 && !kit_pages ? CODEC_FP8 : CODEC_RAW;
}

void kit_key(uint32_t block, uint8_t ret[32])
{
	random_key(block, ret);
	memcpy(ret, &block, sizeof(block)); /* so that a record tells which */
}

static void identity_of(uint32_t block, struct image_identity *ret)
{
	memset(ret->space_id, (int)(block % 3) + 1, sizeof(ret->space_id));
	kit_key(block, ret->key);
}

void kit_owner(uint32_t block, uint8_t ret[32])
{
	memset(ret, 0x40 + (int)(block % KIT_TENANTS), NVME_TENANT_BYTES);
	memset(ret + NVME_TENANT_BYTES, (int)(block % 3), 32 - NVME_TENANT_BYTES);
}

static void fill(struct random *random, uint8_t *bytes, size_t n)
{
	for (size_t i = 0; i < n; i++)
		bytes[i] = (uint8_t)random_next(random) & (kit_soft ? 1 : 255);
}

uint32_t kit_image(uint32_t block, uint8_t *ret)
{
	struct random random = { .state = block + 77 };
	struct image_header *header = (void *)ret;
	struct image_identity identity;
	struct image_shape shape;
	const enum image_codec codec = codec_of(block);

	assert(!image_shape(geometry_of(block), codec, codec, &shape, NULL));
	assert(shape.image_bytes <= KIT_IMAGE_MAX);
	memset(ret, 0, nvme_round_page(shape.image_bytes));
	identity_of(block, &identity);
	image_header_fill(header, geometry_of(block), codec, codec, &shape, &identity);
	fill(&random, ret + sizeof(*header), shape.scale_bytes);
	fill(&random, ret + shape.payload_offset, shape.payload_bytes);
	image_seal(header, image_checksum(ret, &shape));
	return shape.image_bytes;
}

uint32_t kit_number(const struct nvme_entry *entry)
{
	uint8_t key[32], owner[32];
	uint32_t ret;

	memcpy(&ret, entry->key, sizeof(ret));
	assert(ret < KIT_BLOCKS);
	kit_key(ret, key);
	kit_owner(ret, owner);
	assert(!memcmp(entry->key, key, sizeof(key)) &&
	       !memcmp(entry->owner, owner, sizeof(owner)));
	return ret;
}

static bool on_found(void *arg, const struct nvme_entry *entry, const struct extent *where)
{
	struct kit *kit = arg;
	struct kit_block *block = &kit->block[kit_number(entry)];

	if (kit->refuse_found || block->location != NVME_NOWHERE)
		return false;
	block->location = nvme_extent_location(where);
	block->tick = entry->tick;
	if (entry->tick > kit->tick)
		kit->tick = entry->tick;
	block->found = true;
	kit->found++;
	kit->blocks++;
	return true;
}

static bool on_ask(void *arg, const struct nvme_entry *entry, const struct extent *where,
		   uint64_t *ret_tick)
{
	struct kit *kit = arg;
	const struct kit_block *block = &kit->block[kit_number(entry)];

	if (block->location != nvme_extent_location(where))
		return false;
	*ret_tick = kit->keep ? (uint64_t)1 << 48 : block->tick;
	return true;
}

static bool on_moved(void *arg, const struct nvme_entry *entry, const struct extent *from,
		     const struct extent *to, uint64_t *ret_tick)
{
	struct kit *kit = arg;
	struct kit_block *block = &kit->block[kit_number(entry)];

	if (block->location != nvme_extent_location(from))
		return false;
	block->location = nvme_extent_location(to);
	*ret_tick = block->tick;
	kit->moved++;
	return true;
}

static void on_dropped(void *arg, const struct nvme_entry *entry, const struct extent *where)
{
	struct kit *kit = arg;
	struct kit_block *block = &kit->block[kit_number(entry)];

	if (block->location != nvme_extent_location(where))
		return;
	nvme_log_forget(kit->log, block->location, block->tick);
	/* no record to come has this location */
	assert(block->location % NVME_GENERATIONS == kit->log->drain.generation);
	block->location = NVME_NOWHERE;
	kit->dropped++;
	kit->blocks--;
}

static void on_ready(struct nvme_medium *medium, int status)
{
	container_of(medium, struct kit, sim.medium)->ready = status;
}

void kit_open(struct kit *kit, uint32_t segments, uint64_t seed)
{
	memset(kit, 0, sizeof(*kit));
	disk_sim_open(&kit->sim, NVME_DATA_OFFSET + (uint64_t)segments * KIT_SEGMENT, seed);
	kit->conf.disk_bytes = kit->conf.bytes = kit->sim.bytes;
	kit->conf.segment_bytes = KIT_SEGMENT;
	memset(kit->conf.uuid, 0x77, sizeof(kit->conf.uuid));
	kit->buffer = aligned_alloc(NVME_PAGE, KIT_IMAGE_MAX);
	kit->expected = aligned_alloc(NVME_PAGE, KIT_IMAGE_MAX);
	assert(kit->buffer && kit->expected);
	for (int i = 0; i < KIT_APPENDS; i++) {
		kit->slot[i].image = aligned_alloc(NVME_PAGE, KIT_IMAGE_MAX);
		kit->slot[i].kit = kit;
		assert(kit->slot[i].image);
	}
}

/* A dead process takes no completions: I/O that the log waits for is forgotten with it. */
void kit_forget_log(struct kit *kit)
{
	if (kit->log) {
		kit->log->lent = 0;
		kit->log->waiting = NULL;
	}
	nvme_log_free(kit->log);
	kit->log = NULL;
	for (int i = 0; i < KIT_APPENDS; i++)
		kit->slot[i].busy = false;
	memset(kit->block, 0, sizeof(kit->block));
	kit->blocks = kit->found = 0;
}

void kit_crash(struct kit *kit, enum sim_crash how)
{
	kit_forget_log(kit);
	disk_sim_crash(&kit->sim, how);
}

void kit_close(struct kit *kit)
{
	kit_forget_log(kit);
	disk_sim_close(&kit->sim);
	kit_pages = NULL;
	free(kit->buffer);
	free(kit->expected);
	for (int i = 0; i < KIT_APPENDS; i++)
		free(kit->slot[i].image);
}

static void make_log(struct kit *kit)
{
	const struct nvme_events events = {
		.arg = kit,
		.found = on_found,
		.ask = on_ask,
		.moved = on_moved,
		.dropped = on_dropped,
	};

	assert(!kit->log);
	kit->ready = 1;
	kit->sim.medium.ready = on_ready;
	assert(!nvme_log_new(&kit->conf, &kit->sim.medium, &events, &kit->log));
}

bool kit_step(struct kit *kit)
{
	/* what ends in this poll may let an append in, without any I/O */
	const bool worked = kit->log && nvme_log_works(kit->log);

	kit->sim.time_ns += 1000;
	if (kit->log)
		nvme_log_poll(kit->log);
	return disk_sim_step(&kit->sim) || worked || (kit->log && nvme_log_works(kit->log));
}

void kit_run(struct kit *kit)
{
	while (kit_step(kit))
		;
}

int kit_format(struct kit *kit)
{
	make_log(kit);
	nvme_log_format(kit->log);
	kit_run(kit);
	return kit->ready;
}

int kit_recover(struct kit *kit)
{
	make_log(kit);
	nvme_log_recover(kit->log);
	kit_run(kit);
	return kit->ready;
}

static void appended(struct nvme_append *append)
{
	struct kit_slot *slot = (void *)append; /* its first member */
	struct kit *kit = slot->kit;
	struct kit_block *block = &kit->block[slot->block];

	slot->busy = false;
	block->busy = false;
	kit->failed += append->status != 0;
	if (append->status)
		return;
	kit->stored++;
	kit->blocks++;
	block->location = append->location;
	if (block->tick < append->tick)
		block->tick = append->tick;
	nvme_log_touch(kit->log, append->location, append->tick, block->tick);
}

int kit_append(struct kit *kit, uint32_t number)
{
	struct kit_block *block = &kit->block[number];
	struct kit_slot *slot = NULL;
	int r;

	assert(block->location == NVME_NOWHERE && !block->busy);
	for (int i = 0; i < KIT_APPENDS && !slot; i++)
		if (!kit->slot[i].busy)
			slot = &kit->slot[i];
	if (!slot)
		return -EAGAIN;
	memset(&slot->append, 0, sizeof(slot->append));
	slot->append.bytes = kit_image(number, slot->image);
	slot->append.image = slot->image;
	slot->append.tick = ++kit->tick;
	slot->append.done = appended;
	slot->block = number;
	kit_owner(number, slot->append.owner);
	if (number >= 3)
		kit_key(number - 3, slot->append.parent);
	block->tick = slot->append.tick;
	r = nvme_log_append(kit->log, &slot->append);
	if (r)
		return r;
	slot->busy = block->busy = true;
	return 0;
}

int kit_store(struct kit *kit, uint32_t number)
{
	int r;

	while ((r = kit_append(kit, number)) == -EAGAIN)
		if (!kit_step(kit))
			return -EAGAIN;
	if (r)
		return r;
	while (kit->block[number].busy)
		if (!kit_step(kit))
			return -ETIMEDOUT; /* stalled, or no power */
	return kit->block[number].location == NVME_NOWHERE ? -EIO : 0;
}

void kit_store_range(struct kit *kit, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++) {
		const int r = kit_store(kit, i);

		assert(!r);
	}
}

void kit_touch(struct kit *kit, uint32_t number)
{
	struct kit_block *block = &kit->block[number];
	const uint64_t tick = ++kit->tick;

	if (block->location != NVME_NOWHERE)
		nvme_log_touch(kit->log, block->location, block->tick, tick);
	block->tick = tick;
}

void kit_forget(struct kit *kit, uint32_t number)
{
	struct kit_block *block = &kit->block[number];

	if (block->location == NVME_NOWHERE)
		return;
	nvme_log_forget(kit->log, block->location, block->tick);
	block->location = NVME_NOWHERE;
	kit->blocks--;
}

struct load {
	struct nvme_read read;
	bool done;
};

static void loaded(struct nvme_read *read)
{
	((struct load *)(void *)read)->done = true;
}

int kit_image_check(const uint8_t *image, uint32_t number, uint8_t *expected)
{
	const struct image_header *header = (const void *)image;
	const uint32_t bytes = kit_image(number, expected);
	struct image_identity identity;
	struct image_shape shape;

	identity_of(number, &identity);
	if (image_header_check(header, geometry_of(number), &identity, &shape))
		return -EBADMSG;
	if (shape.image_bytes != bytes || image_checksum(image, &shape) != header->checksum)
		return -EBADMSG;
	assert(!memcmp(image, expected, sizeof(*header) + shape.scale_bytes));
	assert(!memcmp(image + shape.payload_offset, expected + shape.payload_offset,
		       shape.payload_bytes));
	return 0;
}

int kit_load(struct kit *kit, uint32_t number)
{
	struct kit_block *block = &kit->block[number];
	struct load load = { .read = { .done = loaded } };
	int r;

	if (block->location == NVME_NOWHERE)
		return -ENOENT;
	load.read.location = block->location;
	load.read.bytes = kit_image(number, kit->expected);
	load.read.buffer = kit->buffer;
	memset(kit->buffer, 0xee, KIT_IMAGE_MAX);
	while ((r = nvme_log_read(kit->log, &load.read)) == -EAGAIN)
		(void)kit_step(kit);
	if (!r) {
		while (!load.done)
			if (!kit_step(kit))
				disk_sim_unstall(&kit->sim); /* nothing else can end */
		r = load.read.status ? load.read.status :
				       kit_image_check(kit->buffer, number, kit->expected);
	}
	if (r)
		kit_forget(kit, number);
	return r;
}

uint32_t kit_load_all(struct kit *kit)
{
	uint32_t whole = 0;

	for (uint32_t i = 0; i < KIT_BLOCKS; i++)
		whole += kit->block[i].location != NVME_NOWHERE && !kit_load(kit, i);
	return whole;
}

static void ended(void *arg, int status)
{
	*(int *)arg = status;
}

/* I/O that a step could not start, because the queue was full, the next step starts. */
static int wait_for(struct kit *kit, const int *status)
{
	uint32_t idle = 0;

	while (*status == 1 && idle < 3)
		idle = kit_step(kit) ? 0 : idle + 1;
	return *status == 1 ? -ETIMEDOUT : *status;
}

int kit_flush(struct kit *kit, bool last)
{
	const int r = nvme_log_flush(kit->log, last, ended, &kit->flushed);

	if (r)
		return r;
	kit->flushed = 1;
	return wait_for(kit, &kit->flushed);
}

static void spare_written(struct io_op *op)
{
	(void)op;
}

void kit_write_spare(struct kit *kit)
{
	kit_run(kit);
	if (kit->sim.n_lent > 0) /* the power is off */
		return;
	memset(kit->buffer, 0xff, NVME_PAGE);
	kit->spare = (struct io_op){ .kind = IO_WRITE,
				     .buffer = kit->buffer,
				     .bytes = NVME_PAGE,
				     .offset = nvme_log_spare(kit->log),
				     .done = spare_written };
	if (!kit->sim.medium.submit(&kit->sim.medium, &kit->spare))
		while (kit->spare.state != IO_IDLE && disk_sim_step(&kit->sim))
			;
}

int kit_purge(struct kit *kit, uint32_t tenant)
{
	uint8_t owner[32];
	int r;

	kit_owner(tenant, owner);
	for (uint32_t i = 0; i < KIT_BLOCKS; i++)
		if (i % KIT_TENANTS == tenant)
			kit_forget(kit, i);
	r = nvme_log_purge(kit->log, owner, ended, &kit->purged);
	if (r)
		return r;
	kit->purged = 1;
	return wait_for(kit, &kit->purged);
}

/* Live bytes are exact where nothing was forgotten, and where nothing is left. */
void kit_check(struct kit *kit)
{
	uint64_t blocks = 0, have_blocks = 0, have_bytes = 0;

	for (uint32_t i = 0; i < KIT_BLOCKS; i++) {
		const struct kit_block *block = &kit->block[i];

		if (block->location == NVME_NOWHERE || nvme_log_stale(kit->log, block->location))
			continue;
		blocks++;
	}
	for (uint32_t i = 0; i < kit->log->n_segments; i++) {
		have_blocks += kit->log->heat[i].blocks;
		have_bytes += kit->log->heat[i].bytes;
		assert(!kit->log->heat[i].blocks == !kit->log->heat[i].bytes);
	}
	assert(have_blocks == blocks);
	assert(nvme_log_facts(kit->log)->live_records == blocks &&
	       nvme_log_facts(kit->log)->live_bytes == have_bytes);
}

uint64_t kit_table_bytes(struct kit *kit)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < KIT_BLOCKS; i++)
		if (kit->block[i].location != NVME_NOWHERE &&
		    !nvme_log_stale(kit->log, kit->block[i].location))
			bytes += nvme_round_page(kit_image(i, kit->expected)) +
				 nvme_location_tag_page(kit->block[i].location) * NVME_PAGE;
	return bytes;
}
