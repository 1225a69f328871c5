/* SPDX-License-Identifier: Apache-2.0 */
#include "base/list.h"
#include "lib_clock.h"
#include "lib_nvme_tier.h"
#include "lib_scratch.h"

#include <assert.h>

enum { PATIENCE = 30, ITERATION_NS = 1000000, IDLE_MS = 250 };

/* --- the table --- */

static uint32_t number_of(const struct nvme_entry *entry)
{
	const uint32_t number = kit_number(entry);

	assert(number < SITE_BLOCKS);
	return number;
}

static bool is_at(const struct site *site, uint32_t number, const struct extent *where)
{
	return site->block[number].there &&
	       !memcmp(&site->block[number].where, where, sizeof(*where));
}

static bool on_found(void *arg, const struct nvme_entry *entry, const struct extent *where)
{
	const uint32_t number = number_of(entry);
	struct site *site = arg;

	assert(nvme_extent_location(where) != NVME_NOWHERE &&
	       nvme_extent_location(where) < 1ull << 56);
	if (site->block[number].there)
		return false;
	site->block[number].there = true;
	site->block[number].where = *where;
	site->block[number].tick = entry->tick;
	site->tick = entry->tick > site->tick ? entry->tick : site->tick;
	site->blocks++;
	site->found++;
	return true;
}

static bool on_ask(void *arg, const struct nvme_entry *entry, const struct extent *where,
		   uint64_t *ret_tick)
{
	const uint32_t number = number_of(entry);
	struct site *site = arg;

	*ret_tick = site->block[number].tick;
	return is_at(site, number, where);
}

static bool on_moved(void *arg, const struct nvme_entry *entry, const struct extent *from,
		     const struct extent *to, uint64_t *ret_tick)
{
	const uint32_t number = number_of(entry);
	struct site *site = arg;

	if (!is_at(site, number, from))
		return false;
	site->block[number].where = *to;
	*ret_tick = site->block[number].tick;
	site->moved++;
	return true;
}

static void on_dropped(void *arg, const struct nvme_entry *entry, const struct extent *where)
{
	const uint32_t number = number_of(entry);
	struct site *site = arg;

	if (!is_at(site, number, where))
		return;
	site->block[number].there = false;
	site->blocks--;
	site->dropped++;
}

static void on_release(void *arg, const struct extent *home)
{
	struct site *site = arg;

	assert(home->slot < SITE_SLOTS && site->slot[home->slot].busy &&
	       site->slot[home->slot].dones == 1);
	site->slot[home->slot].busy = false;
	site->released++;
}

static void on_changed(void *arg)
{
	((struct site *)arg)->changed++;
}

/* --- from outside --- */

void site_peek(const char *path, uint64_t offset, void *ret, size_t n)
{
	FILE *f = fopen(path, "r");

	assert(f && !fseek(f, (long)offset, SEEK_SET));
	assert(fread(ret, 1, n, f) == n);
	(void)fclose(f);
}

void site_poke(const char *path, uint64_t offset, const void *bytes, size_t n)
{
	FILE *f = fopen(path, "r+");

	assert(f && !fseek(f, (long)offset, SEEK_SET));
	assert(fwrite(bytes, 1, n, f) == n);
	assert(!fclose(f));
}

uint64_t site_place(const struct site *site, uint32_t block)
{
	const uint64_t location = nvme_extent_location(&site->block[block].where);

	return nvme_segment_offset(nvme_location_segment(location), KIT_SEGMENT) +
	       (uint64_t)nvme_location_page(location) * NVME_PAGE;
}

/* --- start and stop --- */

void site_open(struct site *site, enum io_engine_choice engine, uint32_t n_paths)
{
	memset(site, 0, sizeof(*site));
	/* Not /tmp, which may be a tmpfs without O_DIRECT. */
	scratch_make(scratch_parent("/var/tmp"), site->dir, sizeof(site->dir));
	assert(!loop_open(0, &site->loop));
	site->memory = aligned_alloc(NVME_PAGE, SITE_SLOTS * KIT_IMAGE_MAX);
	site->expected = aligned_alloc(NVME_PAGE, KIT_IMAGE_MAX);
	assert(site->memory && site->expected);
	for (uint32_t i = 0; i < SITE_SLOTS; i++) {
		site->slot[i].bytes = site->memory + (size_t)i * KIT_IMAGE_MAX;
		site->slot[i].site = site;
	}
	site->conf = (struct nvme_tier_conf){
		.n_paths = n_paths,
		.bytes = SITE_BYTES,
		.segment_bytes = KIT_SEGMENT,
		.read_depth = 4,
		.write_depth = 4,
		.stall_ns = SITE_STALL_MS * 1000000ull,
		.engine = engine,
		.events = { .arg = site,
			    .found = on_found,
			    .ask = on_ask,
			    .moved = on_moved,
			    .dropped = on_dropped,
			    .release = on_release,
			    .changed = on_changed },
	};
	for (uint32_t i = 0; i < n_paths; i++) {
		(void)snprintf(site->path[i], sizeof(site->path[i]), "%s/store%u", site->dir, i);
		site->conf.paths[i] = site->path[i];
	}
}

void site_close(struct site *site)
{
	if (site->tier)
		site_stop(site, false);
	loop_close(site->loop);
	scratch_remove(site->dir);
	free(site->memory);
	free(site->expected);
}

static bool has_started(struct site *site)
{
	return tier_state(site->tier) != TIER_STARTING;
}

void site_start(struct site *site)
{
	struct tier_conf conf = { .nvme = &site->conf };

	memset(site->block, 0, sizeof(site->block));
	site->blocks = site->found = site->dropped = site->moved = 0;
	assert_int_equal(tier_open(TIER_NVME, &conf, site->loop, &site->tier, site->text,
				   sizeof(site->text)),
			 0);
	assert_true(site_settle(site, has_started));
}

void site_open_filled(struct site *site, enum io_engine_choice engine, uint32_t n)
{
	site_open(site, engine, 1);
	site_start(site);
	assert(tier_state(site->tier) == TIER_UP);
	site_store_range(site, 0, n);
}

bool site_is_idle(struct site *site)
{
	return tier_idle(site->tier);
}

void site_stop(struct site *site, bool flush)
{
	if (flush)
		assert_int_equal(site_flush(site, true), 0);
	assert_true(site_settle(site, site_is_idle));
	tier_close(site->tier);
	site->tier = NULL;
}

static void pause_over(struct loop_timer *timer)
{
	loop_stop((container_of(timer, struct site, pause))->loop);
}

void site_iterate(struct site *site)
{
	if (site->tier && tier_idle(site->tier))
		clock_pass_ms(IDLE_MS);
	site->pause.fire = pause_over;
	loop_timer_set(site->loop, &site->pause, loop_now(site->loop) + ITERATION_NS);
	assert(!loop_run(site->loop));
}

bool site_settle(struct site *site, bool (*is)(struct site *site))
{
	const time_t end = time(NULL) + PATIENCE;

	while (!is(site)) {
		if (time(NULL) > end)
			return false;
		site_iterate(site);
	}
	return true;
}

bool site_until_state(struct site *site, enum tier_state state)
{
	const time_t end = time(NULL) + PATIENCE;

	while (tier_state(site->tier) != state && time(NULL) <= end)
		site_iterate(site);
	return tier_state(site->tier) == state;
}

/* --- blocks --- */

static void slot_done(struct xfer *x)
{
	struct site_slot *slot = (struct site_slot *)(void *)x;
	struct site *site = slot->site;

	slot->dones++;
	slot->busy = x->kept;
	if (x->op != XFER_WRITE || x->status)
		return;
	assert(x->where.tier == TIER_NVME && x->where.unit < site->conf.n_paths);
	site->block[slot->block].there = true;
	site->block[slot->block].where = x->where;
	site->block[slot->block].tick = x->record.tick;
	site->blocks++;
}

static struct site_slot *take_slot(struct site *site, uint32_t block, enum xfer_op op)
{
	for (uint32_t i = 0; i < SITE_SLOTS; i++) {
		struct site_slot *slot = &site->slot[i];

		if (slot->busy)
			continue;
		slot->block = block;
		slot->dones = 0;
		memset(&slot->x, 0, sizeof(slot->x));
		slot->x.op = op;
		slot->x.buffer = slot->bytes;
		slot->x.bytes = kit_image(block, site->expected);
		slot->x.home = (struct extent){ .tier = TIER_HOST, .slot = i, .generation = 1 };
		slot->x.done = slot_done;
		return slot;
	}
	return NULL;
}

struct site_slot *site_try(struct site *site, enum xfer_op op, uint32_t block, int *ret)
{
	struct site_slot *slot = take_slot(site, block, op);

	assert(slot);
	if (op == XFER_WRITE) {
		(void)kit_image(block, slot->bytes);
		kit_owner(block, slot->x.record.owner);
		if (block > 0)
			kit_key(block - 1, slot->x.record.parent);
		slot->x.record.tick = ++site->tick;
	} else {
		assert(site->block[block].there);
		memset(slot->bytes, 0xee, KIT_IMAGE_MAX);
		memset(slot->x.record.parent, 0xee, 32);
		slot->x.where = site->block[block].where;
	}
	*ret = tier_submit(site->tier, &slot->x);
	slot->busy = !*ret;
	return *ret ? NULL : slot;
}

struct site_slot *site_begin(struct site *site, enum xfer_op op, uint32_t block)
{
	int r;
	struct site_slot *slot = site_try(site, op, block, &r);

	assert_non_null(slot);
	return slot;
}

int site_refused(struct site *site, enum xfer_op op, uint32_t block)
{
	int r;

	assert_null(site_try(site, op, block, &r));
	return r;
}

int site_wait(struct site *site, const struct site_slot *slot)
{
	const time_t end = time(NULL) + PATIENCE;

	assert_non_null(slot);
	while (!slot->dones && time(NULL) <= end)
		site_iterate(site);
	assert_int_equal(slot->dones, 1);
	return slot->x.status;
}

int site_store(struct site *site, uint32_t block)
{
	const time_t end = time(NULL) + PATIENCE;
	struct site_slot *slot;
	int r;

	while (!(slot = site_try(site, XFER_WRITE, block, &r)) && r == -EAGAIN && time(NULL) <= end)
		site_iterate(site);
	return slot ? site_wait(site, slot) : r;
}

void site_forget(struct site *site, uint32_t block)
{
	if (!site->block[block].there)
		return;
	tier_forget(site->tier, &site->block[block].where, site->block[block].tick);
	site->block[block].there = false;
	site->blocks--;
}

int site_load(struct site *site, uint32_t block)
{
	struct site_slot *slot;
	int r;

	if (!site->block[block].there)
		return -ENOENT;
	slot = site_try(site, XFER_READ, block, &r);
	if (slot)
		r = site_wait(site, slot);
	if (!r)
		r = kit_image_check(slot->bytes, block, site->expected);
	if (r == -EBADMSG || r == -ESTALE)
		site_forget(site, block);
	return r;
}

uint32_t site_load_all(struct site *site)
{
	uint32_t whole = 0;

	for (uint32_t i = 0; i < SITE_BLOCKS; i++)
		whole += site->block[i].there && !site_load(site, i);
	return whole;
}

void site_store_range(struct site *site, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		assert_int_equal(site_store(site, i), 0);
}

void site_ended(void *arg, int status)
{
	((struct site *)arg)->ended = status;
}

bool site_has_ended(struct site *site)
{
	return site->ended != 1;
}

static int wait_end(struct site *site, int r)
{
	if (r)
		return r;
	assert_int_equal(site->ended, 1); /* not inside the call */
	assert_true(site_settle(site, site_has_ended));
	return site->ended;
}

int site_purge(struct site *site, uint32_t tenant)
{
	uint8_t owner[32];

	kit_owner(tenant, owner);
	for (uint32_t i = tenant; i < SITE_BLOCKS; i += KIT_TENANTS)
		site_forget(site, i);
	site->ended = 1;
	return wait_end(site, tier_purge(site->tier, owner, site_ended, site));
}

int site_flush(struct site *site, bool last)
{
	site->ended = 1;
	return wait_end(site, tier_flush(site->tier, last, site_ended, site));
}

struct nvme_disk_row site_disk(const struct site *site, uint32_t i)
{
	struct nvme_disk_row row;

	assert_true(nvme_row(site->tier, i, &row));
	return row;
}

struct nvme_tier_status site_status(const struct site *site)
{
	struct nvme_tier_status status;

	nvme_status(site->tier, &status);
	return status;
}
