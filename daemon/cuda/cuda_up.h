/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_up.h - brings the GPUs up at start: the driver is looked for, and each GPU becomes a device.
 * Core thread. The host tier stays open until the devices are closed: GPUs register its memory.
 */
#ifndef KVTIER_CUDA_UP_H
#define KVTIER_CUDA_UP_H

#include <stddef.h>

#include "daemon/device/devices.h"

struct config;
struct cuda_search;
struct loop;
struct tier;

/* 0: devices has the GPUs, or devices->gpu_note says why there are none, and *ret_search may still
 * look for them (NULL: not). -errno with text: [gpu] devices = required, and there are none. */
int cuda_up(const struct config *config, struct tier *host, struct loop *loop,
	    struct devices *devices, struct cuda_search **ret_search, char *text, size_t n);

#endif
