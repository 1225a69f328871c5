/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c - the one way to a device: checks, counts, exactly-one completion. Core thread only, but
 * for the functions that import and release.
 */
#include "device.h"

#include <errno.h>
#include <string.h>

#include "base/loop.h"
#include "base/text.h"

void device_close(struct device *device)
{
	if (!device)
		return;
	assert(device->in_flight == 0);
	device->ops->close(device);
}

int device_import(struct device *device, const struct region_desc *desc, struct device_region *ret,
		  char *text, size_t text_bytes)
{
	assert(memcmp(desc->device, device->uuid, sizeof(device->uuid)) == 0);
	return device->ops->import(device, desc, ret, text, text_bytes);
}

int device_import_allocs(struct device *device, const struct region_allocs *allocs,
			 struct device_region *region, char *text, size_t text_bytes)
{
	assert(allocs->n > 0 && allocs->n <= WIRE_MAX_ALLOCS);
	assert(!region->own || region->device == device);
	if (device->ops->import_allocs)
		return device->ops->import_allocs(device, allocs, region, text, text_bytes);
	return text_fail(text, text_bytes, -ENOTSUP, "the device has no memory in allocations");
}

void device_release(struct device_region *region)
{
	region->device->ops->release(region->device, region);
}

bool device_region_void(const struct device_region *region)
{
	return region->generation < region->device->generation;
}

int device_prepare(struct device *device, struct device_layout *layout)
{
	layout->prepared = NULL;
	return device->ops->prepare ? device->ops->prepare(device, layout) : 0;
}

void device_forget(struct device *device, struct device_layout *layout)
{
	if (device->ops->forget)
		device->ops->forget(device, layout);
	layout->prepared = NULL;
}

static bool full(const struct device *device, const struct device_job *job)
{
	return job->client ? device->in_flight - device->own_in_flight >= device->depth :
			     device->own_in_flight >= device->own_depth;
}

int device_submit(struct device *device, struct device_job *job)
{
	int r;

	loop_assert_core(device->loop);
	assert(!job->in_flight && job->done && job->image);
	assert(job->kind != DEVICE_COPY || job->n_copies > 0);
	assert(job->kind != DEVICE_FETCH ||
	       (job->image_memory == IMAGE_OF_DEVICE && job->n_copies == 1 && job->client == 0 &&
		job->copies->bytes <= job->image_bytes));
	assert(job->kind == DEVICE_VERIFY || job->kind == DEVICE_COPY ||
	       job->kind == DEVICE_FETCH ||
	       ((job->kind == DEVICE_ENCODE || job->kind == DEVICE_DECODE) && job->layout));
	assert(!job->order.given || (device->layered && job->kind == DEVICE_ENCODE));
	assert(job->end_layer == 0 ||
	       (job->kind == DEVICE_DECODE && job->first_layer < job->end_layer &&
		job->end_layer <= job->layout->pages.geometry.layers));
	assert(((uintptr_t)job->image & (IMAGE_ALIGN - 1)) == 0);
	assert(job->image_memory == IMAGE_OF_HOST ||
	       ((job->kind == DEVICE_DECODE || job->kind == DEVICE_FETCH) &&
		job->keep.address == 0));
	job->device = device;
	job->kept = false;
	r = full(device, job) ? -EAGAIN : device->ops->submit(device, job);
	if (r) {
		assert(r == -EAGAIN && device->in_flight > 0);
		device->refused = true;
		return r;
	}
	job->in_flight = 1;
	device->in_flight++;
	device->own_in_flight += job->client == 0;
	device->unkicked = true;
	return 0;
}

void device_kick(struct device *device)
{
	if (device->unkicked && device->ops->kick)
		device->ops->kick(device);
	device->unkicked = false;
}

void device_note(const struct device *device, struct device_note *ret)
{
	*ret = (struct device_note){ .state = "up" };
	if (device->ops->note)
		device->ops->note(device, ret);
}

void device_cancel(struct device_job *job)
{
	if (!job->in_flight)
		return;
	loop_assert_core(job->device->loop);
	__atomic_store_n(&job->cancelled, 1, __ATOMIC_SEQ_CST);
}

int device_stopped(const struct device_job *job, uint64_t now_ns)
{
	if (job->given_up && __atomic_load_n(job->given_up, __ATOMIC_SEQ_CST))
		return -ECANCELED;
	if (__atomic_load_n(&job->cancelled, __ATOMIC_SEQ_CST))
		return -ECANCELED;
	return now_ns && job->deadline_ns && now_ns >= job->deadline_ns ? -ETIMEDOUT : 0;
}

void device_complete(struct device_job *job)
{
	struct device *device = job->device;

	loop_assert_core(device->loop);
	assert(job->in_flight && device->in_flight > 0);
	job->in_flight = 0;
	device->in_flight--;
	device->own_in_flight -= job->client == 0;
	device->jobs_total++;
	if (job->status)
		device->jobs_failed_total++;
	job->done(job);
	if (!device->refused)
		return;
	device->refused = false;
	if (device->hooks && device->hooks->room)
		device->hooks->room(device->hooks->room_arg, device);
}

/* --- the list of all devices --- */

int devices_add(struct devices *devices, struct device *device)
{
	if (devices->n == DEVICES_MAX)
		return -ENOSPC;
	device->unit = devices->n == 0 ? DEVICE_NO_UNIT : devices->n - 1;
	device->hooks = &devices->hooks;
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

void devices_kick(struct devices *devices)
{
	for (uint32_t i = 0; i < devices->n; i++)
		device_kick(devices->all[i]);
}

struct devices_sum devices_sum(const struct devices *devices)
{
	struct devices_sum ret = { 0 };

	for (uint32_t i = 0; i < devices->n; i++) {
		ret.depth += devices->all[i]->depth;
		ret.in_flight += devices->all[i]->in_flight;
		ret.jobs_total += devices->all[i]->jobs_total;
	}
	return ret;
}
