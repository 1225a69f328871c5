/* SPDX-License-Identifier: Apache-2.0 */
/* devices.c - see devices.h. */
#include "devices.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

int devices_add(struct devices *devices, struct device *device)
{
	if (devices->n == DEVICES_MAX)
		return -ENOSPC;
	device->unit = devices->n == 0 ? DEVICE_NO_UNIT : devices->n - 1;
	devices->all[devices->n++] = device;
	return 0;
}

void devices_close(struct devices *devices)
{
	while (devices->n > 0)
		device_close(devices->all[--devices->n]);
}

struct device *devices_cpu(const struct devices *devices)
{
	return devices->all[0];
}

struct device *devices_gpu(const struct devices *devices, uint32_t unit)
{
	assert(unit + 1 < devices->n);
	return devices->all[unit + 1];
}

struct device *devices_find(const struct devices *devices, const uint8_t uuid[WIRE_UUID_BYTES])
{
	for (uint32_t i = 0; i < devices->n; i++)
		if (memcmp(devices->all[i]->uuid, uuid, WIRE_UUID_BYTES) == 0)
			return devices->all[i];
	return NULL;
}

void devices_on_room(struct devices *devices, void (*room)(void *arg, struct device *device),
		     void *arg)
{
	for (uint32_t i = 0; i < devices->n; i++) {
		devices->all[i]->room = room;
		devices->all[i]->room_arg = arg;
	}
}

void devices_on_lost(struct devices *devices,
		     void (*lost)(void *arg, struct device *device, const char *why), void *arg)
{
	for (uint32_t i = 0; i < devices->n; i++) {
		devices->all[i]->lost = lost;
		devices->all[i]->lost_arg = arg;
	}
}

void devices_on_ending(struct devices *devices,
		       void (*ending)(void *arg, struct device *device, const char *why), void *arg)
{
	for (uint32_t i = 0; i < devices->n; i++) {
		devices->all[i]->ending = ending;
		devices->all[i]->ending_arg = arg;
	}
}

void devices_on_memory(struct devices *devices,
		       void (*memory)(void *arg, struct device *device,
				      const struct device_memory *memory),
		       void *arg)
{
	for (uint32_t i = 0; i < devices->n; i++) {
		devices->all[i]->memory = memory;
		devices->all[i]->memory_arg = arg;
	}
}

void devices_kick(struct devices *devices)
{
	for (uint32_t i = 0; i < devices->n; i++)
		device_kick(devices->all[i]);
}

uint32_t devices_depth(const struct devices *devices)
{
	uint32_t ret = 0;

	for (uint32_t i = 0; i < devices->n; i++)
		ret += devices->all[i]->depth;
	return ret;
}

uint32_t devices_in_flight(const struct devices *devices)
{
	uint32_t ret = 0;

	for (uint32_t i = 0; i < devices->n; i++)
		ret += devices->all[i]->in_flight;
	return ret;
}

uint64_t devices_jobs_total(const struct devices *devices)
{
	uint64_t ret = 0;

	for (uint32_t i = 0; i < devices->n; i++)
		ret += devices->all[i]->jobs_total;
	return ret;
}
