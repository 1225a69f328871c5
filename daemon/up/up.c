/* SPDX-License-Identifier: Apache-2.0 */
/*
 * up.c - brings the NVMe and the Redis tier up, and takes them down. Contract: up.h. Core thread
 * only.
 *
 * The Redis tier closes before the outbox: closing it ends the outbox's last transfers, which give
 * back leases and slots.
 */
#include "up.h"

#include <stdio.h>
#include <string.h>

#include "base/list.h"
#include "base/log.h"
#include "daemon/config/config.h"
#include "daemon/config/config_value.h"
#include "daemon/kvtierd.h"
#include "daemon/move/copies.h"
#include "daemon/verify/foresee.h"
#include "daemon/verify/verify.h"
#include "daemon/write/outbox.h"
#include "daemon/write/writeback.h"
#include "tiers/nvme/nvme.h"
#include "tiers/redis/redis.h"

/* --- NVMe --- */

enum { MAX_WRITES = 256 }; /* blocks leased for writing at once */

static enum io_engine_choice engine_of(uint32_t io)
{
	switch (io) {
	case CONFIG_NVME_IO_URING:
		return IO_ENGINE_URING;
	case CONFIG_NVME_IO_THREADS:
		return IO_ENGINE_THREADS;
	default:
		return IO_ENGINE_AUTO;
	}
}

/* A read that stalled is over: the slot it kept is ours again. */
static void on_release(void *arg, const struct extent *home)
{
	struct kvtierd *d = container_of(arg, struct kvtierd, tables);

	if (home->tier < TIER_COUNT)
		extents_free(&d->tables, home);
	else
		verify_release(d->verify, home);
}

static void on_changed(void *arg)
{
	const struct tables *tables = arg;

	if (tables->writeback)
		writeback_kick(tables->writeback);
}

int nvme_up(struct kvtierd *d, char *text, size_t n)
{
	const struct config *c = d->config;
	char paths[NVME_TIER_PATHS][CONFIG_PATH_BYTES];
	const char *cursor = c->nvme_path;
	struct nvme_tier_conf nvme = {
		.bytes = c->nvme_bytes,
		.segment_bytes = (uint32_t)c->nvme_segment_bytes,
		.read_depth = c->nvme_queue_depth,
		.write_depth = (c->nvme_queue_depth + 1) / 2,
		.write_budget_bytes_per_day = c->nvme_write_budget_bytes_per_day,
		.stall_ns = (uint64_t)c->nvme_stall_us * 1000,
		.compress = c->nvme_compress == CONFIG_COMPRESS_AUTO,
		.engine = engine_of(c->nvme_io),
		.host = tables_host(&d->tables),
	};
	const struct tier_conf conf = { .nvme = &nvme };
	struct tier **tier = &d->tables.tiers[TIER_NVME];
	uint32_t writes;
	int r;

	if (c->nvme_bytes == 0)
		return 0;
	while (nvme.n_paths < NVME_TIER_PATHS &&
	       config_next_item(&cursor, ":", paths[nvme.n_paths])) {
		nvme.paths[nvme.n_paths] = paths[nvme.n_paths];
		nvme.n_paths++;
	}
	copies_events(&d->tables, &nvme.events);
	nvme.events.release = on_release;
	nvme.events.changed = on_changed;
	writes = 2 * nvme.n_paths * nvme.write_depth;
	r = tier_open(TIER_NVME, &conf, d->loop, tier, text, n);
	if (r)
		return r;
	(*tier)->store_times = &d->stats->v.tiers_nvme_store_duration_ns;
	r = writeback_open(&(struct writeback_conf){ .tables = &d->tables,
						     .tier = *tier,
						     .loop = d->loop,
						     .writes = writes < MAX_WRITES ? writes :
										     MAX_WRITES,
						     .stop_us = (uint32_t)c->daemon_stop_us },
			   &d->tables.writeback);
	if (r == 0)
		r = foresee_open(&d->tables, d->loop, &d->devices, &c->hints_prefetch_lead);
	if (r)
		snprintf(text, n, "out of memory for the queues of the NVMe tier");
	return r;
}

bool nvme_up_starting(const struct kvtierd *d)
{
	const struct tier *nvme = d->tables.tiers[TIER_NVME];

	return nvme && tier_state(nvme) == TIER_STARTING;
}

struct find {
	struct kvtierd *d;
	struct loop_timer timer;
	uint64_t until_ns;
};

static void on_find(struct loop_timer *timer)
{
	struct find *find = container_of(timer, struct find, timer);
	const uint64_t now = loop_now(find->d->loop);

	if (!nvme_up_starting(find->d) || now >= find->until_ns)
		loop_stop(find->d->loop);
	else
		loop_timer_set(find->d->loop, timer, now + 1000000);
}

static void tell(struct kvtierd *d)
{
	const struct tier *nvme = d->tables.tiers[TIER_NVME];
	struct nvme_tier_status s;

	if (!nvme)
		return;
	nvme_status(nvme, &s);
	log_info("nvme_up",
		 "NVMe tier %s: %u of %u disks, %llu MiB, engine %s; %u blocks found in %llu ms by "
		 "reading %llu KiB",
		 tier_state_name(tier_state(nvme)), s.usable, s.disks,
		 (unsigned long long)(s.capacity_bytes >> 20), s.engine,
		 blocks_copies(d->tables.blocks, TIER_NVME),
		 (unsigned long long)(s.recovery_ns / 1000000),
		 (unsigned long long)(s.log.recovery_bytes >> 10));
	if (s.text[0])
		log_warning("nvme_note", "NVMe: %s", s.text);
}

int nvme_up_find(struct kvtierd *d, uint64_t patience_ns)
{
	struct find find = { .d = d,
			     .timer.fire = on_find,
			     .until_ns = loop_now(d->loop) + patience_ns };
	int r = 0;

	loop_timer_set(d->loop, &find.timer, loop_now(d->loop));
	if (nvme_up_starting(d))
		r = loop_run(d->loop);
	loop_timer_unset(d->loop, &find.timer);
	if (r == 0)
		tell(d);
	return r;
}

bool nvme_up_idle(const struct kvtierd *d)
{
	return tier_idle(d->tables.tiers[TIER_NVME]) && foresee_idle(d->tables.foresee) &&
	       writeback_in_flight(d->tables.writeback) == 0;
}

bool nvme_up_moving(const struct kvtierd *d)
{
	if (nvme_up_idle(d) || nvme_up_starting(d))
		return false;
	return tier_state(d->tables.tiers[TIER_NVME]) != TIER_OFFLINE;
}

void nvme_down(struct kvtierd *d)
{
	struct tier **tier = &d->tables.tiers[TIER_NVME];

	foresee_close(d->tables.foresee);
	writeback_close(d->tables.writeback);
	d->tables.writeback = NULL;
	tier_close(*tier);
	*tier = NULL;
}

/* --- Redis --- */

int redis_up(struct kvtierd *d, struct redis_tier_conf *options, char *text, size_t n)
{
	const struct tier_conf conf = { .redis = options };
	struct tier **redis = &d->tables.tiers[TIER_REDIS];
	int r;

	if (options->n_endpoints == 0)
		return 0;
	/* one xfer a part of an op, and the writes */
	options->max_in_flight = config_device_depth() + OUTBOX_WRITES;
	r = tier_open(TIER_REDIS, &conf, d->loop, redis, text, n);
	if (r)
		return r;
	(*redis)->times = &d->stats->v.tiers_redis_request_ns;
	(*redis)->store_times = &d->stats->v.tiers_redis_store_duration_ns;
	r = outbox_open(&d->tables, *redis, d->loop, d->config, &d->tables.outbox);
	if (r) {
		(void)snprintf(text, n, "out of memory for what is to be written to Redis");
		return r;
	}
	d->tables.mover.inherit = outbox_inherit;
	d->tables.mover.disinherit = outbox_disinherit;
	d->tables.mover.heir = d->tables.outbox;
	return 0;
}

void redis_down(struct kvtierd *d)
{
	struct tier **redis = &d->tables.tiers[TIER_REDIS];

	d->tables.mover.inherit = NULL;
	d->tables.mover.disinherit = NULL;
	outbox_stop(d->tables.outbox);
	tier_close(*redis);
	*redis = NULL;
	outbox_close(d->tables.outbox);
	d->tables.outbox = NULL;
}
