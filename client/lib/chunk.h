/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk.h - blocks of an op on the wire. Ring lock held.
 */
#ifndef KVTIER_LIB_CHUNK_H
#define KVTIER_LIB_CHUNK_H

#include <stdbool.h>
#include <stdint.h>

#include "client/kvtier.h"

struct kvtier_client;
struct op;

/* Puts n blocks of an op on the wire. pages NULL: page, page + 1, ... -EAGAIN: no room;
 * -EPROTO. */
int chunk_push(struct kvtier_client *c, struct op *op, const struct kvtier_key *keys,
	       const struct kvtier_key *parent, const uint32_t *pages, uint32_t page, uint32_t n);
/* The next chunk of a staged op that has none on the wire, or its end. -EAGAIN, -EPROTO. */
int chunk_staged(struct kvtier_client *c, struct op *op, uint64_t now);
/* staged: a store whose layer groups have to be given first */
bool chunk_needs_groups(const struct op *op);
/* A chunk's statuses are in op->blocks. Its pages are brought where they belong, and it ends; in
 * engine mode not before kernels have done that: chunk_staged() looks. */
void chunk_done(struct kvtier_client *c, struct op *op);

#endif
