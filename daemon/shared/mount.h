/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.h - a space that a connection has open: its regions, mapped, and where pages lie in them.
 * All regions are of one device, which does the jobs of the mount's ops. Its layout is read by that
 * device while an op of it runs; a helper thread maps and unmaps, all else is the core thread's.
 *
 *  mount_import (helper) --> mount_open --> open --SPACE_CLOSE, connection dies--> closing
 *  closing --ops == 0--> mount_close --> mount_unmap (helper) --> free()
 */
#ifndef KVTIER_MOUNT_H
#define KVTIER_MOUNT_H

#include <stdbool.h>

#include "daemon/device/devices.h"
#include "parts.h"
#include "proto.h"
#include "daemon/store/space.h"

struct store;

struct mount {
	struct mount *next; /* conn.c: regions that wait to be unmapped */
	struct space *space;
	struct device *device; /* its regions'; the CPU where there are none */
	uint32_t handle;       /* sqe.space */
	bool closing;
	uint32_t close_seq;          /* of the SPACE_CLOSE to answer */
	bool answer_late;            /* it is answered when the regions are given back */
	uint32_t ops;                /* requests that may touch its pages */
	bool asked;                  /* there was one (share.c) */
	uint32_t n_regions, n_parts; /* n_parts: of regions in several allocations */
	uint32_t memories; /* how its pages are reached: 1 << enum wire_memory of its regions */
	bool prepared;     /* its device knows the layout */
	char not_engine[WIRE_WHY_BYTES]; /* why it is not in engine mode, as its client says */
	char gpu_staged[WIRE_WHY_BYTES]; /* likewise: why its pages on a GPU are staged */
	uint64_t region_bytes;
	uint64_t pages; /* valid page indices are below */
	struct device_layout layout;
	struct device_region regions[WIRE_MAX_REGIONS];
};

/* Maps the regions. On a helper thread: fds are a client's, and stay the caller's. Takes the parts
 * that the regions name (NULL: there are none). -errno with text; -ENODEV: no device of this daemon
 * is the regions'. */
int mount_import(const struct devices *devices, const struct proto_space_open *m, const int *fds,
		 struct parts *parts, struct mount **ret, char *text, size_t n);
/* Opens the space over them. On failure, -errno with text, mount is as before. */
int mount_open(struct store *store, const char *tenant, const struct proto_space_open *m,
	       struct mount *mount, char *text, size_t n);
/* ops == 0; its regions stay mapped */
void mount_close(struct store *store, struct mount *mount);
bool mount_is_void(const struct mount *mount); /* its device has lost a region */
void mount_unmap(struct mount *mount);         /* after that; on a helper thread */

#endif
