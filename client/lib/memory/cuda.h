/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda.h - the CUDA driver, as the library uses it for spaces whose pages are in a GPU's memory
 * (KVTIER_CUDA): the driver itself, its contexts, its errors. Any thread.
 *
 * The engine's process has loaded the driver. The library does not load it, makes no context, and
 * leaves each calling thread's current context as it was.
 *
 * cuda_memory.h asks the driver what kind of memory a pointer is in, and exports it. cuda_order.h
 * orders ops after an engine's stream, and streams after ops.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/abi/cuda_api.h"
#include "client/abi/wire.h"

/* NULL: this process has not loaded a driver that the library can use; *ret_why says so. */
const struct cuda_api *cuda_driver(const char **ret_why);
/* Returns the -errno of a result, and sets the sentence "WHAT: NAME (text of the driver)". */
int driver_error(CUresult result, const char *what);

/* A GPU as this process knows it, and the context in which memory is. */
struct cuda_device {
	const struct cuda_api *api;
	CUdevice device;
	CUcontext context;
	bool retained; /* the primary one, which was active */
	uint8_t uuid[WIRE_UUID_BYTES];
};

/* While a stream of the engine captures a graph, a call that the capture does not see may be
 * refused and may end the capture, whichever thread makes it. Between these two calls the driver
 * allows this thread's calls. They nest. */
void cuda_relax(const struct cuda_api *api);
void cuda_unrelax(const struct cuda_api *api);

/* Opens a GPU. context NULL means its primary one, if the engine uses that. 0, or -errno with its
 * sentence. */
int cuda_device_open(const struct cuda_api *api, CUdevice device, CUcontext context,
		     struct cuda_device *ret);
void cuda_device_close(struct cuda_device *device); /* may be zeroed */
/* Makes the device's context current and relaxes this thread, until cuda_leave(). 0, or -errno with
 * its sentence; -EPERM in a child after fork(). */
int cuda_enter(const struct cuda_device *device);
void cuda_leave(const struct cuda_device *device);
/* The same before work is put into the stream. -EINVAL, with a sentence about the argument `name`:
 * the stream captures a graph. What is put there belongs to the graph, and does not come after the
 * work before it. */
int cuda_enter_stream(const struct cuda_device *device, CUstream stream, const char *name);

/* The daemon says -EBUSY of a GPU that has just failed and will come back. It is asked again for a
 * while. */
struct cuda_busy {
	uint64_t since_ns; /* of the first such answer; 0: there was none */
	uint64_t retry_ns; /* when it is asked again */
};

enum { CUDA_BUSY_MS = 3000, CUDA_BUSY_STEP_MS = 50 };

/* An answer came. True: it is worth while to ask again, from retry_ns on. */
bool cuda_busy_again(struct cuda_busy *busy, int error);
