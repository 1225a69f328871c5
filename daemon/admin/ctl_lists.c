/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_lists.c - the rows of the lists that tbl_lists.h describes. Contract: ctl_commands.h. Core
 * thread only. No function here blocks or allocates memory.
 *
 * A list may change while it is sent. Each row is as it was when its packet was made, and a row
 * that appears or disappears meanwhile may be missed.
 */
#include "ctl_commands.h"

#include <stdio.h>
#include <string.h>

#include "client/abi/tbl_geometry.h"
#include "tbl_lists.h"
#include "daemon/conn/server.h"
#include "daemon/move/hints.h"
#include "daemon/op/trace.h"
#include "daemon/table/space_counts.h"
#include "tiers/nvme/nvme.h"
#include "tiers/redis/redis.h"
#include "tiers/slabs.h"

#define LIST_NONE                    UINT64_MAX
#define CTL_AGE(json, name, value)   ctl_age(json, #name, value)
#define CTL_RATIO(json, name, value) ctl_ratio(json, #name, value)

static void ctl_age(struct json *json, const char *name, uint64_t seconds)
{
	if (seconds != LIST_NONE)
		json_number(json, name, seconds);
}

static void ctl_ratio(struct json *json, const char *name, double ratio)
{
	if (ratio < 0)
		return;
	json_member(json, name);
	json_print(json, "%.6f", ratio);
}

/* --- clients --- */

/* The ways in which the client's pages are reached, with '+' between them. */
static const char *path_name(const struct conn_row *row)
{
	static const char *const ways[WIRE_MEMORIES] = {
		[WIRE_MEMFD] = "shared",
		[WIRE_STAGED] = "staged",
		[WIRE_DEVICE_HANDLE] = "cuda-ipc",
		[WIRE_DEVICE_FD] = "cuda-fd",
		[WIRE_DEVICE_FABRIC] = "cuda-fabric",
	};
	static char text[64];
	size_t n = 0;

	for (int way = WIRE_MEMFD; way < WIRE_MEMORIES; way++)
		if (row->memories & 1u << way)
			n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s", n ? "+" : "",
					      ways[way]);
	return n ? text : "none";
}

static const char *client_state(const struct conn_row *row)
{
	if (row->refused)
		return "refused";
	return row->ending ? "ending" : "open";
}

/* "11", or "9-10"; "" if the client has not said its versions. */
static const char *client_wire(const struct conn_row *row, char *ret, size_t n)
{
	ret[0] = '\0';
	if (row->version_max == row->version_min && row->version_max > 0)
		snprintf(ret, n, "%u", row->version_max);
	else if (row->version_max > 0)
		snprintf(ret, n, "%u-%u", row->version_min, row->version_max);
	return ret;
}

enum list_row list_clients(struct kvtierd *d, uint32_t position, struct json *json)
{
	struct conn_row found, *row = &found;
	char buffer[32];

	if (!d->server || !server_row(d->server, position, row))
		return LIST_END;
	clients_COLUMNS(CTL_MEMBER);
	return LIST_ROW;
}

/* --- tenants --- */

struct tenant_row {
	const struct quota_tenant *tenant;
	const struct quota_line *line;
	enum quota_use use;
	uint32_t number;
};

static uint64_t account_bytes(const struct kvtierd *d, uint32_t account)
{
	const struct slabs *slabs = tier_slabs(tables_host(&d->tables));
	struct tier_class_view view;
	uint64_t bytes = 0;

	for (uint32_t class = 0; class < slabs_classes(slabs); class ++) {
		slabs_class_view(slabs, class, &view);
		bytes += (uint64_t)view.slot_bytes *
			 counts_account_slots(blocks_counts(d->tables.blocks), account, class);
	}
	return bytes;
}

static void count_host_bytes(struct kvtierd *d)
{
	const struct space_counts *counts = blocks_counts(d->tables.blocks);
	struct quota *q = &d->quota;

	for (uint32_t i = 0; i < QUOTA_TENANTS; i++)
		quota_give(q, QUOTA_host_bytes, i, q->tenant[i].used[QUOTA_host_bytes]);
	for (uint32_t i = 0; i < counts_accounts(counts); i++)
		quota_take(q, QUOTA_host_bytes, counts_account_tenant(counts, i),
			   account_bytes(d, i));
}

enum list_row list_tenants(struct kvtierd *d, uint32_t position, struct json *json)
{
	const uint32_t at = position / QUOTA_USES;
	const struct tenant_row found = {
		.number = at < d->quota.n ? at : QUOTA_OTHERS,
		.use = (enum quota_use)(position % QUOTA_USES),
		.tenant = &d->quota.tenant[at < d->quota.n ? at : QUOTA_OTHERS],
		.line = &quota_lines[position % QUOTA_USES],
	}, *row = &found;

	if (position == 0 && d->server)
		server_count(d->server);
	if (position == 0 && d->tables.blocks)
		count_host_bytes(d);
	if (at > d->quota.n)
		return LIST_END;
	if (row->number == QUOTA_OTHERS && row->tenant->used[row->use] == 0)
		return LIST_NO_ROW;
	tenants_COLUMNS(CTL_MEMBER);
	return LIST_ROW;
}

/* --- spaces --- */

static const char *name_of(const char *const *names, size_t n, uint32_t value)
{
	return value < n && names[value] ? names[value] : "unknown";
}

static const char *dtype_name(uint32_t dtype)
{
#define DTYPE_NAME(id, text) [DTYPE_##id] = (text),
	static const char *const names[] = { GEOMETRY_DTYPES(DTYPE_NAME) };

	return name_of(names, sizeof(names) / sizeof(names[0]), dtype);
}

static const char *codec_name(uint32_t codec)
{
#define CODEC_NAME(id, text) [CODECS_##id] = (text),
	static const char *const names[] = { GEOMETRY_CODECS(CODEC_NAME) };

	return name_of(names, sizeof(names) / sizeof(names[0]), codec);
}

static const char *space_state(const struct space *space)
{
	return space->going ? "going" : space->opened ? "open" : space->known ? "idle" : "unknown";
}

/* LIST_NONE: the space is open, or was not opened yet. */
static uint64_t space_idle_s(const struct kvtierd *d, const struct space *space)
{
	return space->idle_ns ? (loop_now(d->loop) - space->idle_ns) / 1000000000u : LIST_NONE;
}

static uint32_t space_blocks(const struct kvtierd *d, const struct space *space)
{
	return d->tables.blocks ? counts_blocks(blocks_counts(d->tables.blocks), space->number) : 0;
}

/* The bytes of its images. A block in both tiers counts once. */
static uint64_t space_bytes(const struct kvtierd *d, const struct space *space)
{
	uint64_t bytes = 0;

	for (uint32_t variant = 0; variant < 2 && d->tables.blocks; variant++)
		bytes += (uint64_t)counts_variant(blocks_counts(d->tables.blocks), space->number,
						  variant) *
			 space->variant_bytes[variant];
	return bytes;
}

/* The standing that a hint on its revision has given to the space. */
static const char *space_hinted(const struct kvtierd *d, const struct space *space)
{
	static const char *const names[] = {
		[HINT_USUAL] = "", [HINT_DEMOTED] = "demoted", [HINT_RETIRED] = "retired"
	};

	return d->tables.hints ?
		       names[counts_standing(blocks_counts(d->tables.blocks), space->number)] :
		       "";
}

/* The bytes that the space's tenant keeps. */
static uint64_t kept_bytes(const struct kvtierd *d, const struct space *space)
{
	return d->tables.hints ? hints_kept_bytes(d->tables.hints, space) : 0;
}

enum list_row list_spaces(struct kvtierd *d, uint32_t position, struct json *json)
{
	const struct space *row;

	if (!d->tables.spaces || position >= spaces_numbers(d->tables.spaces))
		return LIST_END;
	row = space_at(d->tables.spaces, position);
	if (!row)
		return LIST_NO_ROW;
	spaces_COLUMNS(CTL_MEMBER);
	return LIST_ROW;
}

/* --- disks, devices, endpoints, trace --- */

enum list_row list_disks(struct kvtierd *d, uint32_t position, struct json *json)
{
	struct nvme_disk_row found, *row = &found;

	if (!d->tables.tiers[TIER_NVME] || !nvme_row(d->tables.tiers[TIER_NVME], position, row))
		return LIST_END;
	disks_COLUMNS(CTL_MEMBER);
	return LIST_ROW;
}

struct device_row {
	const char *kind;
	char uuid[48];
	struct device_note note;
	uint32_t jobs;
	uint64_t jobs_total, failed_total;
};

/* Writes it in the form that nvidia-smi uses. */
static void uuid_text(const uint8_t uuid[WIRE_UUID_BYTES], char *ret, size_t n)
{
	size_t at = (size_t)snprintf(ret, n, "GPU-");

	for (int i = 0; i < WIRE_UUID_BYTES && at < n; i++)
		at += (size_t)snprintf(ret + at, n - at, "%s%02x",
				       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

static bool find_device(const struct devices *devices, uint32_t position, struct device_row *ret)
{
	*ret = (struct device_row){ .kind = "cuda", .note = { .state = "absent" } };
	if (position < devices->n) {
		const struct device *device = devices->all[position];

		ret->kind = device->ops->name;
		device_note(device, &ret->note);
		ret->jobs = device->in_flight;
		ret->jobs_total = device->jobs_total;
		ret->failed_total = device->jobs_failed_total;
		if (position > 0)
			uuid_text(device->uuid, ret->uuid, sizeof(ret->uuid));
		return true;
	}
	snprintf(ret->note.why, sizeof(ret->note.why), "%.199s", devices->gpu_note);
	return position == devices->n && devices->gpu_note[0] != '\0';
}

enum list_row list_devices(struct kvtierd *d, uint32_t position, struct json *json)
{
	struct device_row found, *row = &found;

	if (!find_device(&d->devices, position, row))
		return LIST_END;
	devices_COLUMNS(CTL_MEMBER);
	return LIST_ROW;
}

enum list_row list_endpoints(struct kvtierd *d, uint32_t position, struct json *json)
{
	struct redis_endpoint_row found, *row = &found;

	if (!d->tables.tiers[TIER_REDIS] ||
	    !redis_endpoint_row(d->tables.tiers[TIER_REDIS], position, row))
		return LIST_END;
	endpoints_COLUMNS(CTL_MEMBER);
	return LIST_ROW;
}

static const char *status_text(const struct trace_row *row)
{
	if (!row->done)
		return "";
	return row->status < 0 ? strerrorname_np(-row->status) : row->status > 0 ? "present" : "ok";
}

enum list_row list_trace(struct kvtierd *d, uint32_t position, struct json *json)
{
	struct trace_row found, *row = &found;
	bool end;

	if (!trace_row(d->ops, false, position, row, &end))
		return end ? LIST_END : LIST_NO_ROW;
	trace_COLUMNS(CTL_MEMBER);
	return LIST_ROW;
}

enum list_row list_slowlog(struct kvtierd *d, uint32_t position, struct json *json)
{
	struct trace_row found, *row = &found;
	bool end;

	if (!trace_row(d->ops, true, position, row, &end))
		return end ? LIST_END : LIST_NO_ROW;
	slowlog_COLUMNS(CTL_MEMBER);
	return LIST_ROW;
}
