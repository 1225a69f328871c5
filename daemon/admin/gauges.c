/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gauges.c - see gauges.h. Core thread only.
 */
#include "gauges.h"

#include <stdio.h>
#include <string.h>

#include "tiers/host/host.h"
#include "tiers/nvme/nvme.h"
#include "tiers/redis/redis.h"
#include "daemon/store/admit.h"
#include "daemon/front/server.h"
#include "daemon/kvtierd.h"
#include "daemon/store/hints.h"
#include "daemon/nvme/nvme_up.h"

/* The default store could not be made or opened, as against: it is there and fails. */
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
	stats_health_set(d->stats, STATS_HEALTH_NVME_LARGER, s->larger);
	stats_health_set(d->stats, STATS_HEALTH_NVME_BUDGET,
			 s->budget_percent < ADMIT_PLENTY_PERCENT);
	stats_nvme_text(d->stats, s->engine, s->text);
}

static void gauges_of_log(struct stats_values *v, const struct nvme_counters *log)
{
	const uint64_t asked = log->appended_bytes;

	stats_set(&v->tiers_nvme_moved_blocks_total, log->carried_records);
	stats_set(&v->tiers_nvme_carried_bytes_total, log->carried_bytes);
	stats_set(&v->tiers_nvme_device_written_bytes_total, log->written_bytes);
	stats_set(&v->tiers_nvme_device_read_bytes_total, log->read_bytes);
	stats_set(&v->tiers_nvme_write_amplification_percent,
		  asked ? log->written_bytes * 100 / asked : 100);
	stats_set(&v->tiers_nvme_read_errors_total, log->read_errors);
	stats_set(&v->tiers_nvme_write_errors_total, log->write_errors);
	stats_set(&v->tiers_nvme_stale_reads_total, log->stale_reads);
	stats_set(&v->tiers_nvme_recovered_blocks, log->recovered_records);
	stats_set(&v->tiers_nvme_recovery_bytes, log->recovery_bytes);
}

static void nvme_gauges(struct kvtierd *d)
{
	struct stats_values *v = &d->stats->v;
	const struct tier *t = d->store.tiers[TIER_NVME];
	struct nvme_tier_status s;
	uint64_t *const residency[NVME_RESIDENCY_BUCKETS] = {
		&v->tiers_nvme_residency_up_to_1m_blocks_total,
		&v->tiers_nvme_residency_up_to_10m_blocks_total,
		&v->tiers_nvme_residency_up_to_1h_blocks_total,
		&v->tiers_nvme_residency_up_to_6h_blocks_total,
		&v->tiers_nvme_residency_up_to_1d_blocks_total,
		&v->tiers_nvme_residency_up_to_7d_blocks_total,
		&v->tiers_nvme_residency_up_to_30d_blocks_total,
		&v->tiers_nvme_residency_longer_blocks_total,
	};

	if (!t)
		return;
	nvme_status(t, &s);
	stats_set(&v->tiers_nvme_devices, s.disks);
	stats_set(&v->tiers_nvme_usable_devices, s.usable);
	stats_set(&v->tiers_nvme_budget_percent, s.budget_percent);
	stats_set(&v->tiers_nvme_stalls_total, s.stalls_total);
	stats_set(&v->tiers_nvme_recovery_ms, s.recovery_ns / 1000000);
	gauges_of_log(v, &s.log);
	for (int i = 0; i < NVME_RESIDENCY_BUCKETS; i++)
		stats_set(residency[i], s.residency[i]);
	health(d, t, &s);
}

static void gauges_of_endpoints(struct stats_values *v, const struct redis_counters *c)
{
	stats_set(&v->tiers_redis_forged_blocks_total, c->forged_total);
	stats_set(&v->tiers_redis_other_form_blocks_total, c->other_forms_total);
	stats_set(&v->tiers_redis_deleted_blocks_total, c->deleted_total);
	stats_set(&v->tiers_redis_timeouts_total, c->timeouts_total);
	stats_set(&v->tiers_redis_resets_total, c->resets_total);
	stats_set(&v->tiers_redis_errors_total, c->errors_total);
	stats_set(&v->tiers_redis_refused_stores_total, c->refused_stores_total);
	stats_set(&v->tiers_redis_redirects_total, c->redirects_total);
	stats_set(&v->tiers_redis_refused_hosts_total, c->refused_hosts_total);
	stats_set(&v->tiers_redis_topology_changes_total, c->topology_total);
	stats_set(&v->tiers_redis_late_replies_total, c->late_total);
	stats_set(&v->tiers_redis_protocol_errors_total, c->protocol_errors_total);
	stats_set(&v->tiers_redis_breaker_opens_total, c->breaker_opens_total);
	stats_set(&v->tiers_redis_reconnects_total, c->reconnects_total);
}

static void redis_gauges(struct kvtierd *d)
{
	struct stats_values *v = &d->stats->v;
	const struct tier *t = d->store.tiers[TIER_REDIS];
	struct redis_tier_status s;
	enum tier_state state;

	if (!t)
		return;
	redis_status(t, &s);
	state = tier_state(t);
	stats_set(&v->tiers_redis_endpoints, s.endpoints);
	stats_set(&v->tiers_redis_usable_endpoints, s.usable);
	gauges_of_endpoints(v, &s.counters);
	stats_health_set(d->stats, STATS_HEALTH_REDIS_MISCONFIGURED, state == TIER_MISCONFIGURED);
	stats_health_set(d->stats, STATS_HEALTH_REDIS_OFFLINE, state == TIER_OFFLINE);
	stats_health_set(d->stats, STATS_HEALTH_REDIS_READONLY, state == TIER_READONLY);
	stats_health_set(d->stats, STATS_HEALTH_REDIS_DEGRADED, state == TIER_DEGRADED);
	stats_health_set(d->stats, STATS_HEALTH_REDIS_CORRUPT,
			 s.counters.corrupt_total > 0 ||
				 stats_get(&v->tiers_redis_corrupt_blocks_total) > 0);
	stats_health_set(d->stats, STATS_HEALTH_REDIS_FORGED, s.counters.forged_total > 0);
	stats_redis_text(d->stats, s.text);
}

/* A daemon without GPUs says so by itself, or was told to have none. */
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
	struct stats_values *v = &d->stats->v;
	struct device_note sum = { 0 }, note;
	uint32_t used = 0, failed = 0;
	char text[STATS_TEXT_BYTES] = "", unpinned[STATS_TEXT_BYTES] = "";
	bool sliced = false, refused = false;

	for (uint32_t i = 1; i < d->devices.n; i++) {
		device_note(d->devices.all[i], &note);
		if (note.pin_why[0] != '\0')
			snprintf(unpinned, sizeof(unpinned), "GPU %u: %s", i - 1, note.pin_why);
		used += note.regions > 0;
		failed += note.failed;
		refused |= note.images_refused;
		if ((note.failed || note.images_refused) && text[0] == '\0')
			snprintf(text, sizeof(text), "GPU %u (%s): %.150s", i - 1, note.name,
				 note.why);
		sum.regions += note.regions;
		sum.bytes += note.bytes;
		sum.lent_bytes += note.lent_bytes;
		sum.context_bytes += note.context_bytes;
		sliced |= note.regions > note.lent_regions && !note.mps;
		sum.copied_out_bytes_total += note.copied_out_bytes_total;
		sum.copied_in_bytes_total += note.copied_in_bytes_total;
		sum.batches_total += note.batches_total;
		sum.pinned_bytes += note.pinned_bytes;
		sum.direct_out_bytes_total += note.direct_out_bytes_total;
		sum.direct_in_bytes_total += note.direct_in_bytes_total;
		sum.bounced_out_bytes_total += note.bounced_out_bytes_total;
		sum.bounced_in_bytes_total += note.bounced_in_bytes_total;
		sum.lost_total += note.lost_total;
	}
	stats_set(&v->gpu_devices, d->devices.n ? d->devices.n - 1 : 0);
	stats_set(&v->gpu_used_devices, used);
	stats_set(&v->gpu_failed_devices, failed);
	stats_set(&v->gpu_regions, sum.regions);
	stats_set(&v->gpu_own_bytes, sum.bytes);
	stats_set(&v->gpu_lent_bytes, sum.lent_bytes);
	stats_set(&v->gpu_context_bytes, sum.context_bytes);
	stats_set(&v->gpu_copied_out_bytes_total, sum.copied_out_bytes_total);
	stats_set(&v->gpu_copied_in_bytes_total, sum.copied_in_bytes_total);
	stats_set(&v->gpu_batches_total, sum.batches_total);
	stats_set(&v->tiers_host_pinned_bytes, sum.pinned_bytes);
	stats_set(&v->gpu_direct_out_bytes_total, sum.direct_out_bytes_total);
	stats_set(&v->gpu_direct_in_bytes_total, sum.direct_in_bytes_total);
	stats_set(&v->gpu_bounced_out_bytes_total, sum.bounced_out_bytes_total);
	stats_set(&v->gpu_bounced_in_bytes_total, sum.bounced_in_bytes_total);
	stats_set(&v->gpu_lost_total, sum.lost_total);
	stats_health_set(d->stats, STATS_HEALTH_GPU_FAILED, failed > 0);
	stats_health_set(d->stats, STATS_HEALTH_GPU_UNUSED, d->devices.gpu_unused);
	stats_health_set(d->stats, STATS_HEALTH_GPU_TIER, refused);
	stats_health_set(d->stats, STATS_HEALTH_GPU_TIME_SLICED, sliced);
	stats_health_set(d->stats, STATS_HEALTH_HOST_NOT_PINNED, unpinned[0] != '\0');
	if (text[0] == '\0' && d->devices.gpu_unused)
		snprintf(text, sizeof(text), "%.199s", d->devices.gpu_note);
	staged_gauges(d, text, sizeof(text));
	stats_gpu_text(d->stats, text[0] ? text : unpinned);
}

static void space_gauges(struct kvtierd *d)
{
	struct stats_values *v = &d->stats->v;
	struct spaces_count n;

	spaces_count(d->store.spaces, &n);
	stats_set(&v->spaces, n.in_use);
	stats_set(&v->spaces_recycled_total, n.recycled);
	stats_health_set(d->stats, STATS_HEALTH_SPACES_RECYCLED, n.recycling);
}

static void op_gauges(struct stats *stats)
{
	struct stats_values *v = &stats->v;

	stats_set(&v->load_ops_total, histogram_total(&stats->load_times));
	stats_set(&v->load_p50_us, histogram_percentile(&stats->load_times, 50) / 1000);
	stats_set(&v->load_p99_us, histogram_percentile(&stats->load_times, 99) / 1000);
	stats_set(&v->store_ops_total, histogram_total(&stats->store_times));
	stats_set(&v->store_p50_us, histogram_percentile(&stats->store_times, 50) / 1000);
	stats_set(&v->store_p99_us, histogram_percentile(&stats->store_times, 99) / 1000);
}

/* The gauges that every tier has. */
static void tier_gauges(struct kvtierd *d)
{
	for (uint32_t i = 0; i < TIER_COUNT; i++) {
		const struct tier *t = d->store.tiers[i];
		struct stats_tier *v = stats_tier(d->stats, i);

		if (!t)
			continue;
		stats_set(&v->state, STATS_TIER_STATE_BASE + (uint64_t)tier_state(t));
		stats_set(&v->capacity_bytes, t->capacity_bytes);
		stats_set(&v->used_bytes, t->used_bytes);
		stats_set(&v->blocks, blocks_copies(d->store.blocks, (enum tier_id)i));
	}
}

void gauges_sync(struct kvtierd *d)
{
	struct stats_values *v = &d->stats->v;
	const struct tier *host = store_host(&d->store);

	tier_gauges(d);
	stats_health_set(d->stats, STATS_HEALTH_NUMA, host_astray_bytes(host) > 0);
	stats_set(&v->tiers_host_evicted_blocks_total, d->store.mover.counts.evicted_blocks);
	stats_set(&v->tiers_host_demoted_blocks_total, d->store.mover.counts.demoted_blocks);
	stats_set(&v->tiers_host_moved_blocks_total, d->store.mover.counts.moved_blocks);
	stats_set(&v->index_entries, index_entries(d->store.index));
	stats_set(&v->index_bytes, index_memory(d->store.index));
	stats_set(&v->index_crowded_blocks_total, index_crowded(d->store.index));
	space_gauges(d);
	hints_gauges(d->store.hints);
	op_gauges(d->stats);
	stats_health_set(d->stats, STATS_HEALTH_HOST_STARTING, tier_state(host) == TIER_STARTING);
	stats_health_set(d->stats, STATS_HEALTH_NVME_STARTING, nvme_up_starting(d));
	stats_health_set(d->stats, STATS_HEALTH_HOST_OFFLINE, tier_state(host) == TIER_OFFLINE);
	nvme_gauges(d);
	redis_gauges(d);
	gpu_gauges(d);
}
