/* SPDX-License-Identifier: Apache-2.0 */
/*
 * emu.h - the inside of the emulated CUDA driver, a libcuda.so.1 for tests.
 *
 *	call.c     enters and leaves a call: counts it, plants faults, finds the current context
 *	settings.c the settings in $KVTIER_EMU
 *	countdown.c the n-th call of all fails
 *	report.c   violations, notes, leaks: one line each in the log
 *	object.c   handles: contexts, streams, events, modules, functions, VMM handles
 *	emu_device.c  GPUs, their names in this process, attributes; cuInit()
 *	context.c  contexts, the stack of current ones of each thread
 *	memory.c   physical memory, the map of addresses
 *	alloc.c    device memory and managed memory
 *	emu_host.c  pinned and registered host memory
 *	pointer.c  queries of addresses
 *	hbm.c      how much memory is in use, by all processes
 *	stream.c   streams, and the operations queued in them
 *	copy.c     calls that queue copies
 *	capture.c  streams that capture graphs
 *	executor.c runs queued operations, late
 *	operation.c one operation: the memory that it touches, its pieces
 *	event.c    events, of one process and of several
 *	ipc.c      handles between processes
 *	vmm.c      virtual memory management
 *	module.c   modules, kernels
 *	binary.c   whether a driver of this version would load a binary
 *
 * Locks. `emu.lock` guards everything but the two below; each call holds it from CALL() to its
 * return, unless it sleeps. `emu.map_lock` is held for reading while an operation runs, without
 * emu.lock; a thread that changes the map holds emu.lock and then takes map_lock for writing. The
 * report has a lock of its own, a leaf.
 *
 * Mistakes. A program that breaks a rule gets a line in the log (a violation) and the error that a
 * driver would give or could give; with abort=1 the process dies at the guilty call.
 */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include "tests/gpu/emu/cuda_more.h"

enum {
	EMU_GPUS = 8,
	EMU_STACK = 16,        /* contexts pushed in a thread */
	EMU_FAULTS = 16,       /* planted by the settings */
	EMU_GRANULE = 2 << 20, /* of VMM allocations, and of addresses */
	EMU_MARKS = 256,       /* records of an event that are told apart */
};

/* The calls. A program finds them by cuGetProcAddress() alone: their names are hidden. */
#define PROTOTYPE(name, version, arguments) CUresult name arguments;
CUDA_CALLS(PROTOTYPE)
#undef PROTOTYPE

enum call_id {
#define CALL_ID(name, version, arguments) CALL_##name,
	CUDA_CALLS(CALL_ID)
#undef CALL_ID
		CALLS
};

/* --- settings.c --- */

struct fault {
	enum call_id call;
	uint64_t nth;    /* 1: the first call; 0: each */
	CUresult result; /* CUDA_SUCCESS: what fits the call */
	uint32_t slow_ms;
	bool sticky, held;
	uint64_t seen; /* calls of it that it looked at */
};

struct settings {
	uint64_t seed;
	uint32_t gpus;
	int nodes; /* of NUMA */
	uint32_t
		late; /* how much later than possible operations run: 0 not at all, 1 a little... */
	uint64_t hbm_bytes;
	uint64_t context_bytes;
	uint64_t pinned_bytes; /* that a process may have; 0: no limit */
	uint64_t zeroed_bytes; /* of an allocation that is to be zeros when it is freed; 0: none */
	int version, capability;
	bool ipc, fabric, peer, reuse, aborts, leaks, one_thread, null_stream, mps;
	bool trace, exclusive, heals, keeps;
	bool one_queue, waits;
	uint32_t halts; /* after so many kernels, less one; 0: not */
	uint16_t user;
	int faulty; /* faults are planted in the contexts of this GPU only; -1: everywhere */
	uint64_t stall_nth;
	uint32_t stall_ms;
	char log[256];
	struct fault faults[EMU_FAULTS];
	uint32_t n_faults;
};

void settings_read(struct settings *ret); /* a word that it does not know ends the process */

/* --- countdown.c --- */

struct context;
void countdown_set(uint64_t n, bool breaks);
/* This call is to fail; or its context, if it has one, has just been broken by it. */
bool countdown_takes(enum call_id id, struct context *ctx);

/* --- report.c --- */

void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
void leak(const char *format, ...) __attribute__((format(printf, 1, 2)));
void report_open(void);
/* With trace=1: a line about an operation. */
struct stream;
struct operation;
void trace(const char *what, const struct stream *stream, const struct operation *op);
/* The program read or wrote device memory by itself: a line in the log before it dies of it. */
void report_host_accesses(void);

/* --- object.c --- */

enum object_kind {
	OBJECT_CONTEXT = 1,
	OBJECT_STREAM,
	OBJECT_EVENT,
	OBJECT_MODULE,
	OBJECT_FUNCTION,
	OBJECT_MEMORY, /* a CUmemGenericAllocationHandle */
	OBJECT_GRAPH,
};

struct context;

/* The first member of each struct that a handle names. */
struct object {
	enum object_kind kind;
	uint64_t handle;
	struct context *ctx; /* NULL: of none */
};

/* A struct of so many bytes, zero but for its first member, whose handle was never given before.
 * NULL: no memory, or too many. */
void *object_new(enum object_kind kind, struct context *ctx, size_t bytes);
void object_remove(struct object *object); /* the handle goes */
void object_free(void *object);            /* and the struct */
/* NULL: no such object; a handle that once named one is a violation. */
struct object *object_find(enum object_kind kind, uint64_t handle, const char *who);
/* The objects of a context (NULL: of all), one after the other; *at begins as 0. */
struct object *object_next(const struct context *ctx, uint32_t *at);
const char *object_kind_name(enum object_kind kind);

/* --- emu_device.c --- */

struct device {
	uint32_t physical; /* which GPU of the machine */
	int ordinal;       /* its name in this process */
	CUuuid uuid;
	struct context *primary; /* NULL: not active */
	unsigned retains;
	/* executor.c */
	pthread_t thread;
	bool running; /* the thread is there */
	struct stream *streams;
	uint64_t random;
	uint64_t executed; /* operations */
	uint64_t kernels;  /* halts=N: since it was let go */
	bool halted;       /* and a note says so */
	uint64_t stalled_until_ns;
};

struct device *device_find(CUdevice device); /* NULL: no such ordinal */
struct device *device_of(uint32_t physical); /* NULL: not visible in this process */
void device_uuid(uint32_t physical, CUuuid *ret);
/* "GPU-8f2a..." as nvidia-smi prints it. */
void device_uuid_text(uint32_t physical, char *ret, size_t n);

/* --- context.c --- */

struct stream;

struct context {
	struct object object;
	struct device *gpu;
	bool primary;
	bool dead;    /* stays for ever: a thread may still have it on its stack */
	uint32_t row; /* in hbm.c */
	struct context *next_dead;
	CUresult sticky;       /* CUDA_SUCCESS: healthy */
	pid_t thread;          /* with one_thread=1: the thread that may use it */
	struct stream *legacy; /* the NULL stream; NULL until it is used */
};

struct context *context_current(void); /* of the calling thread; NULL: none */
/* All that this context has done and will do is void: every later call says so. */
void context_break(struct context *ctx, CUresult result, const char *why);
/* Until all that it has queued is done. */
CUresult context_settle(struct context *ctx);
void context_at_exit(void);

/* --- memory.c --- */

/* Memory of a GPU. A memfd: it lives as long as a process has it mapped, and its owner's death
 * takes it out of reach (/proc/PID/fd/N) of other processes. */
struct physical {
	int fd;         /* -1: of another process */
	uint64_t inode; /* tells it from all others of this machine */
	size_t bytes;
	uint8_t *alias; /* where the executor sees it */
	struct device *gpu;
	uint32_t handle_types; /* VMM: the kinds of handle that it may be exported as */
	unsigned refs;
	uint32_t row; /* in hbm.c */
};

enum range_kind {
	RANGE_ALLOC,      /* cuMemAlloc */
	RANGE_POOL,       /* cuMemAllocAsync */
	RANGE_IMPORT,     /* cuIpcOpenMemHandle */
	RANGE_VMM,        /* cuMemMap */
	RANGE_MANAGED,    /* cuMemAllocManaged */
	RANGE_PINNED,     /* cuMemHostAlloc */
	RANGE_REGISTERED, /* cuMemHostRegister */
};

/* A piece of the address space. Device memory lies where nothing is mapped (PROT_NONE). */
struct range {
	CUdeviceptr base;
	size_t bytes;
	enum range_kind kind;
	uint64_t id;
	uint8_t *alias;
	struct physical *memory; /* NULL: host memory, managed memory */
	struct context *ctx;
	struct device *gpu;   /* NULL: host memory */
	struct device *peer;  /* another GPU that may touch it */
	unsigned access;      /* CU_MEM_ACCESS_FLAGS_PROT_* */
	unsigned opens;       /* imports: how often opened */
	CUdeviceptr reserved; /* VMM: the reservation it lies in, and the reservation's length */
	size_t reserved_bytes;
	bool freed_late; /* cuMemFreeAsync is queued */
	bool own;        /* registered without PORTABLE: pinned in its context alone */
	bool stays;      /* registered with DEVICEMAP: that it is left is no leak */
};

struct physical *physical_make(struct device *gpu, size_t bytes, uint32_t handle_types);
/* `fd` stays the caller's. The inode is the handle's; another inode is another memory. */
struct physical *physical_open(struct device *gpu, int fd, size_t bytes, uint32_t handle_types);
void physical_release(struct physical *memory);
bool physical_map_at(const struct physical *memory, uint8_t *alias, size_t bytes);
uint8_t *alias_reserve(size_t bytes); /* NULL: no address space */
void alias_free(uint8_t *alias, size_t bytes);

CUdeviceptr address_take(size_t bytes, size_t alignment); /* 0: none left */
void address_give(CUdeviceptr base, size_t bytes);
bool address_of_device(uint64_t address); /* within the addresses of address_take() */

struct range *range_add(const struct range *range); /* a copy; NULL: no memory */
/* The same, of fresh memory that has one address here and on the GPU: sets base and alias. */
struct range *range_add_own(struct range *range);
/* The same, of a GPU's memory (NULL: there is none), which goes if there are no addresses. */
CUresult range_add_device(struct range *range, CUdeviceptr *ret);
void range_remove(struct range *range);      /* frees it */
struct range *range_at(CUdeviceptr address); /* the range that holds it; NULL: none */
struct range *range_overlapping(CUdeviceptr base, size_t bytes);
struct range *range_next(uint32_t *at);
bool range_is_host(const struct range *range);
/* How many bytes from there on an operation may touch, mappings that lie side by side included. */
size_t range_reach(const struct range *range, CUdeviceptr address);
bool host_is_mapped(const void *ptr, size_t bytes);
/* Calls that take memory away: a violation when operations are queued that name it. Waits for them,
 * and so may drop the lock. */
void range_settle(struct range *range, const char *who);
/* Takes it out of the map, and lets go of the memory behind it. */
void range_drop(struct range *range);

/* Where [address, address + bytes) lies here, for an operation of `gpu`; NULL: it may not touch it,
 * and text says why. With map_lock held. */
uint8_t *translate(const struct device *gpu, CUdeviceptr address, size_t bytes, bool write,
		   char *text, size_t n);

/* --- hbm.c --- */

void hbm_open(void);
bool hbm_take(uint32_t physical_gpu, uint64_t inode, uint64_t bytes, uint32_t *ret_row);
void hbm_give(uint32_t row);
uint64_t hbm_used(uint32_t physical_gpu);
uint64_t process_started(pid_t pid); /* 0: there is no such process */

/* --- event.c --- */

/* A record takes the next number when it is queued, and writes it to its mark when the stream gets
 * there. */
struct event {
	struct object object;
	_Atomic uint64_t recorded; /* the last number */
	_Atomic uint64_t done[EMU_MARKS];
	unsigned refs;     /* the handle, and operations that are queued */
	uint64_t captured; /* last recorded in this capture; 0: in none */
};

bool event_done(const struct event *event, uint64_t number);
void event_mark(struct event *event, uint64_t number);
void event_release(struct event *event);
void event_remove(struct event *event);                    /* its handle goes */
struct event *event_find(enum call_id id, CUevent handle); /* NULL: there is none */

/* --- stream.c, executor.c, operation.c --- */

enum operation_kind {
	OPERATION_COPY,
	OPERATION_FILL,
	OPERATION_KERNEL,
	OPERATION_RECORD,
	OPERATION_WAIT_EVENT,
	OPERATION_WRITE_WORD,
	OPERATION_WAIT_WORD,
	OPERATION_FREE,
};

struct function;

struct operation {
	struct operation *next;
	enum operation_kind kind;
	enum call_id call;
	uint64_t ticket; /* the order in which they were queued, over all streams */
	CUdeviceptr to, from;
	size_t width, height, to_pitch, from_pitch; /* a plain copy has height 1 */
	size_t at;      /* its finished part, in rows, or in bytes when there is one row */
	bool begun;     /* it had a turn */
	bool scribbled; /* the destination has been made void */
	void *staged;   /* copy of pageable memory, from which it copies */
	void *pageable; /* pageable memory, to which it copies: its caller waits */
	struct event *event;
	uint64_t number; /* of the record */
	uint64_t value;
	unsigned flags;
	struct function *function;
	unsigned grid[3], block[3], shared_bytes;
	unsigned char *params; /* copies, each at a multiple of 16 */
};

struct stream {
	struct object object;
	unsigned flags;
	int priority;
	bool destroyed;   /* goes when its last operation is done */
	bool busy;        /* the executor is at its first operation */
	uint64_t capture; /* stream_captures() knows whether it goes on */
	unsigned waiters; /* threads in cuStreamSynchronize(): nothing of it is late any more */
	uint64_t not_before_ns;
	uint64_t done; /* tickets up to this */
	struct operation *first, **last;
	struct stream *next; /* of the GPU */
};

enum step { STEP_DONE, STEP_MORE, STEP_BROKEN };

bool operation_uses(const struct operation *op, const struct range *range);
void operation_free(struct operation *op);
/* Its waits are over (events, words). With emu.lock held. */
bool operation_ready(const struct operation *op, const struct device *gpu);
/* Runs a piece of it. With map_lock held for reading, without emu.lock; text names the mistake. */
enum step operation_run(struct operation *op, struct device *gpu, uint64_t random, char *text,
			size_t n);

struct call;
/* CUDA_SUCCESS; else the caller returns this result. */
CUresult stream_find(const struct call *call, CUstream handle, struct stream **ret);
/* A copy of it (a height of 0 is 1), which holds its event and function. Takes `staged` and
 * `params`, also when it fails. */
CUresult stream_queue(struct stream *stream, const struct operation *like, uint64_t *ret_ticket);
/* Until its operations up to this ticket are done; drops the lock while it waits. */
CUresult stream_wait(struct stream *stream, uint64_t ticket);
void stream_free(struct stream *stream); /* drops queued operations */
void stream_pop(struct stream *stream);  /* its first operation is done */
void streams_void(struct context *ctx);  /* the context is broken: nothing of it runs any more */
/* Operations that name it and are not done; a broken context has none, though its executor may be
 * in the middle of one. */
unsigned streams_using(const struct range *range);
bool stream_idle(const struct stream *stream);
bool executor_start(struct device *gpu);
/* Until the executor is at none of its operations; the context is dead: it takes no other. */
void executor_rest(const struct context *ctx);
uint64_t lateness(struct device *gpu); /* when an operation that could run now is to run */
uint64_t now_ns(void);
void changed_wait(uint64_t until_ns); /* until something is queued or done, or so late */
void changed(void);                   /* tells them */
/* The result of a query of this handle while its stream or event is not done. */
CUresult not_ready(uint64_t handle);
uint64_t draw(uint64_t *state);

/* --- capture.c --- */

bool stream_captures(const struct stream *stream);
/* Of such a stream: the operation, which is freed, or a record of the event. */
CUresult capture_take(struct stream *stream, struct operation *op);
CUresult capture_record(struct stream *stream, struct event *event);
/* The stream waits for the event: true, and its result, when that is a capture's business. */
bool capture_join(const struct call *call, struct stream *stream, const struct event *event,
		  CUresult *ret);
/* Whether a call may ask or wait for them, and use the NULL stream; and whether this thread may
 * make the call at all. */
CUresult capture_asks_event(const struct call *call, const struct event *event);
CUresult capture_asks_stream(const struct call *call, const struct stream *stream);
CUresult capture_asks_null(const struct call *call);
CUresult capture_check(enum call_id id);

/* --- ipc.c --- */

/* The contents of the 64 bytes of a handle. */
struct ticket {
	uint32_t magic;
	uint32_t check; /* of the rest */
	int32_t pid;
	int32_t fd;
	uint64_t started; /* the process of that pid */
	uint64_t inode;
	uint64_t pid_namespace;
	uint64_t bytes;
	uint16_t gpu;
	uint16_t user;
	uint32_t handle_types;
	uint64_t unused;
};

enum ticket_kind { TICKET_MEMORY = 0x6d656d31, TICKET_FABRIC };

/* `ret` takes 64 bytes. */
void ticket_make(enum ticket_kind kind, uint32_t gpu, const struct physical *memory, void *ret);
/* An open descriptor, and the ticket; -errno: a driver would not open it (-EPERM: another user) */
int ticket_open(enum ticket_kind kind, const void *bytes, struct ticket *ret);
/* A driver's answer then. */
CUresult ticket_refused(int error);

/* --- vmm.c --- */

void vmm_at_exit(void);

/* --- binary.c --- */

/* What cuModuleLoadData() says of it. */
CUresult binary_check(const void *image);

/* --- module.c --- */

struct function {
	struct object object;
	uint64_t module;
	const void *kernel; /* a struct host_kernel */
	unsigned queued;
	unsigned refs;
};

void function_release(struct function *function);
void function_remove(struct function *function); /* its handle goes */
int function_run(const struct operation *op, struct device *gpu, uint64_t random, char *text,
		 size_t n);

/* --- call.c --- */

enum needs {
	NEEDS_NOTHING,
	NEEDS_INIT,
	NEEDS_CONTEXT,     /* a healthy one is current */
	NEEDS_ANY_CONTEXT, /* one is current, a broken one, too */
};

struct call {
	enum call_id id;
	struct context *ctx; /* current */
	bool locked;
	CUresult late; /* its error, once its work is done */
};

const char *call_name(enum call_id id);
CUresult call_enter(struct call *call, enum needs needs);
void call_leave(struct call *call);
bool may_go(void); /* $KVTIER_EMU_DIR/go is there, which a test makes and removes */
/* The result of a call that gives something back: see countdown.c. */
CUresult call_done(const struct call *call);

/* At the head of each call of the API. */
#define CALL(name, needs)                                                              \
	struct call call __attribute__((cleanup(call_leave))) = { .id = CALL_##name }; \
	const CUresult refused = call_enter(&call, needs);                             \
                                                                                       \
	if (refused)                                                                   \
	return refused

/* The same for calls on a stream, which is `s` behind it, on an event, which is `e`, and on a GPU,
 * which is `gpu`. */
#define CALL_ON_STREAM(name, stream)                             \
	CALL(name, NEEDS_CONTEXT);                               \
	struct stream *s;                                        \
	const CUresult unknown = stream_find(&call, stream, &s); \
                                                                 \
	if (unknown)                                             \
	return unknown
#define CALL_ON_EVENT(name, needs, event)                       \
	CALL(name, needs);                                      \
	struct event *const e = event_find(CALL_##name, event); \
                                                                \
	if (!e)                                                 \
	return CUDA_ERROR_INVALID_HANDLE
#define CALL_ON_DEVICE(name, device)                    \
	CALL(name, NEEDS_INIT);                         \
	struct device *const gpu = device_find(device); \
                                                        \
	if (!gpu)                                       \
	return CUDA_ERROR_INVALID_DEVICE

struct emu {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* an operation is queued or done */
	uint64_t changes;       /* how often */
	pthread_rwlock_t map_lock;
	struct settings settings;
	pid_t pid;           /* that called cuInit(); 0: none yet */
	uint64_t started;    /* when it was */
	const uint8_t *here; /* its page is zero in a fork of it */
	bool exiting;
	struct device gpus[EMU_GPUS];
	uint32_t n_gpus;
	uint64_t counts[CALLS];
	uint64_t tickets;
	uint64_t random;
};

extern struct emu emu;
