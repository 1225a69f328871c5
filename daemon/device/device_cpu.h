/* SPDX-License-Identifier: Apache-2.0 */
/* device_cpu.h - the device for pages in host memory. */
#ifndef KVTIER_DEVICE_CPU_H
#define KVTIER_DEVICE_CPU_H

#include "device.h"

extern const struct device_ops device_cpu_ops;

#endif
