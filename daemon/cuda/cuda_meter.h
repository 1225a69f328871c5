/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_meter.h - how much memory of a GPU is in use, asked of NVML (libnvidia-ml, part of the
 * driver): the driver API itself says so only to a process that has a context there already, and
 * the question is the context's own cost. Found at run time like the driver; without it nothing is
 * known.
 */
#ifndef KVTIER_CUDA_METER_H
#define KVTIER_CUDA_METER_H

#include <stdint.h>

#include "client/wire.h"

struct cuda_meter {
	int (*handle)(const char *uuid, void **ret); /* NULL: there is no NVML */
	int (*memory)(void *handle, void *ret);
};

/* Once a process; the library stays. It may take as long as the driver. */
void cuda_meter_open(struct cuda_meter *ret);
/* Bytes in use by all processes; 0: not known. Any thread. */
uint64_t cuda_meter_used(const struct cuda_meter *meter, const uint8_t uuid[WIRE_UUID_BYTES]);

#endif
