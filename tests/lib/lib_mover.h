/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lib_mover.h - a real host tier of 64 KiB slabs under a real table of blocks; each image carries
 * its number. Workers for an emptier (daemon/move/mover.h) whose jobs end when the test says so.
 */
#pragma once

#include "daemon/device/device.h"
#include "daemon/move/mover.h"
#include "fault.h"
#include "test.h"
#include "tiers/slabs.h"

enum { KIB = 1024, SLAB = 64 * KIB, BIG = 16 * KIB /* 4 a slab */, SMALL = 8 * KIB /* 8 a slab */ };
enum { WORLD_BLOCKS = 4096 /* at most */ };

/* The workers, and the size of their jobs. */
struct copier {
	struct device_job *jobs[EMPTIER_JOBS];
	uint32_t n;
	bool full; /* takes no job */
	uint64_t jobs_total, bytes_total;
	uint64_t most_bytes; /* of one job */
	uint32_t most_copies, most_jobs;
};

int copier_submit(void *copier, struct device_job *job);
/* One job ends, copied or with an error. */
void copier_end(struct copier *c, uint32_t which, int status);
/* All jobs end, and the jobs that follow from them. */
void copier_run(struct copier *c);

/* Of the test's only world; not in it, since a test copies its world. */
extern struct copier world_copier;
/* Of the next world; NULL: one tenant, without a share. */
extern struct quota *world_quota;
extern uint64_t world_moved_blocks, world_moved_bytes;

struct world {
	struct index *index;
	struct blocks *blocks;
	struct tier *host;
	struct mover mover;
	uint64_t tick;
};

struct world world_open(uint32_t slabs);
struct world world_open_of(uint32_t slabs, uint32_t slab_bytes);
void world_close(struct world *w);
void world_count_moves(struct world *w); /* into w->mover.counts, as they are now */
/* A slot for an image of space 0, of which nothing is guaranteed, nor to another. */
int world_try(struct world *w, uint32_t bytes, bool desperate, struct extent *ret);
/* As a desperate request does that waits while slabs are emptied. */
int world_make_room(struct world *w, uint32_t bytes, struct extent *ret);
/* As store.c does: commit, owner; and before it room and bytes. The block; its key is `name`'s. */
uint32_t world_commit(struct world *w, uint32_t space, uint32_t name, uint32_t parent,
		      const struct extent *where);
uint32_t world_store(struct world *w, uint32_t name, uint32_t bytes, uint32_t parent);
uint32_t world_find(const struct world *w, uint32_t name); /* BLOCK_NONE: it is gone */
void world_where(const struct world *w, uint32_t block, struct extent *ret);
/* Asserts that the image in host memory carries its number in its first `bytes`. */
void world_bytes_are(const struct world *w, uint32_t name, uint32_t bytes);
