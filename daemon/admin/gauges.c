/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gauges.c - see gauges.h. Core thread only.
 */
#include "gauges.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "tiers/host/host.h"
#include "tiers/nvme/nvme.h"
#include "tiers/redis/redis.h"
#include "daemon/write/writeback.h"
#include "daemon/conn/server.h"
#include "daemon/kvtierd.h"
#include "daemon/move/hints.h"
#include "daemon/policy/reuse.h"
#include "daemon/up/up.h"

/* The default store could not be made or opened. Otherwise it is there and fails. */
static bool never_was(const struct tier *t)
{
	struct nvme_disk_row row;

	return nvme_row(t, 0, &row) && row.for_good;
}

static void health(struct kvtierd *d, const struct tier *t, const struct nvme_tier_status *s)
{
	const enum tier_state state = tier_state(t);
	const bool off = state == TIER_OFFLINE && !s->quarantined;
	/* nobody asked for it */
	const bool spare = off && d->config->nvme_path_derived && never_was(t);

	stats_health_set(d->stats, STATS_HEALTH_NVME_QUARANTINED, s->quarantined);
	stats_health_set(d->stats, STATS_HEALTH_NVME_UNAVAILABLE, spare);
	stats_health_set(d->stats, STATS_HEALTH_NVME_OFFLINE, off && !spare);
	stats_health_set(d->stats, STATS_HEALTH_NVME_DEGRADED,
			 state == TIER_DEGRADED || state == TIER_READONLY);
	stats_health_set(d->stats, STATS_HEALTH_NVME_THREADS,
			 d->config->nvme_io == CONFIG_NVME_IO_AUTO && strstr(s->engine, "threads"));
	if (s->larger && (stats_get(&d->stats->health) >> STATS_HEALTH_NVME_LARGER & 1) == 0)
		log_warning("nvme_larger",
			    "a store is larger than [nvme] bytes = %" PRIu64
			    ", and stays so: see kvtierctl disks; correct bytes, or make the store "
			    "anew by kvtierctl format",
			    d->config->nvme_bytes);
	stats_health_set(d->stats, STATS_HEALTH_NVME_LARGER, s->larger);
	stats_health_set(d->stats, STATS_HEALTH_NVME_BUDGET,
			 s->budget_percent < ADMIT_PLENTY_PERCENT);
	stats_text_set(d->stats->nvme_engine, STATS_NAME_BYTES, s->engine);
	stats_text_set(d->stats->nvme_text, STATS_TEXT_BYTES, s->text);
}

/* A number of the stats page that is a field of another struct, or the sum of that field over an
 * array. */
struct copied {
	size_t to, from; /* in struct stats_values, and in the other struct */
};
#define COPIED(TYPE, to, from)                                                 \
	{                                                                      \
		offsetof(struct stats_values, to), offsetof(struct TYPE, from) \
	}
#define COPY(v, rows, from, n) \
	copy(v, rows, sizeof(rows) / sizeof((rows)[0]), from, sizeof((from)[0]), n)

static void copy(struct stats_values *v, const struct copied *rows, size_t n_rows, const void *from,
		 size_t bytes, size_t n)
{
	for (const struct copied *row = rows; row < rows + n_rows; row++) {
		uint64_t sum = 0;

		for (size_t i = 0; i < n; i++)
			sum += *(const uint64_t *)(const void *)((const char *)from + i * bytes +
								 row->from);
		stats_set((void *)((char *)v + row->to), sum);
	}
}

static void nvme_gauges(struct kvtierd *d)
{
	static const struct copied rows[] = {
		COPIED(nvme_counters, tiers_nvme_disk_written_bytes_total, written_bytes),
		COPIED(nvme_counters, tiers_nvme_read_errors_total, read_errors),
		COPIED(nvme_counters, tiers_nvme_write_errors_total, write_errors),
		COPIED(nvme_counters, tiers_nvme_coded_blocks_total, coded_records),
		COPIED(nvme_counters, tiers_nvme_recovered_blocks, recovered_records),
		COPIED(nvme_counters, tiers_nvme_recovery_bytes, recovery_bytes),
	};
	struct stats_values *v = &d->stats->v;
	const struct tier *t = d->tables.tiers[TIER_NVME];
	struct nvme_tier_status s;

	if (!t)
		return;
	nvme_status(t, &s);
	COPY(v, rows, &s.log, 1);
	stats_set(&v->tiers_nvme_disks, s.disks);
	stats_set(&v->tiers_nvme_usable_disks, s.usable);
	stats_set(&v->tiers_nvme_budget_percent, s.budget_percent);
	stats_set(&v->tiers_nvme_stalls_total, s.stalls_total);
	stats_set(&v->tiers_nvme_coding_full_blocks_total, s.coding_full);
	stats_set(&v->tiers_nvme_recovery_ms, s.recovery_ns / 1000000);
	stats_set(&v->tiers_nvme_write_amplification_percent,
		  s.log.appended_bytes ? s.log.written_bytes * 100 / s.log.appended_bytes : 100);
	stats_set(&v->tiers_nvme_residency_s,
		  s.log.dropped_records ? s.log.lived_s / s.log.dropped_records : 0);
	health(d, t, &s);
}

static void redis_gauges(struct kvtierd *d)
{
	static const struct copied rows[] = {
		COPIED(redis_counters, tiers_redis_coded_blocks_total, coded_total),
		COPIED(redis_counters, tiers_redis_coding_full_blocks_total, coding_full_total),
		COPIED(redis_counters, tiers_redis_saved_bytes_total, saved_bytes_total),
		COPIED(redis_counters, tiers_redis_forged_blocks_total, forged_total),
		COPIED(redis_counters, tiers_redis_other_form_blocks_total, other_forms_total),
		COPIED(redis_counters, tiers_redis_timeouts_total, timeouts_total),
		COPIED(redis_counters, tiers_redis_errors_total, errors_total),
		COPIED(redis_counters, tiers_redis_refused_stores_total, refused_stores_total),
		COPIED(redis_counters, tiers_redis_redirects_total, redirects_total),
		COPIED(redis_counters, tiers_redis_refused_hosts_total, refused_hosts_total),
		COPIED(redis_counters, tiers_redis_topology_changes_total, topology_total),
		COPIED(redis_counters, tiers_redis_protocol_errors_total, protocol_errors_total),
		COPIED(redis_counters, tiers_redis_breaker_opens_total, breaker_opens_total),
		COPIED(redis_counters, tiers_redis_reconnects_total, reconnects_total),
	};
	struct stats_values *v = &d->stats->v;
	const struct tier *t = d->tables.tiers[TIER_REDIS];
	struct redis_tier_status s;
	enum tier_state state;

	if (!t)
		return;
	redis_status(t, &s);
	state = tier_state(t);
	stats_set(&v->tiers_redis_endpoints, s.endpoints);
	stats_set(&v->tiers_redis_usable_endpoints, s.usable);
	COPY(v, rows, &s.counters, 1);
	stats_health_set(d->stats, STATS_HEALTH_REDIS_MISCONFIGURED, state == TIER_MISCONFIGURED);
	stats_health_set(d->stats, STATS_HEALTH_REDIS_OFFLINE, state == TIER_OFFLINE);
	stats_health_set(d->stats, STATS_HEALTH_REDIS_READONLY, state == TIER_READONLY);
	stats_health_set(d->stats, STATS_HEALTH_REDIS_DEGRADED, state == TIER_DEGRADED);
	stats_health_set(d->stats, STATS_HEALTH_REDIS_CORRUPT,
			 s.counters.corrupt_total > 0 ||
				 stats_get(&v->tiers_redis_corrupt_blocks_total) > 0);
	stats_health_set(d->stats, STATS_HEALTH_REDIS_FORGED, s.counters.forged_total > 0);
	stats_text_set(d->stats->redis_text, STATS_TEXT_BYTES, s.text);
}

/* Staged spaces are a reason for WARN only where GPUs are served: a daemon without GPUs was told to
 * have none, or reports that by itself. */
static void staged_gauges(struct kvtierd *d, char *text, size_t n)
{
	char why[STATS_TEXT_BYTES] = "";
	const uint32_t staged = d->server ? server_staged(d->server, why, sizeof(why)) : 0;
	const bool warn = staged > 0 && d->devices.n > 1;

	stats_set(&d->stats->v.gpu_staged_spaces, staged);
	stats_health_set(d->stats, STATS_HEALTH_GPU_STAGED, warn);
	if (warn && text[0] == '\0')
		snprintf(text, n, "%s", why);
}

static void gpu_gauges(struct kvtierd *d)
{
	static const struct copied rows[] = {
		COPIED(device_note, gpu_own_bytes, bytes),
		COPIED(device_note, gpu_copied_out_bytes_total, copied_out_bytes_total),
		COPIED(device_note, gpu_copied_in_bytes_total, copied_in_bytes_total),
		COPIED(device_note, gpu_lost_total, lost_total),
		COPIED(device_note, tiers_host_pinned_bytes, pinned_bytes),
	};
	static struct device_note notes[DEVICES_MAX];
	const uint32_t n = d->devices.n ? d->devices.n - 1 : 0;
	char text[STATS_TEXT_BYTES] = "", unpinned[STATS_TEXT_BYTES] = "";
	uint32_t failed = 0, regions = 0;
	bool sliced = false, refused = false;

	for (uint32_t i = 0; i < n; i++) {
		struct device_note *note = &notes[i];

		device_note(d->devices.all[1 + i], note);
		if (note->pin_why[0] != '\0')
			snprintf(unpinned, sizeof(unpinned), "GPU %u: %s", i, note->pin_why);
		failed += note->failed;
		refused |= note->images_refused;
		if ((note->failed || note->images_refused) && text[0] == '\0')
			snprintf(text, sizeof(text), "GPU %u (%s): %.150s", i, note->name,
				 note->why);
		regions += note->regions;
		sliced |= note->regions > 0 && !note->mps;
	}
	COPY(&d->stats->v, rows, notes, n);
	stats_set(&d->stats->v.gpu_devices, n);
	stats_set(&d->stats->v.gpu_failed_devices, failed);
	stats_set(&d->stats->v.gpu_regions, regions);
	stats_health_set(d->stats, STATS_HEALTH_GPU_FAILED, failed > 0);
	stats_health_set(d->stats, STATS_HEALTH_GPU_UNUSED, d->devices.gpu_unused);
	stats_health_set(d->stats, STATS_HEALTH_GPU_TIER, refused);
	stats_health_set(d->stats, STATS_HEALTH_GPU_TIME_SLICED, sliced);
	stats_health_set(d->stats, STATS_HEALTH_HOST_NOT_PINNED, unpinned[0] != '\0');
	if (text[0] == '\0' && d->devices.gpu_unused)
		snprintf(text, sizeof(text), "%.199s", d->devices.gpu_note);
	staged_gauges(d, text, sizeof(text));
	stats_text_set(d->stats->gpu_text, STATS_TEXT_BYTES, text[0] ? text : unpinned);
}

enum { SPACES_LOOKED_AT = 1024, MUCH_BETTER = 4 };

/* Whether an engine has a space open that would be much more exact in int8. The first spaces are
 * looked at, since this runs at each heartbeat. */
static bool int8_is_better(const struct spaces *spaces)
{
	for (uint32_t i = 0; i < spaces_numbers(spaces) && i < SPACES_LOOKED_AT; i++) {
		const struct space *space = space_at(spaces, i);

		if (space && space->opened > 0 && space_int8_gain(space) >= MUCH_BETTER)
			return true;
	}
	return false;
}

static void space_gauges(struct kvtierd *d)
{
	struct stats_values *v = &d->stats->v;
	struct spaces_count n;

	spaces_count(d->tables.spaces, &n);
	stats_set(&v->spaces, n.in_use);
	stats_set(&v->spaces_recycled_total, n.recycled);
	stats_health_set(d->stats, STATS_HEALTH_SPACES_RECYCLED, n.recycling);
	stats_health_set(d->stats, STATS_HEALTH_INT8_BETTER, int8_is_better(d->tables.spaces));
}

static void op_gauges(struct stats *stats)
{
	struct stats_values *v = &stats->v;

	stats_set(&v->load_ops_total, histogram_total(&v->load_duration_ns));
	stats_set(&v->load_p50_us, histogram_percentile(&v->load_duration_ns, 50) / 1000);
	stats_set(&v->load_p99_us, histogram_percentile(&v->load_duration_ns, 99) / 1000);
	stats_set(&v->store_ops_total, histogram_total(&v->store_duration_ns));
	stats_set(&v->store_p50_us, histogram_percentile(&v->store_duration_ns, 50) / 1000);
	stats_set(&v->store_p99_us, histogram_percentile(&v->store_duration_ns, 99) / 1000);
}

/* The gauges that each tier has, and those that each tier of this node has besides. */
static void tier_gauges(struct kvtierd *d)
{
	struct stats_values *v = &d->stats->v;
#define ROOM(t)                                                                                    \
	{                                                                                          \
		&v->tiers_##t##_capacity_bytes, &v->tiers_##t##_used_bytes, &v->tiers_##t##_blocks \
	}
	const struct {
		uint64_t *capacity, *used, *blocks;
	} rooms[TIER_COUNT] = {
		[TIER_GPU] = ROOM(gpu),
		[TIER_HOST] = ROOM(host),
		[TIER_NVME] = ROOM(nvme),
	};

	for (uint32_t i = 0; i < TIER_COUNT; i++) {
		const struct tier *t = d->tables.tiers[i];

		if (!t)
			continue;
		stats_set(&stats_tier(d->stats, i)->state,
			  STATS_TIER_STATE_BASE + (uint64_t)tier_state(t));
		if (!rooms[i].capacity)
			continue;
		stats_set(rooms[i].capacity, t->capacity_bytes);
		stats_set(rooms[i].used, t->used_bytes);
		stats_set(rooms[i].blocks, blocks_copies(d->tables.blocks, (enum tier_id)i));
	}
}

/* What host memory of other sizes would do, and how much is in use. */
static void reuse_gauges(struct kvtierd *d)
{
	static const uint32_t windows_s[] = { 15 * 60, 3600, 24 * 3600 };
	enum { WINDOWS = sizeof(windows_s) / sizeof(windows_s[0]) };
	const uint64_t bytes = tables_host(&d->tables)->capacity_bytes;
	struct stats_values *v = &d->stats->v;
	struct reuse *reuse = d->tables.reuse;
	uint64_t used[WINDOWS];

	if (!reuse)
		return;
	reuse_tick(reuse, bytes);
	stats_set(&v->reuse_sampled_keys, reuse_samples(reuse));
	stats_set(&v->reuse_keys_per_sample, reuse_scale(reuse));
	stats_set(&v->miss_ratio_half_ppm, reuse_miss_ppm(reuse, bytes / 2));
	stats_set(&v->miss_ratio_same_ppm, reuse_miss_ppm(reuse, bytes));
	stats_set(&v->miss_ratio_twice_ppm, reuse_miss_ppm(reuse, 2 * bytes));
	stats_set(&v->miss_ratio_four_times_ppm, reuse_miss_ppm(reuse, 4 * bytes));
	reuse_working_set(reuse, windows_s, WINDOWS, used);
	stats_set(&v->working_set_15m_bytes, used[0]);
	stats_set(&v->working_set_1h_bytes, used[1]);
	stats_set(&v->working_set_24h_bytes, used[2]);
}

/* All that was evicted and for no other reason was evicted to make room. */
static void evicted_gauges(struct stats_values *v, const struct mover_counts *counts)
{
	stats_set(&v->tiers_host_evicted_blocks_total, counts->evicted_blocks);
	stats_set(&v->evicted_host_room_blocks_total, counts->evicted_blocks -
							      v->evicted_host_index_blocks_total -
							      v->evicted_host_asked_blocks_total);
	stats_set(&v->evicted_gpu_room_blocks_total,
		  v->tiers_gpu_evicted_blocks_total - v->evicted_gpu_asked_blocks_total);
	stats_set(&v->evicted_nvme_room_blocks_total,
		  v->tiers_nvme_evicted_blocks_total - v->evicted_nvme_index_blocks_total);
}

/* Whether a new block costs an old one because of its number: some did, and all are in use. */
static bool numbers_evict(const struct kvtierd *d)
{
	const struct stats_values *v = &d->stats->v;

	return v->evicted_host_index_blocks_total + v->evicted_nvme_index_blocks_total > 0 &&
	       v->index_entries >= d->quota.all[QUOTA_blocks] / 64 * 63;
}

void gauges_sync(struct kvtierd *d)
{
	struct stats_values *v = &d->stats->v;
	const struct tier *host = tables_host(&d->tables);

	tier_gauges(d);
	stats_health_set(d->stats, STATS_HEALTH_NUMA, host_astray_bytes(host) > 0);
	evicted_gauges(v, &d->tables.mover.counts);
	stats_set(&v->tiers_host_demoted_blocks_total, d->tables.mover.counts.demoted_blocks);
	stats_set(&v->tiers_host_moved_blocks_total, d->tables.mover.counts.moved_blocks);
	stats_set(&v->index_entries, index_entries(d->tables.index));
	stats_set(&v->index_bytes, index_memory(d->tables.index));
	stats_set(&v->index_crowded_blocks_total, index_crowded(d->tables.index));
	stats_health_set(d->stats, STATS_HEALTH_INDEX_EVICTS, numbers_evict(d));
	space_gauges(d);
	hints_gauges(d->tables.hints);
	op_gauges(d->stats);
	reuse_gauges(d);
	stats_health_set(d->stats, STATS_HEALTH_HOST_STARTING, tier_state(host) == TIER_STARTING);
	stats_health_set(d->stats, STATS_HEALTH_NVME_STARTING, nvme_up_starting(d));
	stats_health_set(d->stats, STATS_HEALTH_HOST_OFFLINE, tier_state(host) == TIER_OFFLINE);
	nvme_gauges(d);
	redis_gauges(d);
	gpu_gauges(d);
}
