/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_nvme.c - the admin commands that read and write NVMe, or have it done: disks, verify, flush,
 * purge. Core thread only; see ctl_commands.h.
 *
 * The work goes on by itself; next() only looks how far it is, and end() lets go of it: a scrub
 * stops with its asker, a flush and a purge go on and tell nobody.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tiers/nvme/nvme.h"
#include "daemon/store/purge.h"
#include "ctl_commands.h"
#include "daemon/base/log.h"
#include "daemon/nvme/scrub.h"
#include "daemon/nvme/flush.h"

enum { BAD_ROWS = 64 }; /* in one packet: at most some 300 bytes each */

/* Nothing is ready: says how far it is when the asker has not heard of it for a while. */
static enum ctl_progress not_yet(struct kvtierd *d, struct ctl_request *request, struct json *json,
				 uint64_t done, uint64_t total)
{
	const uint64_t now_ns = loop_now(d->loop);

	if (request->told_ns == 0)
		request->told_ns = request->started_ns;
	if (now_ns - request->told_ns < CTL_PROGRESS_MS * 1000000ull - CTL_WAIT_MS * 1000000ull)
		return CTL_WAIT;
	request->told_ns = now_ns;
	json_print(json, "{\"done\":%" PRIu64 ",\"total\":%" PRIu64 ",\"unit\":\"blocks\"}\n", done,
		   total);
	return CTL_TELL;
}

static uint64_t elapsed_ms(const struct kvtierd *d, const struct ctl_request *request)
{
	return (loop_now(d->loop) - request->started_ns) / 1000000;
}

/* --- disks --- */

int disks_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	return ctl_no_arguments(d, request, sentence, n);
}

static bool disk_row(struct kvtierd *d, uint32_t position, struct json *json, bool *ret_end)
{
	struct nvme_disk_row found, *row = &found;

	*ret_end =
		!d->store.tiers[TIER_NVME] || !nvme_row(d->store.tiers[TIER_NVME], position, row);
	if (*ret_end)
		return false;
	json_print(json, "{");
#define DISKS_COLUMN(title, name, kind, value) CTL_##kind(json, name, value);
#include "tbl_lists.h"
	json_print(json, "}");
	return true;
}

enum ctl_progress disks_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	return ctl_list(d, request, json, "disks", disk_row);
}

/* --- verify --- */

int verify_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	const struct scrub_conf conf = {
		.store = &d->store,
		.loop = d->loop,
		.devices = &d->devices,
		.image_bytes = d->config->host_slab_bytes,
		.running = &d->scrub,
	};
	int r;

	request->repair = request->n_words == 2 && strcmp(request->words[1], "--scrub") == 0;
	if (request->n_words > 1 && !request->repair) {
		snprintf(sentence, n, "verify takes --scrub or nothing");
		return -EINVAL;
	}
	r = scrub_start(&conf, request->repair, &request->scrub);
	if (r == -EBUSY)
		snprintf(sentence, n, "another verify is under way; try again when it is done");
	else if (r < 0)
		snprintf(sentence, n, "verify cannot start: %s", strerror(-r));
	return r < 0 ? -EINVAL : 0;
}

static const char *tenant_of(const struct kvtierd *d, uint32_t number)
{
	const struct space *space = d->store.spaces ? space_at(d->store.spaces, number) : NULL;

	return space ? space->tenant : "";
}

static void bad_row(struct kvtierd *d, const struct scrub_bad *row, struct json *json)
{
	json_print(json, "{");
#define BAD_COLUMN(title, name, kind, value) CTL_##kind(json, name, value);
#include "tbl_lists.h"
	json_print(json, "}");
}

/* {"bad":[...],"checked_blocks":...}: the list comes first, as the sums are known at the end
 * only. */
enum ctl_progress verify_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	struct scrub_report report;
	struct scrub_bad bad;
	int rows = 0;

	/* before the rows: a block found bad in between is in the next packet, not lost */
	scrub_report(request->scrub, &report);
	while (rows < BAD_ROWS && scrub_next_bad(request->scrub, &bad)) {
		json_print(json, request->rows++ == 0 ? "{\"bad\":[\n" : ",\n");
		bad_row(d, &bad, json);
		rows++;
	}
	if (rows > 0) {
		/* the next packet tells: it starts the deadlines anew, rows do not */
		request->told_ns = 0;
		return CTL_MORE;
	}
	if (!report.done)
		return not_yet(d, request, json, report.walked_blocks, report.total_blocks);
	log_info("verified %" PRIu64 " blocks as asked by the operator: %" PRIu64 " bad, %" PRIu64
		 " dropped",
		 report.checked_blocks, report.bad_blocks, report.dropped_blocks);
	json_print(json,
		   "%s],\"checked_blocks\":%" PRIu64 ",\"checked_bytes\":%" PRIu64
		   ",\"skipped_blocks\":%" PRIu64 ",\"bad_blocks\":%" PRIu64
		   ",\"dropped_blocks\":%" PRIu64 ",\"dropped\":%s,\"ms\":%" PRIu64 "}\n",
		   request->rows == 0 ? "{\"bad\":[" : "", report.checked_blocks,
		   report.checked_bytes, report.skipped_blocks, report.bad_blocks,
		   report.dropped_blocks,
		   report.bad_blocks > 0 && report.dropped_blocks == report.bad_blocks ? "true" :
											 "false",
		   elapsed_ms(d, request));
	return CTL_LAST;
}

void verify_end(struct kvtierd *d, struct ctl_request *request)
{
	(void)d;
	scrub_end(request->scrub);
}

/* --- flush --- */

static void flushed(void *arg, int status)
{
	struct ctl_request *request = arg;

	request->finished = true;
	request->status = status;
}

int flush_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	int r = ctl_no_arguments(d, request, sentence, n);

	if (r < 0)
		return r;
	r = flush_begin(d->flush, false, flushed, request);
	if (r == -EBUSY)
		snprintf(sentence, n, "another flush is under way; try again when it is done");
	else if (r == -ENODEV)
		snprintf(sentence, n,
			 "there is no NVMe tier to flush to; see [nvme] bytes, kvtierctl status");
	else if (r < 0)
		snprintf(sentence, n, "flush cannot start: %s; see kvtierctl disks", strerror(-r));
	return r < 0 ? -EINVAL : 0;
}

/* How many blocks still wait, as of the last heartbeat. */
static enum ctl_progress flush_wait(struct kvtierd *d, struct ctl_request *request,
				    struct json *json)
{
	const uint64_t left = !d->stats ? 0 : stats_get(&d->stats->v.tiers_nvme_queued_blocks);

	if (left > request->blocks)
		request->blocks = left;
	return not_yet(d, request, json, request->blocks - left, request->blocks);
}

enum ctl_progress flush_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	if (!request->finished)
		return flush_wait(d, request, json);
	if (request->status == 0) {
		json_print(json, "{\"flushed\":true,\"ms\":%" PRIu64 "}\n", elapsed_ms(d, request));
		return CTL_LAST;
	}
	if (request->status == -EDQUOT)
		json_print(
			json,
			"not all could be written: nothing moved for a while; the write budget may "
			"be used up (tiers.nvme.budget_percent), see [nvme] "
			"write_budget_bytes_per_day");
	else
		json_print(json, "not all could be written: %s; see kvtierctl disks",
			   strerror(-request->status));
	return CTL_FAIL;
}

void flush_end(struct kvtierd *d, struct ctl_request *request)
{
	if (!request->finished)
		flush_cancel(d->flush, request);
}

/* --- purge --- */

static void purged(void *arg, int status, uint64_t blocks)
{
	struct ctl_request *request = arg;

	request->finished = true;
	request->status = status;
	request->blocks = blocks;
}

int purge_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	int r;

	if (request->n_words != 3 || strcmp(request->words[1], "--tenant") != 0 ||
	    request->words[2][0] == '\0' ||
	    strlen(request->words[2]) >= sizeof(((struct space *)0)->tenant)) {
		snprintf(sentence, n, "purge takes --tenant and a name of 1 to %zu bytes",
			 sizeof(((struct space *)0)->tenant) - 1);
		return -EINVAL;
	}
	r = purge_begin(d->purge, request->words[2], purged, request);
	if (r == -EBUSY)
		snprintf(sentence, n, "another purge is under way; try again when it is done");
	else if (r < 0)
		snprintf(sentence, n, "purge cannot start: %s", strerror(-r));
	return r < 0 ? -EINVAL : 0;
}

enum ctl_progress purge_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	if (!request->finished)
		return not_yet(d, request, json, 0, 0);
	if (request->status < 0) {
		json_print(json,
			   "%" PRIu64
			   " blocks are gone, but a disk could not be told (%s): what it holds of "
			   "this tenant could come back with a restart; see kvtierctl disks, and "
			   "purge again",
			   request->blocks, strerror(-request->status));
		return CTL_FAIL;
	}
	json_print(json, "{\"tenant\":");
	json_string(json, request->words[2]);
	json_print(json, ",\"purged_blocks\":%" PRIu64 ",\"ms\":%" PRIu64 "}\n", request->blocks,
		   elapsed_ms(d, request));
	return CTL_LAST;
}

void purge_end(struct kvtierd *d, struct ctl_request *request)
{
	if (!request->finished)
		purge_cancel(d->purge, request);
}
