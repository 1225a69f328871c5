/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parts.h - ranges of a device's memory that PARTS bring, piece by piece, before the SPACE_OPEN
 * that names them (wire.h). A connection has at most one struct parts; its holder may call, on a
 * helper thread: importing and releasing take long.
 *
 *	range: (none) --its first PARTS--> GROWS --its last byte is there--> WHOLE
 *	         ^                           |                                 |
 *	         |--- parts_close(): a refusal, a SPACE_OPEN, the end ---------'
 *	         `--- parts_take(): it is a region's, of WHOLE only -----------'
 */
#ifndef KVTIER_PARTS_H
#define KVTIER_PARTS_H

#include "daemon/device/devices.h"
#include "proto.h"

struct parts_range {
	struct device_region region; /* own NULL: there is no such range */
	enum wire_memory memory;
	uint64_t bytes, at; /* of the whole; the bytes that are there */
	uint32_t n;
};

struct parts {
	struct device *device; /* of all ranges */
	uint32_t n_ranges, n_parts;
	uint64_t bytes; /* of the whole ranges */
	struct parts_range ranges[WIRE_MAX_REGIONS];
};

/* Adds them to *parts, which is made if it is NULL. fds stay the caller's. 0, or -errno with text:
 * *parts has the ranges from before, or fewer; close it. */
int parts_add(const struct devices *devices, struct parts **parts, const struct proto_parts *m,
	      const int *fds, char *text, size_t n);
/* The range of that number, of which `offset` and `length` are wanted, is the caller's from now on.
 * parts NULL: there is none. -EINVAL with text. *ret_n: its parts */
int parts_take(struct parts *parts, uint32_t range, struct region_desc *desc,
	       struct device_region *ret, uint32_t *ret_n, char *text, size_t n);
void parts_close(struct parts *parts); /* NULL is fine */

#endif
