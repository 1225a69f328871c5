/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_commands.c - the commands of the admin socket, without the rows of lists. Contract:
 * ctl_commands.h. Core thread only. No function here blocks or allocates memory.
 *
 * The work of verify, flush, drain and purge goes on by itself; next() looks how far it is. When
 * the asker leaves, a verify stops; a flush and a purge go on, and their end is reported to no
 * asker. A drain stays "draining" then, until it is asked for again.
 */
#include "ctl_commands.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "client/abi/tbl_hints.h"
#include "tbl_lists.h"
#include "daemon/config/config_value.h"
#include "daemon/move/gpu_cache.h"
#include "daemon/move/lesser.h"
#include "daemon/move/hints.h"
#include "daemon/move/purge.h"
#include "daemon/op/hint.h"
#include "daemon/op/op.h"
#include "daemon/table/space.h"
#include "daemon/verify/verify.h"
#include "daemon/write/outbox.h"
#include "daemon/write/writeback.h"

enum {
	EVICT_STEPS = 32, /* blocks evicted between two looks at the clock */
	/* the reply comes after this time, complete or not: well before the asker gives up */
	EVICT_MS = 3000,
	ROWS_PER_ITERATION = 128, /* rows of a list that one call of next() looks at */
	LIST_BYTES = 16 << 10,    /* of a list: a call writes no more rows behind them: 0.4 ms */
};

/* Whether the option takes a value, by the command's arguments. `end` is behind it there. */
static bool takes_value(const char *end)
{
	return *end == ' ' && isalpha((unsigned char)end[1]);
}

/* The first word that may be an option: one after the action, if the command has one. */
static size_t first_option(const struct ctl_request *request)
{
	const char *arguments = request->command->arguments;

	return isupper((unsigned char)arguments[arguments[0] == '[']) ? 2 : 1;
}

/* Refuses a word that the command's arguments in tbl_ctl.h do not name, and an option without
 * its value. The first word of a command whose arguments begin with ACTION or [LEVEL] is the
 * command's to check. */
static int check_words(const struct ctl_request *request, char *sentence, size_t n)
{
	const char *arguments = request->command->arguments;
	char shown[64];

	for (size_t i = first_option(request); i < request->n_words; i++) {
		const char *word = request->words[i], *end = strstr(arguments, word);

		if (end)
			end += strlen(word);
		if (!end || strncmp(word, "--", 2) != 0 || !strchr(" ]", *end))
			return text_fail(sentence, n, -EINVAL, "%s takes no \"%s\"; it takes %s",
					 request->command->name,
					 log_escape(word, shown, sizeof(shown)), arguments);
		if (takes_value(end) && ++i == request->n_words)
			return text_fail(sentence, n, -EINVAL, "%s: %s needs a value",
					 request->command->name, word);
	}
	return 0;
}

/* An option's value, or "" if it takes none; NULL: it is not there. The words are checked; a value
 * may look like an option. */
static const char *option(const struct ctl_request *request, const char *name)
{
	for (size_t i = first_option(request); i < request->n_words; i++) {
		const char *word = request->words[i];
		const bool value =
			takes_value(strstr(request->command->arguments, word) + strlen(word));

		if (strcmp(word, name) == 0)
			return value ? request->words[i + 1] : "";
		i += value;
	}
	return NULL;
}

/* The option's value, a number of these bounds, or `otherwise` if it is not given. False: the value
 * is no such number. */
static bool option_number(const struct ctl_request *request, const char *name, int64_t least,
			  int64_t most, int64_t otherwise, int64_t *ret)
{
	const char *text = option(request, name);
	char *end = NULL;

	*ret = otherwise;
	if (!text)
		return true;
	errno = 0;
	*ret = strtoll(text, &end, 10);
	return end != text && *end == '\0' && errno == 0 && *ret >= least && *ret <= most;
}

/* --- the lists, by the rows of ctl_lists.c --- */

/* Writes whole rows, as many as take the core thread well below a millisecond. */
static enum ctl_progress list_next(struct kvtierd *d, struct ctl_request *request,
				   struct json *json)
{
	enum list_row row = LIST_NO_ROW;

	if (request->position == 0)
		json_print(json, "{\"%s\":[", request->command->name);
	for (int i = 0; i < ROWS_PER_ITERATION && json->used < LIST_BYTES; i++) {
		const size_t before = json->used;

		json_print(json, request->rows > 0 ? ",\n{" : "{");
		row = request->command->row(d, request->position, json);
		json_print(json, "}");
		if (row == LIST_ROW && !json->full) {
			request->rows++;
		} else {
			const bool full = json->full;

			json_rewind(json, before);
			if (full) /* the row is for the next packet */
				return CTL_MORE;
		}
		if (row == LIST_END)
			break;
		request->position++;
	}
	if (row != LIST_END)
		return json->used > 0 ? CTL_MORE : CTL_LATER;
	json_print(json, "]}\n");
	if (!json->full)
		return CTL_LAST;
	json_rewind(json, json->used);
	return CTL_MORE;
}

/* --- evict --- */

int evict_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	const char *tier = option(request, "--tier"), *bytes = option(request, "--bytes");

	request->of_gpus = tier && strcmp(tier, "gpu") == 0;
	request->wanted_bytes = UINT64_MAX;
	if (tier && !request->of_gpus && strcmp(tier, "host") != 0)
		return text_fail(sentence, n, -EINVAL, "evict --tier takes host or gpu");
	if (!option(request, "--all") == !bytes ||
	    (bytes && !config_bytes(bytes, &request->wanted_bytes)))
		return text_fail(
			sentence, n, -EINVAL,
			"evict takes either --all, or --bytes and a number above 0, such as "
			"1000000, 512M or 2GiB");
	if (!tables_host(&d->tables) || !d->tables.blocks)
		return text_fail(sentence, n, -ENODEV, "there is no host tier to evict from");
	if (request->of_gpus && !d->tables.gpu_cache)
		return text_fail(sentence, n, -ENODEV,
				 "no images are kept on GPUs: [gpu] bytes = 0, or no GPU");
	return 0;
}

/* Evicts some blocks. Returns the bytes that they took. */
static uint64_t evict_some(struct kvtierd *d, struct ctl_request *request)
{
	const struct mover_counts before = d->tables.mover.counts;
	struct stats_values *v = &d->stats->v;
	const uint64_t wanted = request->wanted_bytes - request->freed_bytes;
	uint64_t freed, blocks = 0;

	if (request->of_gpus) {
		freed = gpu_cache_evict(d->tables.gpu_cache, wanted, EVICT_STEPS, &blocks);
		request->evicted.evicted_blocks += blocks;
		stats_add(&v->evicted_gpu_asked_blocks_total, blocks);
		return freed;
	}
	freed = mover_evict_bytes(tables_host(&d->tables), d->tables.blocks, wanted, EVICT_STEPS,
				  &d->tables.mover);
	blocks = d->tables.mover.counts.evicted_blocks - before.evicted_blocks;
	request->evicted.evicted_blocks += blocks;
	stats_add(&v->evicted_host_asked_blocks_total, blocks);
	request->evicted.demoted_blocks +=
		d->tables.mover.counts.demoted_blocks - before.demoted_blocks;
	return freed;
}

enum ctl_progress evict_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	uint64_t freed;
	bool complete;

	do {
		freed = evict_some(d, request);
		request->freed_bytes += freed;
		/* --all is complete when no block is left that may be evicted */
		complete = request->freed_bytes >= request->wanted_bytes ||
			   (freed == 0 && request->wanted_bytes == UINT64_MAX);
	} while (freed > 0 && !complete && !loop_tired(d->loop));
	if (freed > 0 && !complete &&
	    loop_now(d->loop) - request->started_ns < EVICT_MS * 1000000ull)
		return CTL_LATER;
	log_info("evict", "evicted %" PRIu64 " blocks, %" PRIu64 " bytes, as asked by the operator",
		 request->evicted.evicted_blocks, request->freed_bytes);
	json_print(json,
		   "{\"evicted_blocks\":%" PRIu64 ",\"demoted_blocks\":%" PRIu64
		   ",\"freed_bytes\":%" PRIu64 ",\"complete\":%s}\n",
		   request->evicted.evicted_blocks, request->evicted.demoted_blocks,
		   request->freed_bytes, complete ? "true" : "false");
	return CTL_LAST;
}

enum { BAD_ROWS = 64 }; /* in one packet: at most some 300 bytes each */

/* The work has not ended: tells the asker how far it is, unless it heard of that a moment ago. */
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

/* --- verify --- */

int verify_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	const struct verify_conf conf = {
		.tables = &d->tables,
		.loop = d->loop,
		.devices = &d->devices,
		.image_bytes = d->config->host_slab_bytes,
		.running = &d->verify,
	};
	int r;

	request->drop = option(request, "--drop") != NULL;
	r = verify_begin(&conf, request->drop, &request->verify);
	if (r == -EBUSY)
		snprintf(sentence, n, "another verify is under way; try again when it is done");
	else if (r < 0)
		snprintf(sentence, n, "verify cannot start: %s", strerror(-r));
	return r;
}

static const char *tenant_of(const struct kvtierd *d, uint32_t number)
{
	const struct space *space = d->tables.spaces ? space_at(d->tables.spaces, number) : NULL;

	return space ? space->tenant : "";
}

static void bad_row(struct kvtierd *d, const struct verify_bad *row, struct json *json)
{
	json_print(json, "{");
	bad_COLUMNS(CTL_MEMBER);
	json_print(json, "}");
}

/* {"bad":[...],"checked_blocks":...}: the list comes first, as the sums are known at the end
 * only. */
enum ctl_progress verify_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	struct verify_report report;
	struct verify_bad bad;
	int rows = 0;

	/* taken before the rows: a block that is found bad in between comes with the next packet */
	verify_report(request->verify, &report);
	while (rows < BAD_ROWS && verify_next_bad(request->verify, &bad)) {
		json_print(json, request->rows++ == 0 ? "{\"bad\":[\n" : ",\n");
		bad_row(d, &bad, json);
		rows++;
	}
	if (rows > 0) {
		/* the next packet says how far it is: unlike rows it starts the deadlines anew */
		request->told_ns = 0;
		return CTL_MORE;
	}
	if (!report.done)
		return not_yet(d, request, json, report.walked_blocks, report.total_blocks);
	log_info("verify",
		 "verified %" PRIu64 " blocks as asked by the operator: %" PRIu64 " bad, %" PRIu64
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
	verify_cancel(request->verify);
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
	const int r = writeback_flush(d->tables.writeback, false, flushed, request);

	if (r == -EBUSY)
		snprintf(sentence, n, "another flush is under way; try again when it is done");
	else if (r == -ENODEV)
		snprintf(sentence, n,
			 "there is no NVMe tier to flush to; see [nvme] bytes, kvtierctl status");
	else if (r < 0)
		snprintf(sentence, n, "flush cannot start: %s; see kvtierctl disks", strerror(-r));
	return r;
}

/* Blocks that wait for NVMe, as of the last heartbeat. */
static uint64_t flush_left(const struct kvtierd *d)
{
	return !d->stats ? 0 : stats_get(&d->stats->v.tiers_nvme_queued_blocks);
}

/* So many blocks still wait. */
static enum ctl_progress flush_wait(struct kvtierd *d, struct ctl_request *request,
				    struct json *json, uint64_t left)
{
	if (left > request->blocks)
		request->blocks = left;
	return not_yet(d, request, json, request->blocks - left, request->blocks);
}

static enum ctl_progress flush_failed(struct json *json, int status)
{
	if (status == -EDQUOT)
		json_print(
			json,
			"not all could be written: nothing moved for a while; the write budget may "
			"be used up (tiers.nvme.budget_percent), see [nvme] "
			"write_budget_bytes_per_day");
	else
		json_print(json, "not all could be written: %s; see kvtierctl disks",
			   strerror(-status));
	return CTL_FAIL;
}

enum ctl_progress flush_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	if (!request->finished)
		return flush_wait(d, request, json, flush_left(d));
	if (request->status < 0)
		return flush_failed(json, request->status);
	json_print(json, "{\"flushed\":true,\"ms\":%" PRIu64 "}\n", elapsed_ms(d, request));
	return CTL_LAST;
}

void flush_end(struct kvtierd *d, struct ctl_request *request)
{
	if (!request->finished)
		writeback_flush_cancel(d->tables.writeback, request);
}

/* --- drain: no store begins, those under way end, then what they left is written --- */

enum { DRAIN_S = 60, DRAIN_MAX_S = 3600 };

static void set_draining(struct kvtierd *d, bool draining, bool drained)
{
	d->tables.draining = draining;
	stats_health_set(d->stats, STATS_HEALTH_DRAINING, draining && !drained);
	stats_health_set(d->stats, STATS_HEALTH_DRAINED, drained);
}

int drain_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	int64_t seconds;

	if (!option_number(request, "--timeout", 1, DRAIN_MAX_S, DRAIN_S, &seconds))
		return text_fail(sentence, n, -EINVAL, "drain --timeout takes 1 to %d seconds",
				 DRAIN_MAX_S);
	if (!d->ops)
		return text_fail(sentence, n, -EBUSY, "drain: the daemon is still starting");
	request->limit_ns = request->started_ns + (uint64_t)seconds * 1000000000u;
	if (!d->tables.draining)
		log_info("drain", "no block is stored from now on, as asked by the operator");
	set_draining(d, true, false);
	return 0;
}

/* Whether the flush has ended, or there is no NVMe. While another one is under way, this one is
 * tried again. */
static bool drain_flushed(struct kvtierd *d, struct ctl_request *request)
{
	int r;

	if (request->flushing || request->finished)
		return request->finished;
	r = writeback_flush(d->tables.writeback, false, flushed, request);
	request->flushing = r == 0;
	if (r < 0 && r != -EBUSY)
		flushed(request, r == -ENODEV ? 0 : r);
	return request->finished;
}

enum ctl_progress drain_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	const uint32_t stores = ops_stores(d->ops), redis = outbox_waiting(d->tables.outbox);
	const bool done = stores == 0 && drain_flushed(d, request) && redis == 0;

	if (!d->tables.draining) {
		json_print(json, "kvtierctl undrain ended it");
		return CTL_FAIL;
	}
	if (request->status < 0)
		return flush_failed(json, request->status);
	if (!done && loop_now(d->loop) < request->limit_ns)
		return flush_wait(d, request, json, stores + flush_left(d) + redis);
	if (!done) {
		json_print(json,
			   "not all is written yet: %" PRIu32 " stores are under way, %" PRIu64
			   " blocks wait for NVMe, %" PRIu32
			   " for Redis. No store begins meanwhile; kvtierctl drain waits again, "
			   "kvtierctl undrain ends it",
			   stores, flush_left(d), redis);
		return CTL_FAIL;
	}
	set_draining(d, true, true);
	log_info("drain", "drained: what was in memory is written");
	json_print(json, "{\"drained\":true,\"ms\":%" PRIu64 "}\n", elapsed_ms(d, request));
	return CTL_LAST;
}

void drain_end(struct kvtierd *d, struct ctl_request *request)
{
	if (request->flushing && !request->finished)
		writeback_flush_cancel(d->tables.writeback, request);
}

int undrain_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	(void)request;
	if (!d->ops)
		return text_fail(sentence, n, -EBUSY, "undrain: the daemon is still starting");
	if (d->tables.draining)
		log_info("drain", "blocks are stored again, as asked by the operator");
	set_draining(d, false, false);
	return 0;
}

enum ctl_progress undrain_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	(void)d;
	(void)request;
	json_print(json, "{\"drained\":false}\n");
	return CTL_LAST;
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
	const char *tenant = option(request, "--tenant");
	int r;

	if (!tenant || tenant[0] == '\0' || strlen(tenant) >= sizeof(((struct space *)0)->tenant))
		return text_fail(sentence, n, -EINVAL,
				 "purge takes --tenant and a name of 1 to %zu bytes",
				 sizeof(((struct space *)0)->tenant) - 1);
	r = purge_begin(d->purge, tenant, purged, request);
	if (r == -EBUSY)
		snprintf(sentence, n, "another purge is under way; try again when it is done");
	else if (r == -ENOENT)
		snprintf(sentence, n,
			 "there is no tenant %s: no [socket] has it, and no block here is of it%s; "
			 "see kvtierctl tenants",
			 tenant,
			 stats_get(&d->stats->health) >> STATS_HEALTH_NVME_STARTING & 1 ?
				 " (NVMe's blocks are still being found)" :
				 "");
	else if (r < 0)
		snprintf(sentence, n, "purge cannot start: %s", strerror(-r));
	return r;
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
	json_string(json, option(request, "--tenant"));
	json_print(json, ",\"purged_blocks\":%" PRIu64 ",\"ms\":%" PRIu64 "}\n", request->blocks,
		   elapsed_ms(d, request));
	return CTL_LAST;
}

void purge_end(struct kvtierd *d, struct ctl_request *request)
{
	if (!request->finished)
		purge_cancel(d->purge, request);
}

/* --- hint: what engines say by kvtier_hint() (HINTS.md) --- */

enum { HINTS_PER_ITERATION = 64 /* blocks of a session in one iteration */ };

static int hint_refuse(char *sentence, size_t n, const char *why)
{
	return text_fail(sentence, n, -EINVAL, "hint: %s", why);
}

/* Any space of this tenant, since sessions belong to the tenant. */
static const struct space *space_of_tenant(const struct kvtierd *d, const char *tenant)
{
	for (uint32_t i = 0; i < spaces_numbers(d->tables.spaces); i++) {
		const struct space *space = space_at(d->tables.spaces, i);

		if (space && space->known && strcmp(space->tenant, tenant) == 0)
			return space;
	}
	return NULL;
}

int hint_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	struct hint *h = &request->hint;
	int64_t session, turn, ttl, priority, back, space;

	if (!d->tables.hints || !d->tables.blocks)
		return text_fail(sentence, n, -EBUSY, "hint: the daemon is still starting");
	*h = (struct hint){ .action = request->n_words < 2 ? 0 :
							     hint_action_named(request->words[1]) };
	if (!h->action || h->action == WIRE_HINT_PREFETCH)
		return hint_refuse(
			sentence, n,
			"the action is retain, pin, demote, release, superseded or ended; "
			"engines alone prefetch");
	if (!option_number(request, "--session", 1, INT64_MAX, 0, &session) ||
	    !option_number(request, "--turn", 0, UINT32_MAX, 0, &turn) ||
	    !option_number(request, "--ttl", 0, UINT32_MAX, 0, &ttl) ||
	    !option_number(request, "--priority", -100, 100, 0, &priority) ||
	    !option_number(request, "--expected-back", 1, UINT32_MAX, 0, &back) ||
	    !option_number(request, "--space", 0, UINT32_MAX, -1, &space))
		return hint_refuse(sentence, n,
				   "--session above 0, --turn, --ttl, --expected-back above 0 and "
				   "--space take numbers, --priority one of -100 to 100");
	if (back > 0 && (h->action != WIRE_HINT_RETAIN || priority || option(request, "--model")))
		return hint_refuse(sentence, n,
				   "--expected-back is for retain of a session or a key, without "
				   "--priority");
	if ((session > 0) + (option(request, "--model") != NULL) + (space >= 0) != 1 ||
	    (space >= 0) != (option(request, "--key") != NULL))
		return hint_refuse(
			sentence, n,
			"needs one of --session N, --model NAME, --space N with --key HEX");
	h->session = (uint64_t)session;
	h->turn = (uint32_t)turn;
	h->ttl_s = (uint32_t)ttl;
	h->priority = (int32_t)priority;
	h->back_s = (uint32_t)back;
	request->wanted_bytes = (uint64_t)space; /* the number of the space */
	request->rows = 0;
	memset(request->answers, 0, sizeof(request->answers));
	return 0;
}

static void answered(struct kvtierd *d, struct ctl_request *request, enum wire_hint_answer answer)
{
	request->answers[answer]++;
	hints_count(d->tables.hints, answer);
}

static bool key_of(const char *hex, uint8_t ret[32])
{
	for (int i = 0; i < 32; i++) {
		unsigned byte;

		if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
			return false;
		ret[i] = (uint8_t)byte;
	}
	return hex[64] == '\0';
}

static enum wire_hint_answer on_key(struct kvtierd *d, const struct ctl_request *request)
{
	const char *hex = option(request, "--key");
	uint32_t block = BLOCK_NONE;
	uint8_t key[32];

	if (strlen(hex) == 64 && key_of(hex, key) &&
	    space_at(d->tables.spaces, (uint32_t)request->wanted_bytes))
		block = blocks_find(d->tables.blocks, key, (uint32_t)request->wanted_bytes);
	return block == BLOCK_NONE ? WIRE_HINT_MISSING :
				     hint_on_block(&d->tables, block, &request->hint);
}

static enum wire_hint_answer on_model(struct kvtierd *d, const struct ctl_request *request,
				      const char *tenant)
{
	uint8_t revision[32];

	spaces_revision(d->tables.spaces, tenant, option(request, "--model"), revision);
	return hints_revision(d->tables.hints, revision, request->hint.action);
}

/* Does the hint for some blocks of the session. True: more are left. */
static bool on_session(struct kvtierd *d, struct ctl_request *request, const char *tenant)
{
	const struct space *space = space_of_tenant(d, tenant);
	const uint32_t blocks =
		space ? hints_session_blocks(d->tables.hints, space, request->hint.session) : 0;

	if (request->position == 0) /* as many as it has now */
		request->rows = blocks;
	if (blocks == 0 && request->position == 0)
		answered(d, request, WIRE_HINT_MISSING);
	for (uint32_t i = 0; i < HINTS_PER_ITERATION && space && request->position < request->rows;
	     i++) {
		const uint32_t block = hints_session_next(d->tables.hints, space, &request->hint);

		request->position++;
		if (block != BLOCK_NONE)
			answered(d, request, hint_on_block(&d->tables, block, &request->hint));
	}
	return request->position < request->rows;
}

enum ctl_progress hint_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	const char *tenant = option(request, "--tenant");

	tenant = tenant ? tenant : d->config->sockets[0].tenant;
	if (request->hint.session > 0) {
		if (on_session(d, request, tenant))
			return CTL_LATER;
	} else if (option(request, "--model")) {
		answered(d, request, on_model(d, request, tenant));
	} else {
		answered(d, request, on_key(d, request));
	}
	log_info("hint", "hint %s, as the operator said", hint_action_name(request->hint.action));
	json_print(json, "{");
#define MEMBER(name, number, prose) json_number(json, #name, request->answers[number]);
	HINT_ANSWERS(MEMBER)
	json_print(json, "}\n");
	return CTL_LAST;
}

/* --- dump: images of a space as they lie in memory --- */

enum {
	DUMP_BLOCKS = 64, /* unless the asker says otherwise */
	DUMP_BLOCKS_MAX = 4096,
	DUMP_NUMBERS = 1024, /* numbers of blocks looked at in one call of next() */
};

int dump_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	const char *word = request->n_words > 1 ? request->words[1] : "";
	const struct space *space;
	char *end = NULL;
	int64_t blocks;
	unsigned long number;

	errno = 0;
	number = strtoul(word, &end, 10);
	if (!isdigit((unsigned char)word[0]) || *end != '\0' || errno || number >= TIER_MAX_SPACES)
		return text_fail(sentence, n, -EINVAL,
				 "SPACE is the number of a space, as kvtierctl spaces has it");
	if (!option_number(request, "--blocks", 1, DUMP_BLOCKS_MAX, DUMP_BLOCKS, &blocks))
		return text_fail(sentence, n, -EINVAL, "--blocks takes a number of 1 to %d",
				 (int)DUMP_BLOCKS_MAX);
	if (!d->tables.spaces || !d->tables.blocks)
		return text_fail(sentence, n, -EBUSY, "the daemon is still starting");
	space = space_at(d->tables.spaces, (uint32_t)number);
	if (!space || !space->known || space->going)
		return text_fail(sentence, n, -ENOENT,
				 "there is no space %lu that an engine has opened since the start; "
				 "see kvtierctl spaces",
				 number);
	request->space = (uint32_t)number;
	request->wanted_bytes = (uint64_t)blocks; /* blocks to come */
	request->lease.block = BLOCK_NONE;
	return 0;
}

struct dump_look {
	struct kvtierd *d;
	struct ctl_request *request;
};

/* Keeps the block's image where it is, if it is one of the space's in host memory. */
static void dump_look(void *arg, uint32_t block)
{
	const struct dump_look *look = arg;
	struct tables *tables = &look->d->tables;
	struct ctl_request *request = look->request;
	struct extent where;

	/* of a lesser image the dump's reader could not tell the codec of its space */
	if (blocks_space(tables->blocks, block) != request->space ||
	    !extents_in_host(tables, block, &where) ||
	    lesser_at(tables, space_at(tables->spaces, request->space), &where))
		return;
	lease_take(tables, &request->lease, block);
	request->at = 0;
	request->wanted_bytes--;
}

static void dump_drop(struct kvtierd *d, struct ctl_request *request)
{
	if (request->lease.block != BLOCK_NONE)
		lease_drop(&d->tables, &request->lease);
	request->lease.block = BLOCK_NONE;
}

/* The next bytes of the leased image that fit into a packet. False: the block is gone. */
static bool dump_some(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	struct tables *tables = &d->tables;
	const uint32_t block = request->lease.block;
	const bool live = blocks_live(tables->blocks, block);
	const uint32_t bytes = live ? copies_image_bytes(tables, block) : 0;
	uint32_t some = bytes - request->at;
	struct extent where;

	if (bytes <= request->at || !extents_in_host(tables, block, &where) ||
	    bytes > extents_bytes(tables, &where))
		return false;
	if (some > json->room)
		some = (uint32_t)json->room;
	memcpy(json->text, extents_address(tables, &where) + request->at, some);
	json->used = some;
	request->at += some;
	if (request->at == bytes) {
		request->blocks++;
		dump_drop(d, request);
	}
	return true;
}

/* No block is leased, and there is none to come. */
static enum ctl_progress dump_last(const struct ctl_request *request, struct json *json)
{
	if (request->blocks == 0) {
		json_print(json,
			   "space %" PRIu32
			   " has no blocks in host memory now; see kvtierctl spaces",
			   request->space);
		return CTL_FAIL;
	}
	log_info("dump", "%" PRIu64 " blocks of space %" PRIu32 " were dumped for the operator",
		 request->blocks, request->space);
	json_print(json, "{\"blocks\":%" PRIu64 "}\n", request->blocks);
	return CTL_LAST;
}

enum ctl_progress dump_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	struct dump_look look = { d, request };
	bool more = true;

	for (int i = 0; i < DUMP_NUMBERS && more && request->lease.block == BLOCK_NONE; i++)
		more = request->wanted_bytes > 0 &&
		       blocks_walk(d->tables.blocks, &request->cursor, 1, dump_look, &look);
	if (request->lease.block == BLOCK_NONE)
		return more ? CTL_LATER : dump_last(request, json);
	if (dump_some(d, request, json))
		return CTL_DATA;
	dump_drop(d, request);
	if (request->at == 0) /* the next block, then */
		return CTL_LATER;
	json_print(json, "a block was dropped while it was sent; try again");
	return CTL_FAIL;
}

void dump_end(struct kvtierd *d, struct ctl_request *request)
{
	dump_drop(d, request);
}

/* --- events: for programs that follow which blocks are here (daemon/changes/changes.h) --- */

enum { EVENT_NUMBERS = 1024 /* numbers of blocks looked at for one reply */ };

int events_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	int64_t since, from;
	int r;

	if (!option_number(request, "--since", 0, INT64_MAX, -1, &since) ||
	    !option_number(request, "--from", 0, UINT32_MAX, -1, &from) ||
	    (since >= 0 && from >= 0))
		return text_fail(sentence, n, -EINVAL,
				 "events takes --since or --from, and the number that the events "
				 "before had as next or more");
	if (!d->tables.blocks)
		return text_fail(sentence, n, -EBUSY, "events: the daemon is still starting");
	r = changes_begin(&d->changes);
	if (r < 0)
		return text_fail(sentence, n, r, "events cannot be kept: %s", strerror(-r));
	request->all = from >= 0;
	request->cursor = from >= 0 ? (uint32_t)from : 0;
	request->since = d->changes.next > CHANGES_KEPT ? d->changes.next - CHANGES_KEPT : 0;
	if (since >= 0)
		request->since = (uint64_t)since;
	return 0;
}

/* "host+nvme" */
static const char *tiers_text(uint32_t tiers)
{
	static char text[32];
	size_t n = 0;

	for (enum tier_id tier = TIER_GPU; tier < TIER_COUNT; tier++)
		if (tiers & 1u << tier)
			n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s", n ? "+" : "",
					      tier_name(tier));
	return n ? text : "none";
}

static void event_row(struct json *json, const struct change *row)
{
	json_print(json, json->text[json->used - 1] == '[' ? "\n{" : ",\n{");
	events_COLUMNS(CTL_MEMBER);
	json_print(json, "}");
}

struct event_look {
	const struct blocks *blocks;
	struct json *json;
};

static void event_look(void *arg, uint32_t block)
{
	const struct event_look *look = arg;
	struct change row = { .space = blocks_space(look->blocks, block),
			      .tiers = blocks_tiers(look->blocks, block) };

	memcpy(row.key, blocks_key(look->blocks, block), sizeof(row.key));
	event_row(look->json, &row);
}

/* One packet, however many more there are: its numbers say where the next question begins. */
enum ctl_progress events_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	const struct changes *changes = &d->changes;
	struct event_look look = { d->tables.blocks, json };
	const struct change *change;
	bool more = request->all;

	json_print(json, "{\"instance\":\"%016" PRIx64 "\",\"events\":[", changes->instance);
	for (int i = 0; i < EVENT_NUMBERS && more && json->used < LIST_BYTES; i++)
		more = blocks_walk(d->tables.blocks, &request->cursor, 1, event_look, &look);
	if (request->all)
		request->since = changes->next;
	const bool lost = request->since != changes->next && !changes_at(changes, request->since);

	while (json->used < LIST_BYTES && (change = changes_at(changes, request->since))) {
		event_row(json, change);
		request->since++;
	}
	json_print(json, "]");
	json_bool(json, "lost", lost);
	json_number(json, "next", request->since);
	if (more)
		json_number(json, "more", request->cursor);
	json_print(json, "}\n");
	return CTL_LAST;
}

/* --- all commands --- */

#define COMMAND_local(name, arguments)
#define COMMAND_admin(name, arguments) { #name, arguments, name##_start, name##_next, NULL, NULL },
#define COMMAND_waits(name, arguments) \
	{ #name, arguments, name##_start, name##_next, name##_end, NULL },
#define COMMAND_data(name, arguments) COMMAND_waits(name, arguments)
#define COMMAND_both(name, arguments) COMMAND_admin(name, arguments)
#define COMMAND_list(name, arguments) { #name, arguments, NULL, list_next, NULL, list_##name },

#define CTL(name, where, arguments, prose, example) COMMAND_##where(name, arguments)
static const struct ctl_command commands[] = {
#include "tbl_ctl.h"
};

#define NAME_local(name)
#define NAME_admin(name)                            ", " #name
#define NAME_list(name)                             ", " #name
#define NAME_waits(name)                            ", " #name
#define NAME_data(name)                             ", " #name
#define NAME_both(name)                             ", " #name
#define CTL(name, where, arguments, prose, example) NAME_##where(name)
static const char names[] =
#include "tbl_ctl.h"
	;

int ctl_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	char shown[64];
	int r;

	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(commands[i].name, request->words[0]) != 0)
			continue;
		request->command = &commands[i];
		r = check_words(request, sentence, n);
		return r || !commands[i].start ? r : commands[i].start(d, request, sentence, n);
	}
	return text_fail(sentence, n, -EINVAL, "%s: no such command; this daemon knows %s",
			 log_escape(request->words[0], shown, sizeof(shown)), names + strlen(", "));
}
