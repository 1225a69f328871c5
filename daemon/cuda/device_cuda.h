/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_cuda.h - a GPU as a device (device.h): the core's side. Everything of it that may block is
 * the GPU's thread's (cuda_gpu.h).
 */
#ifndef KVTIER_DEVICE_CUDA_H
#define KVTIER_DEVICE_CUDA_H

#include "cuda_gpu.h"

/* The GPU's driver must outlive the device. conf.depth: jobs of clients. 0 or -errno. */
int device_cuda_open(const struct cuda_driver *driver, const struct cuda_found *found,
		     const struct cuda_gpu_conf *conf, struct loop *loop, struct device **ret);

#endif
