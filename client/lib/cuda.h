/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda.h - the CUDA driver, as the library uses it for spaces whose pages are in a GPU's memory
 * (KVTIER_CUDA): the driver itself, its contexts, its errors. Any thread.
 *
 * The engine's process has loaded the driver. The library loads none, makes no context, and leaves
 * the current context of a calling thread as it was.
 *
 * cuda_probe.h asks the driver for a pointer's kind, cuda_memory.h exports it. cuda_order.h orders
 * ops after an engine's stream, and streams after ops.
 */
#ifndef KVTIER_LIB_CUDA_H
#define KVTIER_LIB_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#include "client/cuda_api.h"
#include "client/wire.h"

/* NULL: this process has not loaded a driver that the library can use; *ret_why says so. */
const struct cuda_api *cuda_driver(const char **ret_why);
/* -errno for a result, with the sentence "WHAT: NAME (text of the driver)". */
int driver_error(CUresult result, const char *what);

/* A GPU as this process knows it, and the context in which memory is. */
struct cuda_device {
	const struct cuda_api *api;
	CUdevice device;
	CUcontext context;
	bool retained; /* the primary one, which was active */
	uint8_t uuid[WIRE_UUID_BYTES];
};

/* While any stream of the engine captures a graph, a call that the capture does not see may be
 * refused, and end the capture, whichever thread makes it. Between these two calls this thread's
 * calls are allowed. They nest. */
void cuda_relax(const struct cuda_api *api);
void cuda_unrelax(const struct cuda_api *api);

/* context NULL: the primary one, if the engine uses it. 0, or -errno and its sentence. */
int cuda_device_open(const struct cuda_api *api, CUdevice device, CUcontext context,
		     struct cuda_device *ret);
void cuda_device_close(struct cuda_device *device); /* zeroed is fine */
/* Makes the device's context current and relaxes this thread, until cuda_leave(). 0, or -errno and
 * its sentence; -EPERM in a child after fork(). */
int cuda_enter(const struct cuda_device *device);
void cuda_leave(const struct cuda_device *device);
/* Between the two. -EINVAL, with a sentence about the argument `name`: the stream captures a graph.
 * An event that is recorded there is a part of the graph, and says nothing about the work before
 * it. */
int cuda_stream_check(const struct cuda_device *device, CUstream stream, const char *name);

/* A GPU of the daemon that has just failed (-EBUSY) comes back: it is asked again for a while. */
struct cuda_busy {
	uint64_t since_ns; /* 0: it has not */
	uint64_t retry_ns; /* not asked again before */
};

enum { CUDA_BUSY_MS = 3000, CUDA_BUSY_STEP_MS = 50 };

/* Such an answer came: is it worth while to ask again, from retry_ns on? */
bool cuda_busy_again(struct cuda_busy *busy, int error);

#endif
