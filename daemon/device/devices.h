/* SPDX-License-Identifier: Apache-2.0 */
/*
 * devices.h - the devices of this daemon: the CPU first, then the GPUs. The list is made at start
 * and does not change after it, so any thread may look a device up. All else: core thread.
 */
#ifndef KVTIER_DEVICES_H
#define KVTIER_DEVICES_H

#include "device.h"

enum { DEVICES_MAX = 17 };

struct devices {
	struct device *all[DEVICES_MAX];
	uint32_t n;
	char gpu_note[256]; /* why there are no GPUs, or not all of them; "" */
	bool gpu_unused;    /* there is a GPU that is not served, though nobody switched it off */
};

/* it is theirs now. -ENOSPC */
int devices_add(struct devices *devices, struct device *device);
/* and each of them; zeroed is fine */
void devices_close(struct devices *devices);
struct device *devices_cpu(const struct devices *devices); /* the first */
/* By its number among them (device->unit). */
struct device *devices_gpu(const struct devices *devices, uint32_t unit);
/* NULL: none */
struct device *devices_find(const struct devices *devices, const uint8_t uuid[WIRE_UUID_BYTES]);

/* room(arg, device) from now on: see device.h. It runs inside a completion: it notes the news, and
 * submits later. */
void devices_on_room(struct devices *devices, void (*room)(void *arg, struct device *device),
		     void *arg);
/* lost(arg, device, why) from now on: see device.h; NULL: nobody */
void devices_on_lost(struct devices *devices,
		     void (*lost)(void *arg, struct device *device, const char *why), void *arg);
/* ending(arg, device, why) from now on: see device.h */
void devices_on_ending(struct devices *devices,
		       void (*ending)(void *arg, struct device *device, const char *why),
		       void *arg);
/* memory(arg, device, memory) from now on: see device.h; NULL: nobody */
void devices_on_memory(struct devices *devices,
		       void (*memory)(void *arg, struct device *device,
				      const struct device_memory *memory),
		       void *arg);
/* once a turn of the loop */
void devices_kick(struct devices *devices);

/* Of all of them together. */
uint32_t devices_depth(const struct devices *devices);
uint32_t devices_in_flight(const struct devices *devices);
uint64_t devices_jobs_total(const struct devices *devices);

#endif
