/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.h - the steps of a block that is loaded or prefetched (task.h), and layer groups. Core
 * thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "task.h"

struct device_job;
struct op;
struct task;

enum step load_lookup(struct task *task);
enum step load_bring(struct task *task);
enum step load_serve(struct task *task);
enum step load_check(struct task *task);
enum step load_keep(struct task *task);
enum step load_end(struct task *task);
/* Whether the op must wait because its next block would have to be brought, and too many parts wait
 * for such blocks already. So a disk or endpoint that stalls does not hold all parts, and blocks in
 * memory are still served. Or Redis is asked about enough other blocks of the op. begins: a row of
 * blocks does, for which there has to be room. */
bool load_must_wait(struct op *op, bool begins);

/* --- layer groups --- */

/* Which layer groups of a load are in the pages of all its blocks. Each op has this struct, zeroed
 * at its start. */
struct groups {
	uint32_t there; /* so many groups, from the first on, are in all pages */
	/* for each group, how many blocks have it in their pages. It is the op's row of a pool,
	 * since most ops have no groups and need not clear it. NULL: the op has no groups */
	uint32_t *landed;
};

/* The op starts. Returns how many blocks it has to begin, each once for each group of a load. */
uint32_t groups_start(struct op *op);
/* A block begins for a group: sets the layers that its job does. */
void groups_begin(const struct op *op, uint32_t group, struct device_job *job);
/* A block's group is in its page. */
void groups_landed(struct op *op, uint32_t group);
/* The error of the block in another group; else 0. */
int groups_status(const struct op *op, uint32_t at);
/* The op is about to complete. */
void groups_end(struct op *op);
