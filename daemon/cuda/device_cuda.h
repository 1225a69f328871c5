/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_cuda.h - makes a device (device.h) of a GPU. The GPU's thread does all that may block
 * (cuda_gpu.h).
 */
#pragma once

#include "daemon/cuda/driver/cuda_gpu.h"

/* The GPU's driver must outlive the device. There is no thread and no context before the first
 * request. conf.depth: jobs of clients. 0 or -errno. */
int device_cuda_open(const struct cuda_driver *driver, const struct cuda_found *found,
		     const struct cuda_gpu_conf *conf, struct loop *loop, struct device **ret);
