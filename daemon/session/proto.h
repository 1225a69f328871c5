/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proto.h - makes checked structs of bytes from outside. All that a client says passes here or
 * through mount.c first. The functions are pure: they read private copies, have no state and do no
 * I/O, and give a verdict with a sentence. text (>= 200 bytes) names field and limit.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/abi/wire.h"

/* Checks a packet's head: the magic, length = n, flags 0, a type that clients send, and at least
 * that type's size in the oldest version. */
int proto_head(const void *packet, size_t n, struct wire_head *ret, char *text, size_t text_bytes);

/* -EPROTONOSUPPORT: the version ranges do not meet. Looks at the versions alone, whose place is the
 * same in all versions. */
int proto_versions(const struct wire_hello *hello, char *text, size_t n);
/* -EPROTONOSUPPORT: the version ranges do not meet, or sizes of structs differ; -EPROTO.
 * *ret_version: the highest version of both. Ring sizes in *ret are rounded down to powers of two
 * within the limits given. */
int proto_hello(const void *packet, size_t n, uint32_t max_entries, uint32_t max_arena,
		struct wire_hello *ret, uint32_t *ret_version, char *text, size_t text_bytes);

struct proto_space_open {
	struct wire_geometry geometry; /* strings not yet looked at: space.c */
	uint32_t n_regions, n_segments;
	const struct wire_region *regions; /* in the packet */
	const struct wire_segment *segments;
	char gpu_staged[WIRE_WHY_BYTES];
};
int proto_space_open(const void *packet, size_t n, uint32_t n_fds, uint32_t version,
		     struct proto_space_open *ret, char *text, size_t text_bytes);

struct proto_allocs {
	uint8_t device[WIRE_UUID_BYTES];
	enum wire_memory memory;
	uint32_t range, n_allocs;        /* n_allocs 0: all ranges are given back */
	uint64_t range_bytes, at;        /* all of the allocations lie in the range */
	const struct wire_alloc *allocs; /* in the packet */
};
/* -EINVAL: refused, and the connection lives on. */
int proto_allocs(const void *packet, size_t n, uint32_t n_fds, struct proto_allocs *ret, char *text,
		 size_t text_bytes);
int proto_space_close(const void *packet, size_t n, uint32_t *ret_space, char *text,
		      size_t text_bytes);

/* -EINVAL, -EOPNOTSUPP: refused, and the connection lives on. */
int proto_order(const void *packet, size_t n, uint32_t n_fds, uint8_t ret_device[WIRE_UUID_BYTES],
		char *text, size_t text_bytes);

/* Checks a ring entry: op, flags, range in the arena, reserved fields. The caller checks whether
 * the space is open and its device has words. */
int proto_sqe(const struct wire_sqe *sqe, uint32_t arena_blocks, char *text, size_t text_bytes);
