/* SPDX-License-Identifier: Apache-2.0 */
/*
 * groups.h - the layer groups of a load: which of them are in the pages of all blocks. Core thread
 * only. See groups.c.
 */
#ifndef KVTIER_GROUPS_H
#define KVTIER_GROUPS_H

#include <stdbool.h>
#include <stdint.h>

#include "client/wire.h"

struct device_job;
struct op;

/* Of an op; zeroed at its start. */
struct groups {
	uint32_t there; /* the first so many are in all pages */
	/* of each group, the blocks whose pages have it: the op's row in its pool, since most ops
	 * have no groups and need not clear any. NULL: it has none */
	uint32_t *landed;
};

/* The op starts. Returns how many blocks it has to begin, each once for each group of a load. */
uint32_t groups_start(struct op *op);
/* A block begins for a group: which layers its job does. */
void groups_begin(const struct op *op, uint32_t group, struct device_job *job);
/* A block's group is in its page. */
void groups_landed(struct op *op, uint32_t group);
/* The error of the block in another group; else 0. */
int groups_status(const struct op *op, uint32_t at);
/* The op is about to complete. */
void groups_end(struct op *op);
bool groups_are_last(const struct op *op, uint32_t group); /* or the op has none */

#endif
