/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h - the seam between the core and whatever moves bytes between engine pages and images.
 *
 * One const table per kind of device (`cpu` today; `cuda`, with streams and events, is a second table and
 * changes nothing in request.c). The core calls device_*() in device.c, never a table directly: those
 * check range and state, count, and assert exactly one completion.
 *
 * Ownership: a job is embedded in its owner and lent from device_submit() until its `done` ran, which
 * happens on the core thread, from the loop, exactly once, never inside device_submit(). Region and layout
 * must outlive every job that names them; device_release() is called only with none of those in flight. Importing
 * and releasing happen on helper threads (helper.h), several at a time: both may take long.
 *
 * A job is done in pieces of bounded work: CODEC_PIECE_BYTES of the page, fewer where its rows lie far apart.
 * Between two it ends if its client gave the page up, if device_cancel() was called, or at its deadline; then
 * no page is touched any more, a page that was being written is partly written, and the image of an encode is
 * void. Clients' jobs are done in turn, a quantum of pieces each, so that one client's slow pages cost another
 * at most a quantum a turn and worker.
 */
#ifndef KVTIER_DEVICE_H
#define KVTIER_DEVICE_H

#include <stdbool.h>

#include "kernels/kernels.h"

struct loop;
struct device;
struct device_run;

/* VERIFY: of an image that just came from a medium; no page is touched. */
enum device_job_kind { DEVICE_ENCODE = 1, DEVICE_DECODE, DEVICE_VERIFY };

struct device_job {
	enum device_job_kind kind;
	uint8_t codec_k, codec_v;		/* ENCODE: as asked for */
	uint8_t verify;				/* DECODE: check the checksum first */
	const struct page_layout *layout;	/* VERIFY: not used */
	const struct image_geometry *geometry;	/* VERIFY: the header must have it; NULL: not known, nor is identity.space_id */
	uint64_t page;
	struct image_identity identity;		/* ENCODE: written; else the header must carry it */
	uint8_t *image;				/* 4096-aligned slot, image_bytes long; the owner pins it */
	uint32_t image_bytes;
	uint32_t client;	/* whose turn it takes; 0: the daemon's own work */
	uint64_t deadline_ns;	/* CLOCK_MONOTONIC; 0: none. Then: -ETIMEDOUT */
	const uint32_t *given_up;	/* shared with the page's owner, or NULL: != 0 ends the job: -ECANCELED */
	uint32_t cancelled;	/* set by device_cancel(): -ECANCELED. The owner clears it */
	/* out */
	int status;	/* 0; -ERANGE: encode as raw; -EBADMSG: image damaged (page untouched if verify was set
			 * or the header was bad); -ECANCELED, -ETIMEDOUT: stopped between pieces;
			 * -EFAULT: its client has not allocated all of the page; partly written */
	uint8_t out_codec_k, out_codec_v;	/* of the image encoded or decoded */
	/* private to device.c and the implementation */
	struct device *device;
	struct device_job *next;
	struct device_run *run;	/* what is done of it */
	uint8_t in_flight;
	void (*done)(struct device_job *job);	/* set by the owner before submit */
};

/* One piece of engine memory. */
struct device_region {
	struct device *device;
	uint8_t *base;		/* cpu: where it is mapped; cuda: device pointer */
	uint64_t length;
};

struct device_conf {
	uint32_t workers;	/* cpu: threads; 0 = one per CPU this process may use */
	uint32_t depth;		/* jobs in flight at most */
	const char *kernels;	/* NULL: best for this CPU */
};

struct device_ops {
	const char *name;
	int  (*open)(const struct device_conf *conf, struct loop *loop, struct device **ret);
	void (*close)(struct device *device);	/* NULL is fine; no job in flight */
	/* fd stays the caller's. -EPERM: seal missing; -EINVAL: range; text (>= 200 bytes) says what is wrong. */
	int  (*import)(struct device *device, int fd, uint64_t offset, uint64_t length,
		       struct device_region *ret, char *text, size_t text_bytes);
	void (*release)(struct device *device, struct device_region *region);
	int  (*submit)(struct device *device, struct device_job *job);	/* -EAGAIN: depth reached */
};

struct device {
	const struct device_ops *ops;
	struct loop *loop;
	bool guarded;			/* the kernel watches regions for holes (guard.h) */
	uint32_t in_flight;
	uint64_t jobs_total, jobs_failed_total;
};

extern const struct device_ops device_cpu_ops;

int  device_open(const char *name, const struct device_conf *conf, struct loop *loop, struct device **ret);
void device_close(struct device *device);
int  device_import(struct device *device, int fd, uint64_t offset, uint64_t length, struct device_region *ret,
		   char *text, size_t text_bytes);
void device_release(struct device_region *region);
int  device_submit(struct device *device, struct device_job *job);
/* Ends a job in flight between two of its pieces, if its last has not begun: done() runs as ever. Not in flight:
 * nothing. */
void device_cancel(struct device_job *job);
void device_complete(struct device_job *job);	/* for implementations: on the core thread */

#endif
