/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_account.c - the log's books: its memory, which records live in which segment, how long they
 * lived there, how much may be written. Contract: nvme_account.h, nvme_log.h; invariants L2 and L5:
 * nvme_log_inner.h. Core thread only.
 */
#include "nvme_account.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/vault.h"

/* --- memory --- */

void *nvme_reserve(struct nvme_log *log, uint64_t bytes)
{
	void *ret = aligned_alloc(NVME_PAGE, nvme_round_page(bytes));

	if (!ret)
		return NULL;
	memset(ret, 0, nvme_round_page(bytes));
	vault_hide(ret, nvme_round_page(bytes)); /* images go through some of it */
	log->memory += nvme_round_page(bytes);
	return ret;
}

/* --- locations --- */

uint64_t nvme_location_make(const struct nvme_log *log, uint32_t segment,
			    const struct nvme_entry *entry)
{
	return nvme_location_pack(log->conf.disk, entry->tag_page != 0, segment, entry->page,
				  log->segments[segment].generation);
}

bool nvme_log_stale(const struct nvme_log *log, uint64_t location)
{
	const uint32_t segment = nvme_location_segment(location);

	return nvme_location_disk(location) != log->conf.disk || segment >= log->n_segments ||
	       log->segments[segment].generation != nvme_location_generation(location);
}

/* --- where live records are --- */

void nvme_account(struct nvme_log *log, uint32_t segment, const struct nvme_entry *entry,
		  uint64_t tick)
{
	const uint32_t bytes = (uint32_t)nvme_record_bytes(entry);

	log->heat[segment].blocks++;
	log->heat[segment].tick_sum += tick;
	log->segments[segment].live_bytes += bytes;
	log->live_bytes += bytes;
	log->live_records++;
}

static void clear(struct nvme_log *log, uint32_t segment)
{
	log->live_bytes -= log->segments[segment].live_bytes;
	log->live_records -= log->heat[segment].blocks;
	log->segments[segment].live_bytes = 0;
	log->heat[segment] = (struct nvme_heat){ 0 };
}

void nvme_segment_release(struct nvme_log *log, uint32_t segment)
{
	struct nvme_segment *s = &log->segments[segment];

	assert(s->state == SEGMENT_SEALED || s->state == SEGMENT_DRAINING);
	s->state = SEGMENT_FREE;
	s->generation = s->generation + 1 < NVME_GENERATIONS ? s->generation + 1 : 1;
	s->entries = 0;
	clear(log, segment);
	log->clean++;
}

void nvme_log_forget(struct nvme_log *log, uint64_t location, uint64_t tick)
{
	const uint32_t segment = nvme_location_segment(location);
	struct nvme_segment *s;
	struct nvme_heat *heat;
	uint32_t bytes;

	if (nvme_log_stale(log, location))
		return;
	s = &log->segments[segment];
	heat = &log->heat[segment];
	assert(heat->blocks > 0 && heat->tick_sum >= tick);
	bytes = s->live_bytes / heat->blocks;
	heat->blocks--;
	heat->tick_sum -= tick;
	s->live_bytes -= bytes;
	log->live_bytes -= bytes;
	log->live_records--;
	if (s->state == SEGMENT_SEALED && !heat->blocks && log->state == NVME_UP)
		nvme_segment_release(log, segment);
}

void nvme_log_touch(struct nvme_log *log, uint64_t location, uint64_t tick, uint64_t now_tick)
{
	if (nvme_log_stale(log, location))
		return;
	log->heat[nvme_location_segment(location)].tick_sum += now_tick - tick;
}

void nvme_count_dropped(struct nvme_log *log, uint32_t segment)
{
	static const uint32_t up_to_s[NVME_RESIDENCY_BUCKETS - 1] = { 60,    600,    3600,   21600,
								      86400, 604800, 2592000 };
	const uint64_t age_ns = log->medium->now_ns(log->medium) - log->segments[segment].full_ns;
	uint32_t bucket = 0;

	while (bucket < NVME_RESIDENCY_BUCKETS - 1 && age_ns > up_to_s[bucket] * 1000000000ull)
		bucket++;
	log->counters.residency[bucket]++;
	log->counters.dropped_records++;
}

/* --- write budget: a bucket of bytes that fills with time --- */

/* The bucket holds the budget of an hour, and at least so many segments. */
enum { BUCKET_SEGMENTS = 2 };

#define DAY_NS 86400e9

static double bucket_bytes(const struct nvme_log *log)
{
	const double hour = (double)log->conf.write_budget_bytes_per_day / 24;
	const double least = (double)BUCKET_SEGMENTS * log->segment_bytes;

	return hour > least ? hour : least;
}

/* The bucket's bytes at `now`. It starts full, unless a header tells (nvme_budget_recall()). */
static double bucket_level(const struct nvme_log *log, uint64_t now)
{
	const double per_day = (double)log->conf.write_budget_bytes_per_day,
		     full = bucket_bytes(log);
	const double level = log->tokens + (double)(now - log->tokens_ns) * per_day / DAY_NS;

	return !log->tokens_ns || level > full ? full : level;
}

bool nvme_budget_allows(struct nvme_log *log, uint64_t bytes)
{
	const uint64_t now = log->medium->now_ns(log->medium);

	if (!log->conf.write_budget_bytes_per_day)
		return true;
	log->tokens = bucket_level(log, now);
	log->tokens_ns = now ? now : 1;
	return log->tokens >= (double)bytes;
}

void nvme_budget_tell(const struct nvme_log *log, struct nvme_budget *ret)
{
	*ret = (struct nvme_budget){ 0 };
	if (!log->conf.write_budget_bytes_per_day)
		return;
	ret->level_bytes = (int64_t)bucket_level(log, log->medium->now_ns(log->medium));
	ret->at_s = log->medium->wall_s(log->medium);
}

void nvme_budget_recall(struct nvme_log *log, const struct nvme_budget *budget)
{
	const double per_day = (double)log->conf.write_budget_bytes_per_day,
		     full = bucket_bytes(log);
	const uint64_t wall = log->medium->wall_s(log->medium),
		       now = log->medium->now_ns(log->medium);
	double level = (double)budget->level_bytes;

	if (!log->conf.write_budget_bytes_per_day || !budget->at_s)
		return;
	if (wall > budget->at_s)
		level += (double)(wall - budget->at_s) * 1e9 / DAY_NS * per_day;
	/* a disk's word: no debt lasts longer than a day */
	log->tokens = level > full ? full : level < -per_day ? -per_day : level;
	log->tokens_ns = now ? now : 1;
}

void nvme_budget_pay(struct nvme_log *log, uint64_t bytes)
{
	log->tokens -= (double)bytes;
}

/* The level may go below zero: later appends pay for footers and carry-over. */
void nvme_charge(struct nvme_log *log, uint64_t bytes)
{
	log->counters.written_bytes += bytes;
	nvme_budget_pay(log, bytes);
}

uint32_t nvme_log_budget_percent(const struct nvme_log *log)
{
	double level;

	if (!log->conf.write_budget_bytes_per_day || !log->segment_bytes)
		return 100;
	level = bucket_level(log, log->medium->now_ns(log->medium)) / bucket_bytes(log) * 100;
	return level > 0 ? (uint32_t)level : 0;
}
