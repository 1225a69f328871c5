/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h - the seam between the core and whatever moves bytes between engine pages and images.
 *
 * One const table per kind of device: `cpu` here, `cuda` in daemon/cuda. The core calls device_*()
 * in device.c, never a table directly: device_*() check range and state, count, and assert exactly
 * one completion. devices.h is the list of all devices.
 *
 * A mount belongs to one device, which is decided when its regions are imported. Its jobs go to
 * that device; a job that touches no page (DEVICE_VERIFY) goes to the CPU.
 *
 * Ownership: a job is embedded in its owner and lent from device_submit() until its `done` ran,
 * which happens on the core thread, from the loop, exactly once, never inside device_submit().
 * Region, layout and events must outlive every job that names them; device_forget() and
 * device_release() are called only with no such job in flight. Importing and releasing happen on
 * helper threads (helper.h), several at a time: both may take long.
 *
 * A device takes `depth` jobs of clients, and `own_depth` of the daemon itself (client == 0)
 * besides. A job more is refused with -EAGAIN and stays its owner's. When a job of a device that
 * has refused one ends, `room` is called.
 *
 * A device may gather submitted jobs until device_kick(), which the core calls once a turn of its
 * loop.
 *
 * A job is done in pieces of bounded work: CODEC_PIECE_BYTES of the page, fewer where its rows lie
 * far apart. Between two it ends if its client gave the page up, if device_cancel() was called, or
 * at its deadline; then no page is touched any more, a page that was being written is partly
 * written, and the image of an encode is void. Clients' jobs are done in turn, a quantum of pieces
 * each, so that one client's slow pages cost another at most a quantum a turn and worker.
 *
 * Pages that hold images (device_layout.image_stride) were encoded by their client, and it decodes
 * them: ENCODE and DECODE copy scales and payload then, in the codecs that the job asks for.
 *
 * An encode seals its image: the checksum in the header is of the bytes that it wrote. The image
 * that a device keeps in its own memory is unsealed (daemon/IMAGE.md, "Unsealed images").
 *
 * A job with an order (struct device_order) touches no page before the order is reached. While the
 * job waits it may be stopped, as between two pieces. An order that cannot be waited for ends the
 * job with -EIO.
 *
 * A device may lose all that it imported (a GPU whose context is gone). Its jobs end with -EIO
 * then, and `lost` is called: an owner of regions or events that are void must release them and
 * import them again. An import may be done and not be told of yet when `lost` is called: the code
 * that takes it in asks whether it is void (device_region_void(), device_events_void()).
 *
 * A device may be of use to a new process only (a GPU that gives this one no context any more).
 * `ending` is called then, once, and imports are -EBUSY: come back to the next daemon. Jobs may be
 * left that only the process's end ends.
 */
#ifndef KVTIER_DEVICE_H
#define KVTIER_DEVICE_H

#include <stdbool.h>

#include "client/wire.h"
#include "daemon/base/workers.h"
#include "kernels/kernels.h"

struct loop;
struct device;
struct device_run;

/* Where an image lies, which says which device can read it. */
enum image_memory {
	/* `image` is an address of the daemon; the CPU and each device can read it */
	IMAGE_OF_HOST,
	IMAGE_OF_DEVICE, /* `image` is an address in the memory of the job's device */
	IMAGE_MEMORIES,
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
struct region_part {
	uint64_t bytes; /* of its mapping */
	int fd;         /* the caller's; -1: it has a handle */
	uint8_t handle[WIRE_HANDLE_BYTES];
};

struct region_parts {
	enum wire_memory memory;
	uint64_t region_bytes; /* of all of the region */
	uint32_t n;
	struct region_part parts[WIRE_MAX_PARTS];
};

/* One piece of engine memory. */
struct device_region {
	struct device *device;
	uint8_t *base; /* cpu: where it is mapped; cuda: device pointer */
	uint64_t length;
	uint32_t generation; /* of the device when it was imported */
	void *own;           /* the device's */
	/* WIRE_DEVICE_ENGINE: the device made the memory, and this descriptor of it is for its
	 * client. It stays the device's */
	uint64_t made_bytes;
	int made_fd;
};

/* Where the pages of a mount lie. */
struct device_layout {
	/* its pieces' bases are the regions' bases: addresses of the device */
	struct page_layout pages;
	const struct device_region *regions; /* that the pages lie in */
	uint32_t n_regions;
	/* Engine mode: pages hold images, so many bytes apart, from the region's start on. A client
	 * may write them at any moment. 0: they hold planes, as `pages` says */
	uint64_t image_stride;
	void *prepared; /* the device's, from prepare to forget */
};

/* Events of a client, made by a stream of its own, that jobs can wait for. */
struct device_events {
	struct device *device;
	uint32_t n, generation;
	void *own; /* the device's */
};

/* Memory of a device's own that images may be kept in, zeroed when it comes. Generation 0: there is
 * none; another one than before: other memory, and its images are lost. */
struct device_memory {
	uint64_t base, bytes; /* device addresses; base is a multiple of IMAGE_ALIGN */
	uint32_t generation;
};

/* Where a device puts an image, too. The slot is the job's until it is done. */
struct device_keep {
	uint64_t address; /* in its own memory, a multiple of IMAGE_ALIGN; 0: nowhere */
	uint32_t generation;
	uint32_t bytes; /* of the slot */
	/* Zeroes first, in all of it. Of jobs of some layers, which come in any order, the one of
	 * the first layer zeroes what no layer is put over. */
	bool scrub;
};

/* The events that have to come before a page is touched: all that are set. */
struct device_order {
	const struct device_events *events; /* NULL if event is 0 */
	uint32_t event;                     /* one of them, from 1; 0: none */
	const uint64_t *ready; /* shared with the client: reached when it is `value` or more; NULL:
				* none */
	uint64_t value;        /* compared as a difference: wire.h */
	/* ENCODE, of a layered device: likewise; how far it is beyond given_value is how many of
	 * `groups` groups of layers are in the page. The others are not read yet; NULL: all are */
	const uint64_t *given;
	uint64_t given_value;
	uint32_t groups;
};

/* VERIFY: of an image that just came from a medium; no page is touched. COPY: bytes from one slot
 * to another; FETCH: from a device's own memory to the daemon's; no page and no header is looked
 * at. */
enum device_job_kind {
	DEVICE_ENCODE = 1,
	DEVICE_DECODE,
	DEVICE_VERIFY,
	DEVICE_COPY,
	DEVICE_FETCH,
};

/* FETCHes that a device with memory takes at once: they are the daemon's own. */
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
	/* DECODE: these layers alone, [first, end), and with the last layer all that follows the
	 * planes; end 0: all of the page */
	uint16_t first_layer, end_layer;
	const struct device_layout *layout; /* VERIFY: not used */
	struct device_order order;          /* ENCODE, DECODE; zeroed: nothing */
	/* VERIFY: the header must have it; NULL: not known, nor is identity.space_id */
	const struct image_geometry *geometry;
	uint64_t page;
	struct image_identity identity; /* ENCODE: written; else the header must carry it */
	enum image_memory image_memory;
	/* 4096-aligned slot, image_bytes long; the owner pins it. OF_DEVICE: DECODE, FETCH alone;
	 * unsealed and without a header: codec_k, codec_v and identity describe it; of this
	 * generation of memory, else -ESTALE */
	uint8_t *image;
	uint32_t image_bytes;
	uint32_t generation;
	/* ENCODE, DECODE of an image OF_HOST: a device that has memory keeps the image there, too,
	 * if it can: `kept` */
	struct device_keep keep;
	/* COPY: all of them, in this order. `image` is where the first goes. FETCH: one, to where
	 * the first of its bytes go; its `from` is the image */
	const struct device_copy *copies;
	uint32_t n_copies; /* > 0 */
	/* whose turn it takes: a process; 0: the daemon's own work. Stays until `done` */
	uint32_t client;
	uint64_t deadline_ns; /* CLOCK_MONOTONIC; 0: none. Then: -ETIMEDOUT */
	/* shared with the page's owner, or NULL: != 0 ends the job: -ECANCELED */
	const uint32_t *given_up;
	uint32_t cancelled; /* set by device_cancel(): -ECANCELED. The owner clears it */
	bool measure;       /* ENCODE: `error` is wished for; a device may not have it */
	/* out */
	/* 0; -ERANGE: encode as raw; -EBADMSG: image damaged (page untouched if verify was set or
	 * the header was bad); -ECANCELED, -ETIMEDOUT: stopped between pieces; -EFAULT: its client
	 * has not allocated all of the page; partly written; -EIO: the device failed, or its order
	 * cannot be waited for */
	int status;
	uint8_t out_codec_k, out_codec_v; /* of the image encoded or decoded */
	bool kept; /* scales and payload lie at keep.address, all of them; or of these layers */
	struct codec_error error; /* the owner zeroes it */
	/* private to device.c and the implementation */
	struct device *device;
	struct work work;
	struct device_job *next;
	union {
		struct device_run *run; /* its part that is done */
		void *own;              /* likewise, of another device */
	};
	uint8_t in_flight;
	void (*done)(struct device_job *job); /* set by the owner before submit */
};

struct device_conf {
	uint32_t workers;    /* cpu: threads; 0 = one per CPU this process may use */
	uint32_t depth;      /* jobs of clients in flight at most, > 0 */
	uint32_t own_depth;  /* the daemon's own, beside them */
	const char *kernels; /* NULL: best for this CPU */
};

/* A device for people. Texts are cut to fit. */
struct device_note {
	char name[64];          /* of the product; "" */
	const char *state;      /* one word */
	char why[200];          /* the device does not work, or is not as it should be; else "" */
	bool failed;            /* it was in use and does not work */
	bool mps;               /* kvtierd is a client of MPS there */
	uint32_t max_ctas;      /* thread blocks of its kernels at most; 0: it has none */
	uint32_t regions;       /* imported now */
	uint32_t lent_regions;  /* of these of clients in engine mode */
	uint64_t bytes;         /* of its memory, that kvtierd takes for itself */
	uint64_t image_bytes;   /* of these for images */
	uint64_t lent_bytes;    /* of these lent to clients in engine mode */
	bool images_refused;    /* it has none for images though it should: why */
	uint64_t context_bytes; /* that the driver takes for kvtierd; 0: none, or not known */
	uint64_t copied_out_bytes_total, copied_in_bytes_total; /* from and to its memory */
	uint64_t batches_total;                                 /* of such copies */
	uint64_t pinned_bytes; /* of the host tier, registered in its context */
	char pin_why[240];     /* not all of it is, though it shall be; "" */
	/* payload that the copy engine moved between slot and GPU by itself, and payload that
	 * workers copied once more */
	uint64_t direct_out_bytes_total, direct_in_bytes_total;
	uint64_t bounced_out_bytes_total, bounced_in_bytes_total;
	uint64_t lost_total; /* times that all that it imported was lost */
};

enum {
	DEVICE_NO_UNIT = 0xffffffff,
	/* thread blocks of a kernel that runs beside an engine's: several times a wire's speed */
	DEVICE_CTAS_SHARED = 8,
};

struct device_ops {
	const char *name;
	uint32_t images; /* 1 << enum image_memory of the places that its jobs may have */
	int (*open)(const struct device_conf *conf, struct loop *loop, struct device **ret);
	void (*close)(struct device *device); /* NULL is fine; no job in flight */
	/* -EPERM: seal missing; -EINVAL: range; text (>= 200 bytes) names the error. Helper
	 * threads. */
	int (*import)(struct device *device, const struct region_desc *desc,
		      struct device_region *ret, char *text, size_t text_bytes);
	void (*release)(struct device *device, struct device_region *region);
	/* Likewise, of a region that comes in several calls, from its first byte to its last: the
	 * first finds region->own NULL, and makes it. -errno: region->own is NULL, and nothing is
	 * left of the region; or it is as it was. NULL: the device has no such memory */
	int (*import_parts)(struct device *device, const struct region_parts *parts,
			    struct device_region *region, char *text, size_t text_bytes);
	/* Likewise, n > 0. NULL: no events of clients can be waited for */
	int (*import_events)(struct device *device, const uint8_t (*handles)[WIRE_HANDLE_BYTES],
			     uint32_t n, struct device_events *ret, char *text, size_t text_bytes);
	void (*release_events)(struct device *device, struct device_events *events);
	/* Before the first job with this layout, and after the last. They do not block: a device
	 * that has to talk to hardware queues it before the jobs, and its failure is the jobs'.
	 * NULL: nothing to prepare. 0 or -ENOMEM. */
	int (*prepare)(struct device *device, struct device_layout *layout);
	void (*forget)(struct device *device, struct device_layout *layout);
	/* -EAGAIN: no more now, only while jobs are in flight. Does not block. */
	int (*submit)(struct device *device, struct device_job *job);
	/* starts the jobs submitted since the last kick; NULL: submit does */
	void (*kick)(struct device *device);
	/* core thread, at any time; NULL: device_note() has nothing to ask */
	void (*note)(const struct device *device, struct device_note *ret);
};

struct device {
	const struct device_ops *ops;
	struct loop *loop;
	uint8_t uuid[WIRE_UUID_BYTES]; /* 0: the CPU */
	uint32_t unit;                 /* of the GPU tier: its number among the GPUs; or no GPU */
	int32_t numa_node;             /* nearest to its memory; -1: not known, or the CPU */
	uint8_t near;                  /* the unit of the host tier there (tier.h): main.c's */
	bool guarded;                  /* the kernel watches regions for holes (guard.h) */
	bool layered;                  /* it takes order.given */
	/* a job since the last one ended; one was submitted since the last kick */
	bool refused, unkicked;
	uint32_t depth, own_depth;
	uint32_t in_flight, own_in_flight; /* all; of these the daemon's own */
	uint64_t jobs_total, jobs_failed_total;
	/* it refused a job, and now one has ended. NULL: nobody waits */
	void (*room)(void *arg, struct device *device);
	void *room_arg;
	uint32_t generation; /* an import into an older one is void */
	/* there is a new generation, and why; from the loop. NULL: nobody wants to know */
	void (*lost)(void *arg, struct device *device, const char *why);
	void *lost_arg;
	/* only a new process can use it, and why; from the loop. NULL: nobody wants to know */
	void (*ending)(void *arg, struct device *device, const char *why);
	void *ending_arg;
	/* its memory for images came, or is gone; from the loop. NULL: nobody wants to know */
	void (*memory)(void *arg, struct device *device, const struct device_memory *memory);
	void *memory_arg;
};

/* -ENODEV: no such kind; else as its open(). */
int device_open(const char *name, const struct device_conf *conf, struct loop *loop,
		struct device **ret);
/* Likewise, of a kind that is not in the list of device.c. */
int device_open_kind(const struct device_ops *ops, const struct device_conf *conf,
		     struct loop *loop, struct device **ret);
void device_close(struct device *device);
int device_import(struct device *device, const struct region_desc *desc, struct device_region *ret,
		  char *text, size_t text_bytes);
/* -ENOTSUP: the device has no such memory */
int device_import_parts(struct device *device, const struct region_parts *parts,
			struct device_region *region, char *text, size_t text_bytes);
void device_release(struct device_region *region);
/* Its device has lost it. Core thread. */
bool device_region_void(const struct device_region *region);
bool device_events_void(const struct device_events *events);
/* -ENOTSUP: the device knows no events */
int device_import_events(struct device *device, const uint8_t (*handles)[WIRE_HANDLE_BYTES],
			 uint32_t n, struct device_events *ret, char *text, size_t text_bytes);
void device_release_events(struct device_events *events);
/* its pages and regions are set */
int device_prepare(struct device *device, struct device_layout *layout);
void device_forget(struct device *device, struct device_layout *layout);
int device_submit(struct device *device, struct device_job *job); /* 0, or -EAGAIN: full */
void device_kick(struct device *device);
void device_note(const struct device *device, struct device_note *ret);
/* Ends a job in flight between two of its pieces, if its last has not begun: done() runs as ever.
 * Not in flight: nothing. */
void device_cancel(struct device_job *job);
/* For implementations. On the core thread. */
void device_complete(struct device_job *job);
/* Any thread: whoever wants the job to end: its client, the core, the clock. -ECANCELED,
 * -ETIMEDOUT; 0: go on. now_ns 0: the clock is not looked at. */
int device_stopped(const struct device_job *job, uint64_t now_ns);

#endif
