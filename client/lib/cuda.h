/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda.h - spaces whose pages are in a GPU's memory (KVTIER_CUDA), as the library sees them.
 *
 * The driver is the one that the engine's process has loaded; the library loads none, makes no
 * context, and leaves the current context of a calling thread as it was. Pages reach the daemon by
 * the first rung of a ladder that works:
 *
 *	IPC     handle of a cudaMalloc() allocation; needs one PID namespace
 *	FD      descriptor of an allocation by cuMemCreate()
 *	FABRIC  handle of the same, where descriptors do not reach
 *	STAGED  the library copies between the pages and memory that it shares with the daemon
 *
 * cuda_memory.c asks the driver what a pointer is and exports it. cuda_order.c orders ops after an
 * engine's stream, and streams after ops.
 */
#ifndef KVTIER_LIB_CUDA_H
#define KVTIER_LIB_CUDA_H

#include <stdatomic.h>
#include <stdbool.h>

#include "client/cuda_api.h"
#include "client/kvtier.h"
#include "client/wire.h"

struct kvtier_client;
struct op;

/* ---- cuda.c: the driver, its contexts, its errors. Any thread ---- */

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

/* context NULL: the primary one, if the engine uses it. 0, or -errno and its sentence. */
int cuda_device_open(const struct cuda_api *api, CUdevice device, CUcontext context,
		     struct cuda_device *ret);
void cuda_device_close(struct cuda_device *device); /* zeroed is fine */
/* Makes the device's context current, until cuda_leave(). 0, or -errno and its sentence; -EPERM in
 * a child after fork(). */
int cuda_enter(const struct cuda_device *device);
void cuda_leave(const struct cuda_device *device);

/* ---- cuda_memory.c: the regions of one space. The space's lock ---- */

enum cuda_rung { CUDA_RUNG_IPC, CUDA_RUNG_FD, CUDA_RUNG_FABRIC, CUDA_RUNG_STAGED, CUDA_RUNGS };

struct cuda_memory {
	struct cuda_device device;
	struct kvtier_region regions[KVTIER_MAX_REGIONS];
	size_t n_regions;
	uint32_t rungs; /* 1 << enum cuda_rung of those not tried in vain */
	enum cuda_rung rung;
	/* why it is not a better one; "" */
	char why[200];
	CUstream stream; /* staged: the copies' */
};

/* Asks the driver about each region. -EINVAL: not a GPU's memory, of several GPUs, or not all of
 * it allocated. shares_pids: the daemon is in this PID namespace. */
int cuda_memory_open(const struct kvtier_region *regions, size_t n, bool shares_pids,
		     struct cuda_memory **ret);
void cuda_memory_close(struct cuda_memory *memory); /* NULL is fine */
/* The rung was refused: the next one, with the reason. False: there is none. */
bool cuda_memory_next(struct cuda_memory *memory, const char *why);
/* Exports each region by the rung, which is not STAGED: ret[n_regions], and descriptors, which are
 * the caller's to close. The other fields of ret stay. 0, or -errno and its sentence. */
int cuda_memory_export(const struct cuda_memory *memory, struct wire_region *ret, int *ret_fds,
		       size_t *ret_n_fds);
/* As a person reads it: "CUDA IPC", "CUDA staged: WHY". */
void cuda_memory_text(const struct cuda_memory *memory, char *ret, size_t n);

/* One piece of a page: rows of `run` bytes. Copies queue up on the memory's stream. */
struct cuda_copy {
	uint64_t device; /* address of the first row */
	uint8_t *host;   /* rows end to end */
	uint64_t run, rows, stride;
	bool to_device;
};
int cuda_memory_copy(const struct cuda_memory *memory, const struct cuda_copy *copy);
int cuda_memory_copied(const struct cuda_memory *memory); /* waits for them */
/* Pinned, so that copies run at the wire's speed. False: it is not, which only costs speed. */
bool cuda_memory_pin(const struct cuda_memory *memory, void *base, size_t bytes);
void cuda_memory_unpin(const struct cuda_memory *memory, void *base);

/* ---- cuda_order.c: events and words of a client on one GPU ---- */

enum { CUDA_ORDERS_MAX = 16 }; /* GPUs a client */

/* The state of the message that tells the daemon of them: of one connection. */
enum cuda_order_state { CUDA_ORDER_UNTOLD, CUDA_ORDER_TOLD, CUDA_ORDER_KNOWN, CUDA_ORDER_REFUSED };

struct cuda_order {
	struct cuda_device device;
	CUevent events[WIRE_MAX_EVENTS];
	CUipcEventHandle handles[WIRE_MAX_EVENTS];
	_Atomic bool shares_events; /* the driver exports them, and the daemon took them */
	struct wire_words *words;
	CUdeviceptr device_words; /* 0: streams can neither write nor wait for words */
	int words_fd;
	bool wanted; /* a space whose pages the daemon reaches needs it. Control */
	/* control and ring */
	enum cuda_order_state state;
	uint32_t seq;
};

/* The client's for that GPU, made at its first use. Control held. 0, or -errno and its sentence. */
int cuda_order_of(struct kvtier_client *c, const struct cuda_device *device,
		  struct cuda_order **ret);
void cuda_orders_close(struct kvtier_client *c);
void cuda_orders_lost(struct kvtier_client *c); /* the connection ended. Control */
/* Sends what is due: 0: all is told and answered; -EAGAIN: not yet; else the connection is lost.
 * Control. */
int cuda_orders_advance(struct kvtier_client *c);
/* 1: the packet answers an ORDER; 0: it does not. Control. */
int cuda_orders_reply(struct kvtier_client *c, uint32_t type, uint32_t seq);

/* Orders the op after the work that is in the stream now. No lock held: it may wait for room in
 * the stream. staged: it is the library that waits. */
int cuda_order_after(struct cuda_order *order, const struct op *op, bool staged, CUstream stream);
/* What the daemon is told of it. Ring. */
void cuda_order_entry(const struct cuda_order *order, const struct op *op, struct wire_sqe *sqe);
/* Staged: the engine's stream has come so far. 1, 0: not yet, or -errno. Ring. */
int cuda_order_reached(const struct cuda_order *order, const struct op *op);
/* The op has ended: streams that wait for it go on. Ring. */
/* The stream waits for the op of this id, which runs; o NULL: -EOPNOTSUPP. */
int cuda_order_wait(struct cuda_order *o, uint64_t id, CUstream stream);
void cuda_order_done(struct cuda_order *order, const struct op *op);

#endif
