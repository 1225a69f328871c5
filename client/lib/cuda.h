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
 * cuda_probe.c asks the driver what a pointer is, cuda_memory.c exports it. cuda_order.c orders ops
 * after an engine's stream, and streams after ops.
 */
#ifndef KVTIER_LIB_CUDA_H
#define KVTIER_LIB_CUDA_H

#include <stdatomic.h>
#include <stdbool.h>

#include "client/cuda_api.h"
#include "client.h"

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

/* ---- a GPU that has just failed (-EBUSY) is asked again for a while ---- */

enum { CUDA_BUSY_MS = 3000, CUDA_BUSY_STEP_MS = 50 };

/* Such an answer came: is it worth while to ask again, from retry_ns on? */
bool cuda_busy_again(struct cuda_busy *busy, int error);

/* ---- cuda_probe.c: any thread ---- */

/* What the driver says of an address. */
struct cuda_facts {
	unsigned type;
	int ordinal;
	bool managed, legacy_ipc, pool;
	bool mapped;           /* by cuMemMap() */
	uint64_t start, bytes; /* of its allocation, or of its mapping */
	uint64_t handle_types;
	CUcontext context; /* NULL: by cuMemMap, which belongs to none */
};

/* The allocations that hold a region, side by side. */
struct cuda_range {
	uint64_t start, bytes;
	uint32_t parts;
};

enum cuda_rung { CUDA_RUNG_IPC, CUDA_RUNG_FD, CUDA_RUNG_FABRIC, CUDA_RUNG_STAGED, CUDA_RUNGS };

int cuda_facts_ask(const struct cuda_api *api, uint64_t address, struct cuda_facts *ret);
/* regions[i]: what its base is, the allocations that hold it, its rungs (1 << enum cuda_rung) and
 * why there are no more. -EINVAL: not a GPU's memory, or not all of it allocated. */
int cuda_probe(const struct cuda_api *api, const struct kvtier_region *region, size_t i,
	       struct cuda_facts *ret, struct cuda_range *ret_range, uint32_t *ret_rungs,
	       char why[200]);

/* ---- cuda_memory.c: the regions of one space. The space's lock ---- */

struct cuda_memory {
	struct cuda_device device;
	struct kvtier_region regions[KVTIER_MAX_REGIONS];
	struct cuda_range ranges[KVTIER_MAX_REGIONS];
	size_t n_regions;
	uint32_t rungs; /* 1 << enum cuda_rung of those not tried in vain */
	enum cuda_rung rung;
	/* why it is not a better one; "" */
	char why[200];
	CUstream stream; /* staged: the copies' */
	/* On this connection the daemon was told of so much of this region, and of all in several
	 * parts before it; telling: once the message that was made last is sent. */
	size_t told_region;
	uint64_t told, telling;
	bool told_any;
};

enum { CUDA_PARTS_A_MESSAGE = 64 };

/* A message, its parts behind it, and their descriptors: the caller's to close. */
struct cuda_parts {
	struct wire_parts message;
	struct wire_part parts[CUDA_PARTS_A_MESSAGE];
	int fds[CUDA_PARTS_A_MESSAGE];
	size_t n_fds;
};
static_assert(offsetof(struct cuda_parts, parts) == sizeof(struct wire_parts), "one message");

/* Asks the driver about each region. -EINVAL: not a GPU's memory, of several GPUs, or not all of
 * it allocated. shares_pids: the daemon is in this PID namespace. */
int cuda_memory_open(const struct kvtier_region *regions, size_t n, bool shares_pids,
		     struct cuda_memory **ret);
void cuda_memory_close(struct cuda_memory *memory); /* NULL is fine */
/* The rung was refused: the next one, with the reason. False: there is none. */
bool cuda_memory_next(struct cuda_memory *memory, const char *why);
/* Nothing was told yet. */
void cuda_memory_begin(struct cuda_memory *memory);
/* The next message for regions in several allocations, but its head: 1; 0: all is told; or -errno
 * and its sentence. cuda_memory_told(): it was sent. */
int cuda_memory_parts(struct cuda_memory *memory, struct cuda_parts *ret);
void cuda_memory_told(struct cuda_memory *memory);
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
	struct cuda_busy busy; /* control */
};

/* The client's for that GPU, made at its first use. Control held. 0, or -errno and its sentence. */
int cuda_order_of(struct kvtier_client *c, const struct cuda_device *device,
		  struct cuda_order **ret);
void cuda_orders_close(struct kvtier_client *c);
void cuda_orders_lost(struct kvtier_client *c); /* the connection ended. Control */
/* Sends what is due: 0: all is told and answered; -EAGAIN: not yet; else the connection is lost.
 * Control. */
int cuda_orders_advance(struct kvtier_client *c);
/* 1: the packet answers an ORDER; 0: it does not. error: of an ERROR. Control. */
int cuda_orders_reply(struct kvtier_client *c, uint32_t type, uint32_t seq, int error);

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
