/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c - the one way to a device: checks, counts, exactly-one completion. Core thread only, but for
 * device_import() and device_release().
 */
#include "device.h"

#include <errno.h>
#include <string.h>

#include "daemon/base/loop.h"

static const struct device_ops *const devices[] = { &device_cpu_ops };

int device_open(const char *name, const struct device_conf *conf, struct loop *loop, struct device **ret)
{
	for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
		if (strcmp(devices[i]->name, name) == 0)
			return devices[i]->open(conf, loop, ret);
	return -ENODEV;
}

void device_close(struct device *device)
{
	if (!device)
		return;
	assert(device->in_flight == 0);
	device->ops->close(device);
}

int device_import(struct device *device, int fd, uint64_t offset, uint64_t length, struct device_region *ret,
		  char *text, size_t text_bytes)
{
	return device->ops->import(device, fd, offset, length, ret, text, text_bytes);
}

void device_release(struct device_region *region)
{
	region->device->ops->release(region->device, region);
}

int device_submit(struct device *device, struct device_job *job)
{
	int r;

	loop_assert_core(device->loop);
	assert(!job->in_flight && job->done && job->image);
	assert(job->kind == DEVICE_VERIFY || ((job->kind == DEVICE_ENCODE || job->kind == DEVICE_DECODE) && job->layout));
	assert(((uintptr_t)job->image & (IMAGE_ALIGN - 1)) == 0);
	job->device = device;
	r = device->ops->submit(device, job);
	if (r == 0) {
		job->in_flight = 1;
		device->in_flight++;
	}
	return r;
}

void device_cancel(struct device_job *job)
{
	if (!job->in_flight)
		return;
	loop_assert_core(job->device->loop);
	__atomic_store_n(&job->cancelled, 1, __ATOMIC_SEQ_CST);
}

void device_complete(struct device_job *job)
{
	struct device *device = job->device;

	loop_assert_core(device->loop);
	assert(job->in_flight && device->in_flight > 0);
	job->in_flight = 0;
	device->in_flight--;
	device->jobs_total++;
	if (job->status)
		device->jobs_failed_total++;
	job->done(job);
}
