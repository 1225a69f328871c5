/* SPDX-License-Identifier: Apache-2.0 */
/* check.h - the arguments of callers: checked, as private full-size copies. */
#ifndef KVTIER_LIB_CHECK_H
#define KVTIER_LIB_CHECK_H

#include <stddef.h>
#include <stdint.h>

#include "client/kvtier.h"
#include "client/wire.h"

struct kvtier_client;

/* The arguments that a space was opened with, checked. The geometry's strings are the caller's: use
 * the wire's copies. */
struct space_layout {
	struct kvtier_geometry geometry;
	struct wire_geometry wire;
	uint32_t memory; /* enum kvtier_memory; 0: no regions */
	size_t n_regions, n_segments;
	struct kvtier_region regions[KVTIER_MAX_REGIONS];
	struct kvtier_segment segments[KVTIER_MAX_SEGMENTS];
};

int check_geometry(const struct kvtier_geometry *in, struct kvtier_geometry *ret,
		   struct wire_geometry *ret_wire);
/* regions[n], segments[n]: room for all; *ret_memory: the regions' enum kvtier_memory, 0: none. */
int check_layout(const struct kvtier_geometry *geometry, const struct kvtier_region *in_regions,
		 size_t n_regions, const struct kvtier_segment *in_segments, size_t n_segments,
		 struct kvtier_region *regions, struct kvtier_segment *segments,
		 uint32_t *ret_memory);
/* 0, or the error that a call returns at once: -EINVAL for NULL, -EPERM in a process that did not
 * make the client. */
int client_check(const struct kvtier_client *c);
int space_check(const struct kvtier_space *space);
uint32_t check_element_bytes(uint32_t dtype);
/* Puts other regions for the same segments into layout, as many and of the same kind. -EINVAL:
 * layout is as it was. */
int check_regions_again(struct space_layout *layout, const struct kvtier_region *in, size_t n);

#endif
