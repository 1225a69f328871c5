/* SPDX-License-Identifier: Apache-2.0 */
/* device_cpu.h - the device for pages in host memory. */
#pragma once

#include "device.h"

/* workers: threads; 0: one per CPU this process may use. depth, own_depth: jobs of clients (> 0),
 * and of the daemon itself, in flight at most. 0 or -errno. */
int device_cpu_open(uint32_t workers, uint32_t depth, uint32_t own_depth, struct loop *loop,
		    struct device **ret);

extern const struct device_ops device_cpu_ops;
