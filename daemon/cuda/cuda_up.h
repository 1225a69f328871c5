/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_up.h - brings the GPUs up at start: the driver is looked for, and each GPU becomes a device.
 * Core thread. The driver itself is called on a thread of its own, since it may take as long as it
 * likes. The host tier stays open until the devices are closed: GPUs register its memory.
 */
#ifndef KVTIER_CUDA_UP_H
#define KVTIER_CUDA_UP_H

#include <stddef.h>

#include "daemon/device/devices.h"

struct config;
struct loop;
struct tier;

/* 0: devices has the GPUs, or devices->gpu_note says why there are none. -errno with text:
 * [gpu] devices = required, and there are none. */
int cuda_up(const struct config *config, struct tier *host, struct loop *loop,
	    struct devices *devices, char *text, size_t n);

#endif
