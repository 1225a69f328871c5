/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proto.h - bytes from outside -> checked structs. Pure: private copies in, verdict and sentence
 * out; no state, no I/O. All that a client can say passes here or layout.c first. text (>= 200
 * bytes) names field and limit.
 */
#ifndef KVTIER_PROTO_H
#define KVTIER_PROTO_H

#include <stddef.h>
#include <stdint.h>

#include "client/wire.h"

/* A packet's head: magic, length = n, flags 0, a type that clients send, at least that type's
 * size. */
int proto_head(const void *packet, size_t n, struct wire_head *ret, char *text, size_t text_bytes);

/* -EPROTO: version ranges do not meet, or struct sizes differ. *ret_version: the highest common
 * one. Ring sizes in *ret are rounded down to powers of two within the limits given. */
int proto_hello(const void *packet, size_t n, uint32_t max_entries, uint32_t max_arena,
		struct wire_hello *ret, uint32_t *ret_version, char *text, size_t text_bytes);

struct proto_space_open {
	struct wire_geometry geometry; /* strings not yet looked at: space.c */
	uint32_t n_regions, n_segments;
	const struct wire_region *regions; /* in the packet */
	const struct wire_segment *segments;
	char not_engine[WIRE_WHY_BYTES];
	char gpu_staged[WIRE_WHY_BYTES];
};
int proto_space_open(const void *packet, size_t n, uint32_t n_fds, struct proto_space_open *ret,
		     char *text, size_t text_bytes);

struct proto_parts {
	uint8_t device[WIRE_UUID_BYTES];
	enum wire_memory memory;
	uint32_t range, n_parts;       /* n_parts 0: all ranges are given back */
	uint64_t range_bytes, at;      /* all of the parts lie in the range */
	const struct wire_part *parts; /* in the packet */
};
/* -EINVAL: refused, and the connection lives on. */
int proto_parts(const void *packet, size_t n, uint32_t n_fds, struct proto_parts *ret, char *text,
		size_t text_bytes);
int proto_space_close(const void *packet, size_t n, uint32_t *ret_space, char *text,
		      size_t text_bytes);

struct proto_order {
	uint8_t device[WIRE_UUID_BYTES];
	uint32_t n_events;
	const uint8_t (*handles)[WIRE_HANDLE_BYTES]; /* in the packet */
};
/* -EINVAL: refused, and the connection lives on. */
int proto_order(const void *packet, size_t n, uint32_t n_fds, struct proto_order *ret, char *text,
		size_t text_bytes);

/* A ring entry: op, flags, range in the arena, reserved fields. Not: whether the space is open, or
 * whether there are such events. */
int proto_sqe(const struct wire_sqe *sqe, uint32_t arena_blocks, char *text, size_t text_bytes);

#endif
