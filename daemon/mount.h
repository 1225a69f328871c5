/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.h - a space that a connection has open: its regions, mapped, and where pages lie in them. Core thread
 * only; the layout is read by device workers while an op of it runs.
 *
 *	opening --mount_open--> open --SPACE_CLOSE--> closing --ops == 0--> mount_close
 *	                          `----connection dies-----------^
 */
#ifndef KVTIER_MOUNT_H
#define KVTIER_MOUNT_H

#include <stdbool.h>

#include "device.h"
#include "proto.h"
#include "space.h"

struct kvtierd;

struct mount {
	struct space *space;
	uint32_t handle;		/* sqe.space */
	bool closing;
	uint32_t close_seq;		/* of the SPACE_CLOSE to answer */
	uint32_t ops;			/* requests that may touch its pages */
	uint32_t n_regions;
	bool staged;
	uint64_t region_bytes;
	uint64_t pages;			/* valid page indices are below */
	struct page_layout layout;
	struct device_region regions[WIRE_MAX_REGIONS];
};

/* fds stay the caller's. -errno with text; nothing is left behind on failure. */
int  mount_open(struct kvtierd *d, const char *tenant, const struct proto_space_open *m, const int *fds,
		struct mount **ret, char *text, size_t n);
void mount_close(struct kvtierd *d, struct mount *mount);	/* ops == 0; NULL is fine */

#endif
