/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h - the seam between the core and whatever moves bytes between engine pages and images.
 *
 * One const table per kind of device: `cpu` here, `cuda` in daemon/cuda. The core calls device_*()
 * in device.c, never a table directly: device_*() check range and state, count, and assert exactly
 * one completion. struct devices is the list of all devices.
 *
 * A mount belongs to one device, which is decided when its regions are imported. Its jobs go to
 * that device; a job that touches no page (DEVICE_VERIFY) is the CPU's.
 *
 * Ownership: a job is embedded in its owner, and lent to the device from device_submit() until its
 * `done` has run. `done` runs once, on the core thread, from the loop, and never inside
 * device_submit(). Region, layout and events must outlive every job that names them;
 * device_forget() and device_release() are called only with no such job in flight. Helper threads
 * (workers.h) import and release, several at a time, since both may take long.
 *
 * A device takes `depth` jobs of clients, and besides `own_depth` jobs of the daemon itself (client
 * == 0). It refuses any further job with -EAGAIN, and that job stays its owner's. After a device
 * has refused a job, hooks.room() is called when the next of its jobs ends.
 *
 * A device may gather submitted jobs until device_kick(), which the core calls once per iteration
 * of its loop.
 *
 * A job is done in pieces of bounded work: CODEC_PIECE_BYTES of the page, fewer where its rows lie
 * far apart. Between two pieces the job ends if its client gave the page up, if device_cancel() was
 * called, or at its deadline. After that no page is touched any more: a page that was being written
 * is partly written, and the image of an encode is void. Clients' jobs are done in turn, a quantum
 * of pieces each, so that one client's slow pages delay another's job by one quantum a worker at
 * most.
 *
 * An encode seals its image: the checksum in the header is of the bytes that it wrote. The image
 * that a device keeps in its own memory is unsealed (daemon/IMAGE.md, "Unsealed images").
 *
 * A job with an order (struct device_order) touches no page before the order is reached. While the
 * job waits it may be stopped, as between two pieces. If the order cannot be waited for, the job
 * ends with -EIO.
 *
 * A device may lose all that it imported (a GPU whose context is gone). Its jobs then end with
 * -EIO, and hooks.lost() is called. The owner of regions or events that are void must release them
 * and import them again. At that moment an import may have ended whose owner was not told yet; the
 * code that takes its result asks whether it is void (device_region_void(), device_events_void()).
 *
 * There are failures after which only a new process can use a device (a GPU that gives this process
 * no context any more). Then hooks.ending() is called once, and imports return -EBUSY, so that
 * clients come back to the next daemon. Some jobs may end only with the process.
 */
#pragma once

#include <stdbool.h>

#include "client/abi/wire.h"
#include "base/workers.h"
#include "kernels/kernels.h"

struct loop;
struct device;
struct device_run;

/* Where an image lies, which says which device can read it. */
enum image_memory {
	/* `image` is an address of the daemon; the CPU and each device can read it */
	IMAGE_OF_HOST,
	IMAGE_OF_DEVICE, /* `image` is an address in the memory of the job's device */
};

/* A piece of engine memory as its client describes it. */
struct region_desc {
	enum wire_memory memory;
	int fd; /* the caller's; -1: a kind without one */
	uint64_t offset, length;
	uint8_t device[WIRE_UUID_BYTES];   /* the importing device's own */
	uint8_t handle[WIRE_HANDLE_BYTES]; /* of a kind without an fd */
};

/* Allocations of a region that has several: the next of them. */
struct region_alloc {
	uint64_t bytes; /* of its mapping */
	int fd;         /* the caller's; -1: it has a handle */
	uint8_t handle[WIRE_HANDLE_BYTES];
};

struct region_allocs {
	enum wire_memory memory;
	uint64_t region_bytes; /* of all of the region */
	uint32_t n;
	struct region_alloc allocs[WIRE_MAX_ALLOCS];
};

/* One piece of engine memory. */
struct device_region {
	struct device *device;
	uint8_t *base; /* cpu: where it is mapped; cuda: device pointer */
	uint64_t length;
	uint32_t generation; /* of the device when it was imported */
	void *own;           /* the device's */
};

/* Where the pages of a mount lie. */
struct device_layout {
	/* the pieces' bases are addresses of the device, in the regions below */
	struct page_layout pages;
	const struct device_region *regions; /* that the pages lie in */
	uint32_t n_regions;
	bool lossless;  /* images are lossless or raw */
	void *prepared; /* the device's, from prepare to forget */
};

/* A device's own memory for images, which is zeroed when it comes. Generation 0: there is none. A
 * generation that changes means other memory: the images before are lost. */
struct device_memory {
	uint64_t base, bytes; /* device addresses; base is a multiple of IMAGE_ALIGN */
	uint32_t generation;
};

/* A place in the device's memory where it keeps the job's image, too. The slot is the job's until
 * the job is done. */
struct device_keep {
	uint64_t address; /* in its own memory, a multiple of IMAGE_ALIGN; 0: nowhere */
	uint32_t generation;
	uint32_t bytes; /* of the slot */
	/* zero all of the slot first. Jobs of some layers come in any order, so the job of the
	 * first layer zeroes the bytes that no layer is put over */
	bool scrub;
};

/* What must happen before a page is touched. All members that are set must be reached. */
struct device_order {
	/* a word shared with the client, reached when it is `value` or more; NULL: none */
	const uint64_t *ready;
	uint64_t value; /* compared as a difference: wire.h */
	/* ENCODE on a layered device: another shared word. The page has as many of the `groups`
	 * groups of layers as the word is beyond given_value, and the other groups are not read
	 * yet. NULL: the page has all layers */
	const uint64_t *given;
	uint64_t given_value;
	uint32_t groups;
};

/* VERIFY checks an image that just came from a medium. COPY copies bytes from one slot to another.
 * FETCH copies an image from a device's own memory to the daemon's. These three touch no page, and
 * COPY and FETCH look at no header. */
enum device_job_kind {
	DEVICE_ENCODE = 1,
	DEVICE_DECODE,
	DEVICE_VERIFY,
	DEVICE_COPY,
	DEVICE_FETCH,
};

/* how many FETCHes, which are the daemon's own jobs, a device with memory takes at once */
enum { DEVICE_FETCHES = 4 };

struct device_copy {
	uint8_t *to;
	const uint8_t *from;
	uint32_t bytes;
};

struct device_job {
	enum device_job_kind kind;
	uint8_t codec_k, codec_v; /* ENCODE: as asked for */
	uint8_t verify;           /* DECODE: check the checksum first */
	/* DECODE: only layers [first, end), and with the last layer all that follows the planes;
	 * end 0: all of the page */
	uint16_t first_layer, end_layer;
	const struct device_layout *layout; /* VERIFY: not used */
	struct device_order order;          /* ENCODE, DECODE; zeroed: nothing */
	/* VERIFY: the geometry that the header must have; NULL: neither it nor identity.space_id is
	 * known */
	const struct image_geometry *geometry;
	uint64_t page;
	struct image_identity identity; /* ENCODE: written; else the header must carry it */
	enum image_memory image_memory;
	/* A 4096-aligned slot, image_bytes long, which the owner pins. An image OF_DEVICE is for
	 * DECODE and FETCH alone. It is unsealed and has no header: codec_k, codec_v and identity
	 * describe it. If the memory has another generation by now, the job ends with -ESTALE */
	uint8_t *image;
	uint32_t image_bytes;
	uint32_t generation;
	/* ENCODE, DECODE of an image OF_HOST: a device that has memory keeps the image there, too,
	 * if it can: `kept` */
	struct device_keep keep;
	/* COPY: does all of them in this order; the first one is written to `image`. FETCH: one
	 * copy, from the image to its `to` */
	const struct device_copy *copies;
	uint32_t n_copies; /* > 0 */
	/* for whom it is done: a process; 0: the daemon's own work. Stays until `done` */
	uint32_t client;
	uint64_t deadline_ns; /* CLOCK_MONOTONIC; 0: none. Then: -ETIMEDOUT */
	/* shared with the page's owner, or NULL: != 0 ends the job: -ECANCELED */
	const uint32_t *given_up;
	uint32_t cancelled; /* set by device_cancel(): -ECANCELED. The owner clears it */
	bool measure;       /* ENCODE: `error` is wished for; a device may not have it */
	/* out */
	/* 0. -ERANGE: the page must be encoded as raw. -EBADMSG: the image is damaged; the page is
	 * untouched if verify was set or the header was bad. -ECANCELED, -ETIMEDOUT: the job was
	 * stopped between two pieces. -EFAULT: the client has not allocated all of the page, which
	 * may be partly written. -EIO: the device failed, or the order cannot be waited for */
	int status;
	uint8_t out_codec_k, out_codec_v; /* of the image encoded or decoded */
	bool kept; /* all scales and payload, or those of the job's layers, lie at keep.address */
	struct codec_error error; /* the owner zeroes it */
	/* private to device.c and the implementation */
	struct device *device;
	struct work work;
	struct device_job *next;
	union {
		struct device_run *run; /* its part that is done */
		void *own;              /* the same of another device */
	};
	uint8_t in_flight;
	void (*done)(struct device_job *job); /* set by the owner before submit */
};

/* A device for people. Texts are cut to fit. */
struct device_note {
	char name[64];        /* of the product; "" */
	const char *state;    /* one word */
	char why[200];        /* why the device does not work, or not as it should; else "" */
	bool failed;          /* it was in use and does not work */
	bool mps;             /* kvtierd is a client of MPS there */
	uint32_t max_ctas;    /* thread blocks of its kernels at most; 0: it has none */
	uint32_t regions;     /* imported now */
	uint64_t bytes;       /* of its memory, that kvtierd takes for itself */
	uint64_t image_bytes; /* of these for images */
	/* it should have memory for images and has none; `why` says the reason */
	bool images_refused;
	uint64_t context_bytes; /* that the driver takes for kvtierd; 0: none, or not known */
	uint64_t copied_out_bytes_total, copied_in_bytes_total; /* from and to its memory */
	uint64_t batches_total;                                 /* of such copies */
	/* how long such copies, with the kernels of their lanes, were under way */
	uint64_t busy_out_us_total, busy_in_us_total;
	uint64_t pinned_bytes; /* of the host tier, registered in its context */
	char pin_why[240];     /* why not all of it is registered; else "" */
	/* direct: payload that the copy engine moved between slot and GPU; bounced: payload that
	 * workers copied once more */
	uint64_t direct_out_bytes_total, direct_in_bytes_total;
	uint64_t bounced_out_bytes_total, bounced_in_bytes_total;
	uint64_t lost_total; /* times that all that it imported was lost */
};

enum { DEVICE_NO_UNIT = 0xffffffff };

struct device_ops {
	const char *name;
	void (*close)(struct device *device); /* no job in flight */
	/* -EPERM: seal missing; -EINVAL: range; text (>= 200 bytes) names the error. Helper
	 * threads. */
	int (*import)(struct device *device, const struct region_desc *desc,
		      struct device_region *ret, char *text, size_t text_bytes);
	void (*release)(struct device *device, struct device_region *region);
	/* The same for a region that comes in several calls, from its first byte to its last. The
	 * first call finds region->own NULL and makes the region. After -errno the region is either
	 * as it was, or it is gone with all its allocations and region->own is NULL. NULL: the
	 * device has no such memory */
	int (*import_allocs)(struct device *device, const struct region_allocs *allocs,
			     struct device_region *region, char *text, size_t text_bytes);
	/* Called before the first job with this layout, and after the last. They do not block: a
	 * device that has to talk to hardware queues that before the jobs, and if it fails the jobs
	 * fail. NULL: nothing is to be prepared. 0 or -ENOMEM. */
	int (*prepare)(struct device *device, struct device_layout *layout);
	void (*forget)(struct device *device, struct device_layout *layout);
	/* 0, or -EAGAIN: the device takes no more now, which it may say only while it has jobs in
	 * flight. Does not block. */
	int (*submit)(struct device *device, struct device_job *job);
	/* starts the jobs submitted since the last kick; NULL: submit does */
	void (*kick)(struct device *device);
	/* core thread, at any time; NULL: device_note() does not ask */
	void (*note)(const struct device *device, struct device_note *ret);
};

/* What a device calls with news, on the core thread, from the loop; each may be NULL. */
struct device_hooks {
	/* The device refused a job, and now a job has ended. This runs inside a completion, so it
	 * may only note the news and submit later. */
	void (*room)(void *arg, struct device *device);
	/* The device has lost all imports and has a new generation; why. */
	void (*lost)(void *arg, struct device *device, const char *why);
	/* Only a new process can use the device; why. */
	void (*ending)(void *arg, struct device *device, const char *why);
	/* Its memory for images is there, or is gone. */
	void (*memory)(void *arg, struct device *device, const struct device_memory *memory);
	void *room_arg, *lost_arg, *ending_arg, *memory_arg;
};

struct device {
	const struct device_ops *ops;
	struct loop *loop;
	uint8_t uuid[WIRE_UUID_BYTES]; /* 0: the CPU */
	uint32_t unit;                 /* its number among the GPUs; or no GPU */
	int32_t numa_node;             /* nearest to its memory; -1: not known, or the CPU */
	uint8_t near;                  /* the unit of the host tier there (tier.h): main.c's */
	bool guarded;                  /* the kernel watches regions for holes (guard.h) */
	bool layered;                  /* it takes order.given */
	/* refused: a job was, since the last one ended; unkicked: one was submitted since the last
	 * kick */
	bool refused, unkicked;
	uint32_t depth, own_depth;
	uint32_t in_flight, own_in_flight; /* own: of these, the daemon's own */
	uint64_t jobs_total, jobs_failed_total;
	uint32_t generation;              /* imports of an older generation are void */
	const struct device_hooks *hooks; /* the hooks of its list; NULL: it is in no list */
};

void device_close(struct device *device);
int device_import(struct device *device, const struct region_desc *desc, struct device_region *ret,
		  char *text, size_t text_bytes);
/* -ENOTSUP: the device has no such memory */
int device_import_allocs(struct device *device, const struct region_allocs *allocs,
			 struct device_region *region, char *text, size_t text_bytes);
void device_release(struct device_region *region);
/* Whether its device has lost it. Core thread. */
bool device_region_void(const struct device_region *region);
/* its pages and regions are set */
int device_prepare(struct device *device, struct device_layout *layout);
void device_forget(struct device *device, struct device_layout *layout);
int device_submit(struct device *device, struct device_job *job); /* 0, or -EAGAIN: full */
void device_kick(struct device *device);
void device_note(const struct device *device, struct device_note *ret);
/* Ends a job in flight between two of its pieces, unless its last piece has begun; done() runs as
 * always. A job that is not in flight is left alone. */
void device_cancel(struct device_job *job);
/* For implementations. On the core thread. */
void device_complete(struct device_job *job);
/* Any thread. Whether the job must end: -ECANCELED if its client or the core wants that, -ETIMEDOUT
 * after its deadline, else 0. now_ns 0: the deadline is not looked at. */
int device_stopped(const struct device_job *job, uint64_t now_ns);

/* The devices of this daemon: the CPU first, then the GPUs. The list is made at start and does not
 * change later, so any thread may look a device up. All other functions are the core thread's. */
enum { DEVICES_MAX = 17 };

struct devices {
	struct device *all[DEVICES_MAX];
	uint32_t n;
	struct device_hooks hooks; /* of all of them */
	char gpu_note[256];        /* why there are no GPUs, or not all of them; "" */
	bool gpu_unused; /* there is a GPU that is not served, though no key switches it off */
};

/* the list owns the device from now on. 0 or -ENOSPC */
int devices_add(struct devices *devices, struct device *device);
/* closes each device, too; the list may be zeroed */
void devices_close(struct devices *devices);
struct device *devices_cpu(const struct devices *devices); /* the first */
/* By its number among them (device->unit). */
struct device *devices_gpu(const struct devices *devices, uint32_t unit);
/* NULL: not found */
struct device *devices_find(const struct devices *devices, const uint8_t uuid[WIRE_UUID_BYTES]);

/* once per iteration of the loop */
void devices_kick(struct devices *devices);

/* Sums over all of them. */
struct devices_sum {
	uint32_t depth, in_flight;
	uint64_t jobs_total;
};
struct devices_sum devices_sum(const struct devices *devices);
