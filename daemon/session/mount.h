/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.h - a space that a connection has open: its mapped regions, and where pages lie in them.
 * All regions are of one device, which does the jobs of the mount's ops and reads the layout while
 * such an op runs. A helper thread maps and unmaps regions. All else is for the core thread.
 *
 *  mount_import (helper) --> mount_open --> open --SPACE_CLOSE, connection dies--> closing
 *  closing --ops == 0--> mount_close --> mount_unmap (helper) --> free()
 */
#pragma once

#include <stdbool.h>

#include "daemon/device/device.h"
#include "daemon/table/space.h"
#include "kernels/image.h"
#include "proto.h"

struct tables;

struct mount {
	struct mount *next; /* conn.c: regions that wait to be unmapped */
	struct space *space;
	struct device *device; /* of its regions; the CPU, if there are none */
	uint32_t handle;       /* sqe.space */
	bool closing;
	uint32_t close_seq;           /* of the SPACE_CLOSE to answer */
	bool answer_late;             /* the answer waits until the regions are given back */
	uint32_t ops;                 /* requests that may touch its pages */
	bool asked;                   /* there was one (schedule.c) */
	uint32_t n_regions, n_allocs; /* n_allocs: of regions in several allocations */
	uint32_t memories; /* how its pages are reached: 1 << enum wire_memory of each region */
	bool prepared;     /* its device knows the layout */
	char gpu_staged[WIRE_WHY_BYTES]; /* why its pages on a GPU are staged, as its client says */
	uint64_t region_bytes;
	uint64_t pages; /* valid page indices are below */
	struct device_layout layout;
	struct device_region regions[WIRE_MAX_REGIONS];
};

/*
 * Ranges of a device's memory that ALLOCS bring, piece by piece, before the SPACE_OPEN that names
 * them (wire.h). A connection has at most one struct ranges. These functions are for helper
 * threads, since importing and releasing take long.
 *
 *	range: (none) --its first ALLOCS--> GROWS --its last byte is there--> WHOLE
 *	         ^                           |                                 |
 *	         |--- ranges_close(): a refusal, a SPACE_OPEN, the end ---------'
 *	         `--- mount_import(): it is a region's, of WHOLE only ---------'
 */
struct told_range {
	struct device_region region; /* own NULL: there is no such range */
	enum wire_memory memory;
	uint64_t bytes, at; /* of the whole; the bytes that are there */
	uint32_t n;
};

struct ranges {
	struct device *device; /* of all ranges */
	uint32_t n_ranges, n_allocs;
	uint64_t bytes; /* of the whole ranges */
	struct told_range ranges[WIRE_MAX_REGIONS];
};

/* Adds the message's allocations to *ranges, which is made if it is NULL. fds stay the caller's.
 * After -errno, with text, *ranges has the ranges from before, or fewer, and the caller closes
 * it. */
int ranges_add(const struct devices *devices, struct ranges **ranges, const struct proto_allocs *m,
	       const int *fds, char *text, size_t n);
void ranges_close(struct ranges *ranges); /* may be NULL */

/* Builds ret->pieces over mapped regions, in canonical order; layout_free() frees them. It has no
 * other effect. The pages with an index below *ret_pages lie inside their regions for every
 * segment; it is 0 if there are no segments. -EINVAL with text that names segment, field and limit:
 * an unknown kind or region, a layer that comes twice or is missing, strides that overflow,
 * misaligned values, counts that differ from the geometry's, or no room for a single page. */
int layout_build(const struct wire_segment *segments, uint32_t n, uint8_t *const *region_bases,
		 const uint64_t *region_lengths, uint32_t n_regions,
		 const struct image_geometry *geometry, struct page_layout *ret,
		 uint64_t *ret_pages, char *text, size_t text_bytes);
void layout_free(struct page_layout *layout);

/* Maps the regions. It runs on a helper thread, since fds are a client's; they stay the caller's.
 * It takes the ranges that the regions name out of `ranges`, which may be NULL. -errno with
 * text; -ENODEV: the regions are of no device of this daemon. */
int mount_import(const struct devices *devices, const struct proto_space_open *m, const int *fds,
		 struct ranges *ranges, struct mount **ret, char *text, size_t n);
/* Opens the space over its regions. After a failure, -errno with text, mount is as before. */
int mount_open(struct tables *tables, const char *tenant, const struct proto_space_open *m,
	       struct mount *mount, char *text, size_t n);
/* It has no ops. Its regions stay mapped. */
void mount_close(struct tables *tables, struct mount *mount);
bool mount_is_void(const struct mount *mount); /* its device has lost a region */
void mount_unmap(struct mount *mount);         /* after mount_close(), on a helper thread */
