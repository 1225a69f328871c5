/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_log.c - the log: made and freed, carried on, asked. Contract: nvme_log.h; states and
 * invariants: nvme_log_inner.h. Core thread only.
 */
#include "nvme_log_inner.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvme_account.h"
#include "nvme_carry.h"
#include "nvme_recover.h"
#include "nvme_segment.h"

static void step(struct nvme_log *log)
{
	nvme_io_retry(log);
	if (log->state != NVME_UP)
		return;
	nvme_carry_step(log);
	nvme_segment_step(log);
}

void nvme_log_poll(struct nvme_log *log)
{
	step(log);
}

int nvme_log_new(const struct nvme_conf *conf, struct nvme_medium *medium,
		 const struct nvme_table *table, struct nvme_log **ret, char *text, size_t n)
{
	struct nvme_log *log;

	if (conf->disk >= NVME_MAX_DISKS) {
		(void)snprintf(text, n, "disk %u: at most %d", conf->disk, NVME_MAX_DISKS);
		return -EINVAL;
	}
	log = calloc(1, sizeof(*log));
	if (!log)
		return -ENOMEM;
	log->memory = sizeof(*log);
	log->conf = *conf;
	log->medium = medium;
	log->table = *table;
	log->step = step;
	log->ready = log->preparing = NVME_NONE;
	log->waiting_end = &log->waiting;
	log->super_write.pages = nvme_reserve(log, NVME_SUPER_COPIES * NVME_PAGE);
	log->prepare_page = nvme_reserve(log, NVME_PAGE);
	log->tag_pages = nvme_reserve(log, NVME_TAG_PAGES * NVME_PAGE);
	if (!log->super_write.pages || !log->prepare_page || !log->tag_pages) {
		nvme_log_free(log);
		return -ENOMEM;
	}
	*ret = log;
	return 0;
}

/* The largest image that an empty segment holds, tag page and footer included. */
static uint32_t image_limit(uint32_t segment_bytes)
{
	const uint32_t rest = segment_bytes - 2 * NVME_PAGE - nvme_footer_bytes(1);

	return rest < IMAGE_MAX_BYTES ? rest : IMAGE_MAX_BYTES;
}

int nvme_log_reserve(struct nvme_log *log)
{
	const uint32_t n = log->super.segments;
	uint32_t limit = image_limit(log->super.segment_bytes);
	bool good;

	log->n_segments = n;
	log->segment_bytes = log->super.segment_bytes;
	log->entries_max = nvme_entries_max(log->segment_bytes);
	log->footer_max = nvme_footer_bytes(log->entries_max);
	if (log->conf.max_image_bytes && log->conf.max_image_bytes < limit)
		limit = log->conf.max_image_bytes;
	log->image_max = limit;
	log->low = n / 64 < 2 ? 2 : n / 64 > 8 ? 8 : n / 64;
	log->segments = nvme_reserve(log, n * sizeof(*log->segments));
	log->heat = nvme_reserve(log, n * sizeof(*log->heat));
	log->scratch = nvme_reserve(log, n * sizeof(*log->scratch));
	log->carry.footer = nvme_reserve(log, log->footer_max);
	log->carry.candidates =
		nvme_reserve(log, log->entries_max * sizeof(*log->carry.candidates));
	log->carry.buffer = nvme_reserve(log, nvme_round_page(limit) + NVME_PAGE);
	good = log->segments && log->heat && log->scratch && log->carry.footer &&
	       log->carry.candidates && log->carry.buffer;
	for (uint32_t i = 0; i < NVME_FILLS; i++) {
		log->fill[i].footer = nvme_reserve(log, log->footer_max);
		good = good && log->fill[i].footer;
	}
	if (!good)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		log->segments[i].generation = 1;
	log->clean = n;
	return 0;
}

void nvme_log_free(struct nvme_log *log)
{
	if (!log)
		return;
	assert(!nvme_log_busy(log));
	nvme_recovery_free(log);
	free(log->super_write.pages);
	free(log->prepare_page);
	free(log->tag_pages);
	free(log->segments);
	free(log->heat);
	free(log->scratch);
	free(log->carry.footer);
	free(log->carry.candidates);
	free(log->carry.buffer);
	for (uint32_t i = 0; i < NVME_FILLS; i++)
		free(log->fill[i].footer);
	free(log);
}

bool nvme_log_busy(const struct nvme_log *log)
{
	return log->lent > 0;
}

bool nvme_log_waits(const struct nvme_log *log)
{
	if (log->lent) /* each completion takes a step */
		return false;
	return log->waiting || log->flush.stage != FLUSH_IDLE || log->carry.state != CARRY_IDLE ||
	       (log->state == NVME_UP && log->ready == NVME_NONE && log->clean > 0) ||
	       log->state == NVME_STARTING;
}

void nvme_log_pause(struct nvme_log *log, bool paused)
{
	log->paused = paused;
}

/* --- answers for others --- */

enum nvme_log_state nvme_log_state(const struct nvme_log *log)
{
	return log->state;
}

const char *nvme_log_text(const struct nvme_log *log)
{
	return log->text;
}

void nvme_log_counters(const struct nvme_log *log, struct nvme_counters *ret)
{
	*ret = log->counters;
}

uint64_t nvme_log_capacity(const struct nvme_log *log)
{
	return (uint64_t)log->n_segments * log->segment_bytes;
}

uint32_t nvme_log_segment_bytes(const struct nvme_log *log)
{
	return log->segment_bytes;
}

uint64_t nvme_log_live_bytes(const struct nvme_log *log)
{
	return log->live_bytes;
}

uint64_t nvme_log_live_records(const struct nvme_log *log)
{
	return log->live_records;
}

uint64_t nvme_log_memory(const struct nvme_log *log)
{
	return log->memory;
}
