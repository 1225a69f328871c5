/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lent.h - the pages that a daemon may still touch although their ops have ended. They belong to
 * the process and not to a client. Any thread may call. The lock is a leaf below the locks of
 * clients.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/kvtier.h"
#include "client/abi/wire.h"

enum { LENT_ORPHANS_MAX = 64 }; /* a process with so many orphans makes no connection */
extern _Atomic uint32_t lent_orphans;

/* Where a region lies. A memfd is known by device and inode, a GPU's memory by its address, which
 * is in a space that all GPUs share. All 0: its memory was taken back. */
struct lent_place {
	uint64_t device, inode, offset, length;
};
enum { LENT_CUDA = 1 }; /* device and inode of a GPU's memory: no memfd has these */
int lent_place_of(int fd, const struct kvtier_region *region, struct lent_place *ret); /* -errno */

/* The memory that a space's pages lie in, and where they lie there. NULL: the pages are staged, or
 * the space has none. */
struct lent_layout;
int lent_layout_open(const struct lent_place *places, size_t n_places,
		     const struct wire_segment *segments, size_t n_segments,
		     struct lent_layout **ret);
void lent_layout_close(struct lent_layout *layout); /* the space is gone; may be NULL */

struct orphan; /* the lent pages of a connection; made when the connection comes up */
/* Makes one with room for so many pages. If it returns 0, it has taken pidfd (-1: not known). */
int orphan_open(uint32_t room, int pidfd, struct orphan **ret);
/* Frees it, which may be NULL, as the connection ended without lending pages. */
void orphan_close(struct orphan *orphan);
/* Adds the pages of an op. */
void orphan_add(struct orphan *orphan, struct lent_layout *layout, uint64_t op,
		const uint32_t *pages, uint32_t n);
/* Takes the orphan and the socket, and returns a number for lent_op(); 0: no page is lent, and both
 * are closed. */
uint64_t orphan_keep(struct orphan *orphan, int fd);

/* Forgets orphans whose pages were given back. */
void lent_look(void);
/* Whether a call may use these pages: 0, or -EBUSY with its sentence. */
int lent_check(const struct lent_layout *layout, const uint32_t *pages, size_t n);
/* How many pages of an op are still lent; of a space. */
uint32_t lent_op(uint64_t orphan, uint64_t op);
uint32_t lent_space(const struct lent_layout *layout);
/* The lent pages and the connections that this process waits for. pid: the daemon of the latest of
 * these connections; 0: not known. */
struct lent_wait {
	uint64_t pages;
	uint32_t connections;
	int32_t pid;
};
void lent_wait(struct lent_wait *ret);
/* Writes which page it is, and where its memory is. */
void lent_fill(const struct lent_layout *layout, uint32_t page, struct kvtier_lent *ret);
/* Calls put() with each lent page, numbered from `at` on. Returns the number after the last. */
size_t lent_list(size_t at, void (*put)(void *arg, size_t at, const struct kvtier_lent *lent),
		 void *arg);
/* Whether an open space of this process uses this memory. */
bool lent_memory_open(uint64_t device, uint64_t inode);
/* This memory was taken back, so no page in it is lent. */
void lent_forget(uint64_t device, uint64_t inode);
/* Around fork(): the parent locks before it and unlocks after it. The child forgets all orphans,
 * and unlocks. */
void lent_lock(void);
void lent_unlock(void);
void lent_child(void);
