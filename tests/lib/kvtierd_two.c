/* SPDX-License-Identifier: Apache-2.0 */
/* make: wrap=devices_add */
/*
 * kvtierd_two.c - a kvtierd with two devices: behind the CPU comes a device that computes as the
 * CPU does and is another device in all else. It has a UUID, imports memory by an fd that is not
 * called a memfd, takes two jobs at a time, and begins none before it is kicked. For
 * sys_two_devices.c; never installed.
 */
#include "kvtierd_two.h"

#include <assert.h>
#include <string.h>

#include "daemon/device/device_cpu.h"
#include "daemon/device/device.h"
#include "wrap.h"

static struct device_job *gathered[TWO_DEPTH];
static uint32_t n_gathered;

static void two_close(struct device *device)
{
	assert(n_gathered == 0);
	device_cpu_ops.close(device);
}

static int two_import(struct device *device, const struct region_desc *desc,
		      struct device_region *ret, char *text, size_t n)
{
	struct region_desc memfd = *desc;

	assert(desc->memory == WIRE_DEVICE_FD);
	memfd.memory = WIRE_MEMFD;
	return device_cpu_ops.import(device, &memfd, ret, text, n);
}

static void two_release(struct device *device, struct device_region *region)
{
	device_cpu_ops.release(device, region);
}

static int two_prepare(struct device *device, struct device_layout *layout)
{
	layout->prepared = device;
	return 0;
}

static void two_forget(struct device *device, struct device_layout *layout)
{
	assert(layout->prepared == device);
}

static int two_submit(struct device *device, struct device_job *job)
{
	(void)device;
	assert(n_gathered < TWO_DEPTH && job->layout->prepared == device);
	gathered[n_gathered++] = job;
	return 0;
}

static void two_kick(struct device *device)
{
	const uint32_t n = n_gathered;

	n_gathered = 0;
	for (uint32_t i = 0; i < n; i++) {
		const int r = device_cpu_ops.submit(device, gathered[i]);

		assert(r == 0);
	}
	device_cpu_ops.kick(device);
}

static const struct device_ops two_ops = {
	.name = "two",
	.close = two_close,
	.import = two_import,
	.release = two_release,
	.prepare = two_prepare,
	.forget = two_forget,
	.submit = two_submit,
	.kick = two_kick,
};

/* main.c adds the CPU. */
REAL(int, devices_add, (struct devices * devices, struct device *device))
{
	struct device *second;
	int r = __real_devices_add(devices, device);

	if (r == 0)
		r = device_cpu_open(1, TWO_DEPTH, 0, device->loop, &second);
	if (r)
		return r;
	second->ops = &two_ops;
	memset(second->uuid, TWO_UUID, sizeof(second->uuid));
	return __real_devices_add(devices, second);
}
