/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_devices.c - the admin command about the devices that move bytes: devices, a row for each, and
 * one more that says why there is no GPU, or not each. Core thread only; see ctl_commands.h.
 */
#include <stdio.h>

#include "ctl_commands.h"
#include "daemon/kvtierd.h"

struct device_row {
	const char *kind;
	char uuid[48];
	struct device_note note;
	uint32_t jobs;
	uint64_t jobs_total, failed_total;
};

int devices_start(struct kvtierd *d, struct ctl_request *request, char *sentence, size_t n)
{
	return ctl_no_arguments(d, request, sentence, n);
}

/* As nvidia-smi writes it. */
static void uuid_text(const uint8_t uuid[WIRE_UUID_BYTES], char *ret, size_t n)
{
	size_t at = (size_t)snprintf(ret, n, "GPU-");

	for (int i = 0; i < WIRE_UUID_BYTES && at < n; i++)
		at += (size_t)snprintf(ret + at, n - at, "%s%02x",
				       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

static bool find(const struct devices *devices, uint32_t position, struct device_row *ret)
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

static bool device_row(struct kvtierd *d, uint32_t position, struct json *json, bool *ret_end)
{
	struct device_row found, *row = &found;

	*ret_end = !find(&d->devices, position, row);
	if (*ret_end)
		return false;
	json_print(json, "{");
#define DEVICES_COLUMN(title, name, kind, value) CTL_##kind(json, name, value);
#include "tbl_lists.h"
	json_print(json, "}");
	return true;
}

enum ctl_progress devices_next(struct kvtierd *d, struct ctl_request *request, struct json *json)
{
	return ctl_list(d, request, json, "devices", device_row);
}
